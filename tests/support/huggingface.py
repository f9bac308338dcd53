"""Running `huggingface` backends, and transformers models made without them."""

from support.batches import prompts, recipe
from transformers import LlamaConfig, LlamaForCausalLM

from reference_impl.conformance.table_model import SHAPE, Digits, weights_for
from reference_impl.generation.huggingface import HuggingFaceGeneration
from reference_impl.generation.interfaces import Progress
from reference_impl.generation.registry import create_backend


def llama(shape, weights) -> LlamaForCausalLM:
    """A transformers model made without the code under test."""
    model = LlamaForCausalLM(LlamaConfig(**shape.to_hf_config()))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if shape.tie_word_embeddings else [], [])
    return model.eval()


def on_table(table, **settings) -> HuggingFaceGeneration:
    """A running backend over a table, without stop ids, for sequences of 8 tokens at most and 4 new ones."""
    model = llama(SHAPE, weights_for(table))
    settings = {"length": 8, "max_new_tokens": 4, "stop_token_ids": []} | settings
    backend = HuggingFaceGeneration(recipe(**settings), model=model, shape=SHAPE, tokenizer=Digits())
    backend.prepare_for_generation()
    return backend


def on_tiny(**settings) -> HuggingFaceGeneration:
    """A running backend over `tiny`, without stop ids."""
    backend = create_backend(recipe(backend="huggingface", **({"stop_token_ids": [], "length": 128} | settings)))
    backend.prepare_for_generation()
    return backend


def finish(backend, *rows, at, greedy=True):
    """Stream a batch; `at[n]` is called between two steps, once `n` tokens are sampled. One-row outputs by index."""
    at, ended = dict(at), {}
    for event in backend.stream(prompts(*rows), greedy):
        if not isinstance(event, Progress):
            ended[event[0]] = event[1]
        elif event.sampled_tokens in at:
            at.pop(event.sampled_tokens)()
    assert not at, "each of the calls was made"
    return [ended[index] for index in range(len(rows))]

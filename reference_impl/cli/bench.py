"""`genref bench`: decode speed of the Megatron backend beside transformers, in one run."""

import json
from typing import Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.config.errors import ConfigError


def bench(
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value.")] = None,
    model: Annotated[str, typer.Option(help="smollm2, or a model folder; transformers must read it too.")] = "smollm2",
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds, each ours then the peer's.")] = 3,
) -> None:
    """Compare decode speed with `transformers.generate`: 64 tokens in, 36 out, greedy, turn by turn."""
    quiet_upstream()
    import torch

    from reference_impl.bench.decode import NEW_TOKENS, PROMPT_TOKENS, compare
    from reference_impl.config.loader import load_recipe
    from reference_impl.generation.registry import create_backend
    from reference_impl.models.catalog import find_model

    batches = batch or [1, 8, 32]
    mcore = {"buffer_size_gb": 1, "block_size_tokens": 16, "max_requests": max(batches), "max_tokens": 16384}
    settings: dict[str, object] = {f"generation.mcore_generation_config.{key}": value for key, value in mcore.items()}
    settings |= {"model_name": model, "max_total_sequence_length": PROMPT_TOKENS + NEW_TOKENS}
    settings |= {"generation.max_new_tokens": NEW_TOKENS, "generation.stop_token_ids": []}
    given = [f"policy.{key}={json.dumps(value)}" for key, value in settings.items()]
    recipe = load_recipe(None, [*given, *(overrides or [])])
    checkpoint = find_model(recipe.policy.model_name)
    if checkpoint.folder is None:
        raise ConfigError(
            f"--model {model}: transformers needs a model folder to compare with, and this model has none"
        )
    from transformers import AutoModelForCausalLM

    with create_backend(recipe) as backend:
        weight = next(backend.model.parameters())
        peer = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=weight.dtype).to(weight.device).eval()
        print(f"{model}, {weight.dtype} on {weight.device}, {torch.get_num_threads()} threads, {rounds} rounds each")
        for result in compare(backend, peer, checkpoint.shape.vocab_size, batches, rounds):
            print(result.line(), flush=True)

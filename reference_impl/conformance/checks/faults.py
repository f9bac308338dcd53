"""Faults: what is wrong with a request, a batch or a checkpoint is said in one line, and everything else goes on."""

from functools import partial
from typing import Any

import torch

from reference_impl.conformance.batches import PROMPT, finish, greedy, prompts, responses
from reference_impl.conformance.checks.company import pairs
from reference_impl.conformance.expect import equal, hold, raises, says
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import VOCABULARY, chain
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationError

TABLE = chain(1, 5, 6, 7, 8)


def fails_alone(lab: Lab, prompt: list[int], *words: str, **settings: Any) -> None:
    """This prompt fails, with these words; rows before and after it, and a later batch, do not notice."""
    backend = lab.backend(TABLE, **({"max_new_tokens": 3, "length": 8} | settings))
    output = backend.generate(prompts([1], prompt, [6]), greedy=True)
    equal(responses(output), [[5, 6, 7], [], [7, 8, 8]], "responses")
    equal([output["errors"][0], output["errors"][2]], [None, None], "errors of the rows beside it")
    says(output["errors"][1], "the error of the row", *words)
    equal(greedy(backend, [5]), [[6, 7, 8]], "a response after it")


@check()
def empty_prompt(lab: Lab) -> None:
    """An empty prompt is that request's error, and the engine lives."""
    fails_alone(lab, [], "empty")


@check()
def prompt_too_long(lab: Lab) -> None:
    """A prompt of 9 in a context of 8 fails alone, with both numbers."""
    fails_alone(lab, [1] * 9, "9", "max_model_len: 8")


@check()
def token_outside_the_vocabulary(lab: Lab) -> None:
    """A token that the model does not have fails alone, named with its place, and reads no other row's memory."""
    fails_alone(lab, [1, VOCABULARY], f"token {VOCABULARY} at position 1")
    fails_alone(lab, [1, 1, -1], "token -1 at position 2")


@check()
def prompt_larger_than_a_step(lab: Lab) -> None:
    """Without chunked prefill a prompt of 5 with max_tokens 4 fails alone, and does not wait for ever."""
    mcore = {"max_tokens": 4, "max_requests": 4, "enable_chunked_prefill": False}
    fails_alone(lab, [1] * 5, "5", "max_tokens: 4", mcore=mcore)


@check()
def refused_rows_are_their_prompts(lab: Lab) -> None:
    """A row that was refused is its prompt alone: no token, no log-probability, no stamp, not truncated."""
    output = lab.backend(TABLE, max_new_tokens=3, length=8).generate(prompts([2] * 9, [1]), greedy=True)
    equal(output["output_ids"][0].tolist(), [2] * 9, "output_ids")
    equal(output["unpadded_sequence_lengths"].tolist(), [9, 4], "unpadded_sequence_lengths")
    equal(output["generation_lengths"].tolist(), [0, 3], "generation_lengths")
    equal(output["truncated"].tolist(), [False, True], "truncated")
    for name in ("policy_epoch", "kv_cache_epoch", "staleness"):
        equal(output[name][0], None, name)


@check()
def all_failed(lab: Lab) -> None:
    """A batch in which every request failed raises, and says why; a stream of it has the errors in its rows."""
    backend = lab.backend(TABLE, length=8)
    raises(
        GenerationError, lambda: backend.generate(prompts([1] * 9, [])), "generate", "every request", "max_model_len: 8"
    )
    for output in finish(backend, [1] * 9, []):
        says(output["errors"][0], "the error of a streamed row")
    equal(greedy(backend, [6]), [[7] + [8] * 6], "a response after it")


@check()
def malformed_batches(lab: Lab) -> None:
    """What is wrong with a batch as a whole is a `ValueError` that names the column, before anything is generated."""
    backend = lab.backend(TABLE, max_new_tokens=3)
    ids, lengths = torch.tensor([[1, 5], [1, 0]]), torch.tensor([2, 1])
    for name, bad in (
        ("input_ids", {"input_ids": ids.int(), "input_lengths": lengths}),
        ("input_ids", {"input_ids": ids[0], "input_lengths": lengths}),
        ("input_lengths", {"input_ids": ids, "input_lengths": torch.tensor([3, 1])}),
        ("input_lengths", {"input_ids": ids, "input_lengths": torch.tensor([-1, 1])}),
        ("input_lengths", {"input_ids": ids, "input_lengths": torch.tensor([2])}),
        ("stop_strings", {"input_ids": ids, "input_lengths": lengths, "stop_strings": [["a"]]}),
    ):
        batch = BatchedDataDict(bad)
        raises(ValueError, partial(backend.generate, batch), f"generate of a malformed {name}", name)
    equal(backend.sampled_tokens, 0, "sampled_tokens")
    equal(greedy(backend, [1]), [[5, 6, 7]], "a response after it")


@check()
def prompt_logprobs_are_not_ignored(lab: Lab) -> None:
    """Log-probabilities of prompts are computed where they were asked for, or refused; never left out."""
    backend = lab.backend(TABLE, max_new_tokens=2)
    batch = prompts([1, 5], prompt_logprobs=[True])
    try:
        output = backend.generate(batch, greedy=True)
    except ValueError as error:
        says(str(error), "the refusal", "prompt_logprobs")
    else:
        hold("prompt_logprobs" in output, "prompt_logprobs were asked for, and there is neither a column nor an error")
    equal(greedy(backend, [1]), [[5, 6]], "a response after it")


@check("kv-buffer")
def larger_than_the_buffer(lab: Lab) -> None:
    """What never fits into the buffer is refused at once, and what the message asks for is enough."""
    backend = lab.backend(blocks=10, max_new_tokens=60, mcore={"max_requests": 4})
    text = raises(
        GenerationError,
        lambda: backend.generate(prompts(PROMPT[:4])),
        "64 tokens in 9 blocks of 4",
        "16",
        "buffer_size_gb",
    )
    equal(backend.sampled_tokens, 0, "sampled_tokens")
    needed = float(text.split("buffer_size_gb to ")[1].split()[0])
    backend = lab.backend(max_new_tokens=60, mcore={"max_requests": 4, "buffer_size_gb": needed})
    equal(len(greedy(backend, PROMPT[:4])[0]), 60, f"tokens with buffer_size_gb {needed}")


@check("exact-admission")
def the_last_token_needs_no_room(lab: Lab) -> None:
    """One block of 256: a prompt of 200 with 57 new is admitted, with 58 it is refused at once."""
    for new, fits in ((57, True), (58, False)):
        mcore = {"block_size_tokens": 256, "max_tokens": 512, "max_requests": 4}
        backend = lab.backend(TABLE, length=512, max_new_tokens=new, blocks=2, mcore=mcore)
        if fits:
            equal(len(greedy(backend, [1] * 200)[0]), new, "tokens of a sequence that just fits")
        else:
            raises(GenerationError, partial(backend.generate, prompts([1] * 200)), "one token more", "257", "256")


@check()
def documented_recipe_on_a_small_model(lab: Lab) -> None:
    """The documented 10 GiB, blocks of 256 and 16384 tokens a step work with a small model."""
    mcore = {"buffer_size_gb": 10, "block_size_tokens": 256, "max_requests": None, "max_tokens": 16384}
    backend = lab.backend(max_new_tokens=4, mcore=mcore)
    lab.teacher().agrees(PROMPT, *pairs(backend.generate(prompts(PROMPT), greedy=True))[0], "the response")


def broken_by(lab: Lab, name: str) -> None:
    """A finite weight so large that logits overflow for sequences that read token 6: those end, the others go on."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=6)
    broken = lab.weights(chain(1, 5, 6, 7))
    broken[name] = broken[name].clone()
    broken[name][..., 6] = 3e38
    outputs = finish(backend, [1], [7], [8, 1], at={3: lambda: lab.update(backend, broken, 4)})
    for output in (outputs[0], outputs[2]):
        says(output["errors"][0], "the error of a sequence with broken logits", "epoch 4")
        equal(responses(output)[0], [5, 6], "the response, up to the token whose logits broke")
    equal(outputs[1]["errors"], [None], "errors of the sequence beside it")
    equal(responses(outputs[1]), [[7] * 6], "the response beside it")
    lab.update(backend, lab.weights(chain(1, 5, 6, 7)), 5)
    equal(greedy(backend, [1], [6]), [[5, 6, 7, 7, 7, 7], [7] * 6], "responses by mended weights")


@check("finite-logits")
def infinite_logits(lab: Lab) -> None:
    """Infinite logits of a broken checkpoint end the sequences that have them, with an error that names the epoch."""
    broken_by(lab, "lm_head.weight")


@check("finite-logits")
def nan_logits(lab: Lab) -> None:
    """NaN keys, values and logits end the sequences that have them, and do not leak into others through shared memory."""
    broken_by(lab, "model.layers.0.input_layernorm.weight")

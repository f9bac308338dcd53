"""Shapes and types: what comes out for what went in, whole, streamed, asynchronous and under way."""

import asyncio
import math

import torch

from reference_impl.conformance.batches import (
    PROMPT,
    finish,
    greedy,
    of_lengths,
    prompts,
    response_logprobs,
    responses,
)
from reference_impl.conformance.expect import close, equal, hold
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import VOCABULARY, chain
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import Progress, verify_right_padding
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord

TENSORS = {
    "output_ids": (torch.int64, 2),
    "generation_lengths": (torch.int64, 1),
    "unpadded_sequence_lengths": (torch.int64, 1),
    "logprobs": (torch.float32, 2),
    "truncated": (torch.bool, 1),
    "num_evictions": (torch.int64, 1),
}
LISTS = {
    "policy_epoch": EpochRuns | None,
    "kv_cache_epoch": EpochRuns | None,
    "staleness": RequestRecord | None,
    "upstream_staleness": RequestRecord | None,
    "errors": str | None,
}


@check()
def columns(lab: Lab) -> None:
    """A trainer finds every column of the output where it looks for it, in the type and shape it computes with."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=3)
    output = backend.generate(prompts([1], [3, 3, 1]), greedy=True)
    for name, (dtype, dimensions) in TENSORS.items():
        hold(name in output, f"column {name} is missing")
        equal((output[name].dtype, output[name].ndim), (dtype, dimensions), f"dtype and dimensions of {name}")
        equal(len(output[name]), 2, f"rows of {name}")
    for name, kind in LISTS.items():
        hold(name in output, f"column {name} is missing")
        hold(isinstance(output[name], list) and len(output[name]) == 2, f"column {name} is no list of 2")
        hold(all(isinstance(value, kind) for value in output[name]), f"{name}: {output[name]!r}")
    equal(list(output["output_ids"].shape), [2, 6], "shape of output_ids, the longest row being 6")
    equal(output["logprobs"].shape, output["output_ids"].shape, "shape of logprobs")
    equal(output["unpadded_sequence_lengths"].tolist(), [4, 6], "unpadded_sequence_lengths")
    equal(output["generation_lengths"].tolist(), [3, 3], "generation_lengths")


@check()
def prompt_comes_back(lab: Lab) -> None:
    """The prompt in the output is the one that was submitted, whatever the engine echoes, with no log-probability."""
    output = lab.backend(chain(1, 5, 6), max_new_tokens=2).generate(prompts([9, 3, 1], [1], pad=4), greedy=True)
    equal(output["output_ids"][0, :3].tolist(), [9, 3, 1], "the first prompt in the output")
    equal(output["output_ids"][1, 0].item(), 1, "the second prompt in the output")
    equal(output["logprobs"][0, :3].tolist(), [0.0] * 3, "log-probabilities at the prompt")


@check()
def right_padded(lab: Lab) -> None:
    """Rows of different lengths are padded on the right, with zeros in both columns."""
    output = lab.backend(chain(1, 5, 6, 7), max_new_tokens=3, stop_token_ids=[6]).generate(
        prompts([1], [1, 1, 1, 1], [5]), greedy=True
    )
    equal(responses(output), [[5, 6], [5, 6], [6]], "responses")
    equal(output["output_ids"].tolist(), [[1, 5, 6, 0, 0, 0], [1, 1, 1, 1, 5, 6], [5, 6, 0, 0, 0, 0]], "output_ids")
    verify_right_padding(output)
    equal(output["logprobs"][0, 3:].tolist(), [0.0] * 3, "log-probabilities at padding")


@check()
def lengths_decide_padding(lab: Lab) -> None:
    """Lengths alone say what is padding: pad and stop may be one id, 0.0 is a log-probability, the last token stays."""
    table = torch.full((VOCABULARY, VOCABULARY), -1e4)
    table[0, 0] = table[1, 0] = 10.0  # certain: log-probability exactly 0
    backend = lab.backend(table, stop_token_ids=[0], max_new_tokens=3)
    output = backend.generate(prompts([0, 0, 1], [1], pad=0), greedy=True)
    equal(output["unpadded_sequence_lengths"].tolist(), [4, 2], "unpadded_sequence_lengths")
    equal(output["output_ids"].tolist(), [[0, 0, 1, 0], [1, 0, 0, 0]], "output_ids")
    equal(output["logprobs"].tolist(), [[0.0] * 4] * 2, "logprobs")


@check()
def padding_values_are_not_read(lab: Lab) -> None:
    """What stands after a prompt in the batch is no part of it, be it a token of the model."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=2)
    for pad in (0, 5, 15):
        equal(greedy(backend, [1], [3, 3, 5]), [[5, 6], [6, 7]], "responses")
        output = backend.generate(prompts([1], [3, 3, 5], pad=pad), greedy=True)
        equal(responses(output), [[5, 6], [6, 7]], f"responses to prompts padded with {pad}")


@check()
def order_of_the_prompts(lab: Lab) -> None:
    """Rows come back in the order of the prompts, though they finish in another one."""
    backend = lab.backend(chain(*range(1, 11)), max_new_tokens=9, stop_token_ids=[10])
    equal([len(ids) for ids in greedy(backend, [1], [9], [4], [8])], [9, 1, 6, 2], "tokens of rows 0 to 3")


@check()
def logprobs_at_their_own_index(lab: Lab) -> None:
    """The log-probability of a token stands at that token's index, neither before nor after it."""
    table = chain(1, 5, 6, 7)
    table[1, 5], table[5, 6], table[6, 7] = 3.0, 2.0, 1.0
    output = lab.backend(table, max_new_tokens=3).generate(prompts([3, 1], [1]), greedy=True)
    expected = [value - math.log(math.exp(value) + VOCABULARY - 1) for value in (3.0, 2.0, 1.0)]
    close(output["logprobs"][0].tolist(), [0.0, 0.0, *expected], "log-probabilities of row 0", 1e-4)
    close(output["logprobs"][1].tolist(), [0.0, *expected, 0.0], "log-probabilities of row 1", 1e-4)


@check()
def empty_batch(lab: Lab) -> None:
    """No rows in, no rows out, and no error on the last rank that has nothing to do."""
    backend = lab.backend(chain(1, 5))
    equal(len(backend.generate(prompts())["output_ids"]), 0, "rows of the output of no rows")
    equal([event for event in backend.stream(prompts()) if not isinstance(event, Progress)], [], "rows streamed")


@check()
def input_is_left_alone(lab: Lab) -> None:
    """The batch that was handed in is the caller's, and is as it was."""
    batch = prompts([1], [3, 1], pad=7, stop_strings=[["f"], None])
    lab.backend(chain(1, 5, 6)).generate(batch, greedy=True)
    equal(batch["input_ids"].tolist(), [[1, 7], [3, 1]], "input_ids after generate")
    equal(batch["input_lengths"].tolist(), [1, 2], "input_lengths after generate")
    equal(batch["stop_strings"], [["f"], None], "stop_strings after generate")


@check()
def stream_ends_each_row_once(lab: Lab) -> None:
    """A stream yields every row exactly once, under its index in the batch, and the same as `generate`."""
    backend = lab.backend(max_new_tokens=6)
    rows = of_lengths(9, 3, 14)
    whole = backend.generate(prompts(*rows), greedy=True)
    for index, output in enumerate(finish(backend, *rows)):
        equal(responses(output)[0], responses(whole)[index], f"row {index} of a stream")
        close(response_logprobs(output)[0], response_logprobs(whole)[index], f"log-probabilities of row {index}")
        equal(output["output_ids"].shape[1], len(rows[index]) + 6, f"width of the one-row output {index}")


@check()
def progress_counts(lab: Lab) -> None:
    """`Progress` says how many tokens are sampled and rows finished, never fewer than before."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=4)
    greedy(backend, [1])  # tokens of an earlier batch are not counted
    seen, ended = [], 0
    for event in backend.stream(prompts([1], [5]), greedy=True):
        if isinstance(event, Progress):
            seen.append(event)
            equal(event.finished, ended, "finished")
        else:
            ended += 1
    counts = [event.sampled_tokens for event in seen]
    hold(counts == sorted(counts) and counts[0] == 0 and counts[-1] <= 8, f"sampled_tokens along a stream: {counts}")
    hold(len(set(counts)) >= 4, f"sampled_tokens after each of four steps: {counts}")


@check()
def sampled_tokens_are_those_returned(lab: Lab) -> None:
    """`sampled_tokens` grows by the tokens that are returned: none is drawn in vain, and none after a stop."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=4, stop_token_ids=[6])
    before = backend.sampled_tokens
    output = backend.generate(prompts([1], [7], [5]), greedy=True)
    equal(output["generation_lengths"].tolist(), [2, 4, 1], "generation_lengths")
    equal(backend.sampled_tokens - before, 7, "growth of sampled_tokens")


@check()
def async_indices(lab: Lab) -> None:
    """`generate_async` yields (index in the batch, one-row output), each row once, of several batches at a time."""
    backend = lab.backend(chain(1, 5, 6, 7, 8), max_new_tokens=4, stop_token_ids=[8])

    async def collect(*rows: list[int]) -> dict[int, BatchedDataDict]:
        found: dict[int, BatchedDataDict] = {}
        async for index, output in backend.generate_async(prompts(*rows), greedy=True):
            hold(index not in found, f"row {index} was yielded twice")
            found[index] = output
        return found

    async def both() -> tuple[dict[int, BatchedDataDict], dict[int, BatchedDataDict]]:
        return await asyncio.gather(collect([1], [7], [6]), collect([5], [1, 1]))

    one, other = asyncio.run(both())
    expected = {0: [[5, 6, 7, 8]], 1: [[8]], 2: [[7, 8]]}
    equal({index: responses(output) for index, output in sorted(one.items())}, expected, "rows of one batch")
    expected = {0: [[6, 7, 8]], 1: [[5, 6, 7, 8]]}
    equal({index: responses(output) for index, output in sorted(other.items())}, expected, "rows of the other batch")


@check()
def unfinished_is_what_there_is(lab: Lab) -> None:
    """`unfinished` tells what is under way as far as it has come, so that an interrupted run loses nothing."""
    backend, seen = lab.backend(max_new_tokens=6), []
    expected = greedy(backend, PROMPT)[0]
    output = finish(backend, PROMPT, at={3: lambda: seen.extend(backend.unfinished())})[0]
    equal([index for index, _ in seen], [0], "indices of what is unfinished")
    so_far = seen[0][1]
    equal(so_far["output_ids"].tolist(), [PROMPT + expected[:3]], "output_ids after 3 of 6 tokens")
    equal(so_far["errors"], ["interrupted"], "errors of what is unfinished")
    equal(so_far["staleness"][0].length, len(PROMPT) + 3, "length of its record")
    equal(so_far["truncated"].tolist(), [False], "truncated of what is unfinished")
    equal(responses(output), [expected], "the response, which went on")
    equal(backend.unfinished(), [], "what is unfinished at the end")


@check()
def refit_info(lab: Lab) -> None:
    """The names and shapes of the backend's own parameters are weights that it says it can take."""
    backend = lab.backend(chain(1, 5), awake=False)
    info = {name: (weight.shape, weight.dtype) for name, weight in backend.model.named_parameters()}
    equal(backend.prepare_refit_info(info), True, "prepare_refit_info of the model's own names")

"""Chunks, prefixes and evictions: how the cache is filled and emptied does not show in what is generated."""

import itertools
import math
from collections.abc import Iterator

from reference_impl.conformance.batches import (
    PROMPT,
    finish,
    greedy,
    of_lengths,
    prompts,
    response_logprobs,
    responses,
)
from reference_impl.conformance.checks.company import alone, pairs
from reference_impl.conformance.expect import close, equal, hold
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import chain
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface, Progress
from reference_impl.staleness.records import check as check_record

CHUNKED = {"max_tokens": 4, "max_requests": 4}
CACHED = {"enable_prefix_caching": True}
TIGHT = {
    "block_size_tokens": 2,
    "max_requests": 4,
}  # with 11 blocks of the table model: for one sequence of 15 and a bit


def evicted(outputs: list[BatchedDataDict]) -> int:
    """Evictions in all; none is a failure, for then nothing was tried. Records have to hold."""
    for output in outputs:
        check_record(output["staleness"][0])
    count = sum(output["num_evictions"].item() for output in outputs)
    hold(count > 0, "nothing was evicted from a buffer that cannot hold both sequences")
    return count


@check()
def block_size_does_not_matter(lab: Lab) -> None:
    """Blocks of 1, 3 or 16 tokens hold the same keys and values."""
    teacher = lab.teacher()
    for size in (1, 3, 16):
        backend = lab.backend(max_new_tokens=8, mcore={"block_size_tokens": size, "buffer_size_gb": 0.01})
        for ids, logprobs in pairs(backend.generate(prompts(PROMPT[:16]), greedy=True)):
            teacher.agrees(PROMPT[:16], ids, logprobs, f"blocks of {size}")


@check("chunked-prefill")
def chunked_as_whole(lab: Lab) -> None:
    """A prompt of 10 in chunks of 4, 4 and 2 gets what it gets in one piece."""
    expected = alone(lab.backend(max_new_tokens=5), [PROMPT[:10]])[0]
    found = alone(lab.backend(max_new_tokens=5, mcore=CHUNKED), [PROMPT[:10]])[0]
    lab.teacher().same(PROMPT[:10], found, expected, "chunked, against whole")


@check("chunked-prefill")
def one_token_a_prompt(lab: Lab) -> None:
    """A chunk in the middle of a prompt emits nothing: no token, no log-probability, no stop, nothing counted."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=3, stop_token_ids=[5], mcore=CHUNKED)
    output = backend.generate(prompts([1, 1, 1, 1, 1, 1, 1, 1, 5]), greedy=True)
    equal(responses(output), [[6, 7, 7]], "the response after chunks that end in 1, which 5, a stop, would follow")
    equal(len(response_logprobs(output)[0]), 3, "log-probabilities")
    equal(backend.sampled_tokens, 3, "sampled_tokens")


@check("chunked-prefill")
def chunks_beside_decoding(lab: Lab) -> None:
    """A long prompt in chunks and a sequence that decodes share steps, and neither notices."""
    backend = lab.backend(max_new_tokens=12, mcore={"max_tokens": 6, "max_requests": 4})
    rows = of_lengths(5, 21, 17)
    teacher = lab.teacher()
    expected = alone(backend, rows)
    for index, output in enumerate(finish(backend, *rows)):
        teacher.same(rows[index], pairs(output)[0], expected[index], f"row {index} among chunks")


def running(backend: GenerationInterface, prompt: list[int]) -> Iterator[Progress | tuple[int, BatchedDataDict]]:
    """A stream of this prompt, stopped between two steps after its first token; its blocks live on."""
    stream = iter(backend.stream(prompts(prompt), greedy=True))
    for event in stream:
        if isinstance(event, Progress) and event.sampled_tokens:
            break
    return stream


@check("prefix-cache")
def prefix_hit_as_fresh(lab: Lab) -> None:
    """The same prompt of 8 twice, in blocks of 4: 7 tokens are reused at most, and the response is the same."""
    backend = lab.backend(max_new_tokens=10, mcore=CACHED)
    fresh = alone(lab.backend(max_new_tokens=10), [PROMPT[:8]])[0]
    first = running(backend, PROMPT[:8])
    output = backend.generate(prompts(PROMPT[:8]), greedy=True)
    cached = output["staleness"][0].prefix_cached_tokens
    hold(0 < cached <= 7, f"{cached} of 8 prompt tokens were taken from the prefix cache, expected 1 to 7")
    lab.teacher().same(PROMPT[:8], pairs(output)[0], fresh, "a prefix hit, against a fresh engine")
    for event in first:
        if not isinstance(event, Progress):
            lab.teacher().same(PROMPT[:8], pairs(event[1])[0], fresh, "the sequence whose blocks were shared")


@check("prefix-cache")
def prefix_ends_where_prompts_differ(lab: Lab) -> None:
    """Only equal blocks are shared: one token that differs ends the hit, also where later blocks are equal again."""
    backend, teacher = lab.backend(max_new_tokens=6, mcore=CACHED), lab.teacher()
    for place, shared in ((0, 0), (5, 4), (12, 12)):
        first = running(backend, PROMPT[:16])
        other = [*PROMPT[:place], 7, *PROMPT[place + 1 : 16]]
        output = backend.generate(prompts(other), greedy=True)
        cached = output["staleness"][0].prefix_cached_tokens
        equal(cached, shared, f"tokens reused, in blocks of 4, of a prompt that differs at token {place}")
        teacher.agrees(other, *pairs(output)[0], f"a prompt that differs at token {place}")
        equal(sum(not isinstance(event, Progress) for event in first), 1, "rows of the first stream that ended")


@check("prefix-cache")
def prefixes_are_forgotten_at_an_update(lab: Lab) -> None:
    """After a weight update nothing of older weights is reused, and a prompt gets what a fresh engine says."""
    backend = lab.backend(max_new_tokens=10, mcore=CACHED)
    first = running(backend, PROMPT[:16])
    before = backend.generate(prompts(PROMPT[:16]), greedy=True)
    hold(before["staleness"][0].prefix_cached_tokens > 0, "nothing was reused before the update")
    second = running(backend, PROMPT[:16])
    lab.update(backend, lab.weights(epoch=1), 1)
    output = backend.generate(prompts(PROMPT[:16]), greedy=True)
    equal(output["staleness"][0].prefix_cached_tokens, 0, "tokens reused after an update")
    lab.teacher(epoch=1).agrees(PROMPT[:16], *pairs(output)[0], "a prompt after an update")
    for stream in (first, second):
        equal(sum(not isinstance(event, Progress) for event in stream), 1, "rows of an earlier stream that ended")


@check("prefix-cache")
def invalidated_on_request(lab: Lab) -> None:
    """`invalidate_kv_cache` empties the prefix cache, says so, and leaves running requests alone."""
    backend = lab.backend(max_new_tokens=10, mcore=CACHED)
    expected = alone(lab.backend(max_new_tokens=10), [PROMPT[:8]])[0]
    first = running(backend, PROMPT[:8])
    equal(backend.invalidate_kv_cache(), True, "invalidate_kv_cache of a backend with a prefix cache")
    output = backend.generate(prompts(PROMPT[:8]), greedy=True)
    equal(output["staleness"][0].prefix_cached_tokens, 0, "tokens reused afterwards")
    for event in first:
        if not isinstance(event, Progress):
            lab.teacher().same(PROMPT[:8], pairs(event[1])[0], expected, "the sequence that ran")


@check("eviction")
def evicted_as_alone(lab: Lab) -> None:
    """A sequence whose blocks were taken, and that was prefilled again, ends with the same ids and log-probabilities."""
    rows, teacher = [PROMPT[:8], PROMPT[8:16]], lab.teacher()
    outputs = finish(lab.backend(max_new_tokens=24, blocks=11, mcore={"max_requests": 8}), *rows)
    evicted(outputs)
    for index, output in enumerate(outputs):
        equal(output["generation_lengths"].tolist(), [24], f"tokens of row {index}")
        teacher.agrees(rows[index], *pairs(output)[0], f"row {index} of two that do not both fit")


@check("eviction")
def evicted_keeps_its_stops(lab: Lab) -> None:
    """Stop ids and stop strings hold after an eviction as before it."""
    for settings, last in (({"stop_token_ids": [14]}, 14), ({"stop_strings": ["mn"]}, 13)):
        backend = lab.backend(chain(*range(1, 16)), max_new_tokens=14, blocks=11, mcore=TIGHT, **settings)
        outputs = finish(backend, [1], [1])
        evicted(outputs)
        for output in outputs:
            equal(responses(output), [list(range(2, last + 1))], f"the response with {settings}")
            equal(output["truncated"].tolist(), [False], "truncated")


@check("eviction")
def evicted_keeps_its_sampling(lab: Lab) -> None:
    """Temperature and filters hold after an eviction: every token is reported by the same rule."""
    table = chain(*range(1, 16), strength=2.0)
    backend = lab.backend(table, max_new_tokens=14, blocks=11, mcore=TIGHT, temperature=0.5, top_k=2)
    outputs = finish(backend, [1], [2], greedy=False)
    evicted(outputs)
    likely, other, even = -math.log(1 + math.exp(-4)), -math.log(1 + math.exp(4)), -math.log(2)
    for output in outputs:
        tokens, expected = output["output_ids"][0].tolist(), []
        for here, there in itertools.pairwise(tokens):  # logits 2 / 0.5 and 0, the two that are kept, or 0 and 0
            expected.append((likely if table[here, there] else other) if table[here].any() else even)
        close(response_logprobs(output)[0], expected, f"log-probabilities of {tokens[1:]}", 1e-4)


@check("eviction")
def all_of_a_crowd_finish(lab: Lab) -> None:
    """Ten long sequences in a cache for one and a bit: all end whole, whatever is paused, evicted and resumed."""
    backend = lab.backend(chain(*range(1, 16)), max_new_tokens=13, blocks=11, mcore=TIGHT)
    outputs = finish(backend, *[[1 + index % 3] for index in range(10)])
    evicted(outputs)
    for index, output in enumerate(outputs):
        first = 2 + index % 3
        equal(responses(output), [[min(token, 15) for token in range(first, first + 13)]], f"row {index} of 10")
    equal(greedy(backend, [1]), [list(range(2, 15))], "a response after the crowd")

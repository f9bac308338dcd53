"""Batch independence: who is generated beside a sequence, and when it came, makes no difference to it."""

from collections.abc import Sequence

from reference_impl.conformance.batches import (
    PROMPT,
    finish,
    of_lengths,
    prompts,
    response_logprobs,
    responses,
)
from reference_impl.conformance.expect import hold
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import chain
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface, Progress

Response = tuple[list[int], list[float]]


def pairs(output: BatchedDataDict) -> list[Response]:
    """(ids, log-probabilities) of each row."""
    return list(zip(responses(output), response_logprobs(output), strict=True))


def alone(backend: GenerationInterface, rows: Sequence[Sequence[int]]) -> list[Response]:
    """What each of these prompts gets by itself."""
    return [pairs(backend.generate(prompts(row), greedy=True))[0] for row in rows]


@check()
def batched_as_alone(lab: Lab) -> None:
    """Alone or in a batch of nine: the same greedy ids and log-probabilities, near-ties aside."""
    backend = lab.backend(max_new_tokens=8)
    rows = [PROMPT, *of_lengths(3, 17, 30, 1, 8, 22, 5, 12)]
    teacher = lab.teacher()
    expected = alone(backend, rows)
    for index, found in enumerate(pairs(backend.generate(prompts(*rows), greedy=True))):
        teacher.same(rows[index], found, expected[index], f"row {index} of 9, against alone")


@check()
def arriving_late(lab: Lab) -> None:
    """A batch that comes while another runs changes nothing in it, and is not changed by it."""
    backend = lab.backend(max_new_tokens=10)
    early = [PROMPT, *of_lengths(6)]
    late = of_lengths(15, 2)
    teacher = lab.teacher()
    expected = alone(backend, [*early, *late])
    found: dict[int, Response] = {}

    def arrive() -> None:
        outputs = pairs(backend.generate(prompts(*late), greedy=True))
        found.update({2 + index: output for index, output in enumerate(outputs)})

    found |= {index: pairs(output)[0] for index, output in enumerate(finish(backend, *early, at={6: arrive}))}
    for index, row in enumerate([*early, *late]):
        teacher.same(row, found[index], expected[index], f"row {index} of two batches")


@check("max-requests")
def more_than_fit(lab: Lab) -> None:
    """Of twelve sequences four run at once; the others wait, and each gets what it would alone."""
    backend = lab.backend(max_new_tokens=5, mcore={"max_requests": 4})
    rows = of_lengths(*range(3, 15))
    teacher = lab.teacher()
    expected, most, last = alone(backend, rows), 0, 0
    for event in backend.stream(prompts(*rows), greedy=True):
        if isinstance(event, Progress):
            most, last = max(most, event.sampled_tokens - last), event.sampled_tokens
        else:
            teacher.same(rows[event[0]], pairs(event[1])[0], expected[event[0]], f"row {event[0]} of 12")
    hold(most <= 4, f"{most} tokens were sampled in one step of max_requests: 4")


@check("max-requests")
def nobody_starves(lab: Lab) -> None:
    """Who came first begins first: a long wait ends before those that came later have ended."""
    backend = lab.backend(chain(*range(1, 16)), max_new_tokens=4, mcore={"max_requests": 4})
    order = []
    for event in backend.stream(prompts(*[[1 + index % 8] for index in range(20)]), greedy=True):
        if not isinstance(event, Progress):
            order.append(event[0])
    late = max(abs(place - index) for place, index in enumerate(order))
    hold(late < 4, f"rows of equal length ended in the order {order}, one of them {late} places from its own")

"""Random schedules for two engines: what arrives, changes and sleeps before which step; and a player that follows one."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from generation.reference.small_llama import VOCABULARY, checkpoint
from support.batches import prompts, response_logprobs, responses

from reference_impl.generation.interfaces import Progress
from reference_impl.staleness.events import follow
from reference_impl.staleness.records import RequestRecord

MOST_REQUESTS = 8
"""With ids below 8 a Python set of them is in order, in which Megatron prefills them again after a recompute."""


@dataclass(frozen=True)
class Arrival:
    """A batch that is submitted before step `step`: its prompts, and the most tokens that each of them gets."""

    step: int
    prompts: list[list[int]]
    max_new_tokens: int


@dataclass(frozen=True)
class Schedule:
    """Settings of an engine, and what happens before which step. `asleep` says how many updates a suspend sees."""

    length: int
    blocks: int
    stop_token_ids: list[int]
    mcore: dict[str, Any]
    arrivals: list[Arrival]
    updates: dict[int, int]
    asleep: dict[int, int]


def random_schedule(seed: int) -> Schedule:
    """Up to eight requests in one to four batches over some forty steps."""
    draw = random.Random(seed)
    size, length = draw.choice((2, 3, 4, 8)), draw.choice((24, 32, 40))
    chunked = draw.random() < 0.8
    requests = draw.randint(2, 6)
    # An evicted request comes back with all its tokens. Where Megatron may not cut it, it waits for ever if it has grown
    # past `max_tokens`, so a step of such a schedule can take any sequence.
    tokens = draw.randint(requests, draw.choice((requests + 3, 24))) if chunked else length
    room = draw.randint(3, 10) * 8 // size * size
    arrivals, left, step = [], draw.randint(2, MOST_REQUESTS), 0
    while left:
        rows, new_tokens = draw.randint(1, min(left, 6)), draw.randint(1, 14)
        batch = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, length // 2))] for _ in range(rows)]
        for prompt in batch:
            if min(len(prompt) + new_tokens, length) == room + 1:  # the edge, for which there is a test of its own
                prompt.pop()
        arrivals.append(Arrival(step, batch, new_tokens))
        left, step = left - rows, step + draw.randint(0, 8)
    return Schedule(
        length=length,
        blocks=room // size,
        stop_token_ids=draw.sample(range(VOCABULARY), draw.choice((0, 0, 2))),
        mcore={
            "block_size_tokens": size,
            "max_requests": requests,
            "max_tokens": tokens,
            "enable_chunked_prefill": chunked,
            "kv_cache_management_mode": draw.choice(("persist", "offload", "recompute")),
        },
        arrivals=arrivals,
        updates={draw.randint(1, 30): draw.randint(1, 2) for _ in range(draw.randint(0, 4))},
        asleep={draw.randint(1, 30): draw.randint(0, 2) for _ in range(draw.randint(0, 2))},
    )


@dataclass
class Played:
    """What became of a schedule: of each request, in the order of submission, what an output says of it; and the events."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    errors: dict[int, str | None] = field(default_factory=dict)
    records: dict[int, RequestRecord | None] = field(default_factory=dict)
    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def see(self, event: dict[str, Any]) -> None:
        """Note an event of the tracker; a forward pass as its sorted (request, position)."""
        self.counts[event["event"]] += 1
        if event["event"] == "forward":
            self.steps.append(sorted(zip(event["requests"], event["positions"], strict=True)))

    def end(self, number: int, output: Any) -> None:
        """Note an output, which a request has once."""
        assert number not in self.errors, f"request {number} ended twice"
        self.tokens[number], self.logprobs[number] = responses(output)[0], response_logprobs(output)[0]
        self.errors[number], self.records[number] = output["errors"][0], output["staleness"][0]


def play(backend: Any, schedule: Schedule) -> Played:
    """Follow a schedule to its end on an engine that is awake at epoch 0 with checkpoint 0.

    A step is a forward pass, and the schedule's last events may find nobody left. Both backends take one at most for each look at a stream; the oldest stream is looked at, and
    where it has ended, the next.
    """
    played, epoch, submitted = Played(), 0, 0
    follow(backend.tracker, played.see)
    arrivals, streams = list(schedule.arrivals), []
    updates, asleep = dict(schedule.updates), dict(schedule.asleep)

    def update() -> None:
        nonlocal epoch
        epoch += 1
        backend.update_weights(checkpoint(epoch), epoch=epoch)

    def look(first: int, stream: Any) -> bool:
        while (event := next(stream, None)) is not None:
            if isinstance(event, Progress):
                return True
            played.end(first + event[0], event[1])
        return False

    while arrivals or streams:
        now = len(played.steps)
        while arrivals and (arrivals[0].step <= now or not streams):
            arrival = arrivals.pop(0)
            backend.config = backend.config.model_copy(update={"max_new_tokens": arrival.max_new_tokens})
            stream = backend.stream(prompts(*arrival.prompts), greedy=True)
            played.counts["arrival in a stream"] += bool(streams)
            if look(submitted, stream):
                streams.append((submitted, stream))
            submitted += len(arrival.prompts)
        for _ in range(updates.pop(now, 0)):
            update()
        if now in asleep:
            backend.suspend()
            for _ in range(asleep.pop(now)):
                update()
            backend.resume()
        if streams and not look(*streams[0]):
            streams.pop(0)
    return played


def cut_prompts(played: Played, schedule: Schedule) -> int:
    """How many passes over prompts stopped before their ends."""
    rows = [row for arrival in schedule.arrivals for row in arrival.prompts]
    last = {record.request: len(rows[number]) - 1 for number, record in played.records.items() if record is not None}
    return sum(position < last[request] for step in played.steps for request, position in dict(step).items())

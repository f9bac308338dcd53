"""Drives the tracker and its oracle through one schedule, and compares all that they say."""

from __future__ import annotations

from oracle.schedules import Schedule
from oracle.simulator import ImpossibleEventError, Simulator

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import COUNTS, RequestRecord
from reference_impl.staleness.tracker import StalenessTracker


def per_token(runs: EpochRuns) -> list[int | None]:
    return [epoch for start, stop, epoch in runs.spans() for _ in range(start, stop)]


def as_lists(record: RequestRecord) -> dict[str, object]:
    """A record in the oracle's form."""
    return {
        "policy": per_token(record.policy_epoch),
        "kv": per_token(record.kv_cache_epoch),
        "attended": per_token(record.oldest_attended_kv_epoch),
        "sampled": [token for start, stop in record.sampled for token in range(start, stop)],
        **{name: getattr(record, name) for name in COUNTS},
        "admission_epoch": record.admission_epoch,
        "completion_epoch": record.completion_epoch,
        "status": record.status,
    }


def state(tracker: StalenessTracker) -> tuple:
    """All that can be asked of a tracker without changing it: its epoch, whether it sleeps, each request's record."""
    return tracker.epoch, tracker.suspended, {name: as_lists(tracker.so_far(name)) for name in tracker}


def state_of_oracle(simulator: Simulator) -> tuple:
    return simulator.epoch, simulator.suspended, {name: simulator.so_far(name) for name in simulator.requests}


def replay(schedule: Schedule, tracker: StalenessTracker) -> tuple[list[RequestRecord], int]:
    """The records that a schedule makes, of the requests that still run at its end too; and how many events were refused.

    Fails where a record differs from the oracle's, where the two do not refuse the same events, and where a refused
    event leaves a trace.
    """
    simulator, records, refused = Simulator(), [], 0
    for number, (event, *arguments) in enumerate(schedule):
        try:
            expected = getattr(simulator, event)(*arguments)
        except ImpossibleEventError:
            _hold_refusal(tracker, number, event, arguments)
            refused += 1
            continue
        returned = getattr(tracker, event)(*arguments)
        if expected is not None:
            told = as_lists(returned)
            assert told == expected, f"event {number}, {event}: the tracker says {told}, the oracle {expected}"
            records.append(returned)
    told, expected = state(tracker), state_of_oracle(simulator)
    assert told == expected, f"at the end the tracker says {told}, the oracle {expected}"
    return records + [tracker.so_far(name) for name in tracker], refused


def _hold_refusal(tracker: StalenessTracker, number: int, event: str, arguments: list) -> None:
    before, message = state(tracker), None
    try:
        getattr(tracker, event)(*arguments)
    except ValueError as error:
        message = str(error)
    assert message is not None, f"event {number}, {event}, cannot have happened, and was not refused"
    assert "\n" not in message
    assert state(tracker) == before, f"event {number}, {event}, was refused and left a trace"

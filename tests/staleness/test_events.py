"""Events written down and told again: the same records, and one clear line for an event of no known name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reference_impl.staleness.events import follow, replay
from reference_impl.staleness.tracker import StalenessTracker


def test_a_replay_makes_the_same_records():
    """Two requests, an update, an eviction, a suspend, a cut and an abort, through JSON."""
    tracker, told, records = StalenessTracker(), [], []
    follow(tracker, told.append)
    tracker.admit("a", 2)
    tracker.admit(7, prompt_length=1)
    tracker.forward(["a", "a", 7], np.arange(3) % 2, slots=[0, 1, 2])
    tracker.sample(["a", 7])
    tracker.weights_changed(np.int64(4))
    tracker.forward(["a"], [2], np.array([3]))
    tracker.sample(["a"])
    tracker.evict(7)
    tracker.release(slots=range(2, 3))
    tracker.suspend("offload")
    tracker.resume()
    records.append(tracker.finish("a", 3))
    records.append(tracker.abort(7))
    lines = [json.dumps(event) for event in told]
    assert lines[0] == '{"event": "admit", "request": "a", "prompt_length": 2}'
    assert lines[2] == '{"event": "forward", "requests": ["a", "a", 7], "positions": [0, 1, 0], "slots": [0, 1, 2]}'
    assert [json.loads(line)["event"] for line in lines[-4:]] == ["suspend", "resume", "finish", "abort"]
    assert replay(map(json.loads, lines), StalenessTracker()) == records
    assert records[0].policy_epoch.to_json() == [[0, 0]]
    assert records[0].kv_cache_epoch.to_json() == [[0, 0], [2, 4]]
    assert (records[1].num_evictions, records[1].status) == (1, "aborted")


def test_a_refused_event_is_not_told():
    tracker, told = StalenessTracker(), []
    follow(tracker, told.append)
    with pytest.raises(ValueError, match="is not running"):
        tracker.evict("nobody")
    assert told == []


def test_an_event_of_no_known_name():
    with pytest.raises(ValueError, match="^event 1: expected one of weights_changed, .*, got 'evct'$"):
        replay([{"event": "weights_changed", "epoch": 1}, {"event": "evct", "request": 0}], StalenessTracker())

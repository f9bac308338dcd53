"""StalenessTracker against the oracle: every record of whole schedules equal, every impossible event refused by both.

`make fuzz` runs this file with ten thousand fresh schedules; otherwise it draws the same thousand every time.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, given, settings
from oracle.comparison import as_lists, replay
from oracle.mistakes import with_mistakes, without_sense
from oracle.schedules import Engine, seeded, strategy
from oracle.simulator import Simulator

from reference_impl.staleness.records import check
from reference_impl.staleness.tracker import StalenessTracker

FUZZ = os.environ.get("GENREF_FUZZ")
SCHEDULES = int(FUZZ or 1000)

thousand = settings(
    max_examples=SCHEDULES,
    derandomize=not FUZZ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_every_record_of_a_thousand_schedules_is_the_oracles():
    ran, made = 0, 0

    @thousand
    @given(strategy(Engine))
    def one(engine):
        nonlocal ran, made
        records, refused = replay(engine.events, StalenessTracker())
        assert not refused
        for record in records:
            check(record)
            if not engine.reuse_across_updates:
                hold_order(as_lists(record))
        ran, made = ran + 1, made + len(records)

    one()
    assert ran >= SCHEDULES
    assert made > 3 * ran  # the schedules do have requests in them


def hold_order(lists):
    """Attended before policy before KV, for every token: those on a prefix hit too, which `check` excuses."""
    for policy, kv, attended in zip(lists["policy"], lists["kv"], lists["attended"], strict=True):
        assert kv is None or policy <= kv
        assert attended is None or attended <= policy


def test_a_schedule_with_mistakes_is_refused_where_the_oracle_refuses_it():
    ran, with_refusal = 0, 0

    @settings(thousand, max_examples=SCHEDULES // 4)
    @given(strategy(with_mistakes))
    def one(schedule):
        nonlocal ran, with_refusal
        with_refusal += replay(schedule, StalenessTracker())[1] > 0
        ran += 1

    one()
    assert ran >= SCHEDULES // 4
    assert ran / 4 < with_refusal < ran


def test_events_without_sense_are_refused_where_the_oracle_refuses_them():
    ran, refused, events = 0, 0, 0

    @settings(thousand, max_examples=SCHEDULES // 2)
    @given(strategy(without_sense))
    def one(schedule):
        nonlocal ran, refused, events
        refused += replay(schedule, StalenessTracker())[1]
        events += len(schedule)
        ran += 1

    one()
    assert ran >= SCHEDULES // 2
    assert events / 4 < refused < events * 3 / 4


def test_the_schedules_hold_all_that_is_hard():
    """Equal records say little if nothing happened: each of these comes up in ten of three hundred schedules at least."""
    counted = Counter(feature for seed in range(300) for feature in features(Engine(seeded(seed))))
    assert {feature: count for feature, count in counted.items() if count < 10} == {}
    assert set(counted) == set(FEATURES)


EVENTS = (
    *("admit", "reuse", "forward", "sample", "preempt", "evict", "release", "suspend", "resume", "weights_changed"),
    *("finish", "abort", "so_far"),
)
FEATURES = (
    *EVENTS,
    *("suspend persist with a cache", "suspend offload with a cache", "suspend recompute with a cache"),
    *("two updates in a row", "update between forward and sample", "update between two chunks"),
    *("hit on an older block", "hit across updates ruled out", "hit after an eviction", "hit on what is gone"),
    *("held slot written anew by another", "cached position computed again", "slot taken over without a release"),
    *("attended unlike the last cache", "attended unknown", "last token cached at the end", "trimmed"),
    *("abort before a pass", "abort in prefill", "abort in decode", "finish after an eviction, uncached"),
)


def features(engine: Engine) -> set[str]:
    """Which of `FEATURES` a schedule has, as the oracle sees it."""
    seen, simulator = set(), Simulator()
    for (event, *arguments), before in zip(engine.events, [None, *engine.events], strict=False):
        request = simulator.requests.get(arguments[0]) if event in ("reuse", "abort", "finish") else None
        cached = any(running.slot_of for running in simulator.requests.values())
        seen.add(event)
        if event == "weights_changed" and arguments[0] > simulator.epoch and before and before[0] == event:
            seen.add("two updates in a row")
        if event == "suspend" and cached:
            seen.add(f"suspend {arguments[0]} with a cache")
        if event == "sample" and any(simulator.requests[n].last_pass[0] < simulator.epoch for n in arguments[0]):
            seen.add("update between forward and sample")
        if event == "forward":
            seen |= set(_of_forward(simulator, *arguments))
        if event == "reuse":
            tags = [simulator.tag.get(slot) for slot in arguments[2]]
            seen |= {"hit on what is gone"} if None in tags else set()
            seen |= {"hit on an older block"} if any(tag not in (None, simulator.epoch) for tag in tags) else set()
            seen |= {"hit across updates ruled out"} if not engine.reuse_across_updates else set()
            seen |= {"hit after an eviction"} if request.num_evictions else set()
        if event in ("abort", "finish"):
            seen |= set(_of_end(simulator, event, request, arguments[1]))
        getattr(simulator, event)(*arguments)
    return seen


def _of_forward(simulator, names, positions, slots):
    for name, position, slot in zip(names, positions, slots, strict=True):
        request, tag = simulator.requests[name], simulator.tag.get(slot)
        holders = [other for other in simulator.requests.values() if slot in other.slot_of.values()]
        if position in request.slot_of:
            yield "cached position computed again"
        if tag not in (None, simulator.epoch) and any(other is not request for other in holders):
            yield "held slot written anew by another"
        if tag is not None and not holders:
            yield "slot taken over without a release"
        kv = [simulator.tag.get(before) for before in request.slot_of.values()]
        if 0 < position < request.prompt_length and kv and None not in kv and max(kv) < simulator.epoch:
            yield "update between two chunks"


def _of_end(simulator, event, request, length):
    cached, sampled = len(request.slot_of), request.length - request.prompt_length
    if length not in (None, request.length):
        yield "trimmed"
    if sampled and cached == request.length:
        yield "last token cached at the end"
    if any(epoch is None for epoch in request.attended[request.prompt_length :]):
        yield "attended unknown"
    elif sampled and cached and min(request.attended[request.prompt_length :]) != simulator.oldest(request):
        yield "attended unlike the last cache"
    if event == "finish" and request.num_evictions and not cached:
        yield "finish after an eviction, uncached"
    if event == "abort":
        yield "abort in decode" if sampled else "abort in prefill" if cached else "abort before a pass"

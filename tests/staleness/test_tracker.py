"""StalenessTracker, case by case with the values worked out by hand: those of the design's table and of the field.

Throughout, `length` is the number of tokens a request has, and position p's pass gives the token at p + 1.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from reference_impl.staleness.records import check
from reference_impl.staleness.tracker import StalenessTracker


def prefill(tracker, request, start, stop, first_slot=0):
    """One pass over positions `start` to `stop`, each in the slot of its own number after `first_slot`."""
    slots = range(first_slot + start, first_slot + stop)
    tracker.forward([request] * (stop - start), range(start, stop), slots)


def generate(tracker, request, length, count, first_slot=0):
    """From `length` tokens, the last of them not cached, `count` more: a pass over the last one, and a sample of it."""
    for last in range(length - 1, length - 1 + count):
        prefill(tracker, request, last, last + 1, first_slot)
        tracker.sample([request])


def started(prompt, new, epoch=0):
    """A tracker with request "a", its prompt prefilled in one pass and `new` tokens sampled."""
    tracker = StalenessTracker(epoch)
    tracker.admit("a", prompt)
    if prompt > 1:
        prefill(tracker, "a", 0, prompt - 1)
    generate(tracker, "a", prompt, new)
    return tracker


# --- epochs that change during decode -------------------------------------------------------------------------------


def test_an_update_after_two_of_five_tokens():
    tracker = started(prompt=4, new=2, epoch=3)
    tracker.weights_changed(4)
    generate(tracker, "a", 6, 3)
    record = tracker.finish("a")
    assert record.of_sampled("policy_epoch").expand().tolist() == [3, 3, 4, 4, 4]
    assert record.policy_epoch.runs == ((0, 3), (6, 4))
    # At the update token 5 had been sampled and not read: the new weights wrote its keys and values.
    assert record.kv_cache_epoch.runs == ((0, 3), (5, 4))
    # All five attended to the prompt's, written at 3.
    assert record.oldest_attended_kv_epoch.runs == ((0, None), (4, 3))
    assert (record.sampled, record.length, record.admission_epoch, record.completion_epoch) == (((4, 9),), 9, 3, 4)
    assert record.status == "finished"
    check(record)


def test_the_policy_boundary_is_one_after_the_kv_boundary():
    tracker = started(prompt=4, new=3)
    tracker.weights_changed(1)
    generate(tracker, "a", 7, 2)
    record = tracker.finish("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 0), (7, 1)), ((0, 0), (6, 1)))


def test_two_updates_in_a_prompt_of_8_and_8_new_tokens():
    tracker = started(prompt=8, new=3)
    tracker.weights_changed(1)
    generate(tracker, "a", 11, 3)
    tracker.weights_changed(2)
    generate(tracker, "a", 14, 2)
    record = tracker.finish("a")
    assert [stop - start for start, stop, _ in record.policy_epoch.spans()] == [11, 3, 2]
    assert [stop - start for start, stop, _ in record.kv_cache_epoch.spans()] == [10, 3, 3]
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 0),)


def test_two_updates_with_no_token_between_leave_one_boundary():
    tracker = started(prompt=4, new=2)
    tracker.weights_changed(1)
    tracker.weights_changed(2)
    generate(tracker, "a", 6, 1)
    record = tracker.finish("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 0), (6, 2)), ((0, 0), (5, 2)))


def test_the_same_epoch_once_more_changes_nothing():
    tracker = started(prompt=4, new=2)
    tracker.weights_changed(0)
    generate(tracker, "a", 6, 1)
    assert tracker.finish("a").policy_epoch.runs == ((0, 0),)


def test_a_token_sampled_after_an_update_from_a_pass_before_it_has_the_passs_epoch():
    tracker = started(prompt=4, new=1)
    prefill(tracker, "a", 4, 5)
    tracker.weights_changed(1)
    tracker.sample(["a"])  # token 5, from logits of epoch 0
    record = tracker.finish("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 0),), ((0, 0),))
    assert record.completion_epoch == 1


def test_a_step_done_once_more_after_an_update_has_the_new_epoch():
    tracker = started(prompt=4, new=1)
    prefill(tracker, "a", 4, 5)
    tracker.weights_changed(1)
    prefill(tracker, "a", 4, 5)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 0), (5, 1)), ((0, 0), (4, 1)))
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 0),)


# --- queues and prefills ---------------------------------------------------------------------------------------------


def test_a_prompt_admitted_at_3_and_prefilled_at_4():
    tracker = StalenessTracker(3)
    tracker.admit("a", 4)
    tracker.weights_changed(4)
    prefill(tracker, "a", 0, 4)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 4),)
    assert record.policy_epoch.runs == ((0, 3), (4, 4))
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 4),)
    check(record)


def test_two_updates_in_the_queue_leave_the_last_one():
    tracker = StalenessTracker(0)
    tracker.admit("a", 37)
    tracker.weights_changed(3)
    tracker.weights_changed(4)
    prefill(tracker, "a", 0, 37)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 4),)
    # The oldest token that was sampled is of epoch 4, whatever the prompt was admitted at.
    assert (record.of_sampled("policy_epoch").oldest, record.policy_epoch.oldest) == (4, 0)


def test_a_chunked_prefill_across_an_update_changes_at_the_chunks_edge():
    tracker = StalenessTracker(0)
    tracker.admit("a", 100)
    prefill(tracker, "a", 0, 60)
    tracker.weights_changed(1)
    prefill(tracker, "a", 60, 100)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 0), (60, 1))
    assert record.policy_epoch.runs == ((0, 0), (100, 1))
    assert record.oldest_attended_kv_epoch.runs == ((0, None), (100, 0))


def test_a_half_prefilled_request_knows_only_what_is_cached():
    tracker = StalenessTracker(2)
    tracker.admit("a", 5)
    prefill(tracker, "a", 0, 3)
    record = tracker.so_far("a")
    assert record.kv_cache_epoch.runs == ((0, 2), (3, None))
    assert (record.policy_epoch.runs, record.sampled, record.num_sampled) == (((0, 2),), (), 0)


def test_requests_of_one_pass_keep_their_own_epochs():
    tracker = started(prompt=2, new=1)  # "a": positions 0 and 1 at epoch 0
    tracker.weights_changed(1)
    tracker.admit("b", 2)
    tracker.forward(["a", "b", "b"], np.array([2, 0, 1]), np.array([2, 8, 9]))
    tracker.sample(["a", "b"])
    a, b = tracker.finish("a"), tracker.finish("b")
    assert (a.policy_epoch.runs, b.policy_epoch.runs) == (((0, 0), (3, 1)), ((0, 1),))
    assert a.oldest_attended_kv_epoch.runs == ((0, None), (2, 0))
    assert b.oldest_attended_kv_epoch.runs == ((0, None), (2, 1))


# --- preemption, eviction, suspends ----------------------------------------------------------------------------------


def test_an_evicted_request_prefilled_again():
    tracker = started(prompt=4, new=3, epoch=3)
    tracker.evict("a")
    tracker.weights_changed(4)
    prefill(tracker, "a", 0, 7, first_slot=20)
    record = tracker.so_far("a")
    assert (record.kv_cache_epoch.runs, record.policy_epoch.runs) == (((0, 4),), ((0, 3),))
    assert (record.num_evictions, record.num_preemptions, record.num_recomputes) == (1, 0, 0)
    assert (record.policy_epoch.max_staleness(5), record.kv_cache_epoch.max_staleness(5)) == (2, 1)
    tracker.sample(["a"])
    record = tracker.finish("a")
    # The three first tokens attended to epoch 3, which is gone; the fourth to what was written anew.
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 3), (3, 4))
    assert record.of_sampled("policy_epoch").runs == ((0, 3), (3, 4))
    check(record)


def test_two_updates_while_an_evicted_request_waits():
    tracker = started(prompt=4, new=3, epoch=3)
    tracker.evict("a")
    tracker.weights_changed(4)
    tracker.weights_changed(5)
    prefill(tracker, "a", 0, 7)
    assert tracker.finish("a").kv_cache_epoch.runs == ((0, 5),)


def test_an_evicted_request_that_is_given_up_has_no_kv_but_its_last_tokens_policy():
    tracker = started(prompt=4, new=3, epoch=3)
    tracker.evict("a")
    tracker.weights_changed(4)
    record = tracker.abort("a")
    assert record.kv_cache_epoch.runs == ((0, None), (6, 3))
    assert (record.status, record.completion_epoch) == ("aborted", 4)


def test_a_preempted_request_keeps_its_cache():
    tracker = started(prompt=4, new=1)
    tracker.preempt("a")
    tracker.weights_changed(1)
    generate(tracker, "a", 5, 1)
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 0), (4, 1))
    assert (record.num_preemptions, record.num_evictions) == (1, 0)


def test_a_suspend_that_recomputes_renews_kv_and_is_no_eviction():
    tracker = started(prompt=4, new=3)
    tracker.suspend("recompute")
    tracker.weights_changed(1)
    tracker.resume()
    prefill(tracker, "a", 0, 7)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 1),)
    assert record.policy_epoch.runs == ((0, 0), (7, 1))
    # What the first three tokens attended to is another than what is cached now.
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 0), (3, 1))
    assert (record.num_recomputes, record.num_evictions) == (1, 0)


def test_a_suspend_that_recomputes_is_not_counted_for_a_request_without_a_cache():
    tracker = StalenessTracker()
    tracker.admit("a", 4)
    tracker.suspend("recompute")
    assert tracker.abort("a").num_recomputes == 0


@pytest.mark.parametrize("mode", ["persist", "offload"])
def test_a_suspend_that_brings_the_cache_back_leaves_kv_as_it_was(mode):
    tracker = started(prompt=4, new=3)
    tracker.suspend(mode)
    tracker.weights_changed(1)
    tracker.resume()
    generate(tracker, "a", 7, 1)
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 0), (6, 1))
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 0),)
    assert record.num_recomputes == 0


# --- shared slots ----------------------------------------------------------------------------------------------------


def test_a_prefix_hit_reports_the_blocks_own_epoch():
    tracker = started(prompt=8, new=1)
    tracker.weights_changed(2)
    tracker.admit("b", 10)
    tracker.reuse("b", range(8), range(8))
    prefill(tracker, "b", 8, 10, first_slot=20)
    tracker.sample(["b"])
    record = tracker.finish("b")
    assert record.kv_cache_epoch.runs == ((0, 0), (8, 2))
    assert record.policy_epoch.runs == ((0, 2),)
    assert record.oldest_attended_kv_epoch.runs == ((0, None), (10, 0))
    assert record.prefix_cached_tokens == 8
    check(record)  # the eight hit tokens are excused


def test_slots_outlive_the_request_that_wrote_them():
    tracker = started(prompt=8, new=1)
    tracker.finish("a")
    tracker.admit("a", 6)
    tracker.weights_changed(1)
    tracker.reuse("a", range(4), range(4))
    assert tracker.so_far("a").kv_cache_epoch.runs == ((0, 0), (4, None))


def test_a_released_slot_holds_nothing_known_until_it_is_written():
    tracker = started(prompt=4, new=1)
    tracker.finish("a")
    tracker.release(range(2))
    tracker.admit("b", 4)
    tracker.reuse("b", range(3), range(3))
    prefill(tracker, "b", 3, 4)
    tracker.sample(["b"])
    record = tracker.finish("b")
    assert record.kv_cache_epoch.runs == ((0, None), (2, 0))
    assert record.oldest_attended_kv_epoch.runs == ((0, None),)


def test_a_slot_taken_over_without_a_release_has_the_epoch_of_its_last_writer():
    tracker = started(prompt=4, new=1)
    tracker.finish("a")
    tracker.weights_changed(1)
    tracker.admit("b", 4)
    prefill(tracker, "b", 0, 4)
    tracker.sample(["b"])
    record = tracker.finish("b")
    assert record.kv_cache_epoch.runs == ((0, 1),)
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 1),)


def test_a_shared_slot_written_anew_is_newer_for_all_that_hold_it():
    tracker = StalenessTracker()
    tracker.admit("a", 2)
    prefill(tracker, "a", 0, 1)  # the shared slot 0, at epoch 0
    tracker.weights_changed(1)
    prefill(tracker, "a", 1, 2)
    tracker.sample(["a"])  # attended to epoch 0
    tracker.weights_changed(2)
    tracker.admit("b", 1)
    tracker.forward(["b"], [0], [0])  # a hit on the whole prompt, whose last token is computed again in slot 0
    generate(tracker, "a", 3, 1)  # attended to slots of epochs 2, 1 and 2
    record = tracker.finish("a")
    assert record.of_sampled("oldest_attended_kv_epoch").expand().tolist() == [0, 1]
    # KV falls along the sequence, though nothing happened to "a" itself.
    assert record.kv_cache_epoch.runs == ((0, 2), (1, 1), (2, 2))
    check(record)


def test_a_lost_slot_that_another_request_writes_is_known_again():
    tracker = StalenessTracker()
    for request in ("a", "b"):
        tracker.admit(request, 2)
    prefill(tracker, "a", 0, 2)
    tracker.release([0])
    tracker.sample(["a"])  # its pass came before the release
    generate(tracker, "a", 3, 1)  # its pass came after
    tracker.forward(["b"], [0], [0])
    generate(tracker, "a", 4, 1)
    attended = tracker.finish("a").of_sampled("oldest_attended_kv_epoch")
    assert attended.runs == ((0, 0), (1, None), (2, 0))


def test_a_cached_position_computed_again_is_as_new_as_its_last_pass():
    tracker = StalenessTracker()
    tracker.admit("a", 3)
    prefill(tracker, "a", 0, 2)
    tracker.weights_changed(1)
    prefill(tracker, "a", 0, 3)
    tracker.sample(["a"])
    record = tracker.finish("a")
    assert record.kv_cache_epoch.runs == ((0, 1),)
    assert record.of_sampled("oldest_attended_kv_epoch").runs == ((0, 1),)


# --- ends ------------------------------------------------------------------------------------------------------------


def test_what_a_stop_string_cuts_off_is_in_no_record():
    tracker = started(prompt=4, new=2)
    tracker.weights_changed(1)
    generate(tracker, "a", 6, 2)
    record = tracker.finish("a", length=6)
    assert (record.length, record.sampled) == (6, ((4, 6),))
    assert record.policy_epoch.runs == ((0, 0),)
    # Token 5 was read by a pass of epoch 1 before the stop string was found: its keys and values are of epoch 1.
    assert record.kv_cache_epoch.runs == ((0, 0), (5, 1))
    assert record.oldest_attended_kv_epoch.length == 6
    assert sum(record.kv_cache_epoch.histogram(1).values()) == 6


@pytest.mark.parametrize(
    ("end", "status", "ends"),
    [
        # Seven tokens, six of them cached: a stop token or the length limit, an abort, a look at what goes on.
        (lambda tracker: tracker.finish("a"), "finished", True),
        (lambda tracker: tracker.finish("a", 7), "finished", True),
        (lambda tracker: tracker.abort("a"), "aborted", True),
        (lambda tracker: tracker.so_far("a"), "aborted", False),
    ],
)
def test_a_record_is_as_long_as_the_sequence_returned(end, status, ends):
    tracker = started(prompt=4, new=3, epoch=5)
    record = end(tracker)
    assert (record.length, record.num_sampled, record.status) == (7, 3, status)
    assert record.policy_epoch.length == record.kv_cache_epoch.length == record.oldest_attended_kv_epoch.length == 7
    assert record.kv_cache_epoch.runs == ((0, 5),)
    assert ("a" in tracker) != ends


def test_a_last_token_that_was_read_has_the_epoch_of_that_pass():
    tracker = started(prompt=4, new=1)
    tracker.weights_changed(1)
    prefill(tracker, "a", 4, 5)
    record = tracker.finish("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 0),), ((0, 0), (4, 1)))


def test_a_trim_to_the_prompt_leaves_no_sampled_token():
    record = started(prompt=4, new=3).finish("a", 4)
    assert (record.length, record.sampled, record.num_sampled) == (4, (), 0)


def test_a_name_is_free_again_and_takes_nothing_over():
    tracker = started(prompt=4, new=3)
    tracker.preempt("a")
    tracker.finish("a")
    tracker.weights_changed(1)
    tracker.admit("a", 2)
    record = tracker.so_far("a")
    assert (record.policy_epoch.runs, record.kv_cache_epoch.runs) == (((0, 1),), ((0, None),))
    assert (record.admission_epoch, record.num_preemptions) == (1, 0)


def test_the_tracker_says_who_runs():
    tracker = StalenessTracker()
    for request in range(20):
        tracker.admit(request, 1)
    tracker.abort(3)
    assert (3 in tracker, 4 in tracker) == (False, True)
    assert list(tracker) == [0, 1, 2, *range(4, 20)]


def test_an_empty_step_is_none():
    tracker = started(prompt=4, new=3)
    before = tracker.so_far("a")
    tracker.forward([], [], [])
    tracker.sample([])
    tracker.reuse("a", [], [])
    tracker.release([])
    assert tracker.so_far("a") == before


# --- events that cannot have happened --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "arguments", "message"),
    [
        ("weights_changed", (True,), "epoch must be an integer of 0 or more, got True"),
        ("weights_changed", (4.0,), "epoch must be an integer of 0 or more, got 4.0"),
        ("weights_changed", (-1,), "epoch must be an integer of 0 or more, got -1"),
        ("weights_changed", (2,), "epoch 2 is older than the current epoch 3"),
        ("suspend", ("persit",), "mode: expected one of persist, offload, recompute, got 'persit'"),
        ("resume", (), "resumed without being suspended"),
        ("release", ([4, -1],), "slot must be 0 or more, got -1"),
        ("admit", ("a", 4), "request 'a' is running already"),
        ("admit", ("c", 0), "request 'c': prompt_length must be 1 or more, got 0"),
        ("preempt", ("c",), "request 'c' is not running"),
        ("evict", ("c",), "request 'c' is not running"),
        ("finish", ("c",), "request 'c' is not running"),
        ("abort", ("c",), "request 'c' is not running"),
        ("so_far", ("c",), "request 'c' is not running"),
        ("sample", (["b", "c"],), "request 'c' is not running"),
        ("reuse", ("c", [0], [0]), "request 'c' is not running"),
        ("forward", (["c"], [0], [0]), "request 'c' is not running"),
        ("reuse", ("a", [2, 3], [7]), "2 positions and 1 slots; expected as many of each"),
        (
            "reuse",
            ("a", [4, 5], [7, 8]),
            "request 'a': its last token must go through a forward pass, and cannot be reused",
        ),
        ("reuse", ("a", [4], [7]), "request 'a': position 4 leaves a hole after 3 cached positions"),
        ("reuse", ("a", [3], [-7]), "slot must be 0 or more, got -7"),
        ("forward", (["a", "a"], [3], [7]), "2 requests, 1 positions and 1 slots; expected as many of each"),
        ("forward", (["a"], [4], [7]), "request 'a': position 4 leaves a hole after 3 cached positions"),
        ("forward", (["b", "a"], [1, 4], [6, 7]), "request 'a': position 4 leaves a hole after 3 cached positions"),
        ("forward", (["a"], [-1], [7]), "request 'a': position -1 leaves a hole after 3 cached positions"),
        ("forward", (["b"], [2], [7]), "request 'b': position 2 is past its 2 tokens"),
        (
            "forward",
            (["a", "a"], [0, 2], [7, 8]),
            "request 'a': position 2 after 0; positions must rise by one",
        ),
        ("forward", (["a", "a"], [3, 3], [7, 8]), "request 'a': position 3 after 3; positions must rise by one"),
        ("forward", (["a", "b", "a"], [3, 1, 4], [7, 8, 9]), "request 'a': its rows must stand together"),
        ("forward", (["a"], [3], [-2]), "slot must be 0 or more, got -2"),
        ("sample", (["a"],), "request 'a': sampled after 6 tokens, of which 3 went through a forward pass"),
        ("sample", (["b", "b"],), "request 'b': sampled twice from one forward pass"),
        ("finish", ("a", 7), "request 'a': length 7 does not lie between its prompt's 6 tokens and its 6"),
        ("so_far", ("a", 5), "request 'a': length 5 does not lie between its prompt's 6 tokens and its 6"),
    ],
)
def test_an_event_that_cannot_have_happened_is_refused_in_one_line_and_changes_nothing(event, arguments, message):
    tracker = StalenessTracker(3)
    tracker.admit("a", 6)
    tracker.admit("b", 2)
    prefill(tracker, "a", 0, 3)
    prefill(tracker, "b", 0, 2, first_slot=10)
    before = (tracker.epoch, tracker.suspended, [tracker.so_far(request) for request in tracker])
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(tracker, event)(*arguments)
    assert (tracker.epoch, tracker.suspended, [tracker.so_far(request) for request in tracker]) == before
    tracker.sample(["b"])  # and "b" is where it was


def test_a_suspended_engine_computes_nothing_and_is_not_suspended_twice():
    tracker = started(prompt=4, new=1)
    tracker.suspend("persist")
    with pytest.raises(ValueError, match="^a forward pass in a suspended engine$"):
        prefill(tracker, "a", 4, 5)
    with pytest.raises(ValueError, match="^suspended already$"):
        tracker.suspend("recompute")
    tracker.resume()
    generate(tracker, "a", 5, 1)


def test_the_first_epoch_is_checked_like_any_other():
    with pytest.raises(ValueError, match="^epoch must be an integer of 0 or more, got -1$"):
        StalenessTracker(-1)

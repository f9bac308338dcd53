"""RequestRecord: what it refuses, what `check` calls impossible, and one trajectory made of its turns."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord, Segment, check, merge_turns


def tokens(*epochs):
    return EpochRuns.from_tokens(epochs)


def record(policy, kv, attended, sampled, **rest):
    return RequestRecord("r", tokens(*policy), tokens(*kv), tokens(*attended), sampled, **rest)


# A prompt of 2 at epoch 3 and three sampled tokens; the weights change after the first of them.
ONE = record([3, 3, 3, 4, 4], [3, 3, 4, 4, 4], [None, None, 3, 3, 3], ((2, 5),), admission_epoch=3, completion_epoch=4)


# --- the record ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache_epoch": EpochRuns.missing(4)}, "kv_cache_epoch has 4 tokens, policy_epoch 5"),
        ({"oldest_attended_kv_epoch": EpochRuns.missing(6)}, "oldest_attended_kv_epoch has 6 tokens, policy_epoch 5"),
        ({"sampled": ((2, 6),)}, "sampled span 2:6 does not lie after token 0 of 5 tokens"),
        ({"sampled": ((3, 2),)}, "sampled span 3:2 does not lie after token 0 of 5 tokens"),
        ({"sampled": ((-1, 2),)}, "sampled span -1:2 does not lie after token 0 of 5 tokens"),
        ({"sampled": ((1, 3), (2, 4))}, "sampled span 2:4 does not lie after token 3 of 5 tokens"),
    ],
)
def test_lengths_that_differ_and_spans_outside_the_sequence_are_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(ONE, **change)


def test_the_sampled_tokens_alone():
    several = replace(ONE, sampled=((1, 3), (4, 5)))
    assert (ONE.length, ONE.num_sampled, several.num_sampled) == (5, 3, 3)
    assert ONE.of_sampled("policy_epoch").runs == ((0, 3), (1, 4))
    assert several.of_sampled("kv_cache_epoch").expand().tolist() == [3, 4, 4]  # tokens 1, 2 and 4
    assert several.of_sampled("oldest_attended_kv_epoch").runs == ((0, None), (1, 3))
    assert replace(ONE, sampled=()).of_sampled("policy_epoch").length == 0


def test_segments_are_sampled_neighbours_alike_in_all_three_epochs():
    assert list(ONE.segments()) == [Segment(3, 4, 3, 1), Segment(4, 4, 3, 2)]
    # Spans do not join, though tokens 2 and 3 are neighbours in this list.
    assert list(replace(ONE, sampled=((1, 2), (3, 4), (4, 4), (4, 5))).segments()) == [
        Segment(3, 3, None, 1),
        Segment(4, 4, 3, 1),
        Segment(4, 4, 3, 1),
    ]
    assert list(replace(ONE, sampled=()).segments()) == []


# --- check -----------------------------------------------------------------------------------------------------------


NEVER_BELOW = "policy staleness is never below KV staleness"


def test_what_an_engine_does_passes():
    check(ONE)
    check(replace(ONE, sampled=()))
    check(record([], [], [], ()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            record([3, 3, 3, 4], [3, 3, 3, 3], [None, None, 3, 3], ((2, 4),)),
            "token 3 of request 'r': KV epoch 3 is older than its policy epoch 4; " + NEVER_BELOW,
        ),
        (
            record([3, 3], [2, 3], [None, None], ()),
            "token 0 of request 'r': KV epoch 2 is older than its policy epoch 3; " + NEVER_BELOW,
        ),
        (
            record([3, 3, 3], [2, 2, 2], [None, None, 2], ((2, 3),), prefix_cached_tokens=1),
            "token 1 of request 'r': KV epoch 2 is older than its policy epoch 3; " + NEVER_BELOW,
        ),
        (
            record([3, 3, 3, 4], [4, 4, 4, 5], [None, None, 3, 5], ((2, 4),)),
            "token 3 of request 'r': oldest attended KV epoch 5 is newer than its policy epoch 4",
        ),
        (
            record([3, 3, 5, 4], [5, 5, 5, 5], [None, None, 3, 3], ((2, 4),)),
            "token 3 of request 'r': policy epoch falls from 5 to 4",
        ),
        (
            record([3, 5, None, 4], [5, 5, 5, 5], [None, 3, None, 3], ((1, 2), (3, 4))),
            "token 3 of request 'r': policy epoch falls from 5 to 4",
        ),
    ],
)
def test_what_cannot_be_true_names_the_token(wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check(wrong)


@pytest.mark.parametrize(
    "right",
    [
        # Two tokens from a block of epoch 2; where the number of such tokens is not known, any may be one.
        record([3, 3, 3], [2, 2, 3], [None, None, 2], ((2, 3),), prefix_cached_tokens=2),
        record([3, 3, 3], [2, 2, 2], [None, None, 2], ((2, 3),), prefix_cached_tokens=None),
        # What is missing is neither old nor new.
        record([3, 3, None], [None, 3, 3], [None, None, 3], ((2, 3),)),
        record([None, None, 3, None, 3], [1, 1, None, None, 3], [None] * 5, ((2, 5),)),
        # Another request computed the shared first block again.
        record([3, 3, 3], [5, 3, 3], [None, None, 3], ((2, 3),)),
        # Policy epochs of tokens that were not sampled may fall: a later turn's prompt, an older prompt's admission.
        record([5, 4, 4], [5, 5, 5], [None, None, 4], ((2, 3),)),
    ],
)
def test_what_can_be_true_passes(right):
    check(right)


# --- turns -----------------------------------------------------------------------------------------------------------


def turn(prompt, new, epoch, **rest):
    """A turn all at one epoch."""
    total = prompt + new
    attended = EpochRuns.missing(prompt).append(epoch, new)
    one = EpochRuns.from_boundaries([(0, epoch)], total)
    return RequestRecord(
        "r", one, one, attended, ((prompt, total),), admission_epoch=epoch, completion_epoch=epoch, **rest
    )


def test_each_token_of_a_trajectory_counts_once():
    first = turn(prompt=4, new=6, epoch=0, num_evictions=1, prefix_cached_tokens=None, num_preemptions=2)
    # Ten tokens of the first turn, a tool's answer of two, and four new ones.
    second = turn(prompt=12, new=4, epoch=3, num_evictions=2, prefix_cached_tokens=8, num_recomputes=1)
    merged = merge_turns([first, second])
    assert (merged.length, merged.num_sampled) == (16, 10)
    assert merged.sampled == ((4, 10), (12, 16))
    assert merged.policy_epoch.runs == ((0, 0), (10, None), (12, 3))
    assert merged.oldest_attended_kv_epoch.runs == ((0, None), (4, 0), (10, None), (12, 3))
    # The last turn's cache is the one there is: it prefilled the first ten tokens again.
    assert merged.kv_cache_epoch.runs == ((0, 3),)
    assert (merged.num_evictions, merged.num_preemptions, merged.num_recomputes) == (3, 2, 1)
    assert merged.prefix_cached_tokens is None
    assert (merged.admission_epoch, merged.completion_epoch) == (0, 3)
    # At step 5: six tokens of staleness 5 and four of 2.
    assert merged.of_sampled("policy_epoch").histogram(5) == {2: 4, 5: 6}
    check(merged)


def test_ten_tokens_at_0_and_sixteen_in_all_at_3_are_sixteen():
    merged = merge_turns([turn(prompt=4, new=6, epoch=0), turn(prompt=10, new=6, epoch=3)])
    assert merged.policy_epoch.runs == ((0, 0), (10, 3))
    assert merged.policy_epoch.histogram(3) == {0: 6, 3: 10}
    check(merged)


def test_one_turn_is_its_own_trajectory():
    assert merge_turns([ONE]) == ONE


def test_turns_may_be_merged_one_by_one():
    turns = [turn(2, 2, 0), turn(4, 1, 1), turn(7, 3, 2)]
    merged = merge_turns(turns)
    assert merge_turns([merge_turns(turns[:2]), turns[2]]) == merged
    assert merged.sampled == ((2, 4), (4, 5), (7, 10))
    assert merged.policy_epoch.runs == ((0, 0), (4, 1), (5, None), (7, 2))


def test_a_turn_that_sampled_nothing_adds_its_prompt_alone():
    merged = merge_turns([turn(4, 2, 0), replace(turn(9, 0, 1), sampled=())])
    assert (merged.length, merged.sampled) == (9, ((4, 6),))
    assert merged.policy_epoch.runs == ((0, 0), (6, None))


def test_a_later_turn_of_several_spans_keeps_them():
    later = replace(turn(6, 6, 1), sampled=((6, 8), (10, 12)))
    assert merge_turns([turn(4, 2, 0), later]).sampled == ((4, 6), (6, 8), (10, 12))


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], "a trajectory needs one turn at least"),
        (
            [turn(4, 6, 0), turn(9, 4, 1)],
            "turn 1 has a prompt of 9 tokens, fewer than the 10 of the turn before it",
        ),
        (
            [turn(4, 6, 0), turn(10, 1, 1), replace(turn(8, 0, 1), sampled=())],
            "turn 2 has a prompt of 8 tokens, fewer than the 11 of the turn before it",
        ),
    ],
)
def test_turns_that_do_not_follow_one_another_are_refused(turns, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        merge_turns(turns)

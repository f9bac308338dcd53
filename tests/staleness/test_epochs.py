"""EpochRuns: values worked out by hand, one clear line for each mistake, and a per-token list as the oracle."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.staleness.epochs import MISSING, EpochRuns


def test_an_update_after_two_of_five_tokens():
    runs = EpochRuns.from_boundaries([(0, 3), (2, 4)], 5)
    assert runs.expand().tolist() == [3, 3, 4, 4, 4]
    assert runs.expand().dtype == np.int64
    assert runs.staleness(5).tolist() == [2, 2, 1, 1, 1]
    assert (runs.oldest, runs.newest) == (3, 4)


def test_two_updates_with_no_token_between_leave_one_run():
    assert EpochRuns.from_boundaries([[0, 3], [4, 4], [4, 5]], 6).runs == ((0, 3), (4, 5))
    assert EpochRuns.from_boundaries([[0, 3], [0, 4]], 6).runs == ((0, 4),)


def test_an_update_undone_before_any_token_leaves_no_boundary():
    assert EpochRuns.from_boundaries([(0, 3), (4, 4), (4, 3)], 6).runs == ((0, 3),)


def test_the_mean_weighs_tokens_and_the_runs_are_stored_as_two_rows():
    runs = EpochRuns.from_boundaries([(0, 1), (9, 5)], 10)
    assert runs.mean_staleness(6) == pytest.approx(4.6)
    assert runs.to_json() == [[0, 1], [9, 5]]


def test_a_prompt_of_8_with_updates_after_3_and_6_of_8_new_tokens():
    runs = EpochRuns.from_boundaries([(0, 0), (11, 1), (14, 2)], 16)
    assert [stop - start for start, stop, _ in runs.spans()] == [11, 3, 2]
    assert runs.slice(8, 16).runs == ((0, 0), (3, 1), (6, 2))


def test_equal_neighbours_merge_and_boundaries_past_the_end_go():
    assert EpochRuns.from_boundaries([(0, 1), (2, 1), (5, 2), (9, 3)], 5) == EpochRuns(((0, 1),), 5)


def test_an_empty_sequence():
    runs = EpochRuns.from_boundaries([(0, 7)], 0)
    assert runs == EpochRuns.from_boundaries([], 0) == EpochRuns((), 0)
    assert runs.expand().shape == runs.staleness(0).shape == (0,)
    assert runs.append(4, 2).to_json() == [[0, 4]]
    assert runs == EpochRuns.missing(0) == EpochRuns.from_tokens([]) == EpochRuns.merge_turns([])
    assert (runs.stamped, runs.histogram(0)) == (0, {})
    for ask in asks_for_an_epoch(runs):
        with pytest.raises(ValueError, match="^an empty sequence has no epochs$"):
            ask()


def asks_for_an_epoch(runs):
    """Every question that has no answer without a stamped token."""
    return [
        lambda: runs.oldest,
        lambda: runs.newest,
        lambda: runs.mean_staleness(9),
        lambda: runs.std_staleness(9),
        lambda: runs.max_staleness(9),
        lambda: runs.min_staleness(9),
    ]


def test_a_token_without_a_stamp_is_missing_and_never_epoch_0():
    runs = EpochRuns.from_boundaries([(0, None), (2, 3), (4, None), (5, 5)], 6)
    assert runs.runs == ((0, None), (2, 3), (4, None), (5, 5))
    assert runs.expand().tolist() == [MISSING, MISSING, 3, 3, MISSING, 5]
    assert runs.staleness(5).tolist() == [MISSING, MISSING, 2, 2, MISSING, 0]
    assert runs.stamped == 3
    assert (runs.oldest, runs.newest) == (3, 5)
    # Staleness 2, 2 and 0: mean 4/3; squares of the distances 4/9, 4/9, 16/9, their mean 24/27.
    assert runs.histogram(5) == {0: 1, 2: 2}
    assert runs.mean_staleness(5) == pytest.approx(4 / 3)
    assert runs.std_staleness(5) == pytest.approx((24 / 27) ** 0.5)
    assert (runs.max_staleness(5), runs.min_staleness(5)) == (2, 0)
    assert runs.to_json() == [[0, None], [2, 3], [4, None], [5, 5]]


def test_neighbours_without_a_stamp_merge_like_any_other():
    assert EpochRuns.from_boundaries([(0, None), (2, None), (3, 1), (3, None)], 5).runs == ((0, None),)


def test_a_sequence_without_any_stamp_has_no_staleness_at_all():
    runs = EpochRuns.missing(3)
    assert runs == EpochRuns(((0, None),), 3)
    assert (runs.stamped, runs.histogram(4)) == (0, {})
    assert runs.staleness(4).tolist() == [MISSING] * 3
    for ask in asks_for_an_epoch(runs):
        with pytest.raises(ValueError, match="^no token has a stamp$"):
            ask()


def test_epochs_given_token_by_token():
    runs = EpochRuns(((0, None), (2, 4), (3, 0)), 5)
    assert EpochRuns.from_tokens([None, None, 4, 0, 0]) == runs
    assert EpochRuns.from_tokens((MISSING, None, 4, 0, 0)) == runs
    assert EpochRuns.from_tokens(np.array([-1, -1, 4, 0, 0])) == runs
    assert EpochRuns.from_tokens(np.array([], np.int64)) == EpochRuns((), 0)
    assert {type(number) for pair in EpochRuns.from_tokens(np.array([1, 2])).runs for number in pair} == {int}


@pytest.mark.parametrize("epochs", [[3, -2], [0.5], [True], ["3"]])
def test_tokens_epochs_that_are_none_are_refused(epochs):
    with pytest.raises(ValueError, match="must be"):
        EpochRuns.from_tokens(epochs)


def test_truncate_keeps_the_first_tokens():
    runs = EpochRuns(((0, 1), (3, None), (4, 2)), 6)
    assert runs.truncate(4).runs == ((0, 1), (3, None))
    assert runs.truncate(6) == runs
    assert runs.truncate(0) == EpochRuns((), 0)
    with pytest.raises(ValueError, match="^slice 0:7 does not lie within the sequence's 6 tokens$"):
        runs.truncate(7)


def test_turns_of_4_and_then_7_tokens_in_all_count_each_token_once():
    merged = EpochRuns.merge_turns([EpochRuns(((0, 5),), 4), EpochRuns(((0, 5), (4, 6)), 7)])
    assert merged == EpochRuns(((0, 5), (4, 6)), 7)
    assert merged.mean_staleness(7) == pytest.approx(11 / 7)  # four of 2 and three of 1: 1.5714


def test_turns_of_10_tokens_and_then_16_in_all_are_16_tokens():
    # The second turn's engine stamped all sixteen with its own epoch; the first ten keep the turn that made them.
    assert EpochRuns.merge_turns([EpochRuns(((0, 0),), 10), EpochRuns(((0, 3),), 16)]).runs == ((0, 0), (10, 3))


def test_a_turn_shorter_than_the_one_before_it_is_refused():
    turns = [EpochRuns.missing(2), EpochRuns.missing(5), EpochRuns.missing(4)]
    with pytest.raises(ValueError, match="^turn 2 has 4 tokens, fewer than the 5 of the turn before it$"):
        EpochRuns.merge_turns(turns)


def test_numpy_integers_are_stored_as_plain_ones():
    runs = EpochRuns.from_boundaries(np.array([[0, 1], [2, 5]]), np.int32(4))
    assert runs == EpochRuns(((0, 1), (2, 5)), 4)
    assert {type(number) for pair in runs.runs for number in pair} | {type(runs.length)} == {int}


@pytest.mark.parametrize(
    ("boundaries", "length", "message"),
    [
        ([], 3, "no epoch boundary for 3 tokens; missing epochs are never taken as 0"),
        ([(1, 0)], 3, "the first boundary must start at token 0, got 1"),
        ([(0, 0), (-1, 1)], 3, "start of boundary 1 must be 0 or more, got -1"),
        ([(0, -2)], 3, "epoch of boundary 0 must be 0 or more, got -2"),
        ([(0, 0), (4, 1), (2, 2)], 9, "start of boundary 2 goes backwards, from 4 to 2"),
        ([(0, 0), (9, 1), (8, 2)], 5, "start of boundary 2 goes backwards, from 9 to 8"),
        ([(0, True)], 3, "epoch of boundary 0 must be an integer, got True"),
        ([(0, 1.0)], 3, "epoch of boundary 0 must be an integer, got 1.0"),
        ([("0", 1)], 3, "start of boundary 0 must be an integer, got '0'"),
        ([(None, 1)], 3, "start of boundary 0 must be an integer, got None"),
        ([(0, 1, 2)], 3, r"boundary 0 must be a pair \(start, epoch\), got \(0, 1, 2\)"),
        ([7], 3, r"boundary 0 must be a pair \(start, epoch\), got 7"),
        ([(0, 1)], -1, "length must be 0 or more, got -1"),
        ([(0, 1)], True, "length must be an integer, got True"),
    ],
)
def test_a_wrong_stamp_is_refused_in_one_line(boundaries, length, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        EpochRuns.from_boundaries(boundaries, length)


@pytest.mark.parametrize("runs", [((0, 1), (2, 1)), ((0, 1), (5, 2)), ((0, 1), (0, 2))])
def test_the_plain_constructor_takes_canonical_runs_only(runs):
    with pytest.raises(ValueError, match="not canonical"):
        EpochRuns(runs, 5)


def test_a_step_older_than_an_epoch_names_the_token():
    runs = EpochRuns.from_boundaries([(0, 3), (2, 5)], 4)
    for ask in (
        *(runs.staleness, runs.histogram, runs.mean_staleness, runs.std_staleness),
        *(runs.max_staleness, runs.min_staleness),
    ):
        with pytest.raises(ValueError, match=r"^step 4 is older than epoch 5 of token 2$"):
            ask(4)


@pytest.mark.parametrize(("start", "stop"), [(3, 2), (0, 6), (6, 6)])
def test_a_slice_outside_the_sequence_is_refused(start, stop):
    with pytest.raises(ValueError, match="slice"):
        EpochRuns(((0, 1),), 5).slice(start, stop)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count must be 0 or more"):
        EpochRuns(((0, 1),), 5).append(1, -1)


epochs_or_none = st.none() | st.integers(0, 4)


@st.composite
def stamps(draw):
    """Boundaries as an engine stamps them, empty and repeated runs included, with a length that may cut them."""
    starts = [0, *sorted(draw(st.lists(st.integers(0, 24), max_size=8)))]
    epochs = draw(st.lists(epochs_or_none, min_size=len(starts), max_size=len(starts)))
    return list(zip(starts, epochs, strict=True)), draw(st.integers(0, 30))


def oracle(boundaries, length):
    """One epoch a token, by asking each boundary in turn."""
    tokens = ["no boundary"] * length
    for start, epoch in boundaries:
        for token in range(start, length):
            tokens[token] = epoch
    return tokens


def per_token(runs):
    return [None if epoch == MISSING else epoch for epoch in runs.expand().tolist()]


@given(stamps())
def test_boundaries_expand_to_the_oracle_and_come_back(stamp):
    boundaries, length = stamp
    runs = EpochRuns.from_boundaries(boundaries, length)
    tokens = oracle(boundaries, length)
    assert per_token(runs) == tokens
    assert len(runs.runs) == sum(a != b for a, b in zip(["none before", *tokens], tokens, strict=False))
    assert EpochRuns.from_boundaries(runs.to_json(), length) == runs
    assert runs == EpochRuns.from_tokens(tokens) == EpochRuns.from_tokens(runs.expand())
    known = [epoch for epoch in tokens if epoch is not None]
    assert runs.stamped == len(known)
    if known:
        assert (runs.oldest, runs.newest) == (min(known), max(known))


@given(stamps(), st.data())
def test_a_slice_is_the_oracles_slice(stamp, data):
    runs, tokens = EpochRuns.from_boundaries(*stamp), oracle(*stamp)
    start = data.draw(st.integers(0, runs.length))
    stop = data.draw(st.integers(start, runs.length))
    assert per_token(runs.slice(start, stop)) == tokens[start:stop]
    assert per_token(runs.truncate(stop)) == tokens[:stop]


@given(stamps(), epochs_or_none, st.integers(0, 4))
def test_append_is_the_oracles_append(stamp, epoch, count):
    longer = EpochRuns.from_boundaries(*stamp).append(epoch, count)
    assert per_token(longer) == oracle(*stamp) + [epoch] * count


@given(stamps(), st.integers(4, 9))
def test_staleness_and_all_made_of_it_are_the_oracles(stamp, step):
    runs = EpochRuns.from_boundaries(*stamp)
    stale = [MISSING if epoch is None else step - epoch for epoch in oracle(*stamp)]
    assert runs.staleness(step).tolist() == stale
    known = [each for each in stale if each != MISSING]
    assert list(runs.histogram(step).items()) == [(each, known.count(each)) for each in sorted(set(known))]
    if known:
        assert runs.mean_staleness(step) == pytest.approx(statistics.fmean(known))
        assert runs.std_staleness(step) == pytest.approx(statistics.pstdev(known))
        assert (runs.max_staleness(step), runs.min_staleness(step)) == (max(known), min(known))


@given(st.lists(st.lists(epochs_or_none, max_size=9), max_size=5))
def test_merged_turns_are_the_oracles(turns):
    turns.sort(key=len)
    merged = []
    for turn in turns:
        merged += turn[len(merged) :]
    assert per_token(EpochRuns.merge_turns([EpochRuns.from_tokens(turn) for turn in turns])) == merged

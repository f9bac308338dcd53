"""EpochRuns: values worked out by hand, one clear line for each mistake, and a per-token list as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.staleness.epochs import EpochRuns


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
    for ask in (lambda: runs.oldest, lambda: runs.newest, lambda: runs.mean_staleness(9)):
        with pytest.raises(ValueError, match="empty sequence"):
            ask()


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
        ([(0, None)], 3, "epoch of boundary 0 must be an integer, got None"),
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
    for ask in (runs.staleness, runs.mean_staleness):
        with pytest.raises(ValueError, match=r"^step 4 is older than epoch 5 of token 2$"):
            ask(4)


@pytest.mark.parametrize(("start", "stop"), [(3, 2), (0, 6), (6, 6)])
def test_a_slice_outside_the_sequence_is_refused(start, stop):
    with pytest.raises(ValueError, match="slice"):
        EpochRuns(((0, 1),), 5).slice(start, stop)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count must be 0 or more"):
        EpochRuns(((0, 1),), 5).append(1, -1)


@st.composite
def stamps(draw):
    """Boundaries as an engine stamps them, empty and repeated runs included, with a length that may cut them."""
    starts = [0, *sorted(draw(st.lists(st.integers(0, 24), max_size=8)))]
    epochs = draw(st.lists(st.integers(0, 4), min_size=len(starts), max_size=len(starts)))
    return list(zip(starts, epochs, strict=True)), draw(st.integers(0, 30))


def oracle(boundaries, length):
    """One epoch a token, by asking each boundary in turn."""
    tokens = [-1] * length
    for start, epoch in boundaries:
        for token in range(start, length):
            tokens[token] = epoch
    return tokens


@given(stamps())
def test_boundaries_expand_to_the_oracle_and_come_back(stamp):
    boundaries, length = stamp
    runs = EpochRuns.from_boundaries(boundaries, length)
    tokens = oracle(boundaries, length)
    assert runs.expand().tolist() == tokens
    assert len(runs.runs) == sum(a != b for a, b in zip([None, *tokens], tokens, strict=False))
    assert EpochRuns.from_boundaries(runs.to_json(), length) == runs
    if length:
        assert (runs.oldest, runs.newest) == (min(tokens), max(tokens))


@given(stamps(), st.data())
def test_a_slice_is_the_oracles_slice(stamp, data):
    runs, tokens = EpochRuns.from_boundaries(*stamp), oracle(*stamp)
    start = data.draw(st.integers(0, runs.length))
    stop = data.draw(st.integers(start, runs.length))
    assert runs.slice(start, stop).expand().tolist() == tokens[start:stop]


@given(stamps(), st.integers(0, 5), st.integers(0, 4))
def test_append_is_the_oracles_append(stamp, epoch, count):
    longer = EpochRuns.from_boundaries(*stamp).append(epoch, count)
    assert longer.expand().tolist() == oracle(*stamp) + [epoch] * count


@given(stamps(), st.integers(4, 9))
def test_staleness_and_its_mean_are_the_oracles(stamp, step):
    runs, stale = EpochRuns.from_boundaries(*stamp), [step - epoch for epoch in oracle(*stamp)]
    assert runs.staleness(step).tolist() == stale
    if stale:
        assert runs.mean_staleness(step) == pytest.approx(sum(stale) / len(stale))

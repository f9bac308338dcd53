"""Advantages worked out by hand, and that failed rollouts and groups without a comparison move nothing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.rl.advantages import group_advantages

NAN = float("nan")


def test_a_group_by_hand():
    """[1, 0, 0, 1]: mean 0.5, deviation sqrt(4 * 0.25 / 3) = 0.57735; 0.5 / 0.57735 = 0.86603."""
    assert group_advantages([[1, 0, 0, 1]], normalize=False).tolist() == [[0.5, -0.5, -0.5, 0.5]]
    expected = [0.866025, -0.866025, -0.866025, 0.866025]
    assert group_advantages([[1, 0, 0, 1]]).tolist()[0] == pytest.approx(expected, abs=1e-5)


def test_leave_one_out_by_hand():
    """[3, 0, 0]: the others' means are 0, 1.5 and 1.5; the deviation of all three is sqrt((4 + 1 + 1) / 2) = sqrt(3)."""
    assert group_advantages([[3, 0, 0]], normalize=False, leave_one_out=True).tolist() == [[3.0, -1.5, -1.5]]
    found = group_advantages([[3, 0, 0]], leave_one_out=True).tolist()[0]
    assert found == pytest.approx([value / math.sqrt(3) for value in (3, -1.5, -1.5)], abs=1e-5)


def test_a_failed_member_is_in_no_mean():
    """[1, failed, 0]: the mean of two is 0.5; the failed one gets 0."""
    assert group_advantages([[1, NAN, 0]], normalize=False).tolist() == [[0.5, 0.0, -0.5]]
    assert group_advantages([[1, NAN, 0]], normalize=False, leave_one_out=True).tolist() == [[1.0, 0.0, -1.0]]


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("group", [[0.7], [0.1, 0.1, 0.1], [NAN, NAN], [NAN, 0.3], [0.1, NAN, 0.1]])
def test_no_comparison_is_no_advantage(group, leave_one_out):
    """One reward, equal rewards (whose float mean may differ from them), all failed, one left."""
    assert group_advantages([group], leave_one_out=leave_one_out).tolist() == [[0.0] * len(group)]


def test_groups_do_not_mix():
    """Each row as if alone, and no group at all is no advantage."""
    rows = [[1, 0], [5, 9], [NAN, 2]]
    assert group_advantages(rows).tolist() == [group_advantages([row])[0].tolist() for row in rows]
    assert group_advantages(np.empty((0, 4))).shape == (0, 4)


def test_what_is_no_reward():
    with pytest.raises(ValueError, match="infinity"):
        group_advantages([[1, math.inf]])
    with pytest.raises(ValueError, match="1 dimensions"):
        group_advantages([1, 0])


@given(st.lists(st.lists(st.integers(-8, 8), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(1, 4))
def test_what_holds_of_all(rows, scale):
    """They sum to 0, keep the order of rewards, and normalised ones do not know the scale of the rewards."""
    rewards = np.array(rows, float)
    found = group_advantages(rewards)
    assert np.allclose(found.sum(1), 0, atol=1e-9)
    assert all(
        (np.sign(np.subtract.outer(f, f)) == np.sign(np.subtract.outer(r, r))).all()
        for f, r in zip(found, rewards, strict=True)
    )
    assert np.allclose(group_advantages(rewards * scale), found, rtol=1e-4)

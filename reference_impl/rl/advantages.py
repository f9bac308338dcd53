"""GRPO's advantages: how much better a rollout did than the others of its prompt.

Rewards come as [prompts, members of a group], with NaN for a rollout that failed: it is neither in the group's mean nor
does it get an advantage.
"""

import numpy as np

EPSILON = 1e-6
"""Added to a deviation that is divided by."""


def group_advantages(rewards: np.ndarray, *, normalize: bool = True, leave_one_out: bool = False) -> np.ndarray:
    """float64 [prompts, members]: each reward minus its group's baseline, 0 for a failed rollout.

    The baseline is the mean of the group, or with `leave_one_out` of its other members, which does not depend on the reward
    it is taken from. With `normalize` the difference is divided by the group's deviation, taken over its number of rewards
    minus one, as NeMo RL does.

    A group in which all rewards are equal says nothing about what to do more of, and one with a single reward has nothing
    to compare it with: their advantages are 0.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 2:
        raise ValueError(f"rewards: expected [prompts, members], got {rewards.ndim} dimensions")
    if np.isinf(rewards).any():
        raise ValueError("rewards: expected finite numbers, or NaN for a failed rollout, got an infinity")
    known = ~np.isnan(rewards)
    count = known.sum(1, keepdims=True)
    values = np.where(known, rewards, 0.0)
    total = values.sum(1, keepdims=True)
    mean = total / np.maximum(count, 1)
    others = (total - values) / np.maximum(count - 1, 1)
    advantages = values - (others if leave_one_out else mean)
    if normalize:
        squares = np.where(known, (values - mean) ** 2, 0.0).sum(1, keepdims=True)
        advantages = advantages / (np.sqrt(squares / np.maximum(count - 1, 1)) + EPSILON)
    return np.where(known & (count > 1) & ~_all_equal(rewards), advantages, 0.0)


def _all_equal(rewards: np.ndarray) -> np.ndarray:
    """Whether a group's known rewards are one value: by comparison, for a mean of equal numbers need not be that number."""
    highest = np.where(np.isnan(rewards), -np.inf, rewards).max(1, keepdims=True, initial=-np.inf)
    lowest = np.where(np.isnan(rewards), np.inf, rewards).min(1, keepdims=True, initial=np.inf)
    return highest <= lowest

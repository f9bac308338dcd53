"""What lag costs and brings, before anything runs: the laws of a loop that is kept full.

Times may be in any unit, seconds or ticks: `train` is how long a training step lasts with its update, `generate` how long a
rollout takes from its first token to its end. All rollouts of a step begin together, when an update makes room for them, and
take equally long; the engine has room for all. [](/design/async.md) derives the laws, and holds them to runs.
"""

import math


def step_time(train: float, generate: float, lag: int) -> float:
    """Mean time from one update to the next, once the first steps are over.

    Between a rollout's begin and the update that it leads to lie `lag + 1` updates, and it is generated and trained on: so
    `lag + 1` steps last `generate + train` at least, and each one `train` at least. Where that leaves the trainer waiting,
    steps come in bunches of `lag + 1`, for the first of them were begun together.
    """
    return max(train, (generate + train) / (lag + 1))


def utilisation(train: float, generate: float, lag: int) -> float:
    """The share of its time that the trainer trains; the rest it waits for rollouts."""
    return train / step_time(train, generate, lag)


def useful_lag(train: float, generate: float) -> int:
    """The least lag with which the trainer never waits. More makes rollouts older, and nothing faster."""
    return math.ceil(generate / train)


def engine_lag(max_requests: int, rollouts: int, ranks: int = 1) -> int:
    """The most lag whose rollouts the engine has room for at once, `rollouts` being those of a step; Megatron-RL's bound.

    More leaves requests waiting inside the engine, where they hold no token that could get old, and bring nothing. -1 says
    that not even one step's fit.
    """
    return ranks * max_requests // rollouts - 1


def token_staleness(lag: int, place: int, tokens: int, train: float, generate: float) -> int:
    """Policy staleness of sampled token `place`, from 0, of `tokens` that are sampled at a steady pace.

    The first is as old as the lag allows. Each update that a rollout lives through makes the tokens after it one younger.
    Raises `ValueError` where the trainer waits: there it depends on a step's place in its bunch.
    """
    if lag < useful_lag(train, generate):
        raise ValueError(f"lag {lag}: the trainer waits for rollouts below {useful_lag(train, generate)}")
    return lag - math.floor(place * generate / tokens / train)


def completion_gap(lag: int, tokens: int, train: float, generate: float) -> int:
    """Updates between a rollout's last token and the step that consumes it; errors as {py:func}`token_staleness`."""
    return token_staleness(lag, tokens - 1, tokens, train, generate)

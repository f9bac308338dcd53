"""What one generation's clock says: first token, decode speed and latency, from the times at which tokens were there."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WARM = 4
"""Tokens of each sequence that are there before decoding is timed; they and the prompts are left out of its speed."""


@dataclass(frozen=True)
class Timeline:
    """Seconds since a batch was handed over, and the tokens sampled by then over all its sequences, step by step."""

    batch: int
    seconds: Sequence[float]
    tokens: Sequence[int]

    @property
    def first_token_seconds(self) -> float:
        """Until every sequence of the batch can have its first token: the prefill."""
        return self.seconds[self._at(1)]

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens of the whole batch per second, between the {py:data}`WARM`th token of each sequence and the last."""
        warm = self._at(WARM)
        return (self.tokens[-1] - self.tokens[warm]) / (self.seconds[-1] - self.seconds[warm])

    @property
    def token_seconds(self) -> float:
        """The median time of a decode step, which is a sequence's time from one token to the next."""
        return statistics.median(after - before for before, after in pairwise(self.seconds[self._at(WARM) :]))

    def _at(self, each: int) -> int:
        """The first step after which there are `each` tokens for each sequence."""
        return next(step for step, tokens in enumerate(self.tokens) if tokens >= each * self.batch)

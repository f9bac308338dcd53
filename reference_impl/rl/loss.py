"""GRPO's loss of sampled tokens, with corrections for tokens that an older policy, or another engine, has sampled.

Three policies meet in it. *Generation* is what sampled a token: its log-probability came with it. *Previous* is the policy
when the training step began; *current* is the one that gradients flow into. Current over previous is PPO's ratio, which
clipping bounds. Previous over generation is the importance weight: it is 1 on-policy up to rounding, and what staleness
moves away from it.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Correction = Literal["none", "weight", "tis", "icepop", "seq-mask-tis"]
CORRECTIONS = ("none", "weight", "tis", "icepop", "seq-mask-tis")


@dataclass(frozen=True)
class LossSettings:
    """How tokens count.

    `clip_min`, `clip_max`
    : The ratio of a token whose advantage asks for more stops paying beyond `1 + clip_max`, below `1 - clip_min` if less.

    `kl_weight`
    : Of the divergence from a reference policy, by the estimate `exp(d) - 1 - d` with `d` reference minus current.

    `correction`
    : `none` leaves the importance weight out, `weight` multiplies each token with it. `tis` first clamps it to
      [`weight_min`, `weight_max`]; `icepop` leaves out tokens whose weight is outside; `seq-mask-tis` leaves out sequences
      whose geometric mean is outside, and multiplies the tokens of the others.

    `max_token_staleness`
    : Tokens that are older do not count, however the rest of their rollout is; `None` counts all.
    """

    clip_min: float = 0.2
    clip_max: float = 0.2
    kl_weight: float = 0.0
    correction: Correction = "none"
    weight_min: float = 0.0
    weight_max: float = 2.0
    max_token_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.correction not in CORRECTIONS:
            raise ValueError(f"correction: expected one of {', '.join(CORRECTIONS)}, got {self.correction!r}")
        if not 0 <= self.weight_min <= self.weight_max:
            raise ValueError(f"weight_min {self.weight_min} and weight_max {self.weight_max}: expected 0 <= min <= max")


@dataclass(frozen=True)
class Tokens:
    """Sampled tokens of a batch, padded, all [rollouts, positions].

    `previous`, `generation`
    : float32: log-probability of each token under the policy before this training step, and under what sampled it.

    `advantages`
    : float32, of a token's rollout.

    `counts`
    : bool: sampled by the policy. Prompts, a tool's answers and padding are not.

    `staleness`
    : int64: the training step minus the token's policy epoch; only read with `max_token_staleness`.

    `reference`
    : float32: log-probability under the reference policy; only read with a `kl_weight`.
    """

    previous: Tensor
    generation: Tensor
    advantages: Tensor
    counts: Tensor
    staleness: Tensor | None = None
    reference: Tensor | None = None

    def kept(self, settings: LossSettings) -> Tensor:
        """Which tokens the loss is a mean of: bool [rollouts, positions]."""
        return self.weighed(settings)[1]

    def weighed(self, settings: LossSettings) -> tuple[Tensor, Tensor]:
        """The importance weight of each token, and which tokens count after age and correction."""
        counts = self.counts
        if settings.max_token_staleness is not None:
            if self.staleness is None:
                raise ValueError("max_token_staleness needs the tokens' staleness")
            counts = counts & (self.staleness <= settings.max_token_staleness)
        return importance(self.difference(), counts, settings)

    def difference(self) -> Tensor:
        """Previous minus generation where tokens count, 0 elsewhere."""
        return _where(self.counts, self.previous - self.generation)

    def rows(self, part: slice) -> "Tokens":
        """Some of the rollouts."""
        taken = {name: value[part] for name, value in vars(self).items() if value is not None}
        return replace(self, **taken)


def grpo_loss(
    current: Tensor, tokens: Tokens, settings: LossSettings, number: int | None = None
) -> tuple[Tensor, dict[str, float]]:
    """The mean loss over the tokens that count, and what to plot beside it.

    `current` [rollouts, positions] are log-probabilities that carry gradients. `number` is how many tokens the sum is
    divided by, where these rollouts are a part of a batch; otherwise how many there are. Where no token counts the loss is
    0, with a gradient of 0. Values at positions that do not count are not read, NaN included.
    """
    weight, kept = tokens.weighed(settings)
    difference = tokens.difference()
    ratio = _where(kept, current - tokens.previous).exp()
    advantages = _where(kept, tokens.advantages)
    clipped = ratio.clamp(1 - settings.clip_min, 1 + settings.clip_max)
    each = -torch.minimum(ratio * advantages, clipped * advantages) * weight
    total = max(int(kept.sum()), 1)
    metrics = {
        "tokens": float(tokens.counts.sum()),
        "tokens_left_out": float((tokens.counts & ~kept).sum()),
        "clip_fraction": float((kept & ((ratio - clipped) * advantages > 0)).sum()) / total,
        "token_mult_prob_error": multiplicative_error(difference, tokens.counts),
    }
    if settings.kl_weight:
        if tokens.reference is None:
            raise ValueError("kl_weight needs the log-probabilities of a reference policy")
        d = _where(kept, tokens.reference - current)
        kl = d.exp() - 1 - d
        metrics["kl"] = float(kl.detach().sum()) / total
        each = each + settings.kl_weight * kl
    return torch.where(kept, each, 0.0).sum() / (number or total), metrics


def importance(difference: Tensor, counts: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Weight of each token, and which tokens count at all; `difference` is previous minus generation, 0 where none counts."""
    weight = difference.exp()
    low, high = settings.weight_min, settings.weight_max
    if settings.correction == "none":
        return torch.ones_like(weight), counts
    if settings.correction == "tis":
        return weight.clamp(low, high), counts
    if settings.correction == "icepop":
        return weight, counts & (weight >= low) & (weight <= high)
    if settings.correction == "seq-mask-tis":
        mean = ((difference * counts).sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp(min=1)).exp()
        return weight, counts & (mean >= low) & (mean <= high)
    return weight, counts


def multiplicative_error(difference: Tensor, counts: Tensor) -> float:
    """NeMo RL's `token_mult_prob_error`: the mean over tokens of how many times one probability is the other, at least 1."""
    return float((difference.abs().exp() * counts).sum() / counts.sum().clamp(min=1)) if counts.any() else 1.0


def _where(counts: Tensor, values: Tensor) -> Tensor:
    """`values` where tokens count, 0 elsewhere, also for the gradient: NaN times 0 would be NaN."""
    return torch.where(counts, values, torch.zeros_like(values))

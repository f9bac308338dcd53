"""The training side of the shared model: log-probabilities with gradients, and one step of GRPO on them.

The model is the `GPTModel` whose parameters the engine reads. Training changes them in place; nothing is copied.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl.generation.distribution import Rule, processed_log_probs
from reference_impl.rl.loss import LossSettings, Tokens, grpo_loss

ROWS = 32
"""Rollouts whose activations are held at a time."""


@dataclass(frozen=True)
class Batch:
    """Rollouts to train on, padded on the right.

    `ids`
    : int64 [rollouts, length].

    `counts`
    : bool [rollouts, length]: tokens that the policy sampled.

    `generation`
    : float32 [rollouts, length]: log-probabilities that came with them.

    `advantages`
    : float32 [rollouts].

    `staleness`
    : int64 [rollouts, length]: of each sampled token, in training steps.
    """

    ids: Tensor
    counts: Tensor
    generation: Tensor
    advantages: Tensor
    staleness: Tensor


@contextmanager
def training(model: Any) -> Iterator[None]:
    """Let gradients flow for the length of a `with` block.

    Megatron's engine raises a flag for the whole process while it is awake, under which a `GPTModel` computes no loss; so
    an engine that shares this model has to be asleep.
    """
    from megatron.core.inference.utils import InferenceMode

    InferenceMode.unset_active()
    model.train()
    try:
        yield
    finally:
        model.eval()


def log_probs(model: Any, ids: Tensor, rule: Rule) -> Tensor:
    """[rollouts, length]: the log-probability of each token given those before it, 0 for the first.

    By the same definition as the engine's: of logits over the temperature, after top-k and top-p.
    """
    rows, length = ids.shape
    # Written out, for GPTModel would make it on "cuda"; true is what a position does not see.
    mask = torch.ones(1, 1, length - 1, length - 1, dtype=torch.bool, device=ids.device).triu(1)
    positions = torch.arange(length - 1, device=ids.device).expand(rows, -1)
    logits = model(ids[:, :-1], positions, mask)
    known = processed_log_probs(logits.flatten(0, 1), *rule).view(rows, length - 1, -1)
    found = known.gather(2, ids[:, 1:, None])[..., 0]
    return torch.cat([found.new_zeros(rows, 1), found], 1)


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: LossSettings,
    rule: Rule,
    max_norm: float = 1.0,
) -> dict[str, float]:
    """One step on a batch: the loss over all its tokens, clipped gradients, the optimizer. Returns what to plot.

    Rollouts go through the model in parts of {py:data}`ROWS`, whose gradients add up to those of the whole. A step whose
    gradient is not finite changes nothing and says so in `skipped`.
    """
    parts = [slice(at, at + ROWS) for at in range(0, len(batch.ids), ROWS)]
    with training(model):
        with torch.no_grad():
            previous = torch.cat([log_probs(model, batch.ids[part], rule) for part in parts])
        tokens = Tokens(
            previous,
            batch.generation,
            batch.advantages[:, None].expand_as(previous),
            batch.counts,
            staleness=batch.staleness,
        )
        number = max(int(tokens.kept(settings).sum()), 1)
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in parts:
            current = log_probs(model, batch.ids[part], rule)
            share, _ = grpo_loss(current, tokens.rows(part), settings, number)
            share.backward()
            loss += share.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        skipped = not norm.isfinite()
        if not skipped:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    _, metrics = grpo_loss(previous, tokens, settings, number)
    return metrics | {"loss": loss, "gradient_norm": float(norm), "skipped": float(skipped)}


def show(model: Any, optimizer: torch.optim.Optimizer, rows: list[tuple[list[int], list[int]]]) -> float:
    """One supervised step on (prompt, answer) rows of equal lengths; the mean loss of a token of the answers, in nats."""
    ids = torch.tensor([prompt + answer for prompt, answer in rows])
    with training(model):
        loss = -log_probs(model, ids, (1.0, 0, 0.0))[:, len(rows[0][0]) :].mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()

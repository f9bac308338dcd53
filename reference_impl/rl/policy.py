"""The training side of the shared model: log-probabilities with gradients, and one step of GRPO on them.

The model is the `GPTModel` whose parameters the engine reads. Training changes them in place; nothing is copied.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl.generation.distribution import Rule, processed_log_probs
from reference_impl.rl.loss import LossSettings, Tokens, grpo_loss, multiplicative_error

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
    mask, positions = _causal(ids)
    return _of_tokens(model(ids[:, :-1], positions, mask), ids, rule)


def _causal(ids: Tensor) -> tuple[Tensor, Tensor]:
    """What `GPTModel` takes beside the tokens: which positions a position does not see, and their numbers."""
    rows, length = ids.shape
    # Written out, for GPTModel would make the mask on "cuda".
    mask = torch.ones(1, 1, length - 1, length - 1, dtype=torch.bool, device=ids.device).triu(1)
    return mask, torch.arange(length - 1, device=ids.device).expand(rows, -1)


def _of_tokens(logits: Tensor, ids: Tensor, rule: Rule) -> Tensor:
    rows, length = ids.shape
    known = processed_log_probs(logits.flatten(0, 1), *rule).view(rows, length - 1, -1)
    found = known.gather(2, ids[:, 1:, None])[..., 0]
    return torch.cat([found.new_zeros(rows, 1), found], 1)


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: LossSettings,
    rule: Rule,
    *,
    max_norm: float | None = 1.0,
    minibatch: int | None = None,
    reference: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """One pass over a batch: the loss over its tokens, clipped gradients, the optimizer. Returns what to plot.

    The optimizer takes a step for every `minibatch` rollouts, in their order, or one for all. Rollouts go through the model in
    parts of {py:data}`ROWS`, whose gradients add up to those of the whole. A step whose gradient is not finite changes
    nothing, and `skipped` counts it. `reference` are the weights of the policy that `settings.kl_weight` holds this one to.
    """
    count = len(batch.ids)
    with training(model):
        with torch.no_grad():
            previous = _by_parts(count, lambda part: log_probs(model, batch.ids[part], rule))
            held = _by_parts(count, lambda part: _under(model, reference, batch.ids[part], rule)) if reference else None
        tokens = Tokens(
            previous,
            batch.generation,
            batch.advantages[:, None].expand_as(previous),
            batch.counts,
            staleness=batch.staleness,
            reference=held,
        )
        size = minibatch or count
        taken = [
            _gradient_step(model, optimizer, batch.ids[some], tokens.rows(some), settings, rule, max_norm)
            for some in (slice(at, at + size) for at in range(0, count, size))
        ]
    metrics = {name: sum(each[name] for each in taken) / len(taken) for name in taken[0]}
    totals = {name: sum(each[name] for each in taken) for name in ("tokens", "tokens_left_out", "skipped")}
    error = multiplicative_error(tokens.difference(), tokens.counts)
    return metrics | totals | {"token_mult_prob_error": error}


def _gradient_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    ids: Tensor,
    tokens: Tokens,
    settings: LossSettings,
    rule: Rule,
    max_norm: float | None,
) -> dict[str, float]:
    number = max(int(tokens.kept(settings).sum()), 1)
    optimizer.zero_grad(set_to_none=True)
    loss, found = 0.0, []
    for part in _parts(len(ids)):
        current = log_probs(model, ids[part], rule)
        share, _ = grpo_loss(current, tokens.rows(part), settings, number)
        share.backward()
        loss += share.item()
        found.append(current.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if max_norm is None else max_norm)
    skipped = not norm.isfinite()
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    _, metrics = grpo_loss(torch.cat(found), tokens, settings, number)
    return metrics | {"loss": loss, "gradient_norm": float(norm), "skipped": float(skipped)}


def _under(model: Any, weights: Mapping[str, Tensor] | None, ids: Tensor, rule: Rule) -> Tensor:
    """`log_probs` with other weights in the place of the model's own."""
    mask, positions = _causal(ids)
    logits = torch.func.functional_call(model, dict(weights or {}), (ids[:, :-1], positions, mask))
    return _of_tokens(logits, ids, rule)


def _parts(count: int) -> list[slice]:
    return [slice(at, at + ROWS) for at in range(0, count, ROWS)]


def _by_parts(count: int, compute: Callable[[slice], Tensor]) -> Tensor:
    return torch.cat([compute(part) for part in _parts(count)])


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

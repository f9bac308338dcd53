"""The training side of the shared model: log-probabilities with gradients, and one step of GRPO on them.

The model is the `GPTModel` whose parameters the engine reads. Training changes them in place; nothing is copied.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reference_impl.generation.distribution import Rule, processed_log_probs
from reference_impl.rl.loss import LossSettings, Tokens, grpo_loss


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
    microbatch: int = 32,
    reference: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """One pass over a batch: the loss over its tokens, clipped gradients, the optimizer. Returns what to plot.

    The optimizer takes a step for every `minibatch` rollouts, in their order, or one for all. `microbatch` of them go through
    the model at a time, whose gradients add up to those of the whole. A step whose gradient is not finite changes nothing,
    and `skipped` counts it. `reference` are the weights of the policy that `settings.kl_weight` holds this one to.
    """
    device = next(iter(model.parameters())).device
    batch = Batch(**{name: tensor.to(device) for name, tensor in vars(batch).items()})
    count, size = len(batch.ids), minibatch or len(batch.ids)
    everything = _parts(count, microbatch)
    with training(model):
        with torch.no_grad():
            held = previous = None
            if reference:
                held = torch.cat([_under(model, reference, batch.ids[part], rule) for part in everything])
            # Of the first gradient step the policy before it is the policy in it, and its forward pass serves for both.
            if size < count:
                previous = torch.cat([log_probs(model, batch.ids[part], rule) for part in everything])
        tokens = Tokens(
            batch.generation if previous is None else previous,
            batch.generation,
            batch.advantages[:, None].expand_as(batch.generation),
            batch.counts,
            staleness=batch.staleness,
            reference=held,
        )
        taken = [
            _gradient_step(
                model,
                optimizer,
                batch.ids[some],
                tokens.rows(some),
                settings,
                rule,
                max_norm,
                microbatch,
                previous is not None,
            )
            for some in _parts(count, size)
        ]
    metrics = {name: sum(each[name] for each in taken) / len(taken) for name in taken[0]}
    return metrics | {name: sum(each[name] for each in taken) for name in ("tokens", "tokens_left_out", "skipped")}


def _gradient_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    ids: Tensor,
    tokens: Tokens,
    settings: LossSettings,
    rule: Rule,
    max_norm: float | None,
    microbatch: int,
    has_previous: bool,
) -> dict[str, float]:
    optimizer.zero_grad(set_to_none=True)
    total, previous, found = 0.0, [], []
    for part in _parts(len(ids), microbatch):
        current = log_probs(model, ids[part], rule)
        some = tokens.rows(part)
        if not has_previous:
            some = replace(some, previous=current.detach())
        share, _ = grpo_loss(current, some, settings, number=1)
        share.backward()
        total += share.item()
        previous.append(some.previous)
        found.append(current.detach())
    whole = replace(tokens, previous=torch.cat(previous))
    number = max(int(whole.kept(settings).sum()), 1)  # known only now: weights decide which tokens count
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch._foreach_div_(gradients, number)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if max_norm is None else max_norm)
    skipped = not norm.isfinite()
    if not skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    _, metrics = grpo_loss(torch.cat(found), whole, settings)
    return metrics | {"loss": total / number, "gradient_norm": float(norm), "skipped": float(skipped)}


def _under(model: Any, weights: Mapping[str, Tensor] | None, ids: Tensor, rule: Rule) -> Tensor:
    """`log_probs` with other weights in the place of the model's own."""
    mask, positions = _causal(ids)
    logits = torch.func.functional_call(model, dict(weights or {}), (ids[:, :-1], positions, mask))
    return _of_tokens(logits, ids, rule)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(at, at + size) for at in range(0, count, size)]


def show(model: Any, optimizer: torch.optim.Optimizer, rows: list[tuple[list[int], list[int]]]) -> float:
    """One supervised step on (prompt, answer) rows of equal lengths; the mean loss of a token of the answers, in nats."""
    ids = torch.tensor([prompt + answer for prompt, answer in rows], device=next(iter(model.parameters())).device)
    with training(model):
        loss = -log_probs(model, ids, (1.0, 0, 0.0))[:, len(rows[0][0]) :].mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()

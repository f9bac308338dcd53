"""From logits to tokens and log-probabilities, on the device, with as few passes over [rows, vocabulary] as it takes.

The distribution is that of {py:func}`~reference_impl.generation.distribution.processed_log_probs`; a test holds the two to
each other. A token is drawn by inverting its cumulative distribution at one uniform number, which depends on the seed, the
request and the position alone, so that batch mates, evictions and chunks change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """How one engine samples: `top_k` 0 and `top_p` 1.0 are off; `raw` asks for log-probabilities of the unprocessed logits."""

    temperature: float
    top_k: int
    top_p: float
    raw: bool


def choose(logits: Tensor, rule: Rule, greedy: bool, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token ids and their log-probabilities [rows] for `logits` [rows, vocabulary], which are overwritten.

    Greedy takes the best token, the lowest id on ties, with the model's own log-probability. Otherwise `uniform` [rows]
    holds the numbers in [0, 1) to draw by. Logits that are not finite give a log-probability that is not.
    """
    if greedy or rule.temperature == 0.0:
        best, tokens = logits.max(dim=-1)
        return tokens, -logits.sub_(best[:, None]).exp_().sum(dim=-1).log()
    assert uniform is not None
    model_total = logits.logsumexp(dim=-1) if rule.raw else None
    raw = logits.clone() if rule.raw else None
    if rule.temperature != 1.0:
        logits.div_(rule.temperature)
    vocabulary = logits.shape[-1]
    ids: Tensor | None = None
    if 0 < rule.top_k < vocabulary or rule.top_p < 1.0:
        k = rule.top_k if 0 < rule.top_k < vocabulary else vocabulary
        scores, ids = logits.topk(k, dim=-1) if k < vocabulary else logits.sort(dim=-1, descending=True)
        if rule.top_p < 1.0:
            probabilities = scores.softmax(dim=-1)
            before = probabilities.cumsum(dim=-1) - probabilities
            scores.masked_fill_(before >= rule.top_p, float("-inf"))
    else:
        scores = logits
    weights = (scores - scores.max(dim=-1, keepdim=True).values).exp_()
    running = weights.cumsum(dim=-1, dtype=torch.float64)
    total = running[:, -1:]
    place = torch.searchsorted(running, uniform[:, None].double() * total, right=True).clamp_(max=running.shape[-1] - 1)
    tokens = place if ids is None else ids.gather(-1, place)
    if raw is not None and model_total is not None:
        chosen = raw.gather(-1, tokens).squeeze(-1) - model_total
    else:
        chosen = (weights.gather(-1, place) / total).log().squeeze(-1).float()
    return tokens.squeeze(-1), chosen


def log_probs_of(logits: Tensor, targets: Tensor, rule: Rule, greedy: bool) -> Tensor:
    """Log-probabilities [rows] of given tokens under `logits` [rows, vocabulary]: a prompt's own.

    Temperature counts in processed mode, but top-k and top-p do not: nobody drew these tokens, and a cut would make
    most of them impossible.
    """
    logits = logits.float()
    if not (greedy or rule.raw or rule.temperature == 0.0):
        logits = logits / rule.temperature
    return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(dim=-1)


def uniforms(seed: int, requests: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Numbers in [0, 1), float64 [rows]: one for each (seed, request, position), the same on every machine.

    Each row's three numbers go through the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), one after another.
    """
    with np.errstate(over="ignore"):
        state = _mixed(np.uint64(seed % 2**64) + np.zeros(len(requests), np.uint64))
        state = _mixed(state + np.asarray(requests, np.uint64))
        state = _mixed(state + np.asarray(positions, np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) / 2**53


def _mixed(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))

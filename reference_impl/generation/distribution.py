"""How tokens are chosen and what their log-probabilities are: one definition for both, in plain PyTorch."""

import torch
from torch import Tensor

Rule = tuple[float, int, float]
"""(temperature, top_k, top_p) temperature 0 is greedy; a top_k of 0 and a top_p of 0.0 are off, as Megatron spells it."""


def processed_log_probs(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Log-probabilities of the distribution that is sampled from: [rows, vocabulary], `-inf` where nothing is sampled.

    Logits are divided by the temperature; the `top_k` best are kept and renormalised; of those the smallest set whose
    probability reaches `top_p` is kept and renormalised. At temperature 0 (greedy) the choice is no distribution, so the
    log-probabilities are the model's own, log-softmax of the unscaled logits: finite, and what an evaluation wants.
    """
    logits = logits.float()
    if temperature == 0.0:
        return torch.log_softmax(logits, dim=-1)
    scaled = logits / temperature if temperature != 1.0 else logits
    vocabulary = logits.shape[-1]
    k = top_k if 0 < top_k < vocabulary else vocabulary
    if k == vocabulary and not 0.0 < top_p < 1.0:
        return torch.log_softmax(scaled, dim=-1)
    best, ids = scaled.topk(k, dim=-1) if k < vocabulary else scaled.sort(dim=-1, descending=True)
    if 0.0 < top_p < 1.0:
        probabilities = best.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # mass of the better tokens; 0 for the best, so it stays
        best = best.masked_fill(before >= top_p, float("-inf"))
    kept = torch.full_like(scaled, float("-inf")).scatter_(-1, ids, best)
    return torch.log_softmax(kept, dim=-1)


def sample(logits: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> Tensor:
    """One token id a row, [rows] int64, drawn from {py:func}`processed_log_probs`; the best token at temperature 0."""
    if temperature == 0.0:
        return logits.argmax(dim=-1)
    probabilities = processed_log_probs(logits, temperature, top_k, top_p).exp()
    return torch.multinomial(probabilities, num_samples=1, generator=generator).squeeze(-1)

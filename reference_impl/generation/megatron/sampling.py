"""How tokens are chosen and what their log-probabilities are: one definition for both, in Megatron's sampling seam.

megatron-core 0.19.2's own torch sampler asserts on top-k together with top-p and on a top-k as large as the vocabulary, and
its processed log-probabilities are NaN under greedy decoding at temperature 0. This one has no such gaps.
"""

from collections import defaultdict
from typing import Any

import torch
from megatron.core.inference.sampling.base import Sampling
from torch import Tensor

from reference_impl.generation.distribution import Rule, processed_log_probs, sample


class ExactSampling(Sampling):
    """Megatron's `Sampling` interface over the two functions above; rows with equal rules are handled together."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def sample_kernel(
        self,
        logits: Tensor,
        n: int,
        context: Any,
        *,
        no_top_k: bool,
        no_top_p: bool,
        gather_indices: Tensor | None = None,
        token_to_request_index: Tensor | None = None,
        output: Tensor | None = None,
        eager: bool = False,
        cache_key: Any = None,
    ) -> Tensor:
        """Sample `n` rows (Megatron's contract); the keyword flags only steer fused kernels and are not needed here."""
        rows = logits[gather_indices[:n]] if gather_indices is not None else logits[:n]
        tokens = torch.empty(n, dtype=torch.int64, device=logits.device) if output is None else output
        for rule, of_rule in rows_by_rule(context, token_to_request_index):
            index = slice(None) if len(of_rule) == n else torch.tensor(of_rule, device=logits.device)
            tokens[index] = sample(rows[index], *rule, self._generator)
        return tokens

    def log_probs_kernel(self, logits: Tensor, context: Any, *, token_to_request_index: Tensor | None = None) -> Tensor:
        """Processed log-probabilities of every row, [rows, vocabulary]."""
        groups = rows_by_rule(context, token_to_request_index)
        if len(groups) == 1:
            return processed_log_probs(logits, *groups[0][0])
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        for rule, of_rule in groups:
            index = torch.tensor(of_rule, device=logits.device)
            out[index] = processed_log_probs(logits[index], *rule)
        return out


def rows_by_rule(context: Any, row_to_request: Tensor | None) -> list[tuple[Rule, list[int]]]:
    """Rows grouped by their request's rule, in order of first appearance."""
    active = context.total_request_count - context.paused_request_count
    columns = [context.active_request_metadata[name][:active].tolist() for name in ("temperature", "top_k", "top_p")]
    of_request: list[Rule] = list(zip(*columns, strict=True))
    requests = range(active) if row_to_request is None else row_to_request.tolist()
    groups: dict[Rule, list[int]] = defaultdict(list)
    for row, request in enumerate(requests):
        groups[of_request[request]].append(row)
    return list(groups.items())

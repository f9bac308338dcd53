"""The independent oracle: transformers' Llama in float64, teacher-forced over what a backend returned."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reference_impl.conformance.expect import TOLERANCE, close, hold
from reference_impl.models.llama import LlamaShape

NEAR_TIE = 1e-3
"""Greedy choices may differ where the two best log-probabilities are less than this apart."""


class Teacher:
    """What transformers says of one checkpoint."""

    def __init__(self, weights: Mapping[str, Tensor], shape: LlamaShape) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        self._model = LlamaForCausalLM(LlamaConfig(**shape.to_hf_config())).double().eval()
        self._model.load_state_dict({name: weight.double() for name, weight in weights.items()}, strict=False)
        self._model.tie_weights()

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], after: "Teacher | None" = None, cut: int = 0) -> Tensor:
        """Logits after each of `tokens`, [tokens - cut, vocabulary]; keys and values of the first `cut` are `after`'s."""
        from transformers import DynamicCache

        ids, cache = torch.tensor([list(tokens)]), DynamicCache(config=self._model.config)
        if after is not None:
            after._model(ids[:, :cut], cache=cache, use_cache=True)
        return self._model(ids[:, cut:], cache=cache, use_cache=True).logits[0]

    def log_probs(self, tokens: Sequence[int]) -> Tensor:
        """Log-probabilities of what follows each of `tokens`, [tokens, vocabulary]."""
        return self.logits(tokens).log_softmax(-1)

    def agrees(self, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], of: str) -> None:
        """Fail unless these are a greedy response to the prompt and its log-probabilities."""
        follows_greedily(self.log_probs([*prompt, *ids])[len(prompt) - 1 : -1], ids, logprobs, of)

    def same(
        self,
        prompt: Sequence[int],
        one: tuple[Sequence[int], Sequence[float]],
        other: tuple[Sequence[int], Sequence[float]],
        of: str,
    ) -> None:
        """Fail unless two greedy responses (ids, log-probabilities) are the same up to a near-tie."""
        until = next((i for i, pair in enumerate(zip(one[0], other[0], strict=False)) if pair[0] != pair[1]), None)
        if until is None:
            hold(len(one[0]) == len(other[0]), f"{of}: {len(one[0])} tokens, expected {len(other[0])}")
            until = len(one[0])
        else:
            best = self.log_probs([*prompt, *one[0][:until]])[-1].topk(2).values
            gap = (best[0] - best[1]).item()
            hold(gap < NEAR_TIE, f"{of}: token {until} is {one[0][until]}, expected {other[0][until]}")
        close(one[1][:until], other[1][:until], f"{of}, log-probabilities")


def follows_greedily(log_probs: Tensor, ids: Sequence[int], logprobs: Sequence[float], of: str) -> None:
    """Fail unless each id is the best (up to a near-tie) of its row of `log_probs` [ids, vocabulary], and has its value."""
    for place, (token, row) in enumerate(zip(ids, log_probs, strict=True)):
        best = int(row.argmax())
        hold(row[best] - row[token] < NEAR_TIE, f"{of}: token {place} is {token}, expected {best}")
    close(logprobs, log_probs[range(len(ids)), list(ids)].tolist(), f"{of}, log-probabilities", TOLERANCE)

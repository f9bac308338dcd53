"""A finished Megatron request as a {py:class}`~reference_impl.generation.outputs.Completion`, epochs as it was stamped."""

from typing import Any

from megatron.core.inference.inference_request import DynamicInferenceEventType, Status

from reference_impl.generation.outputs import Completion
from reference_impl.staleness.epochs import EpochRuns


def read_completion(request: Any, prompt_length: int) -> Completion:
    """Read a merged `DynamicInferenceRequest`. Ids and log-probabilities of different lengths are a `RuntimeError`."""
    if request.status == Status.FAILED:
        return Completion(error=_reason(request))
    token_ids = [int(token) for token in request.generated_tokens]
    logprobs = [float(value) for value in request.generated_log_probs or []]
    if len(token_ids) != len(logprobs):
        raise RuntimeError(
            f"request {request.request_id}: the engine returned {len(token_ids)} tokens and {len(logprobs)} "
            "log-probabilities"
        )
    length = prompt_length + len(token_ids)
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        policy=_runs(request.policy_epoch, length),
        kv=_runs(request.kv_cache_epoch, length),
        num_evictions=sum(event.type == DynamicInferenceEventType.EVICT for event in request.events),
    )


def _runs(boundaries: list[tuple[int, int]] | None, length: int) -> EpochRuns | None:
    return EpochRuns.from_boundaries(boundaries, length) if boundaries else None


def _reason(request: Any) -> str:
    errors = (DynamicInferenceEventType.ERROR_NONTRANSIENT, DynamicInferenceEventType.ERROR_TRANSIENT)
    found = [event.payload for event in request.events if event.type in errors]
    if not found:
        return "the engine failed the request without a reason"
    return "; ".join(f"{type(error).__name__}: {error}".rstrip(": ") for error in found)

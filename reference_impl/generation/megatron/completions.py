"""A finished Megatron request as a {py:class}`~reference_impl.generation.outputs.Completion`, with both kinds of stamps."""

from typing import Any

from megatron.core.inference.inference_request import DynamicInferenceEventType, Status

from reference_impl.generation.outputs import Completion
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord


def read_completion(request: Any, record: RequestRecord | None, prompt_length: int) -> Completion:
    """Read a merged `DynamicInferenceRequest`; `record` is what the tracker knows of it.

    Ids and log-probabilities of different lengths are a `RuntimeError`.
    """
    if request.status == Status.FAILED:
        return Completion(error=_reason(request))
    token_ids = [int(token) for token in request.generated_tokens]
    logprobs = [float(value) for value in request.generated_log_probs or []]
    if len(token_ids) != len(logprobs):
        raise RuntimeError(
            f"request {request.request_id}: the engine returned {len(token_ids)} tokens and {len(logprobs)} "
            "log-probabilities"
        )
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        record=record,
        upstream=upstream_view(request, prompt_length, prompt_length + len(token_ids)),
    )


def upstream_view(request: Any, prompt_length: int, length: int) -> RequestRecord | None:
    """Megatron's own stamps on a merged request as a record, imprecisions included; `None` if it was not stamped.

    What Megatron has no stamp for (what a token attended to, recomputes, prefix reuse) is missing.
    """
    if not request.policy_epoch:
        return None
    policy = EpochRuns.from_boundaries(request.policy_epoch, length)
    kv = EpochRuns.from_boundaries(request.kv_cache_epoch, length) if request.kv_cache_epoch else None
    return RequestRecord(
        request=request.request_id,
        policy_epoch=policy,
        kv_cache_epoch=kv or EpochRuns.missing(length),
        oldest_attended_kv_epoch=EpochRuns.missing(length),
        sampled=((prompt_length, length),) if length > prompt_length else (),
        num_evictions=sum(event.type == DynamicInferenceEventType.EVICT for event in request.events),
        num_preemptions=None,
        num_recomputes=None,
        prefix_cached_tokens=None,
        admission_epoch=request.policy_epoch[0][1],
        completion_epoch=request.policy_epoch[-1][1],
    )


def _reason(request: Any) -> str:
    errors = (DynamicInferenceEventType.ERROR_NONTRANSIENT, DynamicInferenceEventType.ERROR_TRANSIENT)
    found = [event.payload for event in request.events if event.type in errors]
    if not found:
        return "the engine failed the request without a reason"
    return "; ".join(f"{type(error).__name__}: {error}".rstrip(": ") for error in found)

"""When a sequence ends: several stop ids, and stop strings across token borders, in the step that completes them.

Megatron's engine knows one `termination_id`, and finds stop words only after a step, so that a further step runs for
nothing and, in 0.19.2, tokens are dropped whose log-probabilities stay. Its controller offers a callback instead, between
sampling and book-keeping; a request named there ends in this very step, with its last token and log-probability.
"""

from collections.abc import Callable
from typing import Any

from reference_impl.generation.stops import Decode, Stops

STOP_IDS, STOP_STRINGS = "stop_token_ids", "stop_strings"
"""Attributes that travel on Megatron's `SamplingParams`, also through its coordinator."""


class StopRule:
    """The controller's callback. It also counts sampled tokens, since it is the one place that sees each of them, and tells
    `sampled` for which requests one was sampled."""

    def __init__(self, engine: Any, decode: Decode | None, sampled: Callable[[list[int]], None]) -> None:
        self._engine = engine
        self._decode = decode
        self._tell_sampled = sampled
        self.sampled_tokens = 0

    def __call__(self, active_request_ids: list[int]) -> set[int]:
        """The requests among `active_request_ids` that the tokens just sampled complete."""
        sampled = self._engine.controller._sampled_tokens_cuda[: len(active_request_ids)].tolist()
        unfinished_prefill = self._engine.context.chunked_prefill_request_id
        done = set()
        # What is sampled in the middle of a prompt is thrown away.
        kept = [pair for pair in zip(active_request_ids, sampled, strict=True) if pair[0] != unfinished_prefill]
        self.sampled_tokens += len(kept)
        self._tell_sampled([request_id for request_id, _ in kept])
        for request_id, token in kept:
            record = self._engine.requests[request_id].record
            # The first request of the record has all parameters; Megatron's copies after an eviction lose ours.
            params = record[0].sampling_params
            stops = Stops(getattr(params, STOP_IDS, []), getattr(params, STOP_STRINGS, []))
            earlier = [t for request in record.requests for t in request.generated_tokens] if stops.strings else []
            if stops.completed_by([*earlier, token], self._decode):
                done.add(request_id)
        return done

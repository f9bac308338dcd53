"""verl's trajectories: `min_global_steps` and `max_global_steps`, the versions of the first and of the last call.

verl answers a trajectory with one call of its server, or with several when weight updates abort it in between, and
keeps the version that each of the two outer calls ran on. They lie in the tags of its transfer queue beside
`prompt_len` and `response_len`, or in the `extra_fields` of an output beside `token_ids`. Source: verl-project/verl,
`verl/trainer/ppo/v1/agent_loop_tq.py`, `verl/workers/rollout/llm_server.py`.
"""

from __future__ import annotations

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.readers.fields import (
    PROMPTS,
    Entry,
    child,
    listed,
    named,
    optional_count,
    record_of_output,
    size,
    spans_of_mask,
    status_of,
)
from reference_impl.staleness.records import RequestRecord, Status

PLACES = ("extra_fields", "tags", "tag")


def read(entry: Entry, request: int | str = 0) -> RequestRecord:
    """One trajectory as a record.

    `request`
    : What to call it if the line has no id.

    Versions never fall, so where both are the same, every sampled token has that version. Where they differ, no single
    token's is certain: the first call may have been aborted before its first token, and what a later turn sampled last
    may have been cut. Then the tokens have no stamp, which shows in the coverage, and the two versions bound them as
    `admission_epoch` and `completion_epoch`: the oldest token is no older than the one, the newest no newer than the
    other.

    The number of output tokens is `response_len`, or the length of `token_ids`, `responses` or `response_mask`; a mask
    also says which of them were sampled. Raises `ValueError` that starts with the field.
    """
    name = next((name for name in PLACES if "min_global_steps" in child(entry, name)), None)
    tags, path = (entry, "") if name is None else (child(entry, name), f"{name}.")
    first, last = (optional_count(tags, f"{which}_global_steps", path) for which in ("min", "max"))
    if first is not None and last is not None and last < first:
        raise ValueError(f"{path}max_global_steps: {last} is below min_global_steps {first}")
    prompt, tokens = (
        size({**tags, **entry}, names)
        for names in (PROMPTS, ["response_len", "token_ids", "responses", "response_mask"])
    )
    if tokens is None:
        raise ValueError(
            "response_len: missing, and neither token_ids nor response_mask says how many tokens there are"
        )
    epoch = first if first == last else None
    sampled = None
    output = EpochRuns((), 0).append(epoch, tokens)
    if entry.get("response_mask") is not None:
        mask = listed(entry["response_mask"], "response_mask")
        if len(mask) != tokens:
            raise ValueError(f"response_mask: {len(mask)} entries for {tokens} tokens")
        sampled = spans_of_mask(mask, prompt or 0)
        output = EpochRuns.from_tokens([epoch if of else None for of in mask])
    return record_of_output(
        named(entry, request),
        prompt or 0,
        output,
        sampled=sampled,
        admission_epoch=first,
        completion_epoch=last,
        status=_status(tags, entry),
    )


def _status(tags: Entry, entry: Entry) -> Status:
    if tags.get("status") == "failure":
        return "failed"
    return status_of(entry.get("stop_reason"))

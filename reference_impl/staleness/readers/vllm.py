"""vLLM's completions: `weight_versions` says which weights sampled each output token.

The spans are `{"version": "6", "start": 0, "end": 3}`, `end` exclusive, over the output alone; no tokens give `[]`, and
`null` means that nobody knows. They lie on each completion: `outputs[0]` of a request's output, `choices[0]` of an HTTP
answer, or the line itself. Source: vllm-project/vllm, pull request 59582, `docs/training/async_rl.md`.
"""

from __future__ import annotations

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.readers.fields import (
    PROMPTS,
    Entry,
    Labels,
    child,
    from_spans,
    named,
    only_child,
    record_of_output,
    size,
    status_of,
)
from reference_impl.staleness.records import RequestRecord

PLACES = ("outputs", "choices")


def read(entry: Entry, request: int | str = 0, versions: Labels | None = None) -> RequestRecord:
    """One completion as a record.

    `request`
    : What to call it if the line has no id.

    `versions`
    : Which checkpoint's number a version's label stands for. Labels that are digits need none.

    vLLM's labels are opaque: the one that it starts with, `default`, names no checkpoint. KV epochs, all counts, and
    the epochs at which a request came and ended are missing. Raises `ValueError` that starts with the field.
    """
    place = next((name for name in PLACES if entry.get(name) is not None), None)
    completion = entry if place is None else only_child(entry, place)
    path = "" if place is None else f"{place}[0]."
    tokens = size(completion, ["token_ids"], path)
    if tokens is None:
        tokens = size(child(entry, "usage"), ["completion_tokens"], "usage.")
    spans = completion.get("weight_versions")
    prompt = size(entry, PROMPTS)
    prompt = size(completion, PROMPTS, path) if prompt is None else prompt
    prompt = size(child(entry, "usage"), ["prompt_tokens"], "usage.") if prompt is None else prompt
    if spans is None:
        if tokens is None:
            raise ValueError(f"{path}token_ids: missing, and without weight_versions nothing says how many there are")
        output = EpochRuns.missing(tokens)
    else:
        output = from_spans(spans, f"{path}weight_versions", tokens, versions)
    return record_of_output(
        named(entry, request), prompt or 0, output, status=status_of(completion.get("finish_reason"))
    )

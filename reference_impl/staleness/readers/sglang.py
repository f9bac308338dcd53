"""SGLang's answers from `/generate`: `meta_info.weight_versions` says which weights sampled each output token.

The spans are `{"version": "6", "start": 0, "end": 3}`, `end` exclusive, over the output alone. A server started with
`--enable-prefill-weight-versions` also gives `prefill_weight_versions`, over the prompt: which weights wrote the keys
and values cached there. Source: sgl-project/sglang, `python/sglang/srt/utils/weight_versions.py`.
"""

from __future__ import annotations

from reference_impl.staleness.readers.fields import (
    PROMPTS,
    Entry,
    Labels,
    child,
    from_spans,
    named,
    optional_count,
    record_of_output,
    size,
    status_of,
)
from reference_impl.staleness.records import RequestRecord

FIELD = "meta_info.weight_versions"


def read(entry: Entry, request: int | str = 0, versions: Labels | None = None) -> RequestRecord:
    """One answer as a record.

    `request`
    : What to call it if neither the line nor its `meta_info` has an id.

    `versions`
    : Which checkpoint's number a version's label stands for. Labels that are digits need none.

    SGLang does not tell the KV epochs of output tokens, the epochs at which a request came and ended, nor how often its
    cache was kept through a pause or dropped: these are missing. `meta_info.total_retractions` counts how often its
    blocks were taken, which is `num_evictions`. Raises `ValueError` that starts with the field.
    """
    meta = child(entry, "meta_info")
    prompt = size(meta, ["prompt_tokens"], "meta_info.")
    prompt = (size(entry, PROMPTS) or 0) if prompt is None else prompt
    tokens = size(entry, ["output_ids"])
    tokens = size(meta, ["completion_tokens"], "meta_info.") if tokens is None else tokens
    prefill = "prefill_weight_versions"
    return record_of_output(
        named(entry, named(meta, request)),
        prompt,
        from_spans(meta.get("weight_versions"), FIELD, tokens, versions),
        prompt_kv=from_spans(meta[prefill], f"meta_info.{prefill}", prompt, versions) if meta.get(prefill) else None,
        num_evictions=optional_count(meta, "total_retractions", "meta_info."),
        status=status_of(meta.get("finish_reason")),
    )

"""Megatron's own stamps: `policy_epoch` and `kv_cache_epoch`, `[[start, epoch], ...]` over prompt and output.

They come from its HTTP endpoints (`choices[0]`, or `choices[0].message` of a chat), from an `InferenceResponse`
(`token_ids` and `prompt_length`), and from a `TokenRollout`, which has a list of each a turn (`trajectory` and
`generation_mask`). Megatron-LM's main branch keeps the three in its request ledger instead and sends only the request's
id. Source: NVIDIA/Megatron-LM at core_v0.19.0, `megatron/rl/agent/api.py`, `megatron/rl/inference/api.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.readers.fields import (
    PROMPTS,
    Entry,
    child,
    count,
    listed,
    named,
    only_child,
    optional_count,
    size,
    spans_of_mask,
    status_of,
)
from reference_impl.staleness.records import RequestRecord, Spans, check, merge_turns

GENERATED = ("generation_token_ids", "generated_tokens", "generated_length", "completion_tokens")
STAMPS = ("policy_epoch", "kv_cache_epoch")


def read(entry: Entry, request: int | str = 0) -> RequestRecord:
    """One request, or one rollout with its turns merged (see `records.merge_turns`), as a record.

    `request`
    : What to call it if the line has no id.

    The stamps are taken as they are: a policy boundary lies one token early, and prompt tokens have the epoch of
    admission. A boundary past the end, left by a stop string that was cut off, counts for `completion_epoch` alone.
    Megatron stamps requests and not cache slots: how often a cache was kept through a pause or dropped by a suspend,
    how much of it was reused, and what was attended to is missing.

    Raises `ValueError` that starts with the field.
    """
    return merge_turns(read_turns(entry, request))


def read_turns(entry: Entry, request: int | str = 0) -> list[RequestRecord]:
    """The record of each turn, over all tokens of that turn, as `upstream.upstream_metrics` takes them."""
    name = named(entry, request)
    if "trajectory" in entry:
        return _rollout(entry, name)
    inner, path = _stamped(entry)
    prompt = size(inner, PROMPTS, path)
    prompt = (size(entry, PROMPTS) or 0) if prompt is None else prompt
    length = size(inner, ["token_ids", "length"], path)
    if length is None:
        generated = size(inner, GENERATED, path)
        if generated is None:
            raise ValueError(f"{path}generation_token_ids: missing, and Megatron's stamps do not say where they end")
        length = prompt + generated
    if prompt > length:
        raise ValueError(f"{path}prompt_length: {prompt} is more than the sequence's {length} tokens")
    sampled = ((prompt, length),) if length > prompt else ()
    reason = inner.get("finish_reason", entry.get("finish_reason"))
    return [_record(name, inner, path, length, sampled, reason)]


def _stamped(entry: Entry) -> tuple[Entry, str]:
    """The object that has the stamps, and the path to it."""
    if entry.get("choices") is None:
        return entry, ""
    choice = only_child(entry, "choices")
    if "policy_epoch" in choice:
        return choice, "choices[0]."
    message = child(choice, "message", "choices[0].")
    return {"finish_reason": choice.get("finish_reason"), **message}, "choices[0].message."


def _rollout(entry: Entry, request: int | str) -> list[RequestRecord]:
    turns = listed(entry["trajectory"], "trajectory")
    if not turns:
        raise ValueError("trajectory: a rollout without a turn has failed, and has no stamps to read")
    parts = {name: listed(entry.get(name), name) for name in (*STAMPS, "generation_mask")}
    evictions = entry.get("num_evictions")
    parts["num_evictions"] = [None] * len(turns) if evictions is None else listed(evictions, "num_evictions")
    for name, part in parts.items():
        if len(part) != len(turns):
            raise ValueError(f"{name}: {len(part)} turns, trajectory has {len(turns)}")
    records: list[RequestRecord] = []
    for number, tokens in enumerate(turns):
        length = len(listed(tokens, f"trajectory[{number}]"))
        if records and length < records[-1].length:
            before = records[-1].length
            raise ValueError(f"trajectory[{number}]: {length} tokens, fewer than the {before} of the turn before it")
        mask = listed(parts["generation_mask"][number], f"generation_mask[{number}]")
        sampled = spans_of_mask(mask)
        if len(mask) != length or len(sampled) > 1 or (sampled and sampled[0][1] != length):
            raise ValueError(f"generation_mask[{number}]: expected one run of true values up to the last of {length}")
        if records and sampled and sampled[0][0] < records[-1].length:
            start, before = sampled[0][0], records[-1].length
            raise ValueError(
                f"generation_mask[{number}]: samples from token {start} on, and the turn before it has {before} tokens"
            )
        stamps = {name: part[number] for name, part in parts.items()}
        # A turn is named by its place, which only the errors show; what goes wrong in it is named `policy_epoch[1]`.
        records.append(_record(request, stamps, "", length, sampled, None, f"[{number}]"))
    return records


def _record(
    request: int | str, inner: Mapping[str, Any], path: str, length: int, sampled: Spans, reason: object, turn: str = ""
) -> RequestRecord:
    runs, first, last = _epochs(inner.get("policy_epoch"), f"{path}policy_epoch{turn}", length)
    kv, _, _ = _epochs(inner.get("kv_cache_epoch"), f"{path}kv_cache_epoch{turn}", length)
    record = RequestRecord(
        request=request,
        policy_epoch=runs,
        kv_cache_epoch=kv,
        oldest_attended_kv_epoch=EpochRuns.missing(length),
        sampled=sampled,
        num_evictions=optional_count(inner, "num_evictions", path),
        num_preemptions=None,
        num_recomputes=None,
        prefix_cached_tokens=None,
        admission_epoch=first,
        completion_epoch=last,
        status=status_of(reason),
    )
    try:
        # An epoch is stamped on both lists at once, and on the KV list anew after an eviction. So no stamp says that
        # keys and values are older than their policy, even where a prefix hit made them so.
        check(replace(record, prefix_cached_tokens=0))
    except ValueError as error:
        raise ValueError(f"{path}kv_cache_epoch{turn}: {error}") from None
    return record


def _epochs(boundaries: object, field: str, length: int) -> tuple[EpochRuns, int | None, int | None]:
    """The runs, and the first and the last epoch that was stamped; all missing where no epoch was set."""
    if boundaries is None:
        return EpochRuns.missing(length), None, None
    pairs = listed(boundaries, field)
    try:
        runs = EpochRuns.from_boundaries(pairs, length)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    epochs = [_epoch(pair, f"{field}[{number}]") for number, pair in enumerate(pairs)]
    for number, (before, after) in enumerate(pairwise(epochs), 1):
        if after < before:
            raise ValueError(f"{field}[{number}]: epoch falls from {before} to {after}")
    return runs, epochs[0] if epochs else None, epochs[-1] if epochs else None


def _epoch(pair: Sequence[object], field: str) -> int:
    return count(pair[1], field)  # our own lists may say null; Megatron's never do

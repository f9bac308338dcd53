"""Fields of one line of JSON, checked: what the readers of the systems have in common.

Every error is a `ValueError` that starts with the field's path (`meta_info.weight_versions[1].end: ...`), so that
whoever knows the file and the line has only to put them in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reference_impl.staleness.epochs import MISSING, EpochRuns
from reference_impl.staleness.records import RequestRecord, Spans, Status

Entry = Mapping[str, Any]
"""A line's JSON object."""

Labels = Mapping[str, int]
"""Which checkpoint's number a version's label stands for."""

IDS = ("id", "rid", "request_id", "index")
LARGEST = 2**63 - 1  # what an array holds
PROMPTS = ("prompt_length", "prompt_len", "prompt_tokens", "prompt_token_ids", "input_ids")


def count(value: object, field: str) -> int:
    """`value`, an integer of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"{field}: expected an integer of 0 or more, got {value!r:.60}")
    return value


def optional_count(entry: Entry, name: str, path: str = "") -> int | None:
    """The count called `name`, or `None` where there is none."""
    value = entry.get(name)
    return None if value is None else count(value, path + name)


def listed(value: object, field: str) -> list[Any]:
    """`value`, a list."""
    if not isinstance(value, list):
        raise ValueError(f"{field}: expected a list, got {value!r:.60}")
    return value


def child(entry: Entry, name: str, path: str = "") -> Entry:
    """The object called `name`; an empty one where there is none."""
    value = entry.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}{name}: expected an object, got {value!r:.60}")
    return value


def only_child(entry: Entry, name: str) -> Entry:
    """The single object in the list called `name`; an empty one where there is no such list."""
    if entry.get(name) is None:
        return {}
    children = listed(entry[name], name)
    if len(children) != 1 or not isinstance(children[0], Mapping):
        raise ValueError(f"{name}: expected one completion a line, got {len(children)}")
    return children[0]


def size(entry: Entry, names: Sequence[str], path: str = "") -> int | None:
    """How many tokens the first field of `names` that is there stands for: a count, or a list of them."""
    for name in names:
        value = entry.get(name)
        if value is not None:
            return len(value) if isinstance(value, list) else count(value, path + name)
    return None


def identity(entry: Entry) -> tuple[str, int | str] | None:
    """The first of `IDS` that the line has, and its value."""
    for name in IDS:
        value = entry.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{name}: expected a string or an integer, got {value!r:.60}")
        return name, value
    return None


def named(entry: Entry, otherwise: int | str) -> int | str:
    """What the line calls its request, or else `otherwise`."""
    found = identity(entry)
    return found[1] if found else otherwise


def epoch_of(version: object, field: str, versions: Labels | None) -> int:
    """The number of the checkpoint that a version stands for: an integer, its digits, or a label that `versions`
    knows."""
    if versions is not None and isinstance(version, str) and version in versions:
        return count(versions[version], f"versions[{version!r}]")
    if isinstance(version, str) and version.isascii() and version.isdigit() and len(version) < 19:
        return int(version)
    if isinstance(version, int) and not isinstance(version, bool) and 0 <= version <= LARGEST:
        return version
    raise ValueError(
        f"{field}: expected the number of a checkpoint, got {version!r:.60}; versions={{label: number}} maps labels"
    )


def spans_of_mask(mask: Sequence[object], offset: int = 0) -> Spans:
    """`(start, stop)` of each run of true values, counted from `offset`."""
    spans: list[tuple[int, int]] = []
    for at, value in enumerate(mask, offset):
        if value and spans and spans[-1][1] == at:
            spans[-1] = spans[-1][0], at + 1
        elif value:
            spans.append((at, at + 1))
    return tuple(spans)


def joined(*parts: EpochRuns) -> EpochRuns:
    """The runs of `parts`, one behind the other."""
    boundaries, length = [], 0
    for part in parts:
        boundaries += [(length + start, epoch) for start, epoch in part.runs]
        length += part.length
    return EpochRuns.from_boundaries(boundaries, length)


def per_token(versions: Sequence[object], field: str) -> EpochRuns:
    """The runs of versions given token by token, -1 where there is none; they never fall."""
    newest = 0
    for token, version in enumerate(versions):
        if isinstance(version, bool) or not isinstance(version, int) or not MISSING <= version <= LARGEST:
            raise ValueError(f"{field}[{token}]: expected an integer of 0 or more, or -1, got {version!r:.60}")
        if MISSING < version < newest:
            raise ValueError(f"{field}[{token}]: version falls from {newest} to {version}")
        newest = max(newest, version)
    return EpochRuns.from_tokens(list(versions))  # type: ignore[arg-type]  # checked above


def from_spans(spans: object, field: str, tokens: int | None, versions: Labels | None) -> EpochRuns:
    """The runs of `[{version, start, end}, ...]`, as vLLM and SGLang give them: `end` exclusive, from token 0.

    `tokens` is how many tokens there are, `None` where nobody says; then the last span ends with them. Tokens between
    spans have no stamp. Overlapping spans, spans past the last token and versions that fall are errors.
    """
    boundaries: list[tuple[int, int | None]] = []
    newest = last = 0
    for number, span in enumerate(listed(spans, field)):
        where = f"{field}[{number}]"
        if not isinstance(span, Mapping):
            raise ValueError(f"{where}: expected an object with version, start and end, got {span!r:.60}")
        start, end = count(span.get("start"), f"{where}.start"), count(span.get("end"), f"{where}.end")
        if start < last:
            raise ValueError(f"{where}.start: {start} lies within the span before it, which ends at {last}")
        if end < start:
            raise ValueError(f"{where}.end: {end} is before the span's start at {start}")
        if tokens is not None and end > tokens:
            raise ValueError(f"{where}.end: {end} is past the last of {tokens} tokens")
        if end == start:  # no token, so no epoch: SGLang's span of an answer without one
            continue
        epoch = epoch_of(span.get("version"), f"{where}.version", versions)
        if epoch < newest:
            raise ValueError(f"{where}.version: version falls from {newest} to {epoch}")
        boundaries += [(last, None), (start, epoch)]  # the first of the two has no token where the spans meet
        newest, last = epoch, end
    return EpochRuns.from_boundaries([*boundaries, (last, None)], last if tokens is None else tokens)


def record_of_output(
    request: int | str,
    prompt: int,
    output: EpochRuns,
    *,
    sampled: Spans | None = None,
    prompt_kv: EpochRuns | None = None,
    num_evictions: int | None = None,
    admission_epoch: int | None = None,
    completion_epoch: int | None = None,
    status: Status = "finished",
) -> RequestRecord:
    """A record of which only the policy epochs of the tokens behind the prompt are known, and what is named.

    `sampled` are spans of the whole sequence, if not all of the output was sampled.
    """
    length = prompt + output.length
    kv = EpochRuns.missing(prompt) if prompt_kv is None else prompt_kv
    return RequestRecord(
        request=request,
        policy_epoch=joined(EpochRuns.missing(prompt), output),
        kv_cache_epoch=joined(kv, EpochRuns.missing(output.length)),
        oldest_attended_kv_epoch=EpochRuns.missing(length),
        sampled=sampled if sampled is not None else (((prompt, length),) if output.length else ()),
        num_evictions=num_evictions,
        num_preemptions=None,
        num_recomputes=None,
        prefix_cached_tokens=None,
        admission_epoch=admission_epoch,
        completion_epoch=completion_epoch,
        status=status,
    )


def status_of(reason: object) -> Status:
    """Whether an answer that ended for this reason came to its end."""
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    return "aborted" if reason in ("abort", "aborted") else "finished"

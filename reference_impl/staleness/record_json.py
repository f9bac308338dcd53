"""A `RequestRecord` as the fields of a JSON line, and back: what a run folder keeps of a request beside its text.

Epochs are `[[start, epoch], ...]` over the whole sequence. What a line does not say, or says as null, is not known: it
becomes tokens without a stamp, or `None`, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.lines import RECORD, check_fields
from reference_impl.staleness.records import COUNTS, EPOCHS, RequestRecord

PLAIN = (*COUNTS, "admission_epoch", "completion_epoch")


def to_json(record: RequestRecord) -> dict[str, Any]:
    """Every field of `record` but its name, as JSON has it. `from_json` with the same name and length reads it back."""
    return {
        **{name: getattr(record, name).to_json() for name in EPOCHS},
        "sampled": [list(span) for span in record.sampled],
        **{name: getattr(record, name) for name in PLAIN},
        "status": record.status,
    }


def from_json(
    fields: Mapping[str, Any], *, request: int | str, length: int, prompt_length: int | None = None
) -> RequestRecord:
    """The record of a request of `length` tokens in all; fields of other names are left alone.

    Without `sampled`, all tokens from `prompt_length` on were (without that, none is said to be); without `status`, the
    request finished. Raises `ValueError`, starting with the field, for a value of another shape, an epoch list that does
    not fit, a boundary past the sequence's end, and spans outside it. Whether the epochs can be true is
    `records.check`'s to say.
    """
    check_fields(fields, RECORD, required=False)
    known: dict[str, Any] = {name: _runs(name, fields.get(name), length) for name in EPOCHS}
    known |= {name: fields.get(name) for name in PLAIN}
    spans = _sampled(fields.get("sampled"), length, prompt_length)
    try:
        return RequestRecord(request=request, sampled=spans, status=fields.get("status") or "finished", **known)
    except ValueError as error:  # the epochs have one length, so this is about the spans
        raise ValueError(f"sampled: {error}") from None


def _runs(name: str, boundaries: list[Any] | None, length: int) -> EpochRuns:
    if boundaries is None:
        return EpochRuns.missing(length)
    try:
        runs = EpochRuns.from_boundaries(boundaries, length)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    # EpochRuns drops these, for an engine may stamp tokens that are cut off later. In a file they are a mistake.
    if boundaries and boundaries[-1][0] >= length:
        number, start = len(boundaries) - 1, boundaries[-1][0]
        raise ValueError(f"{name}: boundary {number} starts at token {start}, past the end of {length} tokens")
    return runs


def _sampled(spans: list[list[int]] | None, length: int, prompt_length: int | None) -> tuple[tuple[int, int], ...]:
    if spans is not None:
        return tuple((start, stop) for start, stop in spans)
    first = length if prompt_length is None else prompt_length
    return ((first, length),) if first < length else ()

"""AReaL's rollouts: a version for each token, in the three shapes in which AReaL has them.

* `output_versions` of a `ModelResponse`: one integer an output token (`areal/api/io_struct.py`).
* `versions` of a trajectory that is trained on: one integer a token of the whole sequence, -1 where nothing was
  generated (`areal/workflow/rlvr.py`), as a list or as a batch of one, `[[...]]`.
* `version_rle` of the files that AReaL itself writes under `rollout/`: `[[version, tokens], ...]` over the generated
  tokens (`areal/infra/workflow_executor.py`).

Source: areal-project/AReaL.
"""

from __future__ import annotations

from typing import Any

from reference_impl.staleness.epochs import MISSING, EpochRuns
from reference_impl.staleness.readers.fields import (
    PROMPTS,
    Entry,
    count,
    listed,
    named,
    per_token,
    record_of_output,
    size,
    spans_of_mask,
    status_of,
)
from reference_impl.staleness.records import RequestRecord

FIELDS = ("output_versions", "versions", "version_rle")


def read(entry: Entry, request: int | str = 0) -> RequestRecord:
    """One response or trajectory as a record.

    `request`
    : What to call it if the line has no id. AReaL's files have `task_id` and `sample_idx`, which make `17/0`.

    KV epochs, counts, and the epochs at which a request came and ended are missing: AReaL drops the cache at an update,
    and says nothing else of it. Raises `ValueError` that starts with the field.
    """
    if entry.get("output_versions") is not None:
        return _response(entry, named(entry, request))
    if entry.get("versions") is not None:
        return _trajectory(entry, named(entry, request))
    if "task_id" in entry:
        request = f"{entry['task_id']}/{entry.get('sample_idx', 0)}"
    return _dumped(entry, named(entry, request))


def _response(entry: Entry, request: int | str) -> RequestRecord:
    versions = listed(entry["output_versions"], "output_versions")
    tokens = size(entry, ["output_tokens"])
    if tokens is not None and tokens != len(versions):
        raise ValueError(f"output_versions: {len(versions)} versions for {tokens} output tokens")
    prompt = size(entry, ["input_tokens", *PROMPTS]) or 0
    output = per_token(versions, "output_versions")
    return record_of_output(request, prompt, output, status=status_of(entry.get("stop_reason")))


def _trajectory(entry: Entry, request: int | str) -> RequestRecord:
    """Sampled is what the loss mask says; without one, what has a version."""
    versions = _row(entry, "versions")
    masks = {name: _row(entry, name) for name in ("loss_mask", "attention_mask") if entry.get(name) is not None}
    for name, mask in masks.items():
        if len(mask) != len(versions):
            raise ValueError(f"versions: {len(versions)} versions for a {name} of {len(mask)} tokens")
    generated = masks.get("loss_mask", [version != MISSING for version in versions])
    sampled = spans_of_mask(generated)
    # Padding is on the right, and its versions are 0: only a mask tells it from tokens.
    length = sum(map(bool, masks["attention_mask"])) if "attention_mask" in masks else len(versions)
    if sampled and sampled[-1][1] > length:
        raise ValueError(f"loss_mask: token {sampled[-1][1] - 1} lies behind the {length} tokens of attention_mask")
    if "attention_mask" not in masks and "loss_mask" in masks:
        length = sampled[-1][1] if sampled else length
    kept = [version if of else MISSING for version, of in zip(versions[:length], generated[:length], strict=True)]
    return record_of_output(request, 0, per_token(kept, "versions"), sampled=sampled)


def _row(entry: Entry, name: str) -> list[Any]:
    """A list, or the one list in a batch of one."""
    row = listed(entry[name], name)
    if row and isinstance(row[0], list):
        if len(row) != 1:
            raise ValueError(f"{name}: expected a batch of one trajectory a line, got {len(row)}")
        return row[0]
    return row


def _dumped(entry: Entry, request: int | str) -> RequestRecord:
    """Tokens that a tool put between two turns are left out: the file does not say where they lie."""
    output, newest = EpochRuns((), 0), 0
    for number, pair in enumerate(listed(entry.get("version_rle"), "version_rle")):
        field = f"version_rle[{number}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{field}: expected [version, tokens], got {pair!r:.60}")
        version = None if pair[0] == MISSING else count(pair[0], field)
        if version is not None and version < newest:
            raise ValueError(f"{field}: version falls from {newest} to {version}")
        newest = newest if version is None else version
        output = output.append(version, count(pair[1], field))
    prompt, length = size(entry, PROMPTS) or 0, size(entry, ["seqlen"])
    if length is not None and prompt + output.length > length:
        raise ValueError(
            f"version_rle: {output.length} tokens after a prompt of {prompt} are more than seqlen {length}"
        )
    return record_of_output(request, prompt, output)

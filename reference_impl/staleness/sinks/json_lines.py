"""Steps as lines of JSON: nothing to install, and everything in it, to the last digit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from reference_impl.staleness.steps import Histogram, StepLog, Table

STEPS_FILE = "steps.jsonl"


class JsonLinesSink:
    """Appends each step to `steps.jsonl`, one object a line, on disk before `write` returns.

    `folder`
    : Where the file is; made if need be. Lines that are there stay.

    `tables`
    : Whether to write the tables, by far the longest part.

    A line holds `step`, `scalars` `{name: value}`, `histograms` `{name: {"values": [...], "counts": [...]}}` and
    `tables` `{name: {"columns": [...], "rows": [[...], ...]}}`. What is not known is left out, in tables `null`; `NaN`,
    which JSON does not have, is never written.
    """

    name = "json"

    def __init__(self, folder: Path | str, *, tables: bool = True) -> None:
        path = Path(folder) / STEPS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        self._tables = tables
        self._file = path.open("a", encoding="utf-8")
        if _torn(path):  # a run was killed amid a line: only that line is lost
            self._file.write("\n")

    def write(self, log: StepLog) -> None:
        """Append one step."""
        entry = {
            "step": log.step,
            "scalars": log.scalars,
            "histograms": {name: _histogram(histogram) for name, histogram in log.histograms.items()},
            "tables": {name: _table(table) for name, table in log.tables().items()} if self._tables else {},
        }
        self._file.write(json.dumps(entry, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _torn(path: Path) -> bool:
    """Whether the file's last line has no end."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"values": histogram.values.tolist(), "counts": histogram.counts.tolist()}


def _table(table: Table) -> dict[str, Any]:
    return {"columns": table.columns, "rows": table.rows}

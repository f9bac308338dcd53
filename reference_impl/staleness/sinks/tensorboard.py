"""Steps as TensorBoard's event files, written with the `tensorboard` package: neither torch nor TensorFlow is used.

Tags are the plain names, without a group before them, because Megatron-RL's are: the same dashboards fit.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from reference_impl.staleness.sinks.extras import extra
from reference_impl.staleness.steps import Cell, Histogram, StepLog, Table

MOST_ROWS = 1000


class TensorboardSink:
    """Writes one event a step: scalars, histograms, and the tables as text in Markdown.

    `folder`
    : The log directory, `tensorboard --logdir` reads it; made if need be.

    `tables`
    : Whether to write the tables. TensorBoard shows them as a page of text, so only the first 1000 rows are written and
      a line below says how many are left out.

    Scalars and the edges of histograms have the precision of the file format, 32 and 64 bits. Raises
    `ModuleNotFoundError` without the extra `tensorboard`.
    """

    name = "tensorboard"

    def __init__(self, folder: Path | str, *, tables: bool = True) -> None:
        with extra("tensorboard"):
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import HistogramProto
            from tensorboard.plugins.text.summary_v2 import text_pb
            from tensorboard.summary.writer.record_writer import RecordWriter
        self._new_event, self._new_histogram, self._text = Event, HistogramProto, text_pb
        self._tables = tables
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        # TensorBoard goes by the middle of the name and reads files in its order; the rest keeps writers apart.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        # Not EventFileWriter: it writes in a thread of its own, which prints a traceback when the disk is full.
        self._records = RecordWriter((place / name).open("wb"))
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, log: StepLog) -> None:
        """Write one step; it is in the file afterwards."""
        event = self._new_event(step=log.step, wall_time=time.time())
        for name, value in log.scalars.items():
            event.summary.value.add(tag=name, simple_value=value)
        for name, histogram in log.histograms.items():
            event.summary.value.add(tag=name, histo=self._binned(histogram))
        if self._tables:
            for name, table in log.tables().items():
                event.summary.value.extend(self._text(name, _markdown(table)).value)
        self._append(event)

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def _binned(self, histogram: Histogram) -> Any:
        edges, counts = histogram.bins()
        values = histogram.values.astype(float)
        return self._new_histogram(
            min=values[0],
            max=values[-1],
            num=float(histogram.counts.sum()),
            sum=float(values @ histogram.counts),
            sum_squares=float(values**2 @ histogram.counts),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.tolist(),
        )


def _markdown(table: Table) -> str:
    lines = [_line(table.columns), _line(["---"] * len(table.columns)), *map(_line, table.rows[:MOST_ROWS])]
    if (left_out := len(table.rows) - MOST_ROWS) > 0:
        lines += ["", f"{left_out} more rows are not shown here."]
    return "\n".join(lines)


def _line(cells: tuple[Cell, ...] | list[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell.replace("|", "\\|").replace("\n", " ") if isinstance(cell, str) else str(cell)

"""Staleness in a training loop: one call a step, to as many tools as wanted, and none of them can stop the training."""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from reference_impl.staleness.consumption import Consumption, WhenOlder, consume
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.rollouts import Rollouts
from reference_impl.staleness.sinks.json_lines import JsonLinesSink
from reference_impl.staleness.sinks.mlflow import MlflowSink
from reference_impl.staleness.sinks.tensorboard import TensorboardSink
from reference_impl.staleness.sinks.wandb import WandbSink
from reference_impl.staleness.steps import StepLog, step_log

log = logging.getLogger("genref")


class Sink(Protocol):
    """What the logger needs of a tool; those in `sinks` are four examples.

    `name`
    : What messages call it.
    """

    name: str

    def write(self, log: StepLog) -> None:
        """Write one step. Steps rise, as a training loop's do."""

    def close(self) -> None:
        """Nothing more will be written."""


SINKS: dict[str, type[TensorboardSink | WandbSink | MlflowSink | JsonLinesSink]] = {
    sink.name: sink for sink in (TensorboardSink, WandbSink, MlflowSink, JsonLinesSink)
}
"""The tools by name: `tensorboard`, `wandb`, `mlflow`, `json`."""


def open_sinks(folder: Path | str, names: Iterable[str], *, tables: bool = True) -> list[Sink]:
    """Open the sinks called `names`, each in a folder of its name below `folder`.

    `tables` says whether they write tables besides scalars and histograms. Raises `ValueError` for a name that is not
    in `SINKS` and `ModuleNotFoundError` for a tool that is not installed; then none is left open.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in SINKS:
            close = difflib.get_close_matches(name, SINKS, 1)
            nearest = f"; nearest: {close[0]!r}" if close else ""
            raise ValueError(f"sink: expected one of {', '.join(SINKS)}, got {name!r}{nearest}")
    with contextlib.ExitStack() as opened:
        sinks: list[Sink] = []
        for name in wanted:
            sinks.append(SINKS[name](Path(folder) / name, tables=tables))
            opened.callback(sinks[-1].close)
        opened.pop_all()  # all went well: they stay open
    return sinks


class StalenessLogger:
    """Logs what each training step consumes, and how stale it is, to every sink.

    Use it as a context manager, which closes the sinks. A sink that raises is reported once, in one line of the logger
    `genref`, and gets nothing more; the other sinks and the training go on.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)

    def log_step(
        self,
        step: int,
        records: Rollouts | Iterable[RequestRecord],
        *,
        rewards: Mapping[int | str, float] | None = None,
        max_staleness: int | None = None,
        when_older: WhenOlder = "keep",
        in_flight: Iterable[RequestRecord] = (),
    ) -> Consumption:
        """Give `records` to training step `step`, log that, and return what to train on.

        `rewards` are by request; one without is logged without. A `Rollouts` has its own. The rest is passed on to
        `consumption.consume`. A step that has to wait (`Consumption.waiting_for`) consumes nothing and is not logged: it
        will be asked for again.

        Raises `ValueError` for records that contradict each other or the step, and for the reward of a request that is
        not among them. What a sink raises is never passed on.
        """
        consumption = consume(
            step,
            records if rewards is None else _rewarded(records, rewards),
            max_staleness=max_staleness,
            when_older=when_older,
            in_flight=in_flight,
        )
        if not consumption.waiting_for:
            self.log(consumption)
        return consumption

    def log(self, consumption: Consumption, more: Mapping[str, float] | None = None) -> None:
        """Log what a step has consumed, for a loop that consumes by itself.

        `more` are scalars of its own, such as the loss, which stand beside those of staleness. What a sink raises is never
        passed on.
        """
        if not self._sinks:
            return
        logged = step_log(consumption)
        logged = replace(logged, scalars={**(more or {}), **logged.scalars})
        for sink in list(self._sinks):
            self._write(sink, logged)

    def close(self) -> None:
        """Close the sinks. One that raises is reported like one that fails to write."""
        while self._sinks:
            sink = self._sinks.pop(0)
            try:
                sink.close()
            except Exception as error:
                log.error("staleness sink %s: could not be closed: %s", sink.name, _one_line(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, sink: Sink, logged: StepLog) -> None:
        try:
            sink.write(logged)
        except Exception as error:
            log.error(
                "staleness sink %s: switched off, step %d could not be written: %s",
                sink.name,
                logged.step,
                _one_line(error),
            )
            self._sinks.remove(sink)
            with contextlib.suppress(Exception):  # it is broken, and has been reported
                sink.close()


def _rewarded(records: Rollouts | Iterable[RequestRecord], rewards: Mapping[int | str, float]) -> Rollouts:
    if isinstance(records, Rollouts):
        raise ValueError("rewards: a Rollouts has its own; give them to Rollouts.add")
    rollouts = Rollouts()
    for record in records:
        rollouts.add(record, rewards.get(record.request))
    known = set(rollouts)
    for request in rewards:
        if request not in known:
            raise ValueError(f"rewards: no record of request {request!r}")
    return rollouts


def _one_line(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__

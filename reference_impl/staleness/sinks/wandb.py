"""Steps as a run of Weights & Biases, kept on disk: `wandb sync` uploads it, now or never.

Keys are the plain names of Megatron-RL's log, which goes to the same tool: its panels and queries fit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reference_impl.staleness.sinks.extras import extra
from reference_impl.staleness.steps import Row, StepLog


class WandbSink:
    """Logs scalars, histograms and tables to an offline run of its own.

    `folder`
    : Where the run is: `wandb/offline-run-*/` and, in `data/`, the tables that `wandb sync` will want. All that wandb
      would write into the home directory goes here as well. Made if need be.

    `tables`
    : Whether to log the tables. In them a rollout's name is a string, since wandb's columns have one type. wandb takes
      about 0.2 ms a row, and cuts a table off after 200,000 rows, the copy among a run's files after 10,000.

    `project`
    : The project to which `wandb sync` would add the run.

    `run`
    : A run that is open already, such as the trainer's: it is used instead of an own one, with its own settings, and is
      left open. `folder` and `project` are then not used.

    wandb drops a step that is older than the last. A process of wandb's own writes the run's file; what goes wrong there
    is told in `wandb/debug-internal.log` alone. Neither process opens a network connection for an own run, nor do they
    print. Raises `ModuleNotFoundError` without the extra `wandb`.
    """

    name = "wandb"

    def __init__(self, folder: Path | str, *, tables: bool = True, project: str = "staleness", run: Any = None) -> None:
        self._tables, self._own = tables, run is None
        self._environment: dict[str, str] = {}
        if self._own:
            folder = Path(folder).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            # wandb has no settings for these. The last one stops reports about wandb's own use, sent even offline.
            places = {f"WANDB_{name.upper()}_DIR": str(folder / name) for name in ("data", "cache", "config")}
            self._environment = {**places, "WANDB_ERROR_REPORTING": "false"}
        with extra("wandb"), _environment(self._environment):
            import wandb
        self._wandb = wandb
        self._run = self._opened(folder, project) if self._own else run

    def _opened(self, folder: Path | str, project: str) -> Any:
        settings = self._wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        with _environment(self._environment):
            # create_new: a run that the trainer has open stays the one that wandb.log writes to.
            return self._wandb.init(
                mode="offline", dir=str(folder), project=project, reinit="create_new", settings=settings
            )

    def write(self, log: StepLog) -> None:
        """Log one step."""
        entry: dict[str, Any] = dict(log.scalars)
        for name, histogram in log.histograms.items():
            edges, counts = histogram.bins()
            entry[name] = self._wandb.Histogram(np_histogram=(counts, edges))
        if self._tables:
            for name, table in log.tables().items():
                entry[name] = self._wandb.Table(columns=list(table.columns), data=[_named(row) for row in table.rows])
        with _environment(self._environment):
            self._run.log(entry, step=log.step)

    def close(self) -> None:
        """End the run, if it is the sink's own."""
        if self._own:
            with _environment(self._environment):
                self._run.finish()


def _named(row: Row) -> list[Any]:
    return [str(row[0]), *row[1:]]


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while: the trainer's own use of wandb keeps its own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

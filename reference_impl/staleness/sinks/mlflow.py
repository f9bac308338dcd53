"""Steps as a run in a local MLflow store: metrics in a SQLite file, histograms and tables as files beside it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reference_impl.staleness.sinks.extras import extra
from reference_impl.staleness.steps import StepLog

DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
TABLES_TAG = "mlflow.loggedArtifacts"  # where MLflow looks for tables
MOST_LISTED = 100  # a tag takes 8000 characters


class MlflowSink:
    """Logs each step to one run of a local store, which `mlflow ui --backend-store-uri sqlite:///.../mlflow.db` shows.

    `folder`
    : Where `mlflow.db` and `artifacts/` are; made if need be. A store that is there gets one more run.

    `tables`
    : Whether to log the tables.

    `experiment`
    : The experiment that gets the run.

    Scalars are metrics, by their plain names. Each step adds the artifact `histograms/step-00000006.json`, `{name:
    {"values": [...], "counts": [...]}}`, and one for each table, `rollout_table/step-00000006.json`, in the form of
    MLflow's tables. MLflow lists the last 100 of them, which `load_table` finds; the others stay as artifacts. Its own
    `log_table` is not used: it needs pandas, and makes whole numbers with a gap into floats.

    Unless the environment says otherwise, MLflow's reports about its own use are turned off. Raises
    `ModuleNotFoundError` without the extra `mlflow`.
    """

    name = "mlflow"

    def __init__(self, folder: Path | str, *, tables: bool = True, experiment: str = "staleness") -> None:
        self._tables = tables
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported, and later on
        with extra("mlflow"), _quiet():
            import sqlalchemy  # noqa: F401  MLflow without it says something about model registries
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient

            self._new_metric = Metric
            self._client: Any = MlflowClient(tracking_uri=f"sqlite:///{folder / DATABASE}")
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            place = (folder / ARTIFACTS).as_uri()
            experiment_id = self._client.create_experiment(experiment, artifact_location=place)
        else:
            experiment_id = found.experiment_id
        # Without a name MLflow draws one, from the generator that the trainer may have seeded.
        name = time.strftime("%Y-%m-%d %H:%M:%S")
        self._run: str = self._client.create_run(experiment_id, run_name=name).info.run_id
        self._listed: deque[dict[str, str]] = deque(maxlen=MOST_LISTED)

    def write(self, log: StepLog) -> None:
        """Log one step."""
        now, place = int(1000 * time.time()), f"step-{log.step:08}.json"
        metrics = [self._new_metric(name, value, now, log.step) for name, value in log.scalars.items()]
        histograms = {
            name: {"values": histogram.values.tolist(), "counts": histogram.counts.tolist()}
            for name, histogram in log.histograms.items()
        }
        with _quiet():
            self._client.log_batch(self._run, metrics=metrics)
            if histograms:
                self._add(f"histograms/{place}", histograms)
            if self._tables:
                self._write_tables(log, place)

    def _write_tables(self, log: StepLog, place: str) -> None:
        for name, table in log.tables().items():
            path = f"{name}/{place}"
            self._add(path, {"columns": table.columns, "data": table.rows})
            self._listed.append({"path": path, "type": "table"})
        self._client.set_tag(self._run, TABLES_TAG, json.dumps(list(self._listed)))

    def _add(self, path: str, content: Any) -> None:
        # log_dict writes JSON piece by piece, which takes ten times as long.
        self._client.log_text(self._run, json.dumps(content, allow_nan=False), path)

    def close(self) -> None:
        """End the run."""
        with _quiet():
            self._client.set_terminated(self._run)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from telling, on stderr, how it makes its tables, and a traceback of what it raises as well."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

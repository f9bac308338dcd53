"""Each tool's own reader finds in its files what was logged, and a tool that breaks takes nothing with it."""

from __future__ import annotations

import dataclasses
import errno
import html.parser
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.staleness_records import four_rollouts, record, rollouts_of

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.logger import SINKS, StalenessLogger, open_sinks
from reference_impl.staleness.sinks import tensorboard
from reference_impl.staleness.sinks.json_lines import JsonLinesSink
from reference_impl.staleness.steps import StepLog, step_log

pytestmark = [
    # What MLflow's and TensorBoard's own dependencies say of each other.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*"),
]

STEPS = [6, 7, 8]


def expected(step: int) -> StepLog:
    """`test_steps` holds this to values worked out by hand."""
    return step_log(consume(step, rollouts_of(step)))


def rows_of(log: StepLog) -> dict[str, list[list[Any]]]:
    return {name: [list(row) for row in table.rows] for name, table in log.tables().items()}


@dataclass
class ReadBack:
    """What a tool's reader found: by step the scalars, the histograms as the tool has them, and the tables' rows."""

    scalars: dict[int, dict[str, float]]
    histograms: dict[int, dict[str, Any]]
    tables: dict[int, dict[str, list[list[Any]]]]


TRAINER = """
import logging, os, random, sys
import reference_impl.staleness.steps
from reference_impl.staleness.logger import SINKS, StalenessLogger, open_sinks
HEAVY = {"torch", "megatron", "tensorflow"}
TOOLS = {"tensorboard", "wandb", "mlflow", "pandas", "sqlalchemy"}
assert not (HEAVY | TOOLS) & sys.modules.keys(), "a tool is imported before its sink is opened"

calls, children = [], []
def watch(event, arguments):
    if event == "socket.getaddrinfo" or (event == "socket.connect" and not isinstance(arguments[1], (str, bytes))):
        calls.append((event, arguments))
    elif event == "subprocess.Popen":
        children.append(arguments[1])
sys.addaudithook(watch)

from support.staleness_records import rollouts_of
random.seed(1)
before = random.getstate(), dict(os.environ), logging.getLogger().handlers[:], logging.getLogger().level
with StalenessLogger(open_sinks(sys.argv[1], SINKS)) as logger:
    for step in map(int, sys.argv[2:]):
        logger.log_step(step, rollouts_of(step))
assert random.getstate() == before[0], "the trainer's random numbers have moved on"
changed = {name for name in os.environ.keys() | before[1].keys() if os.environ.get(name) != before[1].get(name)}
# wandb tells child processes where its own process is.
assert changed <= {"MLFLOW_DISABLE_TELEMETRY", "WANDB_SERVICE"}, changed
assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
assert (logging.getLogger().handlers, logging.getLogger().level) == before[2:]
assert not logging.getLogger("genref").disabled
assert not HEAVY & sys.modules.keys(), HEAVY & sys.modules.keys()
assert TOOLS - {"pandas"} <= sys.modules.keys()
assert calls == [], calls
core = [child for child in children if "wandb-core" in child[0]]
assert core and all("--no-observability" in child for child in core), children
"""


@dataclass
class Trainer:
    """A process that has logged the three steps to all four sinks, one call a step, and how it fared."""

    done: subprocess.CompletedProcess[str]
    runs: Path
    home: Path
    here: Path


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    folder = tmp_path_factory.mktemp("trainer")
    home, here, temporary = (folder / name for name in ("home", "here", "temporary"))
    for place in (home, here, temporary):
        place.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW", "XDG"))}
    # MLflow sends no reports where it finds pytest.
    environment.pop("PYTEST_CURRENT_TEST", None)
    environment |= {"HOME": str(home), "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(folder / "runs"), *map(str, STEPS)],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
    )
    return Trainer(done, folder / "runs", home, here)


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is imported in this process, too, to read; nothing that a sink sets stays set."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def written(trainer: Trainer) -> Path:
    """The folder of all four sinks."""
    return trainer.runs


# --- the readers ----------------------------------------------------------------------------------------------------


def read_json(folder: Path) -> ReadBack:
    found = ReadBack({}, {}, {})
    for line in (folder / "json" / "steps.jsonl").read_text(encoding="utf-8").splitlines():
        step = json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
        found.scalars[step["step"]] = step["scalars"]
        found.histograms[step["step"]] = step["histograms"]
        found.tables[step["step"]] = {name: table["rows"] for name, table in step["tables"].items()}
    return found


class Cells(html.parser.HTMLParser):
    """The cells of a table, row by row, header first."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and data.strip():
            self.rows[-1][-1] += data


def as_cell(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None


def read_tensorboard(folder: Path) -> ReadBack:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.text.text_plugin import text_array_to_html

    events = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0, "histograms": 0, "tensors": 0}).Reload()
    scalars, histograms, tables = ({step: {} for step in STEPS} for _ in range(3))
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            scalars[event.step][tag] = event.value
    for tag in events.Tags()["histograms"]:
        for event in events.Histograms(tag):
            histograms[event.step][tag] = event.histogram_value
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            text = np.array(event.tensor_proto.string_val[0], dtype=object)
            cells = Cells()
            cells.feed(text_array_to_html(text, enable_markdown=True))  # as TensorBoard shows it
            tables[event.step][tag] = [[as_cell(cell) for cell in row] for row in cells.rows]
    return ReadBack(scalars, histograms, tables)


def read_wandb(folder: Path) -> ReadBack:
    (run,) = (folder / "wandb" / "wandb").glob("offline-run-*")
    (log,) = run.glob("*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    environment = os.environ | {"HOME": str(folder), "WANDB_ERROR_REPORTING": "false"}
    output = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = ReadBack({}, {}, {})
    for line in output.splitlines():
        if (entry := json.loads(line))["type"] != "history":
            continue
        # The reader joins the names of nested values with a dot; ours have none.
        item = entry["history"]["item"]
        step = item.pop("_step")
        kinds = {name.removesuffix("._type"): kind for name, kind in item.items() if name.endswith("._type")}
        found.scalars[step] = {name: value for name, value in item.items() if "." not in name and name[0] != "_"}
        found.histograms[step] = {
            name: (item[f"{name}.bins"], item[f"{name}.values"]) for name, kind in kinds.items() if kind == "histogram"
        }
        files = {name: item[f"{name}.path"] for name, kind in kinds.items() if kind == "table-file"}
        tables = {name: json.loads((run / "files" / path).read_text()) for name, path in files.items()}
        found.tables[step] = {name: [table["columns"], *table["data"]] for name, table in tables.items()}
    return found


def read_mlflow(folder: Path) -> ReadBack:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("staleness")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    scalars, histograms, tables = ({step: {} for step in STEPS} for _ in range(3))
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            scalars[metric.step][name] = metric.value
    for artifact in client.list_artifacts(run.info.run_id):
        for file in client.list_artifacts(run.info.run_id, artifact.path):
            step = int(file.path.removesuffix(".json")[-8:])
            content = json.loads(Path(client.download_artifacts(run.info.run_id, file.path)).read_text())
            if artifact.path == "histograms":
                histograms[step] = content
            else:
                tables[step][artifact.path] = [content["columns"], *content["data"]]
    return ReadBack(scalars, histograms, tables)


# --- what they find -------------------------------------------------------------------------------------------------


def with_header(log: StepLog) -> dict[str, list[list[Any]]]:
    return {name: [list(table.columns), *rows_of(log)[name]] for name, table in log.tables().items()}


def exact_histograms(log: StepLog) -> dict[str, Any]:
    return {
        name: {"values": histogram.values.tolist(), "counts": histogram.counts.tolist()}
        for name, histogram in log.histograms.items()
    }


def test_json_lines(written: Path):
    found = read_json(written)
    assert list(found.scalars) == STEPS
    for step in STEPS:
        log = expected(step)
        assert found.scalars[step] == log.scalars
        assert found.histograms[step] == exact_histograms(log)
        assert found.tables[step] == rows_of(log)
    assert found.scalars[6]["mean_policy_staleness"] == 3.25
    assert found.tables[6]["per_token_table"][0] == ["a", 2, 2, 2, 2]
    assert found.tables[7]["rollout_table"][0][:2] == [11, None]


def test_tensorboard(written: Path):
    found = read_tensorboard(written)
    for step in STEPS:
        log = expected(step)
        # The format has 32 bits for a scalar.
        assert found.scalars[step] == {name: np.float32(value) for name, value in log.scalars.items()}
        assert found.tables[step] == with_header(log)
        assert found.histograms[step].keys() == log.histograms.keys()
        for name, histogram in log.histograms.items():
            seen, (edges, counts) = found.histograms[step][name], histogram.bins()
            assert (list(seen.bucket_limit), list(seen.bucket)) == (edges[1:].tolist(), counts.tolist())
            values = np.repeat(histogram.values, histogram.counts)
            assert (seen.min, seen.max, seen.num) == (values.min(), values.max(), len(values))
            assert (seen.sum, seen.sum_squares) == pytest.approx((values.sum(), (values**2).sum()))
    assert found.scalars[6]["mean_kv_cache_staleness"] == 2.75
    assert found.tables[7]["rollout_table"][2][0] == "x|y"


def test_wandb(written: Path):
    found = read_wandb(written)
    assert list(found.scalars) == STEPS
    for step in STEPS:
        log = expected(step)
        assert found.scalars[step] == log.scalars
        bins = {name: histogram.bins() for name, histogram in log.histograms.items()}
        assert found.histograms[step] == {name: (edges.tolist(), n.tolist()) for name, (edges, n) in bins.items()}
        for rows in (tables := with_header(log)).values():
            for row in rows:
                row[0] = str(row[0])  # a column of wandb's has one type
        assert found.tables[step] == tables
    assert found.scalars[6]["mean_policy_staleness"] == 3.25


def test_mlflow(written: Path):
    found = read_mlflow(written)
    for step in STEPS:
        log = expected(step)
        assert found.scalars[step] == log.scalars
        assert found.histograms[step] == exact_histograms(log)
        assert found.tables[step] == with_header(log)
    assert found.scalars[6]["mean_policy_staleness"] == 3.25


def test_mlflow_lists_the_tables_as_tables(written: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow.tracking import MlflowClient

    # load_table looks for runs in the default store.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{written / 'mlflow' / 'mlflow.db'}")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("staleness").experiment_id
    frame = client.load_table(experiment, "per_token_table/step-00000006.json")
    assert list(frame.columns) == list(expected(6).per_token_table.columns)
    assert frame.values.tolist() == rows_of(expected(6))["per_token_table"]


@pytest.mark.parametrize("reader", [read_json, read_tensorboard, read_wandb, read_mlflow])
def test_a_step_with_failed_rollouts_only_logs_counts(written: Path, reader: Any):
    found = reader(written)
    assert found.scalars[8]["failed_rollouts"] == 1
    assert not [name for name in found.scalars[8] if "staleness" in name]
    assert (found.histograms[8], found.tables[8]) == ({}, {})


# --- what they leave alone ------------------------------------------------------------------------------------------


def test_nothing_is_printed_or_sent_or_written_elsewhere_and_torch_stays_out(written: Path, trainer: Trainer):
    assert (trainer.done.stdout, trainer.done.stderr, trainer.done.returncode) == ("", "", 0)
    assert [path for folder in (trainer.home, trainer.here) for path in folder.rglob("*")] == []
    assert sorted(path.name for path in written.iterdir()) == sorted(SINKS)


def test_a_run_of_the_trainers_own_is_used_and_left_open(tmp_path: Path):
    class Run:  # a real one is an upload, or the same offline run once more
        logged: dict[int, dict[str, Any]] = {}  # noqa: RUF012

        def log(self, entry: dict[str, Any], step: int) -> None:
            self.logged[step] = entry

        def finish(self) -> None:
            pytest.fail("the run is the trainer's to finish")

    with StalenessLogger([SINKS["wandb"](tmp_path / "unused", run=Run())]) as logger:  # type: ignore[call-arg]
        logger.log_step(6, four_rollouts())
    assert Run.logged[6]["mean_policy_staleness"] == 3.25
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["json", "tensorboard"])
def test_a_sink_without_tables_never_makes_their_rows(tmp_path: Path, name: str):
    log = expected(6)
    table = dataclasses.replace(log.rollout_table, make_rows=lambda: pytest.fail("rows were made"))
    (sink,) = open_sinks(tmp_path, [name], tables=False)
    sink.write(dataclasses.replace(log, rollout_table=table, per_token_table=table))
    sink.close()
    found = {"json": read_json, "tensorboard": read_tensorboard}[name](tmp_path)
    assert found.scalars[6] == pytest.approx(log.scalars)
    assert found.tables[6] == {}


def test_tensorboard_shows_the_first_rows_of_a_long_table_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert tensorboard.MOST_ROWS == 1000
    monkeypatch.setattr(tensorboard, "MOST_ROWS", 3)
    sink = tensorboard.TensorboardSink(tmp_path / "tensorboard")
    sink.write(step_log(consume(6, [record(number, [(5, 1)]) for number in range(10)])))
    sink.close()
    rows = read_tensorboard(tmp_path).tables[6]["rollout_table"]
    assert [row[0] for row in rows[1:]] == [0, 1, 2]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"7 more rows are not shown here." in events.read_bytes()


def test_a_run_that_goes_on_keeps_the_lines_before_and_loses_only_a_torn_one(tmp_path: Path):
    for step in (6, 7):
        with StalenessLogger([JsonLinesSink(tmp_path)]) as logger:
            logger.log_step(step, four_rollouts())
        with (tmp_path / "steps.jsonl").open("a") as file:
            file.write('{"step": ')  # killed amid a line
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert [json.loads(lines[number])["step"] for number in (0, 2)] == [6, 7]
    assert [lines[number] for number in (1, 3)] == ['{"step": '] * 2


# --- what goes wrong ------------------------------------------------------------------------------------------------


class Breaks:
    """A sink whose disk is full at the second step, or when it is closed."""

    name = "breaks"

    def __init__(self, at: str) -> None:
        self.at = at
        self.steps: list[int] = []

    def write(self, log: StepLog) -> None:
        self.steps.append(log.step)
        if self.at == "write" and len(self.steps) == 2:
            raise OSError(errno.ENOSPC, "No space left on device\nand a second line")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.name == "genref"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_sink_that_breaks_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int
):
    broken, sinks = Breaks("write"), open_sinks(tmp_path, ["json"])
    sinks.insert(place, broken)
    with StalenessLogger(sinks) as logger:
        taken = [len(logger.log_step(step, rollouts_of(step)).rollouts) for step in STEPS]
    assert taken == [4, 2, 0]
    assert broken.steps == [6, 7]
    assert problems(caplog) == [
        "staleness sink breaks: switched off, step 7 could not be written: OSError: [Errno 28] No space left on device"
    ]
    assert {entry.levelno for entry in caplog.records if entry.name == "genref"} == {logging.ERROR}
    assert list(read_json(tmp_path).scalars) == STEPS


def test_a_sink_that_cannot_be_closed_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    sinks = [Breaks("close"), *open_sinks(tmp_path, ["json"])]
    with StalenessLogger(sinks) as logger:
        logger.log_step(6, four_rollouts())
    logger.close()
    assert problems(caplog) == [
        "staleness sink breaks: could not be closed: OSError: [Errno 28] No space left on device"
    ]
    with pytest.raises(ValueError, match="closed file"):
        sinks[1].write(expected(7))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's disk that is always full")
def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "steps.jsonl").symlink_to("/dev/full")
    with StalenessLogger(open_sinks(tmp_path, ["json", "tensorboard"])) as logger:
        for step in STEPS:
            logger.log_step(step, rollouts_of(step))
    (line,) = problems(caplog)
    assert line.startswith("staleness sink json: switched off, step 6 could not be written: OSError: [Errno 28]")
    found = read_tensorboard(tmp_path)
    assert [step for step in STEPS if found.scalars[step]] == STEPS


def test_a_store_that_is_gone(
    written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(written / "mlflow", tmp_path / "mlflow")  # making a new one takes seconds
    with StalenessLogger(open_sinks(tmp_path, ["mlflow", "json"])) as logger:
        logger.log_step(6, rollouts_of(6))
        shutil.rmtree(tmp_path / "mlflow")
        logger.log_step(7, rollouts_of(7))
        logger.log_step(8, rollouts_of(8))
    (line,) = problems(caplog)
    assert line.startswith("staleness sink mlflow: switched off, step 7 could not be written: ")
    assert capfd.readouterr() == ("", "")  # MLflow has a traceback for it
    assert list(read_json(tmp_path).scalars) == STEPS


@pytest.mark.parametrize(
    ("name", "nearest"), [("tensorbord", "tensorboard"), ("wand", "wandb"), ("ml-flow", "mlflow"), ("jsonl", "json")]
)
def test_an_unknown_sink_is_told_the_nearest(tmp_path: Path, name: str, nearest: str):
    expectation = f"sink: expected one of tensorboard, wandb, mlflow, json, got '{name}'; nearest: '{nearest}'"
    with pytest.raises(ValueError, match=f"^{expectation}$"):
        open_sinks(tmp_path, ["json", name])
    assert list(tmp_path.iterdir()) == []


def test_a_sink_that_cannot_be_opened_leaves_none_open(tmp_path: Path):
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(FileExistsError) as failure:  # which keeps the sinks from being collected
        open_sinks(tmp_path, ["json", "tensorboard"])
    assert failure.value.filename == str(tmp_path / "tensorboard")
    assert (tmp_path / "json" / "steps.jsonl").exists()
    assert [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))] == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_tool_that_is_not_installed_is_named_with_its_extra(tmp_path: Path, name: str):
    # A process of its own: tools that other tests have imported stay imported.
    code = f"""
import importlib.abc, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == {name!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Without())
from reference_impl.staleness.logger import open_sinks
try:
    open_sinks({str(tmp_path)!r}, ["json", {name!r}])
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == 1
    assert re.fullmatch(
        rf"the {name} sink needs {name}[.\w]*, which is not installed: "
        rf"pip install 'megatron-generation-reference\[{name}\]'",
        told[0],
    )

"""One recipe at several settings: runs one after the other, each in a process of its own, and what came of each.

A process of its own, because Megatron keeps state for the whole process, and because a run's memory is its process's.
"""

import itertools
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import yaml

from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import load_recipe
from reference_impl.config.schema import Recipe

LAST = 10
"""Steps at the end of a run whose mean stands for it."""


@dataclass(frozen=True)
class Outcome:
    """One run of a sweep.

    `name`
    : What is different about it.

    `settings`
    : What was changed, as overrides spell it.

    `curves`
    : Each metric over all steps, `None` where a step does not have it.

    `ended`
    : When each of them ended, in seconds.

    `peak_gib`
    : Most memory that its process held, and every process that it started, each at its own peak. What two share counts twice.
    """

    name: str
    settings: dict[str, str]
    curves: dict[str, list[float | None]]
    ended: list[float]
    peak_gib: float

    @property
    def steps(self) -> int:
        """How many training steps it made."""
        return len(self.ended)

    def curve(self, metric: str) -> list[float | None]:
        """A metric over all steps; all `None` if no step has it."""
        return self.curves.get(metric, [None] * self.steps)

    def late(self, metric: str) -> float:
        """The mean of a metric over the last steps."""
        values = [value for value in self.curve(metric)[-LAST:] if value is not None]
        return statistics.fmean(values) if values else float("nan")

    @property
    def steps_per_second(self) -> float:
        """Pace from the end of the first step, in which engines are built, to that of the last."""
        return (len(self.ended) - 1) / (self.ended[-1] - self.ended[0]) if len(self.ended) > 1 else float("nan")

    def seconds(self, part: str = "") -> float:
        """Seconds of all steps but the first, in which engines are built; of one `part`, or of all."""
        parts = [name for name in self.curves if name.endswith("_seconds") and name.startswith(part)]
        return sum(value for name in parts for value in self.curves[name][1:] if value is not None)


def grid(arguments: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of overrides that name several values, `key=a,b,c`."""
    keys: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, values = argument.partition("=")
        if not (key and equals and values):
            raise ConfigError(f"{argument}: expected key=value or key=a,b,c")
        try:
            keys[key] = [json.dumps(value) for value in yaml.safe_load(f"[{values}]")]
        except yaml.YAMLError as error:
            raise ConfigError(f"{argument}: the values are not YAML") from error
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]


def names(combinations: Sequence[Mapping[str, str]]) -> list[str]:
    """What to call each: the last part of every key whose value is not the same in all, and its value."""
    first = combinations[0]
    differ = [key for key in first if any(each[key] != first[key] for each in combinations)]
    said = [", ".join(f"{key.rpartition('.')[2]} {json.loads(each[key])}" for key in differ) for each in combinations]
    return [each or "as written" for each in said]


def recipes(recipe: Path, settings: Sequence[Mapping[str, str]]) -> list[Recipe]:
    """The recipe with each of the settings; what is wrong with any is said before the first is run."""
    from reference_impl.rl.assembly import check

    made = [load_recipe(recipe, [f"{key}={value}" for key, value in each.items()]) for each in settings]
    for one in made:
        check(one)
    return made


def sweep(made: Sequence[Recipe], settings: Sequence[dict[str, str]], folder: Path) -> Iterator[Outcome]:
    """Run each, in `folder/NUMBER`, and yield what came of it."""
    context = multiprocessing.get_context("spawn")
    for number, (one, name, changed) in enumerate(zip(made, names(settings), settings, strict=True)):
        with ProcessPoolExecutor(1, context) as apart:
            yield Outcome(name, changed, *apart.submit(_run, one, folder / str(number)).result())


def write(outcomes: Sequence[Outcome], path: Path) -> None:
    """A line of JSON for each outcome."""
    path.write_text("".join(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes), "utf-8")


def read(path: Path) -> list[Outcome]:
    """What {py:func}`write` wrote."""
    return [Outcome(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _run(recipe: Recipe, folder: Path) -> tuple[dict[str, list[float | None]], list[float], float]:
    from reference_impl.rl.run import train

    steps, ended, peak = [], [], 0.0
    for done in train(recipe, folder):
        steps.append(dict(done.metrics))
        ended.append(time.perf_counter())
        peak = max(peak, _peak_gib())
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: [step.get(name) for step in steps] for name in names}, ended, max(peak, _peak_gib())


def _peak_gib() -> float:
    me = psutil.Process()
    return sum(map(_high_water, [me, *me.children(recursive=True)]))


def _high_water(process: psutil.Process) -> float:
    """In GiB. `ru_maxrss` of a child would count what its parent held when it forked; this is the process's own."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:  # no /proc, or it has just ended
        return process.memory_info().rss / 2**30 if process.is_running() else 0.0
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) / 2**20 if match else 0.0  # a zombie has none

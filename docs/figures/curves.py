"""The curves of pages on training: metrics by training step, from the runs that `sweeps.py` recorded.

`python docs/figures/curves.py` draws `NAME-light.svg` and `NAME-dark.svg` for every name in `FIGURES`. Runs that differ by
their seed alone have one colour: thin lines, and a thick one for their mean.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reference_impl.rl.sweep import Outcome, read
from reference_impl.staleness.report.palette import BRIGHT

sys.path.insert(0, str(Path(__file__).parent))
from svg import THEMES, Drawing
from sweeps import path_of

HERE = Path(__file__).parent
WIDTH, LEFT, RIGHT, PANEL, TOP, BOTTOM = 480, 40, 110, 150, 30, 40  # pixels; a phone shows them at three quarters

LABELS = {
    "reward": "reward",
    "token_mean_policy_staleness": "policy staleness of a token, steps",
    "token_mean_kv_cache_staleness": "KV staleness of a token, steps",
}
"""The metrics that are drawn, in words."""


@dataclass(frozen=True)
class Figure:
    """Panels one above the other, one for each metric; one colour for each value of the setting `by`, called by `names`."""

    sweeps: tuple[str, ...]
    by: str
    metrics: tuple[str, ...] = ("reward",)
    names: Mapping[str, str] = field(default_factory=dict)


FIGURES = {
    "learn-sync": Figure(("sync",), "policy.generation.backend"),
    "learn-async": Figure(
        ("async-megatron", "async-reference"),
        "policy.generation.backend",
        ("reward", "token_mean_policy_staleness"),
    ),
    "learn-smollm2": Figure(("smollm2",), "grpo.async_grpo.enabled", names={"False": "smollm2"}),
    "lag": Figure(
        ("lag",), "grpo.async_grpo.max_trajectory_age_steps", names={str(lag): f"lag {lag}" for lag in (0, 1, 2, 4)}
    ),
    "kv-mode": Figure(
        ("kv-mode",),
        "policy.generation.mcore_generation_config.kv_cache_management_mode",
        ("reward", "token_mean_kv_cache_staleness"),
    ),
}


def groups(figure: Figure) -> dict[str, list[Outcome]]:
    """The runs of each value of the figure's setting; what a recipe says itself is called Megatron's."""
    found: dict[str, list[Outcome]] = {}
    for outcome in (outcome for sweep in figure.sweeps for outcome in read(path_of(sweep))):
        value = outcome.settings.get(figure.by)
        found.setdefault(str(json.loads(value)) if value else "megatron", []).append(outcome)
    return found


def mean_of(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Point by point, of the runs that have the point."""
    points = [[value for value in values if value is not None] for values in zip(*curves, strict=True)]
    return [statistics.fmean(values) if values else None for values in points]


def draw(figure: Figure, theme: str) -> str:
    """The picture."""
    runs, drawing = groups(figure), Drawing(theme)
    steps = max(outcome.steps for outcomes in runs.values() for outcome in outcomes)
    for number, metric in enumerate(figure.metrics):
        _panel(drawing, number * (PANEL + TOP + 14) + TOP, metric, runs, steps)
    bottom = len(figure.metrics) * (PANEL + TOP + 14) - 14
    for step in _marks(steps - 1):
        x = _across(step, steps)
        drawing.text(x, bottom + 16, f"{step:g}", colour=drawing.quiet, anchor="middle")
    drawing.text(WIDTH - RIGHT, bottom + 32, "training step", colour=drawing.quiet, anchor="end")
    for number, (name, colour) in enumerate(zip(runs, BRIGHT, strict=False)):
        y = TOP + 20 + 20 * number
        drawing.curve([(WIDTH - RIGHT + 16, y), (WIDTH - RIGHT + 36, y)], colour, wide=3)
        drawing.text(WIDTH - RIGHT + 44, y + 4, figure.names.get(name, name))
    if any(len(outcomes) > 1 for outcomes in runs.values()):
        for line, said in enumerate(("thin: each seed", "thick: mean")):
            drawing.text(WIDTH - RIGHT + 16, y + 28 + 16 * line, said, colour=drawing.quiet)
    return drawing.svg(WIDTH, bottom + BOTTOM)


def _panel(drawing: Drawing, top: float, metric: str, runs: dict[str, list[Outcome]], steps: int) -> None:
    curves = {name: [outcome.curve(metric) for outcome in outcomes] for name, outcomes in runs.items()}
    most = max(value for all_of in curves.values() for each in all_of for value in each if value is not None)
    high = max(1.0, most)

    def place(curve: Iterable[float | None]) -> list[tuple[float, float]]:
        return [
            (_across(step, steps), top + PANEL * (1 - value / high))
            for step, value in enumerate(curve)
            if value is not None
        ]

    drawing.text(0, top - 14, LABELS[metric], weight=600)
    for mark in _marks(high):
        y = top + PANEL * (1 - mark / high)
        drawing.curve([(LEFT, y), (WIDTH - RIGHT, y)], drawing.line, wide=1)
        drawing.text(LEFT - 8, y + 4, f"{mark:g}", colour=drawing.quiet, anchor="end")
    for (_, seeds), colour in zip(curves.items(), BRIGHT, strict=False):
        for seed in seeds if len(seeds) > 1 else ():
            drawing.curve(place(seed), colour, wide=1, opacity=0.45)
        drawing.curve(place(mean_of(seeds)), colour, wide=2.5)


def _across(step: float, steps: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, steps - 1)


def _marks(high: float) -> list[float]:
    """Round numbers from 0 to at most `high`, four to eight of them."""
    unit = next(unit for unit in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if high / unit <= 7)
    return [unit * number for number in range(int(high / unit) + 1)]


def main() -> None:
    for name, figure in FIGURES.items():
        for theme in THEMES:
            (HERE / f"{name}-{theme}.svg").write_text(draw(figure, theme), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""The pictures on the pages are what their scripts draw from a run made now."""

import importlib.util
import json
from pathlib import Path

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, FIGURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_staleness_timeline_is_what_the_engine_does():
    timeline = script("timeline")
    events = timeline.record()
    recorded = [json.loads(line) for line in (FIGURES / "timeline.jsonl").read_text().splitlines()]
    assert events == recorded
    for theme in timeline.THEMES:
        assert timeline.draw(recorded, theme) == (FIGURES / f"timeline-{theme}.svg").read_text("utf-8"), (
            "run: python docs/figures/timeline.py"
        )


def test_the_curves_of_a_lag_are_drawn_from_their_sweep():
    lag = script("lag")
    assert lag.draw(lag.read(lag.DATA)) == (FIGURES / "lag.svg").read_text("utf-8"), "run: python docs/figures/lag.py"

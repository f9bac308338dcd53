"""The pictures on the pages are what their scripts draw from a run made now."""

import importlib.util
import json
from pathlib import Path

from PIL import Image

from reference_impl.rl.sweep import grid

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
            "run: make figures"
        )


def test_the_sentence_of_the_first_page_is_what_its_block_samples():
    sentence = script("sentence")
    tokens = sentence.read()
    assert sentence.record() == tokens
    # The weights change at 8 and 16 tokens, and the last token of each epoch is read by the next.
    assert [token.policy for token in tokens] == [0] * 8 + [1] * 8 + [2] * 5
    assert [token.cache for token in tokens] == [0] * 7 + [1] * 8 + [2] * 5 + [None]
    for theme in sentence.THEMES:
        assert sentence.draw(tokens, theme) == (FIGURES / f"sentence-{theme}.svg").read_text("utf-8"), "make figures"


def test_the_card_of_a_link_shows_that_sentence():
    sentence = script("sentence")
    with Image.open(sentence.CARD) as card:
        assert (card.size, card.text["source"]) == (
            sentence.CARD_SIZE,
            sentence.digest(sentence.card(sentence.read())),
        ), "run: make figures"


def test_the_curves_are_drawn_from_their_recorded_runs():
    curves = script("curves")
    for name, figure in curves.FIGURES.items():
        for theme in curves.THEMES:
            drawn = (FIGURES / f"{name}-{theme}.svg").read_text("utf-8")
            assert curves.draw(figure, theme) == drawn, f"{name}: run make figures"


def test_every_recorded_run_is_of_the_command_that_stands_beside_its_figure():
    curves, sweeps = script("curves"), script("sweeps")
    pages = {path: path.read_text("utf-8") for path in FIGURES.parent.rglob("*.md")}
    shown = {name: [text for text in pages.values() if f"figures/{name}-light.svg" in text] for name in curves.FIGURES}
    for name, figure in curves.FIGURES.items():
        assert shown[name], f"no page shows {name}"
        for sweep in figure.sweeps:
            command = f"{{command}}`genref sweep {sweeps.SWEEPS[sweep]}`"
            assert all(command in text for text in shown[name]), command
    for name, arguments in sweeps.SWEEPS.items():
        _, *settings = arguments.split()
        assert [run.settings for run in sweeps.read(sweeps.path_of(name))] == grid(settings), name


def test_a_mean_is_of_the_runs_that_have_the_point():
    curves = script("curves")
    assert curves.mean_of([[1.0, None, None], [3.0, 4.0, None]]) == [2.0, 4.0, None]

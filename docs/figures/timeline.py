"""The figure of design/staleness: three requests on Megatron's engine while the weights change twice, and their records.

`python docs/figures/timeline.py` runs the engine, writes the events to `timeline.jsonl` beside this file and draws
`timeline-light.svg` and `timeline-dark.svg` from them. Lengths alone decide the schedule, so every machine records the same.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_impl.staleness.events import replay
from reference_impl.staleness.records import EPOCHS, RequestRecord
from reference_impl.staleness.report.palette import colours_of, ink_on
from reference_impl.staleness.tracker import StalenessTracker

sys.path.insert(0, str(Path(__file__).parent))
from svg import THEMES, Drawing

HERE = Path(__file__).parent
PROMPTS, NEW_TOKENS, UPDATES = (4, 3, 9), 7, {4: 1, 11: 2}  # tokens of each prompt; sampled tokens: new epoch
LEFT, CELL, ROW, GAP = 132, 33, 26, 6  # pixels: names, a step or a token, a row, between rows
NAMES = dict(zip(EPOCHS, ("policy epoch", "KV epoch", "oldest attended"), strict=True))


def record() -> list[dict[str, Any]]:
    """Events of a run whose cache is one block short: a request is evicted, another waits for its first prefill."""
    import torch

    from reference_impl.config.loader import load_recipe
    from reference_impl.generation.batch import BatchedDataDict, right_padded
    from reference_impl.generation.interfaces import Progress
    from reference_impl.generation.registry import create_backend
    from reference_impl.staleness.events import follow

    block = 2 * 5 * 2 * 32 * 4 * 2  # bytes of K and V: layers, KV heads, head size, float32, tokens
    mcore = {"block_size_tokens": 2, "buffer_size_gb": 9.5 * block / 2**30, "max_requests": 4, "max_tokens": 64}
    settings = {f"policy.generation.mcore_generation_config.{key}": value for key, value in mcore.items()}
    settings |= {"policy.model_name": "tiny", "policy.precision": "float32", "policy.max_total_sequence_length": 32}
    settings |= {"policy.generation.max_new_tokens": NEW_TOKENS, "policy.generation.stop_token_ids": []}
    rows = [list(range(length)) for length in PROMPTS]
    data = BatchedDataDict(input_ids=right_padded(rows, 0, torch.int64), input_lengths=torch.tensor(PROMPTS))
    events: list[dict[str, Any]] = []
    left = dict(UPDATES)
    with create_backend(
        load_recipe(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    ) as backend:
        follow(backend.tracker, events.append)
        for event in backend.stream(data, greedy=True):
            if isinstance(event, Progress) and event.sampled_tokens in left:
                backend.update_weights(None, epoch=left.pop(event.sampled_tokens))
    return [event for event in events if event["event"] != "suspend"]  # the engine's end is no part of the story


def steps_of(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a forward pass: its epoch, and the positions of each request in it."""
    steps: list[dict[str, Any]] = []
    epoch = 0
    for event in events:
        if event["event"] == "weights_changed":
            epoch = event["epoch"]
        elif event["event"] == "forward":
            rows: dict[int, list[int]] = {}
            for request, position in zip(event["requests"], event["positions"], strict=True):
                rows.setdefault(request, []).append(position)
            steps.append({"epoch": epoch, "rows": rows})
    return steps


class Schedule(Drawing):
    """Cells in the colours of their epochs."""

    def __init__(self, theme: str, colours: dict[int, str]) -> None:
        super().__init__(theme)
        self.colours = colours

    def cell(
        self, x: float, y: float, epoch: int | None, text: str, *, faint: bool = False, wide: float = CELL
    ) -> None:
        fill = "none" if epoch is None else self.colours[epoch]
        ink = self.quiet if epoch is None or faint else ink_on(fill)
        self.parts.append(
            f'<rect x="{x + 1:g}" y="{y:g}" width="{wide - 2:g}" height="{ROW}" rx="3" fill="{fill}" '
            f'fill-opacity="{0.28 if faint else 1}" stroke="{self.line}" stroke-width="{1 if epoch is None else 0}"/>'
        )
        self.text(x + wide / 2, y + 17, text, colour=self.ink if faint else ink, anchor="middle")


def draw(events: Sequence[dict[str, Any]], theme: str) -> str:
    """The schedule above, step by step; the finished records below, token by token."""
    steps, records = steps_of(events), replay(events, StalenessTracker())
    drawing = Schedule(theme, colours_of({step["epoch"] for step in steps}))
    names = sorted(record.request for record in records)
    y = _schedule(drawing, steps, names)
    for record in sorted(records, key=lambda record: record.request):
        y = _record(drawing, record, y + 20)
    width = LEFT + CELL * max(len(steps), max(record.length for record in records)) + 4
    return drawing.svg(width, y + 4)


def _schedule(drawing: Schedule, steps: list[dict[str, Any]], names: list[int | str]) -> float:
    top, before = 40, 0
    bottom = top + len(names) * (ROW + GAP)
    drawing.text(0, 14, "Engine steps: rows of the forward pass", weight=600)
    for number, step in enumerate(steps):
        x = LEFT + number * CELL
        if step["epoch"] != before:
            before = step["epoch"]
            drawing.rule(x, top - 12, bottom)
            drawing.text(x + 4, top - 6, f"weights of epoch {before}")
    for place, name in enumerate(names):
        y = top + place * (ROW + GAP)
        drawing.text(0, y + 17, f"request {name}")
        last = max(number for number, step in enumerate(steps) if name in step["rows"])
        number = 0
        while number <= last:
            if name in steps[number]["rows"]:
                drawing.cell(LEFT + number * CELL, y, steps[number]["epoch"], str(len(steps[number]["rows"][name])))
                number += 1
                continue
            until = next(later for later in range(number, last + 1) if name in steps[later]["rows"])
            drawing.cell(LEFT + number * CELL, y, None, "evicted" if number else "queued", wide=(until - number) * CELL)
            number = until
    return bottom


def _record(drawing: Schedule, record: RequestRecord, y: float) -> float:
    start = record.sampled[0][0]
    counts = f", evicted {record.num_evictions}×" if record.num_evictions else ""
    told = f"Record of request {record.request}: prompt {start}, sampled {record.num_sampled}{counts}"
    drawing.text(0, y + 10, told, weight=600)
    y += 20
    for field, label in NAMES.items():
        drawing.text(0, y + 17, label, colour=drawing.quiet)
        for token, epoch in enumerate(getattr(record, field).expand().tolist()):
            known = None if epoch < 0 else epoch
            drawing.cell(LEFT + token * CELL, y, known, "" if known is None else str(epoch), faint=token < start)
        y += ROW + 3
    return y


def main() -> None:
    events = record()
    (HERE / "timeline.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="ascii")
    for theme in THEMES:
        (HERE / f"timeline-{theme}.svg").write_text(draw(events, theme), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

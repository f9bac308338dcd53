"""The walk through the reference engine shows code of that engine, and all that it shows is what a run goes through."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from reference_impl.config.loader import load_recipe
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import Progress
from reference_impl.generation.registry import create_backend

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "reference-engine.md"
RECIPE = ROOT / "examples" / "recipes" / "tiny-reference.yaml"
INCLUDE = re.compile(r"^```\{literalinclude\} (\S+)\n:pyobject: (\S+)$", re.MULTILINE)


def test_what_the_page_shows_of_the_engine_runs_in_it() -> None:
    """Two prompts in chunks, new weights and a sleep between two steps, and every function of the page is entered."""
    found = INCLUDE.findall(PAGE.read_text("utf-8"))
    shown = {(str((PAGE.parent / file).resolve()), symbol) for file, symbol in found}
    assert shown
    entered = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    settings = ["max_tokens=4", "max_requests=4", "enable_prefix_caching=true", "kv_cache_management_mode=offload"]
    recipe = load_recipe(
        RECIPE,
        ["policy.generation.max_new_tokens=3", *(f"policy.generation.mcore_generation_config.{s}" for s in settings)],
    )
    prompts = BatchedDataDict(input_ids=torch.arange(40, 52).view(2, 6), input_lengths=torch.tensor([6, 5]))
    ended, changed = [], False
    sys.setprofile(note)
    try:
        with create_backend(recipe) as backend:
            for event in backend.stream(prompts):
                if not isinstance(event, Progress):
                    ended.append((event[0], event[1]["generation_lengths"].item(), event[1]["errors"]))
                elif event.sampled_tokens and not changed:
                    changed = backend.update_weights(None, epoch=1)
                    backend.finish_generation()
                    backend.prepare_for_generation()
    finally:
        sys.setprofile(None)
    assert sorted(ended) == [(0, 3, [None]), (1, 3, [None])]
    assert not shown - entered

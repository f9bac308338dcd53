"""Write a page and run it through Sybil, as a project would."""

from pathlib import Path
from typing import Any

import yaml
from sybil import Document

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.sybil_parser import FenceParser


def knows_steps(text: str, folder: Path | None) -> bool:
    """Stand for a project's own check: it knows data with `steps`, and refuses zero of them."""
    data = yaml.safe_load(text)
    if not isinstance(data, dict) or "steps" not in data:
        return False
    if data["steps"] == 0:
        raise ValueError("steps: 0 is not positive")
    return True


def run(folder: Path, text: str, *, name: str = "page.md", **checks: Any) -> dict[str, Any]:
    """Run all examples of a page in `folder` and return the names that they leave behind."""
    path = folder / name
    path.write_text(text, "utf-8")
    parser = FenceParser(Checks(**{"root": folder, "pages": folder, "validate_yaml": knows_steps, **checks}))
    document = Document.parse(str(path), parser)
    for example in document:
        example.evaluate()
    return document.namespace

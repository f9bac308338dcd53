"""Every block of the pages is a test."""

from pathlib import Path

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.sybil_parser import collector

ROOT = Path(__file__).parent
CHECKS = Checks(
    root=ROOT,
    pages=ROOT / "docs",
    beside=[ROOT / "broken.md"],
    scratch=ROOT / "build",
    commands={"python"},
)
pytest_plugins = ["reference_impl.doctesting.pytest_plugin"]
pytest_collect_file = collector(CHECKS)

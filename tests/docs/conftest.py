"""For these tests, the site's own extensions can be imported as Sphinx imports them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))

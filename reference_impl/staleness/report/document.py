"""The report page's frame: style, scripts and plotly.js, all inline, so that it opens from a mail attachment offline.

plotly.js is most of the page. It lies there compressed, at two fifths of its size, and the page's script unpacks it with
the browser's own `DecompressionStream` (Chromium 80, Firefox 113, Safari 16.4); an older browser is told so, and still
shows all text and tables.
"""

from __future__ import annotations

import base64
import gzip
from pathlib import Path


def document(title: str, body: str) -> str:
    """The whole page; `title` is escaped already, `body` is HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{_part("page.css")}</style>
</head>
<body>
{body}
<script id="plotly" type="application/gzip">{_plotly()}</script>
<script>{_part("table.js")}</script>
<script>{_part("page.js")}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly.js (MIT licence, its notice within), gzip in base64."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode("ascii")

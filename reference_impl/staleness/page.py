"""The report page's frame: its style, its script, and the document that joins the parts.

Everything is inline and the fonts are the system's, so that the page opens from a mail attachment with no network.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1d1f21; --quiet: #63676c; --line: #dfe0e2; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181a; --ink: #e4e5e6; --quiet: #9da1a6; --line: #34373a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; font-weight: 600; margin: 0; line-height: 1.3; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.5rem 0 .6rem; }
.quiet, figcaption { color: var(--quiet); font-size: .875rem; margin: .3rem 0; }
dl.numbers { display: flex; flex-wrap: wrap; gap: .75rem 2rem; margin: 1.25rem 0 0; }
dl.numbers div { display: flex; flex-direction: column-reverse; }
dl.numbers dt { color: var(--quiet); font-size: .8125rem; line-height: 1.3; }
dl.numbers dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; line-height: 1.3; }
ul.legend { list-style: none; margin: 0; padding: 0; max-height: 22rem; overflow-y: auto; font-size: .9375rem; }
ul.legend li { display: flex; gap: .6rem; align-items: baseline; }
ul.legend i { flex: none; width: .85rem; height: .85rem; border-radius: 3px; background: var(--c);
  transform: translateY(.1rem); }
ul.legend b { flex: none; font-weight: 600; font-variant-numeric: tabular-nums; }
figure { margin: .6rem 0 0; }
.strips { overflow-x: auto; overscroll-behavior-x: contain; }
article { border-top: 1px solid var(--line); padding: 1rem 0 1.1rem; }
article h3 { font-size: .8125rem; font-weight: 400; color: var(--quiet); margin: 0 0 .35rem; }
article p { margin: 0 0 .5rem; white-space: pre-wrap; }
.prompt { color: var(--quiet); }
.answer { line-height: 1.9; }
.answer span { background: color-mix(in srgb, var(--p) 32%, transparent); border-bottom: 3px solid var(--k);
  padding: .1rem 0 .05rem; }
.answer span:empty::before { content: "\\2205"; color: var(--quiet); }
.error { border-left: 3px solid #cc3311; padding-left: .75rem; }
"""

# Plotly takes colours, not CSS variables: the page's own are read back and handed over, now and on every change.
SCRIPT = """
const plot = document.querySelector(".js-plotly-plot");
const scheme = matchMedia("(prefers-color-scheme: dark)");
function recolour() {
  const page = getComputedStyle(document.documentElement);
  const colour = name => page.getPropertyValue(name).trim();
  const change = {"font.color": colour("--ink"), "hoverlabel.bgcolor": colour("--ground"),
    "hoverlabel.bordercolor": colour("--quiet"), "hoverlabel.font.color": colour("--ink")};
  for (const axis of Object.keys(plot.layout).filter(key => /^[xy]axis/.test(key))) {
    change[axis + ".tickcolor"] = colour("--line");
    change[axis + ".linecolor"] = colour("--line");
  }
  Plotly.relayout(plot, change);
}
recolour();
scheme.addEventListener("change", recolour);
"""


def document(title: str, body: str) -> str:
    """The whole page; `title` is escaped already, `body` is HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""

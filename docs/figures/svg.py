"""What the figures share: an SVG in the making, and the inks of a light and of a dark page."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

THEMES = {"light": ("#1d1f21", "#63676c", "#dfe0e2"), "dark": ("#e4e5e6", "#9da1a6", "#34373a")}  # ink, quiet, line


class Drawing:
    """Text and lines, bottom up; `svg` is the whole."""

    def __init__(self, theme: str) -> None:
        self.ink, self.quiet, self.line = THEMES[theme]
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = "",
        anchor: str = "start",
        weight: int = 400,
        style: str = "",
    ) -> None:
        styled = f' style="{style}"' if style else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour or self.ink}" text-anchor="{anchor}" font-weight="{weight}"{styled}>'
            f"{escape(text)}</text>"
        )

    def rule(self, x: float, top: float, bottom: float) -> None:
        self.parts.append(
            f'<line x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom:g}" stroke="{self.quiet}" stroke-dasharray="2 4"/>'
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str, *, wide: float, opacity: float = 1) -> None:
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{through}" fill="none" stroke="{colour}" stroke-width="{wide:g}" '
            f'stroke-opacity="{opacity:g}"/>'
        )

    def svg(self, width: float, height: float, font: str = "system-ui, sans-serif", size: int = 12) -> str:
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="{font}" font-size="{size}">\n{body}\n</svg>\n'
        )

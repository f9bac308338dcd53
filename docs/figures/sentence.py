"""The sentence on the first page, token by token, in the colours of the checkpoints that made it; and the card of links to the site.

`python docs/figures/sentence.py` runs the first block of `docs/index.md`, writes the tokens that it sampled to `sentence.json`
beside this file, and draws `sentence-light.svg`, `sentence-dark.svg` and `docs/_static/card.png` from them. The card is an
SVG that Chromium makes a picture of, since what shows links reads no SVG; the digest of that SVG is written into the file.
"""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reference_impl.staleness.report.palette import colours_of, ink_on

sys.path.insert(0, str(Path(__file__).parent))
from svg import THEMES, Drawing

HERE = Path(__file__).parent
DOCS = HERE.parent
RECORDED, CARD = HERE / "sentence.json", DOCS / "_static" / "card.png"
CHROMIUM = "/usr/bin/chromium"
WIDTH, LETTER, CHIP, BAR, BETWEEN = 480, 9.7, 34, 7, 6  # units: the picture, a letter of a token, heights, gaps
CARD_SIZE, CARD_SCALE = (1200, 630), 1.64


class Token(NamedTuple):
    """A sampled token: its text, the epoch that sampled it, and the one that wrote its keys and values, if any did."""

    text: str
    policy: int
    cache: int | None


def record() -> list[Token]:
    """What the first block of the first page samples, when it is run."""
    block = re.search(r"^```python\n(.*?)^```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert block, "docs/index.md begins with a block of Python"
    names: dict[str, Any] = {}
    exec(compile(block[1], "docs/index.md", "exec"), names)
    start, output = len(names["question"]), names["answer"]
    policy, cache = (output[name][0].expand().tolist()[start:] for name in ("policy_epoch", "kv_cache_epoch"))
    spelt = map(names["backend"].tokenizer.decode, ([token] for token in names["tokens"]))
    tokens = list(map(Token, spelt, policy, cache))
    return [*tokens[:-1], tokens[-1]._replace(cache=None)]  # no pass has read the token that was sampled last


def read() -> list[Token]:
    """The recorded tokens."""
    return [Token(*token) for token in json.loads(RECORDED.read_text("utf-8"))]


class Sentence(Drawing):
    """Tokens as chips in lines, each filled with the colour of one epoch and underlined with that of another."""

    def chips(self, tokens: Sequence[Token], colours: dict[int, str], width: float, top: float) -> float:
        """Draw them from `top` on, no line wider than `width`; return where the last line ends."""
        x, y = 0.0, top
        for token in tokens:
            text = token.text.strip() or token.text
            wide = LETTER * len(text) + 12
            if x + wide > width:
                x, y = 0.0, y + CHIP + BAR + 16
            fill = colours[token.policy]
            self.box(x, y, wide, CHIP, fill)
            self.text(x + wide / 2, y + 23, text, colour=ink_on(fill), anchor="middle")
            if token.cache is not None:
                self.box(x, y + CHIP + 3, wide, BAR, colours[token.cache])
            x += wide + BETWEEN
        return y + CHIP + BAR + 3

    def legend(self, colours: dict[int, str]) -> None:
        """The colours of the epochs, at the top."""
        for place, (epoch, colour) in enumerate(colours.items()):
            self.box(120 * place, 2, 22, 18, colour)
            self.text(120 * place + 30, 17, f"epoch {epoch}")

    def box(self, x: float, y: float, wide: float, high: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="3" fill="{fill}"/>')


def draw(tokens: Sequence[Token], theme: str) -> str:
    """The picture of the first page."""
    drawing, colours = Sentence(theme), colours_of(token.policy for token in tokens)
    drawing.legend(colours)
    bottom = drawing.chips(tokens, colours, WIDTH, 40)
    drawing.text(0, bottom + 26, "box: the checkpoint that sampled the token", colour=drawing.quiet)
    drawing.text(0, bottom + 48, "bar: the one that wrote its keys and values", colour=drawing.quiet)
    return drawing.svg(WIDTH, bottom + 58, "monospace", 16)


def card(tokens: Sequence[Token]) -> str:
    """What stands beside a link to the site: its name, what it is, and the sentence."""
    wide, high = CARD_SIZE
    drawing, plain = Sentence("light"), "font:{} {}px sans-serif"
    drawing.text(75, 120, "Megatron Generation Reference", style=plain.format(700, 54))
    for y, line in (
        (178, "How Megatron Core generates the rollouts of RL training,"),
        (220, "and how stale each token is. Every block runs."),
    ):
        drawing.text(75, y, line, colour=drawing.quiet, style=plain.format(400, 32))
    drawing.parts.append(f'<g transform="translate(75 330) scale({CARD_SCALE:g})">')
    drawing.chips(tokens, colours_of(token.policy for token in tokens), wide / CARD_SCALE - 90, 0)
    drawing.parts.append("</g>")
    return drawing.svg(wide, high, "monospace", 16)


def digest(svg: str) -> str:
    """By which a picture is known to be of this SVG."""
    return hashlib.sha256(svg.encode()).hexdigest()


def photograph(svg: str, path: Path) -> None:
    """Write the SVG as a PNG, as Chromium shows it, its digest in the file's text."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=dict(zip(("width", "height"), CARD_SIZE, strict=True)))
        page.set_content(f'<body style="margin:0">{svg}</body>')
        page.screenshot(path=path)
        browser.close()
    said = PngInfo()
    said.add_text("source", digest(svg))
    with Image.open(path) as image:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, pnginfo=said, optimize=True)


def main() -> None:
    tokens = record()
    RECORDED.write_text(
        "[\n" + ",\n".join(json.dumps(token, ensure_ascii=False) for token in tokens) + "\n]\n", "utf-8"
    )
    for theme in THEMES:
        (HERE / f"sentence-{theme}.svg").write_text(draw(tokens, theme), encoding="utf-8")
    photograph(card(tokens), CARD)


if __name__ == "__main__":
    sys.exit(main())

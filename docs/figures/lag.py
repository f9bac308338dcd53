"""The figure of guides/choose-a-lag: reward by training step at four lags.

`python docs/figures/lag.py` draws `lag.svg` from `docs/data/sweep-lag.json`, which `genref sweep` has written; the page has the
command.
"""

from collections.abc import Sequence
from pathlib import Path

from reference_impl.rl.sweep import Outcome, read
from reference_impl.staleness.report.palette import BRIGHT

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "sweep-lag.json"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 44, 40, 24, 72  # pixels
STYLE = "text { fill: #222 } @media (prefers-color-scheme: dark) { text { fill: #ddd } }"


def draw(outcomes: Sequence[Outcome]) -> str:
    """The picture; it follows the reader's light or dark scheme."""
    steps = max(len(outcome.steps) for outcome in outcomes)
    parts = [f'<text x="{LEFT}" y="14">reward</text>']
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">training step</text>')
    for tenth in range(0, 11, 2):
        y = _up(tenth / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#8884"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:g}</text>')
    for step in range(0, steps + 1, 20):
        parts.append(f'<text x="{_across(step, steps):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{step}</text>')
    for number, outcome in enumerate(outcomes):
        points = " ".join(
            f"{_across(step, steps):.1f},{_up(reward):.1f}"
            for step, reward in enumerate(outcome.curve("reward"))
            if reward is not None
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{BRIGHT[number]}" stroke-width="2"/>')
        y = HEIGHT - BOTTOM - 20 * (len(outcomes) - number)
        parts.append(f'<path d="M{WIDTH - RIGHT + 8} {y}h16" stroke="{BRIGHT[number]}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y + 4}">{outcome.name.split()[-1]}</text>')
    said = "; ".join(f"lag {outcome.name.split()[-1]} ends at {outcome.late('reward'):.2f}" for outcome in outcomes)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>Reward by training step: {said}</title>",
        f"<style>{STYLE}</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _across(step: int, steps: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / steps


def _up(reward: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * reward


if __name__ == "__main__":
    (HERE / "lag.svg").write_text(draw(read(DATA)), "utf-8")

"""One colour an epoch, the same in the page's text, its figures and the terminal.

Fills only: they sit between light and dark, so that they show on either background, and differ in lightness as well
as in hue, so that readers who see fewer hues still tell neighbours apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from reference_impl.staleness.records import EPOCHS
from reference_impl.staleness.runs import Run

# Paul Tol's "bright" scheme (safe for all common kinds of colour blindness), ordered so that one epoch and the next
# are far apart in lightness. Its grey stands for what is not known.
BRIGHT = ("#4477aa", "#ccbb44", "#aa3377", "#66ccee", "#228833", "#ee6677")
UNKNOWN = "#bbbbbb"
# Past six epochs no set of separate hues is safe, so they become steps on viridis, old to new.
VIRIDIS = ("#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")

# Parts of a whole that are no epochs: of the same scheme, without the two that runs are drawn in.
PARTS = ("#66ccee", "#aa3377", "#ccbb44", "#228833")

type Colours = dict[int | None, str]


def epochs_of(run: Run) -> set[int]:
    """Every epoch that the run names or a token carries."""
    epochs = {update["epoch"] for update in run.updates}
    if run.header.get("epoch") is not None:
        epochs.add(run.header["epoch"])
    for sequence in run.sequences:
        for name in EPOCHS if sequence.record else ():
            for _, epoch in getattr(sequence.record, name).runs:
                if epoch is not None:
                    epochs.add(epoch)
    return epochs


def epoch_colours(*runs: Run) -> Colours:
    """`{epoch: "#rrggbb"}` for every epoch of the runs, oldest first, and at the end `None`, what has no epoch."""
    colours: Colours = {}
    colours.update(colours_of(epoch for run in runs for epoch in epochs_of(run)).items())
    return {**colours, None: UNKNOWN}


def colours_of(epochs: Iterable[int]) -> dict[int, str]:
    """One colour for each of `epochs`, in rising order."""
    ordered = sorted(set(epochs))
    if len(ordered) <= len(BRIGHT):
        return dict(zip(ordered, BRIGHT, strict=False))
    return {epoch: _on_viridis(rank / (len(ordered) - 1)) for rank, epoch in enumerate(ordered)}


def ink_on(fill: str) -> str:
    """Black or white, whichever contrasts more with `fill` (WCAG's relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(fill))]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _on_viridis(place: float) -> str:
    """The colour at `place` (0 to 1) between the scheme's anchors."""
    scaled = place * (len(VIRIDIS) - 1)
    left = min(int(scaled), len(VIRIDIS) - 2)
    low, high = _rgb(VIRIDIS[left]), _rgb(VIRIDIS[left + 1])
    mixed = (round(a + (b - a) * (scaled - left)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)

"""One step as tensors: tokens, positions and slots of every span, and how attention finds each request's cache.

Decode spans come first. A step costs a few array operations on the host and a few copies to the device; nothing in it loops
over layers, and nothing comes back from the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference_impl.generation.reference.request import Span

MASK_LIMIT = 1 << 24
"""Most numbers in an attention mask; queries that need more are attended to in slices of their own masks."""


@dataclass(frozen=True)
class Attending:
    """Queries that are computed together, as `requests` rows of `longest` queries each.

    `rows`
    : Index of each query in the step's tokens [requests, longest]; a short row repeats its last.

    `pieces`
    : Where the cache is read [requests, pieces]: block tables, cut into pieces. Past a request's end they name the
      reserved block.

    `last_seen`
    : Last position that each query attends to [requests, longest]; `None` where the step's own tokens are all there is.

    `mask`
    : What is added to attention scores [requests, 1, longest, positions], 0 or minus infinity; `None` without
      `last_seen`, and where it would be too large, which one query a request never is.

    `places`
    : Where each token's output lies in the flattened [requests * longest].
    """

    requests: int
    longest: int
    rows: Tensor
    pieces: Tensor
    last_seen: Tensor | None
    mask: Tensor | None
    places: Tensor


@dataclass(frozen=True)
class Batch:
    """A step's input. `tokens`, `positions` and `slots` are [tokens]; `decode` of them are decode rows, and come first."""

    spans: list[Span]
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    decode: Attending | None
    prefill: Attending | None
    host_positions: np.ndarray
    host_slots: np.ndarray

    @property
    def decode_rows(self) -> int:
        """Tokens of requests that are in decode."""
        return self.decode.requests if self.decode is not None else 0


def make_batch(
    spans: Sequence[Span], block_size: int, piece: int, reserved: int, dtype: torch.dtype, device: torch.device
) -> Batch:
    """Lay out the spans of a step; each writes into the blocks that its request holds, and reads them by the `piece`."""
    short = [span for span in spans if span.stop - span.start == 1]
    long = [span for span in spans if span.stop - span.start > 1]
    ordered = [*short, *long]
    starts = np.array([span.start for span in ordered], np.int64)
    counts = np.array([span.stop - span.start for span in ordered], np.int64)
    firsts = np.cumsum(counts) - counts
    row_of_token = np.repeat(np.arange(len(ordered)), counts)
    positions = starts[row_of_token] + np.arange(counts.sum()) - firsts[row_of_token]
    tables = _tables(ordered, block_size, reserved)
    slots = tables[row_of_token, positions // block_size] * block_size + positions % block_size
    per_block = block_size // piece
    pieces = (tables[:, :, None] * per_block + np.arange(per_block)).reshape(len(ordered), -1)
    tokens = [token for span in ordered for token in span.request.tokens[span.start : span.stop]]

    def attending(rows: slice) -> Attending | None:
        if not ordered[rows]:
            return None
        begin, count = starts[rows][:, None], counts[rows][:, None]
        width, longest = -(-int((begin + count).max()) // piece), int(count.max())
        inside = np.arange(longest)
        clipped = np.minimum(inside, count - 1)
        # A step of whole prompts needs no cache: causal attention among its own tokens is all.
        seen = to(begin + clipped) if longest == 1 or begin.any() else None
        fits = longest == 1 or len(begin) * longest * width * piece <= MASK_LIMIT
        return Attending(
            requests=len(begin),
            longest=longest,
            rows=to(firsts[rows][:, None] + clipped),
            pieces=to(pieces[rows, :width]),
            last_seen=seen,
            mask=mask_for(seen, width * piece, dtype) if seen is not None and fits else None,
            places=to(np.flatnonzero(inside < count)),
        )

    def to(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Batch(
        spans=ordered,
        tokens=torch.tensor(tokens, device=device),
        positions=to(positions),
        slots=to(slots),
        decode=attending(slice(0, len(short))),
        prefill=attending(slice(len(short), len(ordered))),
        host_positions=positions,
        host_slots=slots,
    )


def _tables(spans: Sequence[Span], block_size: int, reserved: int) -> np.ndarray:
    widths = [-(-span.stop // block_size) for span in spans]
    tables = np.full((len(spans), max(widths)), reserved, np.int64)
    for row, (span, width) in enumerate(zip(spans, widths, strict=True)):
        tables[row, :width] = span.request.blocks[:width]
    return tables


def mask_for(last_seen: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """0 for positions up to `last_seen` [requests, queries], minus infinity after: [requests, 1, queries, width]."""
    hidden = torch.arange(width, device=last_seen.device) > last_seen[:, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf")).unsqueeze(1)

"""The paged cache itself: keys and values of every layer, by block.

One tensor [layers, KV heads, 2, blocks, block size, head size] holds all of it; the 2 are keys and values. Blocks come before
positions, so that a block of one head is one contiguous piece, which is what reading through a block table copies.
"""

import contextlib
import math
import tempfile
from typing import BinaryIO

import torch
from torch import Tensor

from reference_impl.generation.interfaces import GenerationError
from reference_impl.models.llama import LlamaShape

PIECE = 16
"""Positions that are read together where a block has so many: a request that fills little of a large block costs little."""

PORTION = 1 << 21
"""Numbers of one layer that are read at a time on a CPU: 8 MB of float32, which a processor's last cache still holds when
attention comes to use them."""


class KVCache:
    """Keys and values of `blocks` blocks of `block_size` tokens, and a copy of them elsewhere while the engine sleeps."""

    def __init__(
        self, shape: LlamaShape, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.piece = math.gcd(block_size, PIECE)
        self._size = (shape.num_hidden_layers, shape.num_key_value_heads, 2, blocks, block_size, shape.head_dim)
        self._dtype, self._device = dtype, device
        self._away: tuple[Tensor, Tensor | BinaryIO] | None = None
        self.allocate()

    def allocate(self) -> None:
        """Take the memory."""
        self._room = torch.empty(0, dtype=self._dtype, device=self._device)
        self.data = torch.empty(self._size, dtype=self._dtype, device=self._device)
        self.clear([self._size[3] - 1])
        layers = self.data.flatten(3, 4)
        self._slots = list(layers.unbind(0))  # [KV heads, 2, slots, head size] of each layer
        # [KV heads, 2, pieces, piece * head size]
        self._pieces = [layer.view(*layer.shape[:2], -1, self.piece * layer.shape[3]) for layer in self._slots]

    def free(self) -> None:
        """Give the memory back; what was cached is gone, unless `offload` has put it away."""
        self.data = self._room = torch.empty(0, dtype=self._dtype)
        self._slots, self._pieces = [], []

    def clear(self, blocks: list[int]) -> None:
        """Zero blocks that are given out. Attention masks slots that nobody has written, but NaN times zero is NaN."""
        if blocks:
            self.data.index_fill_(3, torch.tensor(blocks, device=self._device), 0)

    def write(self, layer: int, slots: Tensor, keys_and_values: Tensor) -> None:
        """Store [tokens, KV heads, 2, head size] at `slots` [tokens]: block times block size plus offset."""
        self._slots[layer].index_copy_(2, slots, keys_and_values.permute(1, 2, 0, 3))

    def portions(self, pieces: Tensor) -> list[slice]:
        """Which requests of `pieces` [requests, pieces] to `read` together: all on a GPU, on a CPU what its cache holds."""
        requests = len(pieces)
        if self._device.type != "cpu":
            return [slice(0, requests)]
        _, groups, both, _, _, dim = self._size
        step = max(1, PORTION // (pieces.shape[1] * self.piece * groups * both * dim))
        return [slice(at, min(at + step, requests)) for at in range(0, requests, step)]

    def read(self, layer: int, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `pieces` [requests, pieces]: each [requests, KV heads, positions, head size].

        They lie in memory that the next call fills again, so that a steady step takes no new memory for them.
        """
        source = self._pieces[layer]
        size = (source.shape[0], 2, pieces.numel(), source.shape[3])
        if self._room.numel() < math.prod(size):
            self._room = source.new_empty(math.prod(size))
        found = torch.index_select(source, 2, pieces.flatten(), out=self._room[: math.prod(size)].view(size))
        found = found.view(*size[:2], pieces.shape[0], -1, self._size[-1])
        return found[:, 0].transpose(0, 1), found[:, 1].transpose(0, 1)

    def close(self) -> None:
        """Let go of memory and file."""
        self.free()
        if self._away is not None and not isinstance(self._away[1], Tensor):
            self._away[1].close()
        self._away = None

    # --- sleep --------------------------------------------------------------------------------------------------

    def offload(self, blocks: list[int]) -> None:
        """Put `blocks` away and free the memory: into host memory from a GPU, into a temporary file from a CPU.

        Raises {py:exc}`~reference_impl.generation.interfaces.GenerationError` where they do not fit; the cache is then as
        it was.
        """
        index = torch.tensor(blocks, dtype=torch.long, device=self._device)
        if self._device.type == "cuda":
            self._away = (index, self.data[:, :, :, index].cpu())
        else:
            self._away = (index, self._to_file(blocks))
        self.free()

    def restore(self) -> None:
        """Take the memory again and bring back what `offload` has put away, bit for bit."""
        self.allocate()
        if self._away is None:
            return
        (index, stored), self._away = self._away, None
        if isinstance(stored, Tensor):
            self.data[:, :, :, index] = stored.to(self._device)
            return
        with stored as file:
            for block in index.tolist():
                raw = bytearray(file.read(self.data[:, :, :, 0].nbytes))
                self.data[:, :, :, block] = torch.frombuffer(raw, dtype=self._dtype).view_as(self.data[:, :, :, block])

    def _to_file(self, blocks: list[int]) -> BinaryIO:
        file = None
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open until `restore`
            for block in blocks:  # one at a time, so that the way to the disk takes no second cache
                file.write(self.data[:, :, :, block].contiguous().view(torch.uint8).numpy().tobytes())
            file.flush()
        except OSError as error:
            if file is not None:
                with contextlib.suppress(OSError):  # what is still in its buffer does not fit either
                    file.close()
            raise GenerationError(
                f"kv_cache_management_mode: offload: {len(blocks)} blocks do not fit into "
                f"{tempfile.tempdir or 'a temporary file'} ({error.strerror or error}); the cache is still in memory"
            ) from error
        file.seek(0)
        return file

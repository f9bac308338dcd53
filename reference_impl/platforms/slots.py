"""Where tokens lie in a paged KV cache, and what lies there."""

import torch
from torch import Tensor


def slots_of(block_table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slots in the flattened cache of `positions` [requests, length] under a block table [requests, blocks]."""
    blocks = block_table.gather(1, (positions // block_size).to(torch.int64)).clamp(min=0)  # -1 pads the table
    return blocks.long() * block_size + positions % block_size


def gather(cache: Tensor, slots: Tensor) -> Tensor:
    """K or V of the given slots as [requests, KV heads, length, dim]."""
    flat = cache.flatten(0, 1)
    return flat.index_select(0, slots.flatten()).view(*slots.shape, *flat.shape[1:]).transpose(1, 2)

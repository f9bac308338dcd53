"""Blocks of the KV cache by number: who holds them, which are free, and which hold a prefix that can be used again.

A block is free, held by one or more requests, or reserved. A free block may still hold what a prefix lookup can find; such
blocks are given out last, the least recently used first. The prefix index is a tree: a block is found by its parent's
name and its very tokens, so two different prefixes can never be taken for each other.
"""

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]
"""Name of the parent in the prefix index, and the tokens of the block."""


class BlockPool:
    """`total` blocks, the last of which is reserved: what pads a step is read from and written to there."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reserved = total - 1
        self._owners = [0] * total
        self._free = list(range(total - 2, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # free, and still in the index; least recently used first
        self._index: dict[Key, tuple[int, int]] = {}  # key -> block, name
        self._key: dict[int, Key] = {}  # block -> its key
        self._names = 0

    @property
    def usable(self) -> int:
        """Blocks that requests can hold."""
        return self.total - 1

    @property
    def available(self) -> int:
        """Blocks that can be given out now."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that somebody holds, each counted once."""
        return sum(owners > 0 for owners in self._owners)

    @property
    def known(self) -> set[int]:
        """Free blocks that a lookup can still find."""
        return set(self._idle)

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these are free, though in the index."""
        return sum(block in self._idle for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Take blocks out of the pool; the caller has looked at `available`."""
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                self._forget(block)
            self._owners[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more request holds these, which a lookup has found."""
        for block in blocks:
            self._owners[block] += 1
            self._idle.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """One request fewer holds these."""
        for block in reversed(blocks):  # the end of a prefix goes before its beginning, which more requests share
            self._owners[block] -= 1
            if self._owners[block] == 0:
                if block in self._key:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    # --- prefixes -----------------------------------------------------------------------------------------------

    def lookup(self, root: int, tokens: Sequence[int], size: int, most: int) -> tuple[list[int], int]:
        """The longest run of known blocks of `size` that starts with `tokens`, at most `most`; and its name."""
        found, name = [], root
        for start in range(0, most * size, size):
            known = self._index.get((name, tuple(tokens[start : start + size])))
            if known is None:
                break
            block, name = known
            found.append(block)
        return found, name

    def register(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Make a full block known under its parent's name; the name of its content, which another block may have brought."""
        key = (parent, tokens)
        if key in self._index:
            return self._index[key][1]
        self._names += 1
        self._index[key] = (block, self._names)
        self._key[block] = key
        return self._names

    def forget_prefixes(self) -> None:
        """Empty the index: nothing written before is found again. Requests keep what they hold."""
        self._index.clear()
        self._key.clear()
        self._free += self._idle
        self._idle.clear()

    def _forget(self, block: int) -> None:
        del self._index[self._key.pop(block)]

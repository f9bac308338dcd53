"""Schedules of a small paged engine, as plain lists of events: what the tracker and its oracle are both told.

An event is a tuple, the name of a tracker's method and its arguments: `("forward", ["a"], [0], [4])`. `Engine` makes
them as a real engine would, so that each has happened to somebody: it has blocks, a queue, chunked prefill, a prefix
cache, and it is interrupted by weight updates, suspends, preemptions, evictions and aborts. What it does next comes from
bytes that the caller supplies; zeros give the shortest, plainest schedule, so that Hypothesis shrinks towards it. Each
action takes its own bytes, all drawn at once, because a draw a choice would take most of the time of a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

type Event = tuple
type Schedule = list[Event]
type Take = Callable[[int], bytes]
"""Supplies so many bytes, for one action."""

CONFIGURATION_BYTES, ACTION_BYTES = 20, 14
LONGEST_PROMPT = 12
MOST_ACTIONS = 80

# Action -> weight. "stop" is first, so that zeros stop. A configuration leaves some of the optional ones out.
ACTIONS = {
    "stop": 1,
    "step": 28,
    "admit": 12,
    "update": 10,
    "forward": 6,
    "schedule": 4,
    "sample": 3,
    "evict": 6,
    "preempt": 3,
    "unpause": 3,
    "suspend": 5,
    "end": 6,
    "abort": 4,
    "so_far": 4,
    "lose": 4,
}
NEEDED = ("stop", "step", "admit")


class Choices:
    """A run of bytes read as choices; where they have run out, the first choice is taken."""

    def __init__(self, data: bytes):
        self._left = list(data)

    def __call__(self, n: int) -> int:
        """A number below `n`."""
        return self._left.pop(0) % n if self._left else 0

    def one_in(self, n: int) -> bool:
        return self(n) == n - 1

    def of(self, options):
        return options[self(len(options))]


@dataclass(eq=False)
class _Request:
    name: int
    tokens: list[int]
    prompt_length: int
    computed: int = 0  # the next position to go through a forward pass
    blocks: list[int] = field(default_factory=list)
    pending: bool = False  # its last token went through a pass from which nothing has been sampled yet
    paused: bool = False


class Engine:
    """Runs one schedule from the bytes that `take` supplies; `events` holds it.

    `reuse_across_updates`
    : Whether a block written under an older epoch may be hit, which no salt or version in its hash prevents then.
    """

    def __init__(self, take: Take):
        choose = Choices(take(CONFIGURATION_BYTES))
        self.events: Schedule = []
        self.block_size = choose.of((2, 1, 3, 4))
        blocks = LONGEST_PROMPT // self.block_size + choose.of((2, 0, 1, 4, 8))
        self.budget = choose.of((16, 1, 2, 3, 5, 8))
        self.max_running = choose.of((2, 1, 3, 4))
        prefix_cache = choose.of(("off", "salted", "across", "across"))
        self.prefix_cache = prefix_cache != "off"
        self.reuse_across_updates = prefix_cache == "across"
        self.releases = choose.of(("when freed", "when allocated anew", "never"))
        self.last_block = choose.of(("left out", "last token", "computed again", "reused and computed again"))
        # A careless engine loses blocks that are in use, and hits blocks whose content is gone.
        self.careless = choose.one_in(4)
        self.ends_late = choose.one_in(3)  # not right after the token was sampled, so perhaps after one more pass
        left_out = choose(256) | choose(256) << 8
        self.weights = {
            action: weight
            for bit, (action, weight) in enumerate(ACTIONS.items())
            if action in NEEDED or (not left_out >> bit & 1 and (action != "lose" or self.careless))
        }
        self.free = list(range(blocks))
        self.holders = [0] * blocks
        self.key_of: dict[int, tuple[int, ...]] = {}
        self.block_of: dict[tuple[int, ...], int] = {}
        self.written: dict[int, int] = {}  # slot -> epoch, for the salt
        self.epoch = 0
        self.suspended = False
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self._do("weights_changed", choose(2))
        self.epoch = self.events[-1][1]
        self.choose = choose
        self._admit()
        for _ in range(MOST_ACTIONS):
            self.choose = choose = Choices(take(ACTION_BYTES))
            action = self._action(choose(256))
            if action == "stop":
                break
            getattr(self, f"_{action}")()

    def __repr__(self) -> str:
        return f"<{self.events}>"

    def _action(self, number: int) -> str:
        number %= sum(self.weights.values())
        for action, weight in self.weights.items():
            if number < weight:
                return action
            number -= weight
        raise AssertionError

    def _do(self, event: str, *arguments: object) -> None:
        self.events.append((event, *arguments))

    # --- actions

    def _admit(self) -> None:
        if len(self.running) + len(self.waiting) < 5:
            length = 1 + self.choose(LONGEST_PROMPT)
            # Mostly zeros: prompts share prefixes.
            prompt = [int(self.choose.one_in(8)) for _ in range(length)]
            taken = {request.name for request in self.running + self.waiting}
            name = min(set(range(6)) - taken)  # a name comes again once its request has ended
            self.waiting.append(_Request(name, prompt, length))
            self._do("admit", name, length)

    def _step(self) -> None:
        self._sample()
        self._forward()
        self._sample()

    def _schedule(self) -> None:
        """Take waiting requests in, prefix hits included; their forward passes come later, perhaps much later."""
        while self.waiting and self.free and len(self.running) < self.max_running:
            request = self.waiting.pop(0)
            self.running.append(request)
            self._hit(request)

    def _forward(self) -> None:
        if self.suspended:
            self.suspended = False
            self._do("resume")
        self._schedule()
        names, positions, slots, left = [], [], [], self.budget
        for request in list(self.running):
            if request not in self.running or request.paused:
                continue
            if request.pending and self.choose.one_in(8):  # a step that is done once more, say after an update
                request.computed -= 1
            count = self._room(request, min(left, len(request.tokens) - request.computed))
            for position in range(request.computed, request.computed + count):
                names.append(request.name)
                positions.append(position)
                slots.append(self._slot(request, position))
            request.computed += count
            left -= count
            request.pending = request.computed == len(request.tokens)
        if names:
            self._do("forward", names, positions, slots)
        self.written.update(dict.fromkeys(slots, self.epoch))
        for request in self.running:
            self._register(request)

    def _sample(self) -> None:
        """Sample whatever is pending, one request left out at times; some of the requests end with that token."""
        ready = [request for request in self.running if request.pending]
        if ready and self.choose.one_in(6):
            ready.pop(self.choose(len(ready)))
        if not ready:
            return
        self._do("sample", [request.name for request in ready])
        for request in ready:
            request.pending = False
            request.tokens.append(int(self.choose.one_in(4)))
            if self.choose.one_in(9) and not self.ends_late:
                self._finish(request)

    def _update(self) -> None:
        for step in self.choose.of(([1], [1], [2], [1, 1], [0], [1, 3])):
            self.epoch += step
            self._do("weights_changed", self.epoch)

    def _evict(self) -> None:
        if self.running:
            self._take_blocks(self.choose.of(self.running))

    def _preempt(self) -> None:
        if going := [request for request in self.running if not request.paused]:
            request = self.choose.of(going)
            request.paused = True
            self._do("preempt", request.name)

    def _unpause(self) -> None:
        for request in self.running:
            request.paused = False

    def _suspend(self) -> None:
        if self.suspended:
            self.suspended = False
            self._do("resume")
            return
        mode = self.choose.of(("recompute", "persist", "offload"))
        self.suspended = True
        self._do("suspend", mode)
        if mode == "recompute":
            self.written.clear()
            if not self.careless:
                self._forget_keys(list(self.key_of))
            keeps_blocks = self.choose.one_in(2)
            for request in list(self.running):
                request.computed, request.pending = 0, False
                if not keeps_blocks:
                    self.running.remove(request)
                    self.waiting.append(request)
                    self._free(request)
        if self.choose.one_in(2):
            self._update()

    def _end(self) -> None:
        if done := [request for request in self.running + self.waiting if len(request.tokens) > request.prompt_length]:
            self._finish(self.choose.of(done))

    def _abort(self) -> None:
        if requests := self.waiting + self.running:
            request = self.choose.of(requests)
            self._do("abort", request.name, self._trimmed(request))
            self._gone(request)

    def _so_far(self) -> None:
        if requests := self.running + self.waiting:
            request = self.choose.of(requests)
            self._do("so_far", request.name, self._trimmed(request))

    def _lose(self) -> None:
        self._do("release", self._slots(self.choose(len(self.holders))))

    # --- requests and blocks

    def _finish(self, request: _Request) -> None:
        self._do("finish", request.name, self._trimmed(request))
        self._gone(request)

    def _trimmed(self, request: _Request) -> int | None:
        """The length with up to three tokens cut off, as before a stop string; `None` for all of them."""
        if not self.choose.one_in(2):
            return None
        return max(request.prompt_length, len(request.tokens) - self.choose(4))

    def _gone(self, request: _Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self._free(request)

    def _take_blocks(self, request: _Request) -> None:
        """Evict: the request waits again, in front or at the end. A sloppy engine frees before it says so."""
        self.running.remove(request)
        self.waiting.insert(0 if self.choose.one_in(2) else len(self.waiting), request)
        request.computed, request.pending, request.paused = 0, False, False
        before = len(self.events)
        self._do("evict", request.name)
        self._free(request)
        if self.choose.one_in(4):
            self.events.append(self.events.pop(before))

    def _slot(self, request: _Request, position: int) -> int:
        return request.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def _slots(self, block: int) -> list[int]:
        return list(range(block * self.block_size, (block + 1) * self.block_size))

    def _room(self, request: _Request, count: int) -> int:
        """How many of `count` more positions there are blocks for, after evicting others of need."""
        while request.computed + count > len(request.blocks) * self.block_size:
            if not self.free:
                # Only a request that comes later than this one, and so is not in this pass yet, gives its blocks up.
                later = self.running[self.running.index(request) + 1 :]
                if not later:
                    return max(0, len(request.blocks) * self.block_size - request.computed)
                self._take_blocks(later[-1])
                continue
            block = self.free.pop(0)
            self._forget_keys([block])
            if self.releases == "when allocated anew":
                self._do("release", self._slots(block))
            self.holders[block] = 1
            request.blocks.append(block)
        return count

    def _free(self, request: _Request) -> None:
        for block in request.blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free.append(block)
                if self.releases == "when freed":
                    self._do("release", self._slots(block))
                    if not self.careless:
                        self._forget_keys([block])
        request.blocks = []

    def _hit(self, request: _Request) -> None:
        """Take the longest prefix that is cached in whole blocks; the last token always goes through a pass."""
        size, found = self.block_size, []
        while self.prefix_cache and (len(found) + 1) * size <= len(request.tokens):
            block = self.block_of.get(tuple(request.tokens[: (len(found) + 1) * size]))
            if block is None or not (self.reuse_across_updates or self._is_current(block)):
                break
            found.append(block)
        if found and request.computed == 0 and not request.blocks:
            if self.last_block == "left out" and len(found) * size == len(request.tokens):
                found.pop()
            for block in found:
                if not self.holders[block]:
                    self.free.remove(block)
                self.holders[block] += 1
            request.blocks = found
            reused = min(len(found) * size, len(request.tokens) - 1)
            request.computed = reused
            if self.last_block == "computed again" and found:
                reused = request.computed = (len(found) - 1) * size
            if self.last_block == "reused and computed again" and found:
                request.computed = (len(found) - 1) * size
            if reused:
                positions = list(range(reused))
                self._do("reuse", request.name, positions, [self._slot(request, position) for position in positions])

    def _is_current(self, block: int) -> bool:
        return all(self.written.get(slot) == self.epoch for slot in self._slots(block))

    def _register(self, request: _Request) -> None:
        """Full blocks can be hit from now on, those with sampled tokens too."""
        for number in range(request.computed // self.block_size):
            key, block = tuple(request.tokens[: (number + 1) * self.block_size]), request.blocks[number]
            if self.prefix_cache and key not in self.block_of and block not in self.key_of:
                self.block_of[key], self.key_of[block] = block, key

    def _forget_keys(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.key_of:
                del self.block_of[self.key_of.pop(block)]


def seeded(seed: int) -> Take:
    """The bytes of one seed, without Hypothesis: the same for ever."""
    return random.Random(seed).randbytes


def strategy[T](make: Callable[[Take], T]) -> st.SearchStrategy[T]:
    """What `make` makes of bytes that Hypothesis draws."""

    @st.composite
    def made(draw: st.DrawFn) -> T:
        # Of one exact size: Hypothesis then has no constants of the loaded modules to try, and draws the same everywhere.
        return make(lambda count: draw(st.binary(min_size=count, max_size=count)))

    return made()

"""KV staleness, told event by event in the dumbest way there is: the oracle for `StalenessTracker`.

It shares no code with `reference_impl` and imports none of it. A dictionary holds the epoch of each slot, another the
slot of each position, and a list per token the epochs of its sampling. Every answer is a loop over tokens. The
events have the names and arguments of the tracker's, so one schedule drives both.
"""

from __future__ import annotations

CACHE_MODES = ("persist", "offload", "recompute")


class ImpossibleEventError(Exception):
    """This event cannot have happened."""


class Request:
    """A running request: per-token lists, and where the keys and values of each position lie."""

    def __init__(self, prompt_length: int, epoch: int):
        self.prompt_length = prompt_length
        self.admission_epoch = epoch
        self.policy: list[int | None] = [epoch] * prompt_length
        self.attended: list[int | None] = [None] * prompt_length
        self.slot_of: dict[int, int] = {}
        self.last_pass: tuple[int, int | None] | None = None  # over the last token: its epoch, the oldest attended
        self.num_evictions = 0
        self.num_preemptions = 0
        self.num_recomputes = 0
        self.prefix_cached_tokens = 0

    @property
    def length(self) -> int:
        return len(self.policy)


class Simulator:
    """The tracker's events, in the tracker's words; `finish`, `abort` and `so_far` return a dictionary of lists."""

    def __init__(self, epoch: int = 0):
        self.epoch = epoch
        self.suspended = False
        self.tag: dict[int, int] = {}  # slot -> epoch that wrote it; a slot that is not here holds nothing known
        self.requests: dict[object, Request] = {}

    # --- the engine

    def weights_changed(self, epoch):
        require(not isinstance(epoch, bool) and isinstance(epoch, int) and epoch >= self.epoch)
        self.epoch = epoch

    def suspend(self, mode):
        require(mode in CACHE_MODES and not self.suspended)
        self.suspended = True
        if mode == "recompute":
            self.tag = {}
            for request in self.requests.values():
                if request.slot_of:
                    request.num_recomputes += 1
                request.slot_of = {}

    def resume(self):
        require(self.suspended)
        self.suspended = False

    def release(self, slots):
        require(all(slot >= 0 for slot in slots))
        for slot in slots:
            self.tag.pop(slot, None)

    # --- a request

    def admit(self, name, prompt_length):
        require(name not in self.requests and prompt_length >= 1)
        self.requests[name] = Request(prompt_length, self.epoch)

    def reuse(self, name, positions, slots):
        request = self.running(name)
        require(all(position < request.length - 1 for position in positions))  # the last token gets its own pass
        self.require_rows([name] * len(positions), positions, slots)
        for position, slot in zip(positions, slots, strict=True):
            request.slot_of[position] = slot
            request.prefix_cached_tokens += 1

    def forward(self, names, positions, slots):
        require(not self.suspended)
        self.require_rows(names, positions, slots)
        # All rows write before any of them attends, as in an attention layer of one batch.
        for name, position, slot in zip(names, positions, slots, strict=True):
            self.tag[slot] = self.epoch
            self.requests[name].slot_of[position] = slot
        for name, position in zip(names, positions, strict=True):
            request = self.requests[name]
            if position == request.length - 1:
                request.last_pass = (self.epoch, self.oldest(request))

    def sample(self, names):
        require(len(set(names)) == len(names))
        for name in names:
            request = self.running(name)
            require(all(position in request.slot_of for position in range(request.length)))
        for name in names:
            request = self.requests[name]
            policy, attended = request.last_pass
            request.policy.append(policy)
            request.attended.append(attended)

    def preempt(self, name):
        self.running(name).num_preemptions += 1

    def evict(self, name):
        self.running(name).num_evictions += 1
        self.requests[name].slot_of = {}

    def finish(self, name, length=None):
        record = self.record(name, length, "finished")
        del self.requests[name]
        return record

    def abort(self, name, length=None):
        record = self.record(name, length, "aborted")
        del self.requests[name]
        return record

    def so_far(self, name, length=None):
        return self.record(name, length, "aborted")

    # --- inside

    def running(self, name):
        require(name in self.requests)
        return self.requests[name]

    def oldest(self, request):
        """The smallest tag of all its positions, or `None` if any of them holds nothing known."""
        tags = [self.tag.get(slot) for slot in request.slot_of.values()]
        return None if None in tags else min(tags)

    def require_rows(self, names, positions, slots):
        """One request's rows stand together, rise by one and leave no hole."""
        require(len(names) == len(positions) == len(slots))
        require(all(slot >= 0 for slot in slots))
        for row, (name, position) in enumerate(zip(names, positions, strict=True)):
            request = self.running(name)
            require(0 <= position < request.length)
            if name not in names[:row]:
                require(position <= len(request.slot_of))
            else:
                require(names[row - 1] == name and position == positions[row - 1] + 1)

    def record(self, name, length, status):
        request = self.running(name)
        if length is None:
            length = request.length
        require(request.prompt_length <= length <= request.length)
        kv = []
        for position in range(length):
            if position in request.slot_of:
                kv.append(self.tag.get(request.slot_of[position]))
            elif position == request.length - 1 and position >= request.prompt_length:
                kv.append(request.policy[position])  # sampled last: no keys and values yet
            else:
                kv.append(None)
        return {
            "policy": request.policy[:length],
            "kv": kv,
            "attended": request.attended[:length],
            "sampled": list(range(request.prompt_length, length)),
            "num_evictions": request.num_evictions,
            "num_preemptions": request.num_preemptions,
            "num_recomputes": request.num_recomputes,
            "prefix_cached_tokens": request.prefix_cached_tokens,
            "admission_epoch": request.admission_epoch,
            "completion_epoch": self.epoch,
            "status": status,
        }


def require(possible: bool) -> None:
    if not possible:
        raise ImpossibleEventError

"""The oracle's own test: the tracker with one deliberate mistake in its source has to be told from the sound one.

Each mutation replaces a text that occurs once in tracker.py, so that after a refactoring a mutation that no longer
applies fails instead of passing. Left out, because nothing that a tracker is asked can tell them: to count too many
holders of a slot (`_unplace` or `_forget_cache` that takes none off), which only asks slots more often than need be;
to keep an ended request's row for ever, which takes memory only; and to note a new epoch at the next token of all that
run when the weights change, because the sampling of that token says once more what it was sampled from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from oracle.comparison import replay
from oracle.mistakes import with_mistakes, without_sense
from oracle.schedules import Engine, Schedule, seeded

from reference_impl.staleness import tracker as sound

SOURCE = Path(sound.__file__).read_text(encoding="utf-8")

MUTATIONS = [
    # --- policy
    ("policy boundary one late", "live.policy.append((int(start[index])", "live.policy.append((int(start[index] + 1)"),
    (
        "policy boundary one early, as upstream stamps it",
        "live.policy.append((int(start[index])",
        "live.policy.append((int(start[index] - 1)",
    ),
    (
        "a pass not yet sampled from is stamped when the weights change",
        "        self.epoch = int(epoch)\n",
        "        self.epoch = int(epoch)\n        self._logits[:, 0] = self.epoch\n",
    ),
    (
        "the running requests are stamped when the weights change, at the token before",
        "        self.epoch = int(epoch)\n",
        """\
        self.epoch = int(epoch)
        for live in self._live.values():
            live.policy.append((int(self._length[live.row]) - 1, self.epoch))
""",
    ),
    (
        "policy epoch of the sampling call, not of the pass it samples from",
        "        epochs = self._logits[rows]\n",
        "        epochs = self._logits[rows]\n        epochs[:, 0] = self.epoch\n",
    ),
    (
        "prompt tokens take the epoch of the first prefill, not of the admission",
        "        done = rows[",
        """\
        for i in np.flatnonzero(at == 0):
            self._live[requests[i]].policy[0] = (0, self.epoch)
        done = rows[""",
    ),
    (
        "a new request inherits what its row's last one was stamped with",
        "        self._seen[row] = self.epoch, MISSING\n",
        "",
    ),
    # --- KV
    ("the last sampled token has no KV epoch", ".append(policy.runs[-1][1])", ".append(None)"),
    ("the last sampled token's KV is of the epoch at the end", ".append(policy.runs[-1][1])", ".append(self.epoch)"),
    (
        "all that is cached moves to the new epoch when the weights change",
        "        self.epoch = int(epoch)\n",
        "        self.epoch = int(epoch)\n        self._tag[self._tag != MISSING] = self.epoch\n",
    ),
    (
        "a tag is written only where there is none",
        "        self._tag[into] = self.epoch\n",
        "        self._tag[into] = np.where(tags == MISSING, self.epoch, tags)\n",
    ),
    ("release forgets nothing", "        self._tag[at] = MISSING\n", ""),
    (
        "a prefix hit stamps the current epoch on the block",
        "        self._place(rows, at, into)\n        self._oldest[live.row] = ASK\n",
        "        self._place(rows, at, into)\n        self._oldest[live.row] = ASK\n        self._tag[into] = self.epoch\n",
    ),
    (
        "an eviction keeps the cache",
        "        live.num_evictions += 1\n        self._forget_cache(live.row)\n",
        "        live.num_evictions += 1\n",
    ),
    (
        "a preemption takes the cache",
        "        self._of(request).num_preemptions += 1\n",
        "        self._of(request).num_preemptions += 1\n        self._forget_cache(self._of(request).row)\n",
    ),
    ("a suspend with recompute keeps the tags", "            self._tag[:] = MISSING\n", ""),
    (
        "a suspend with recompute keeps the caches",
        "                self._forget_cache(request.row)\n            self._tag",
        "            self._tag",
    ),
    ("a suspend with offload drops the tags", 'if mode == "recompute":', 'if mode != "persist":'),
    ("a suspend with persist drops the tags", 'if mode == "recompute":', 'if mode != "offload":'),
    # --- oldest attended
    (
        "the oldest attended epoch is taken from the cache at the end, not at the sampling",
        "EpochRuns.from_boundaries(live.attended, length)",
        """\
EpochRuns.missing(live.prompt_length).append(
                kv.oldest if kv.stamped == length else None, length - live.prompt_length
            )""",
    ),
    (
        "the oldest attended epoch is the pass's own",
        "self._logits[done, 1] = self._oldest[done]",
        "self._logits[done, 1] = self.epoch",
    ),
    (
        "the oldest attended epoch survives an eviction",
        "        self._cached[row], self._oldest[row] = 0, NOTHING\n",
        "        self._cached[row] = 0\n",
    ),
    (
        "slots are not asked again when another request writes a shared one",
        "if ((tags != self.epoch) & (self._holders[into] > 0)).any():",
        "if False:",
    ),
    (
        "slots are not asked again when another request writes a shared one that was lost",
        "if ((tags != self.epoch) &",
        "if ((tags != self.epoch) & (tags != MISSING) &",
    ),
    (
        "slots are not asked again when a position is computed again",
        "            self._oldest[rows[again]] = ASK\n",
        "",
    ),
    (
        "slots are not asked again when they are released",
        "        if self._holders[at].any():\n",
        "        if False:\n",
    ),
    (
        "slots are not asked after a prefix hit",
        "        self._place(rows, at, into)\n        self._oldest[live.row] = ASK\n",
        "        self._place(rows, at, into)\n",
    ),
    ("holders are not counted", "        np.add.at(self._holders, into, 1)\n", ""),
    # --- counts and the end
    ("the trim is ignored", "length = total if length is None else length", "length = total"),
    ("a recompute is counted as an eviction", "request.num_recomputes += bool(", "request.num_evictions += bool("),
    (
        "a recompute is counted where nothing was cached",
        "request.num_recomputes += bool(self._cached[request.row])",
        "request.num_recomputes += 1",
    ),
    (
        "an eviction is counted as a preemption",
        "        live.num_evictions += 1\n",
        "        live.num_preemptions += 1\n",
    ),
    ("prefix hits are counted once each", "live.prefix_cached_tokens += len(at)", "live.prefix_cached_tokens += 1"),
    ("completion at the admission's epoch", "completion_epoch=self.epoch", "completion_epoch=live.admission_epoch"),
    # --- refusals
    ("a hole is not refused", "if not reachable.all():", "if False:"),
    ("a token past the end is not refused", "if (past := at >= self._length[rows]).any():", "if False:"),
    (
        "a pass while suspended is not refused",
        '        if self.suspended:\n            raise ValueError("a forward',
        '        if False:\n            raise ValueError("a forward',
    ),
    ("a token sampled twice from one pass is not refused", "if len(set(requests)) < len(requests):", "if False:"),
    ("a token sampled without a pass is not refused", "if (self._cached[rows] != start).any():", "if False:"),
    ("an older epoch is not refused", "if epoch < self.epoch:", "if False:"),
    ("a reused last token is not refused", "if len(at) and at.max() >= self._length[live.row] - 1:", "if False:"),
    (
        "an event counts although it is refused",
        "        live, at, into = self._of(request), np",
        "        self._of(request).prefix_cached_tokens += 1\n        live, at, into = self._of(request), np",
    ),
]


@cache
def schedules() -> list[Schedule]:
    """The same ones every time, drawn once; kinds in turn, because each mutation is caught by one of them at least."""
    drawn = []
    for seed in range(0, 1000, 5):
        drawn += [Engine(seeded(seed)).events, Engine(seeded(seed + 1)).events, with_mistakes(seeded(seed + 2))]
        drawn += [without_sense(seeded(seed + 3)), without_sense(seeded(seed + 4))]
    return drawn


def caught_by(source: str) -> Schedule | None:
    """The first of the schedules whose replay fails, in whatever way, with the tracker that `source` defines."""
    mutant = ModuleType(sound.__name__)
    exec(compile(source, sound.__file__, "exec"), mutant.__dict__)
    for schedule in schedules():
        try:
            replay(schedule, mutant.StalenessTracker())
        except Exception:  # an IndexError of a mutant tells it from the sound tracker as well as a wrong epoch
            return schedule
    return None


def test_the_sound_tracker_passes():
    assert caught_by(SOURCE) is None


@pytest.mark.parametrize(("old", "new"), [pytest.param(*texts, id=name) for name, *texts in MUTATIONS])
def test_a_mutation_is_caught(old, new):
    assert SOURCE.count(old) == 1, "this mutation no longer applies: tracker.py was changed, so change it here too"
    assert caught_by(SOURCE.replace(old, new)) is not None

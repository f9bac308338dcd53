"""Megatron-RL's own statistics, on its own population: to compare with ours, name by name.

Megatron-RL takes its numbers over all tokens of each turn, the prompt's included, and a turn's prompt holds the turns
before it, so that early tokens count once a turn. A rollout's oldest token is its first prompt token. The completion
gap is a mean over turns, all else over rollouts. `metrics` takes sampled tokens, each once. Source:
NVIDIA/Megatron-LM, `megatron/rl/rl_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reference_impl.staleness.metrics import REDUCTIONS
from reference_impl.staleness.records import RequestRecord

KINDS = {"policy": "policy_epoch", "kv_cache": "kv_cache_epoch"}


def stamped_tokens(boundaries: Sequence[Sequence[int]], length: int) -> list[tuple[int, int]]:
    """`[(epoch, tokens), ...]` as Megatron-RL counts a turn of `length` tokens from its stamps `(start, epoch)`.

    Each boundary holds until the next. One at or past the end, which a cut stop string leaves behind, has no tokens
    itself, and yet the one before it holds until there: the counts may add up to more than `length`.
    """
    ends = [start for start, _ in boundaries[1:]] + [length]  # without a boundary: one end, and nothing that ends
    found = [(epoch, end - start) for (start, epoch), end in zip(boundaries, ends, strict=False)]
    return [(epoch, tokens) for epoch, tokens in found if tokens > 0]


def upstream_metrics(step: int, rollouts: Iterable[Sequence[RequestRecord]]) -> dict[str, float]:
    """What Megatron-RL logs when training step `step` consumes `rollouts`, each the records of its turns.

    `rollouts`
    : Of each rollout, a record a turn, made from Megatron's stamps (`readers.megatron.read_turns`) over all tokens of
      the turn: none of them merged. A rollout without turns failed, and counts nowhere.

    The names are those of `metrics`, and Megatron-RL's. `token_mean_policy_staleness`, `token_mean_kv_cache_staleness`
    and `consumed_tokens` are ours, on Megatron-RL's population; for one rollout the means are its
    `policy_avg_staleness` and `kv_avg_staleness`. Without a rollout there is no metric.

    Raises `ValueError` that names the request where a token has no stamp, which Megatron-RL does not allow, and for a
    step older than an epoch.
    """
    joined = [turns for turns in map(list, rollouts) if turns]
    if not joined:
        return {}
    found: dict[str, float] = {}
    for kind, column in KINDS.items():
        tokens = [[pair for turn in turns for pair in _staleness(turn, column, step)] for turns in joined]
        for how, reduction in REDUCTIONS.items():
            found[f"{how}_{kind}_staleness"] = float(reduction(np.array([pairs[0][0] for pairs in tokens])))
            found[f"{how}_{kind}_last_token_staleness"] = float(reduction(np.array([pairs[-1][0] for pairs in tokens])))
        count = sum(number for pairs in tokens for _, number in pairs)
        found[f"token_mean_{kind}_staleness"] = (
            sum(stale * number for pairs in tokens for stale, number in pairs) / count
        )
        found["consumed_tokens"] = float(count)
    evictions = [_evictions(turns) for turns in joined]
    if None not in evictions:
        known = [number for number in evictions if number is not None]
        found["total_eviction_count"], found["max_num_evictions"] = float(sum(known)), float(max(known))
    found["mean_completion_gap"] = float(np.mean([step - _last_stamp(turn) for turns in joined for turn in turns]))
    return found


def _staleness(turn: RequestRecord, column: str, step: int) -> list[tuple[int, int]]:
    """`(staleness, tokens)` of a turn, in order."""
    found = []
    for start, stop, epoch in getattr(turn, column).spans():
        if epoch is None:
            raise ValueError(
                f"token {start} of request {turn.request!r} has no {column}; Megatron-RL stamps every token"
            )
        if epoch > step:
            raise ValueError(f"step {step} is older than {column} {epoch} of token {start} of request {turn.request!r}")
        found.append((step - epoch, stop - start))
    if not found:
        raise ValueError(f"request {turn.request!r} has no token; Megatron-RL takes no empty turn")
    return found


def _evictions(turns: Sequence[RequestRecord]) -> int | None:
    counts = [turn.num_evictions for turn in turns]
    return None if None in counts else sum(count for count in counts if count is not None)


def _last_stamp(turn: RequestRecord) -> int:
    """The epoch stamped last, which may lie past the turn's last token."""
    return turn.policy_epoch.newest if turn.completion_epoch is None else turn.completion_epoch

"""Two runs of the same prompts and weight updates on two engines, held to each other: tokens, records, and upstream's stamps."""

from collections.abc import Sequence

import numpy as np

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.runs import SequenceRecord


def stamp_differences(ours: Sequence[SequenceRecord], theirs: Sequence[SequenceRecord]) -> list[str]:
    """Lines that say how the records of `ours` compare with those of `theirs`, a run on Megatron's engine.

    Both runs hold the same prompts in the same order. Megatron's own stamps are its records' `upstream`.
    """
    total = len(ours)
    pairs = list(zip(ours, theirs, strict=True))
    same_tokens = sum(mine.token_ids == other.token_ids for mine, other in pairs)
    same_records = sum(mine.record == other.record for mine, other in pairs)
    lines = [
        f"beside Megatron's engine: {same_tokens} of {total} answers and {same_records} of {total} exact records agree"
    ]
    for name, what in (("policy_epoch", "policy"), ("kv_cache_epoch", "KV")):
        moved = [_differing(getattr(mine.record, name), getattr(other.upstream, name)) for mine, other in pairs]
        count, tokens = sum(map(len, moved)), sum(mine.record.length for mine, _ in pairs if mine.record)
        if not count:
            lines.append(f"its own {what} stamps agree with ours for all {tokens} tokens")
            continue
        rows = [row for row, places in enumerate(moved) if len(places)]
        first = rows[0]
        place = int(moved[first][0])
        mine, other = pairs[first]
        here = (getattr(mine.record, name).expand()[place], getattr(other.upstream, name).expand()[place])
        lines.append(
            f"its own {what} stamps differ from ours for {count} of {tokens} tokens, in {len(rows)} answers; the first: "
            f"answer {first + 1}, token {place}: ours {here[0]}, Megatron's {here[1]}"
        )
    return lines


def _differing(one: EpochRuns, other: EpochRuns) -> np.ndarray:
    """Tokens, up to where the shorter one ends, with different epochs."""
    length = min(one.length, other.length)
    return np.flatnonzero(one.expand()[:length] != other.expand()[:length])

"""Records of requests written down as a test thinks of them: runs of sampled tokens, each with its epoch."""

from typing import Any

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.rollouts import Rollouts

type Run = tuple[int | None, int]  # an epoch and how many tokens carry it


def epochs(*runs: Run) -> EpochRuns:
    """The epochs of one token after the other."""
    joined = EpochRuns((), 0)
    for epoch, tokens in runs:
        joined = joined.append(epoch, tokens)
    return joined


def record(
    name: int | str,
    policy: list[Run],
    kv: list[Run] | None = None,
    attended: list[Run] | None = None,
    prompt: int = 2,
    **fields: Any,
) -> RequestRecord:
    """A request of one turn: a prompt that was admitted and cached at the first epochs, then what was sampled.

    KV epochs are the policy's unless they are given; nothing attended to anything of a known epoch unless it is given.
    """
    sampled = sum(tokens for _, tokens in policy)
    kv = policy if kv is None else kv
    attended = [(None, sampled)] if attended is None else attended
    first_policy, first_kv = (runs[0][0] if runs else 0 for runs in (policy, kv))
    return RequestRecord(
        name,
        epochs((first_policy, prompt), *policy),
        epochs((first_kv, prompt), *kv),
        epochs((None, prompt), *attended),
        ((prompt, prompt + sampled),) if sampled else (),
        **fields,
    )


def four_rollouts() -> list[RequestRecord]:
    """Four rollouts whose oldest sampled tokens carry policy epochs 4, 2, 5, 0 and KV epochs 4, 3, 5, 1."""
    return [
        record("a", [(4, 3), (5, 1)], [(4, 2), (5, 2)], [(4, 4)], prompt=2, completion_epoch=5, num_evictions=1),
        record("b", [(2, 2), (3, 2)], [(3, 4)], [(2, 4)], prompt=3, completion_epoch=6, num_preemptions=2),
        record("c", [(5, 4)], [(5, 4)], [(5, 4)], prompt=4, completion_epoch=6, num_recomputes=3),
        record("d", [(0, 2), (4, 2)], [(1, 2), (4, 2)], [(0, 4)], prompt=5, completion_epoch=5, status="aborted"),
    ]


def rollouts_of(step: int) -> Rollouts:
    """What step 6, 7 or 8 is offered: known everything, some things unknown and a bar in a name, only failures."""
    rollouts = Rollouts()
    if step == 6:
        for one, reward in zip(four_rollouts(), (1.0, 0.0, -0.5, 0.25), strict=True):
            rollouts.add(one, reward)
    elif step == 7:
        rollouts.add(record(11, [(None, 2), (6, 1)], [(6, 3)], num_preemptions=None))
        rollouts.add(record("x|y", [(3, 500)], completion_epoch=4), 0.1)
    else:
        rollouts.add(record("failed", [(4, 2)], status="failed"))
    return rollouts

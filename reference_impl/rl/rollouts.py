"""Rollouts: a prompt, what the policy answered, what the environment said to it, and what came of it.

A group is several rollouts of one episode. Whatever fails, an environment or a request, makes its rollout a failed one with
a reason. It stays in the batch: what was started is accounted for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.rl.environments import Environment, EpisodeError, judge
from reference_impl.staleness.records import RequestRecord, merge_turns


@dataclass
class Rollout:
    """One member of a group, under way or over.

    `tokens`, `logprobs`, `sampled`
    : The whole conversation: ids, the log-probability of each sampled token (0 elsewhere), and which were sampled.

    `turns`
    : The engine's record of each turn.

    `reward`
    : When it is over and has not failed.

    `reason`
    : Why it failed.

    `truncated`
    : It met the longest conversation there may be, and ended with the reward that it had by then.
    """

    episode: int
    member: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    turns: list[RequestRecord] = field(default_factory=list)
    reward: float | None = None
    reason: str | None = None
    truncated: bool = False

    @property
    def name(self) -> str:
        """Unlike any other rollout's of a run."""
        return f"{self.episode}.{self.member}"

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.reward is not None or self.reason is not None

    @property
    def record(self) -> RequestRecord | None:
        """The records of all turns as one, under this rollout's name and with how it ended; `None` before the first."""
        if not self.turns:
            return None
        merged = replace(merge_turns(self.turns), request=self.name)
        return replace(merged, status="failed") if self.reason is not None else merged

    def add(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append tokens: sampled ones with their log-probabilities, or somebody else's."""
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens) if logprobs is None else logprobs
        self.sampled += [logprobs is not None] * len(tokens)


def begin(environment: Environment, episode: int, member: int) -> Rollout:
    """A rollout with its prompt, or a failed one."""
    rollout = Rollout(episode, member)
    try:
        rollout.add(environment.reset(episode))
    except Exception as error:  # an environment is somebody else's code
        rollout.reason = f"reset: {type(error).__name__}: {error}"
    return rollout


def go_on(rollout: Rollout, environment: Environment, output: BatchedDataDict, row: int, context: int) -> None:
    """Take one row of a backend's output: append the response, let the environment judge it, append what it says.

    A conversation that leaves no room for another token within `context` is over.
    """
    if error := output["errors"][row]:
        rollout.reason = error
        return
    end, count = (int(output[name][row]) for name in ("unpadded_sequence_lengths", "generation_lengths"))
    response = output["output_ids"][row, end - count : end].tolist()
    rollout.add(response, output["logprobs"][row, end - count : end].tolist())
    if (record := output["staleness"][row]) is not None:
        rollout.turns.append(record)
    try:
        reply = judge(environment, response)
    except EpisodeError as error:
        rollout.reason = str(error)
        return
    rollout.truncated = not reply.done and len(rollout.tokens) + len(reply.observation) >= context
    if reply.done or rollout.truncated:
        rollout.reward = float(reply.reward)
    else:
        rollout.add(reply.observation)


def collect(
    backend: GenerationInterface,
    environments: Sequence[Environment],
    episodes: Sequence[int],
    group_size: int,
    context: int,
) -> list[Rollout]:
    """Play every episode `group_size` times with the policy that `backend` holds, a turn of all of them at a time.

    `environments` are as many as there are rollouts, `group_size` to each episode. `context` is the most tokens of a
    conversation. Returns the rollouts group by group.
    """
    if len(environments) != len(episodes) * group_size:
        raise ValueError(f"{len(episodes)} episodes of {group_size} need as many environments, got {len(environments)}")
    members = [(episode, member) for episode in episodes for member in range(group_size)]
    rollouts = [begin(each, *member) for each, member in zip(environments, members, strict=True)]
    while running := [number for number, rollout in enumerate(rollouts) if not rollout.over]:
        output = backend.generate(prompts_of([rollouts[number] for number in running]))
        for row, number in enumerate(running):
            go_on(rollouts[number], environments[number], output, row, context)
    return rollouts


def prompts_of(rollouts: Sequence[Rollout]) -> BatchedDataDict:
    """What a backend continues: the conversations so far, padded on the right."""
    lengths = torch.tensor([len(rollout.tokens) for rollout in rollouts])
    ids = torch.zeros(len(rollouts), int(lengths.max()), dtype=torch.int64)
    for row, rollout in zip(ids, rollouts, strict=True):
        row[: len(rollout.tokens)] = torch.tensor(rollout.tokens)
    return BatchedDataDict(input_ids=ids, input_lengths=lengths)

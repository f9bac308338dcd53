"""Rollouts: a prompt, what the policy answered, what the environment said to it, and what came of it.

A group is several rollouts of one episode. Whatever fails, an environment or a request, makes its rollout a failed one with
a reason. It stays in the batch: what was started is accounted for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface, Progress
from reference_impl.rl.environments import Environment, EpisodeError, Reply
from reference_impl.rl.judging import Room
from reference_impl.staleness.record_json import from_json, to_json
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

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        plain = {name: value for name, value in vars(self).items() if name != "turns"}
        return plain | {"turns": [[turn.request, turn.length, to_json(turn)] for turn in self.turns]}

    @staticmethod
    def from_json(known: dict[str, Any]) -> "Rollout":
        """What {py:meth}`to_json` was made of."""
        turns = [from_json(fields, request=request, length=length) for request, length, fields in known["turns"]]
        return Rollout(**known | {"turns": turns})

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


def hear(rollout: Rollout, output: BatchedDataDict) -> list[int] | None:
    """Append the response in a backend's one-row output and return it; `None` where the request has failed."""
    if error := output["errors"][0]:
        rollout.reason = error
        return None
    end, count = (int(output[name][0]) for name in ("unpadded_sequence_lengths", "generation_lengths"))
    response: list[int] = output["output_ids"][0, end - count : end].tolist()
    rollout.add(response, output["logprobs"][0, end - count : end].tolist())
    if (record := output["staleness"][0]) is not None:
        rollout.turns.append(record)
    return response


def reply_to(rollout: Rollout, reply: Reply | EpisodeError, context: int) -> None:
    """Append what the environment says to the last response, or end the rollout with its reward or its failure.

    A conversation that leaves no room for another token within `context` is over.
    """
    if isinstance(reply, EpisodeError):
        rollout.reason = str(reply)
        return
    rollout.truncated = not reply.done and len(rollout.tokens) + len(reply.observation) >= context
    if reply.done or rollout.truncated:
        rollout.reward = float(reply.reward)
    else:
        rollout.add(reply.observation)


def collect(
    backend: GenerationInterface, room: Room, episodes: Sequence[int], group_size: int, context: int
) -> list[Rollout]:
    """Play every episode `group_size` times with the policy that `backend` holds, a turn of all of them at a time.

    `room` has the environments, which judge the responses of a turn side by side, as they come. `context` is the most tokens of a
    conversation. Returns the rollouts group by group.
    """
    members = [(episode, member) for episode in episodes for member in range(group_size)]
    tables = [room.table() for _ in members]
    rollouts = [begin(table.environment, *member) for table, member in zip(tables, members, strict=True)]
    while running := [number for number, rollout in enumerate(rollouts) if not rollout.over]:
        judged = []
        for event in backend.stream(prompts_of([rollouts[number] for number in running])):
            if isinstance(event, Progress):
                continue
            row, output = event
            number = running[row]
            if (response := hear(rollouts[number], output)) is not None:
                judged.append((number, tables[number].judge(response)))
        for number, answer in judged:
            reply_to(rollouts[number], tables[number].wait(answer), context)
    for table in tables:
        room.give_back(table)
    return rollouts


def prompts_of(rollouts: Sequence[Rollout]) -> BatchedDataDict:
    """What a backend continues: the conversations so far, padded on the right."""
    lengths = torch.tensor([len(rollout.tokens) for rollout in rollouts])
    ids = torch.zeros(len(rollouts), int(lengths.max()), dtype=torch.int64)
    for row, rollout in zip(ids, rollouts, strict=True):
        row[: len(rollout.tokens)] = torch.tensor(rollout.tokens)
    return BatchedDataDict(input_ids=ids, input_lengths=lengths)

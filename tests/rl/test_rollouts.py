"""Conversations through a real engine: what was sampled, what was said by others, and every failure accounted for."""

import json

import pytest
import torch
from support.batches import recipe

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.registry import create_backend
from reference_impl.models.tiny import ByteTokenizer
from reference_impl.rl.environments import EpisodeError, Reply, SortLetters
from reference_impl.rl.judging import Room, Table
from reference_impl.rl.rollouts import Rollout, collect, prompts_of

BYTES = ByteTokenizer()


class Talk:
    """Says `observation` to each of the first responses, then ends with the number of turns as reward."""

    def __init__(self, turns=3, observation=(7, 8), fails_at=None):
        self.turns, self.observation, self.fails_at = turns, observation, fails_at

    def reset(self, episode):
        self.done = 0
        if episode == 13:
            raise RuntimeError("no such episode")
        return [1 + episode, 2, 3]

    def step(self, response):
        self.done += 1
        if self.done == self.fails_at:
            raise EpisodeError("out of order")
        over = self.done == self.turns
        return Reply(done=over, reward=float(self.done), observation=() if over else self.observation)


class Given(Room):
    """These environments, in this order."""

    def __init__(self, *environments, seconds=None):
        super().__init__(None)
        self.coming = [Table(environment, seconds) for environment in environments]

    def table(self):
        return self.coming.pop(0)


@pytest.fixture
def backend():
    with create_backend(recipe(backend="reference", length=48, max_new_tokens=4, stop_token_ids=[])) as made:
        yield made


def test_several_turns_are_one_trajectory(backend):
    """3 of prompt, then 4 sampled and 2 observed twice, and 4 more: 19 tokens, each sampled one with its log-probability."""
    [rollout] = collect(backend, Given(Talk()), [0], 1, 48)
    assert rollout.reward == 3
    assert rollout.sampled == [False] * 3 + [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2 + [True] * 4
    assert rollout.tokens[7:9] == rollout.tokens[13:15] == [7, 8]
    assert all((value < 0) == sampled for value, sampled in zip(rollout.logprobs, rollout.sampled, strict=True))
    record = rollout.record
    assert (record.request, record.length) == ("0.0", 19)
    assert record.sampled == ((3, 7), (9, 13), (15, 19))
    assert record.policy_epoch.to_json() == [[0, 0], [7, None], [9, 0], [13, None], [15, 0]]


def test_each_turn_continues_the_conversation():
    """The second turn's prompt is everything so far: the same tokens as when the engine is asked for it afresh."""
    with create_backend(recipe(backend="reference", length=48, max_new_tokens=4, temperature=0.0)) as backend:
        [rollout] = collect(backend, Given(Talk(turns=2)), [0], 1, 48)
        again = backend.generate(
            BatchedDataDict(input_ids=torch.tensor([rollout.tokens[:9]]), input_lengths=torch.tensor([9]))
        )
    assert again["output_ids"][0].tolist() == rollout.tokens


def test_what_fails_is_kept_with_a_reason(backend):
    """Episode 13 cannot be begun, one fails in its second turn, one is told a token that is none, one is well."""
    environments = [Talk(), Talk(fails_at=2), Talk(observation=(5000,)), Talk(turns=1)]
    rollouts = collect(backend, Given(*environments), [13, 1, 2, 3], 1, 48)
    assert [rollout.reward for rollout in rollouts] == [None, None, None, 1]
    assert rollouts[0].reason == "reset: RuntimeError: no such episode"
    assert rollouts[1].reason == "out of order"
    assert "token 5000 at position 7" in rollouts[2].reason
    assert rollouts[0].record is None
    assert [rollout.record.status for rollout in rollouts[1:]] == ["failed", "failed", "finished"]
    assert sum(rollouts[1].sampled) == 8, "what it had come to is kept"


@pytest.mark.parametrize(("told", "tokens", "turns"), [(39, 48, 2), (40, 48, 2), (41, 7, 1), (60, 7, 1)])
def test_a_conversation_that_fills_the_context_is_over(backend, told, tokens, turns):
    """3 + 4 tokens, then 39 told leave room for 2 of the second response; 41 leave none, and are not added."""
    [rollout] = collect(backend, Given(Talk(turns=9, observation=(5,) * told)), [0], 1, 48)
    assert (rollout.truncated, len(rollout.tokens), rollout.reward) == (True, tokens, turns)


def test_groups_get_one_prompt_and_sample_apart():
    made = recipe(backend="reference", length=48, max_new_tokens=4, stop_token_ids=[], temperature=3.0)
    with create_backend(made) as backend:
        rollouts = collect(backend, Room(lambda: SortLetters(BYTES)), [4, 9], 3, 48)
    assert [(each.episode, each.member) for each in rollouts] == [(4, 0), (4, 1), (4, 2), (9, 0), (9, 1), (9, 2)]
    prompts, responses = ([tuple(each.tokens[part]) for each in rollouts] for part in (slice(5), slice(5, None)))
    assert (len(set(prompts[:3])), len(set(prompts))) == (1, 2)
    assert len(set(responses[:3])) > 1
    assert len(set(responses[3:])) > 1


def test_conversations_are_padded_on_the_right(backend):
    rollouts = collect(backend, Given(Talk(turns=1), Talk(turns=2)), [0, 1], 1, 48)
    batch = prompts_of(rollouts)
    assert batch["input_lengths"].tolist() == [7, 13]
    assert batch["input_ids"][0].tolist() == rollouts[0].tokens + [0] * 6


def test_a_rollout_survives_a_checkpoint(backend):
    """Tokens, records and all, over several turns."""
    rollouts = collect(backend, Given(Talk(), Talk(fails_at=2)), [0, 1], 1, 48)
    again = [Rollout.from_json(json.loads(json.dumps(rollout.to_json()))) for rollout in rollouts]
    assert again == rollouts
    assert again[0].record == rollouts[0].record

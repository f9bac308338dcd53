"""The synchronous loop on one shared model: it learns, nothing is stale or copied, and failures are accounted for."""

import pytest
import torch
from support.batches import recipe

from reference_impl.generation.registry import create_backend
from reference_impl.models import tiny
from reference_impl.models.gpt import build_gpt_model
from reference_impl.platforms.cpu import cpu_platform
from reference_impl.rl.environments import EpisodeError, Reply, SortLetters, Unreliable
from reference_impl.rl.judging import Room
from reference_impl.rl.policy import show
from reference_impl.rl.queue import Counts, Queue
from reference_impl.rl.steps import Learner, Plan
from reference_impl.rl.sync import train

BYTES = tiny.ByteTokenizer()
ON_POLICY = (1.0, 0, 0.0)


class LowBytes:
    """A reward that any policy can raise at once: the share of sampled tokens below 128."""

    def reset(self, episode):
        return [episode % 7, 200]

    def step(self, response):
        return Reply(done=True, reward=sum(token < 128 for token in response) / len(response))


class Fails(LowBytes):
    def step(self, response):
        raise EpisodeError("broken")


def a_run(make_environment, steps, *, name="reference", seed=0, lr=1e-3, prompts=4, group=8, first_step=0, shown=0):
    """The steps of a run on `tiny`, and its model and backend; `shown` supervised steps come first."""
    with cpu_platform():
        model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
        if shown:
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
            environment = SortLetters(BYTES, seed)
            for step in range(shown):
                show(model, optimizer, [environment.demonstration(10**6 + 64 * step + row) for row in range(64)])
        made = recipe(backend=name, length=16, max_new_tokens=4, stop_token_ids=[], seed=seed)
        with create_backend(made, model=model, shape=tiny.SHAPE) as backend:
            optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0)
            plan = Plan(prompts, group, first_step + steps, context=16)
            learner = Learner(model, optimizer, ON_POLICY, plan)
            queue = Queue(prompts, group, lag=0, step=first_step)
            storage = [parameter.data_ptr() for parameter in model.parameters()]
            done = list(train(backend, learner, Room(make_environment), queue))
            assert [parameter.data_ptr() for parameter in model.parameters()] == storage
            if name == "megatron":
                read = backend._engine.controller.inference_wrapped_model.model
                assert [parameter.data_ptr() for parameter in read.parameters()] == storage
            return done, model, backend


@pytest.mark.parametrize("name", ["reference", "megatron"])
def test_it_learns_and_nothing_is_stale(name):
    """The reward rises; every token is of its step's epoch; generator and trainer agree on every probability."""
    done, _, _ = a_run(LowBytes, 8, name=name)
    rewards = [each.metrics["reward"] for each in done]
    assert rewards[-1] > rewards[0] + 0.2
    for step, each in enumerate(done):
        assert each.metrics["max_policy_staleness"] == each.metrics["mean_completion_gap"] == 0
        assert {rollout.record.policy_epoch.to_json()[0][1] for rollout in each.rollouts} == {step}
        assert each.metrics["token_mult_prob_error"] < 1.001
        assert len(each.consumption.rollouts) == 32


def test_the_engine_reads_the_parameters_that_training_changes():
    """`a_run` holds the storage of the engine's module to that of the model before the run; here, the values have changed."""
    done, model, _ = a_run(LowBytes, 2, name="megatron")
    fresh = build_gpt_model(tiny.SHAPE, tiny.random_weights())
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)]
    assert all(changed)
    assert [each.step for each in done] == [0, 1]


def test_a_run_repeats_bit_for_bit():
    """The same tokens, rewards and weights; another seed of the engine samples something else."""
    (one, first, _), (two, second, _) = (a_run(LowBytes, 3) for _ in range(2))
    assert [each.tokens for step in one for each in step.rollouts] == [
        each.tokens for step in two for each in step.rollouts
    ]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other, _, _ = a_run(LowBytes, 1, seed=1)
    assert [each.tokens for each in other[0].rollouts] != [each.tokens for each in one[0].rollouts]


def test_a_step_in_which_all_fail_trains_nothing():
    """No staleness is logged, the weights stay, and the epoch goes on."""
    done, model, backend = a_run(Fails, 2, first_step=5)
    fresh = build_gpt_model(tiny.SHAPE, tiny.random_weights())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    assert (backend.epoch, [each.step for each in done]) == (7, [5, 6])
    for each in done:
        assert {rollout.reason for rollout in each.rollouts} == {"broken"}
        assert each.consumption.failed == 32
        assert not [key for key in each.metrics if "policy_staleness" in key or key in ("reward", "loss")]
    assert done[-1].counts == Counts(started=64, in_flight=0, waiting=0, consumed=0, dropped=0, failed=64)


def test_failed_rollouts_are_counted_and_the_others_trained_on():
    """A quarter of the episodes fail: offered is consumed and failed, in every step."""
    done, _, _ = a_run(lambda: Unreliable(LowBytes(), failures=0.25, seed=3), 3, prompts=8)
    for each in done:
        failed = sum(rollout.reason is not None for rollout in each.rollouts)
        assert each.consumption.failed == failed
        assert len(each.consumption.rollouts) + failed == 64
        assert each.metrics["tokens"] == 4 * len(each.consumption.rollouts)
    assert sum(each.consumption.failed for each in done) > 10


def test_letters_are_sorted_after_thirty_steps():
    """From the form alone, about a quarter in place, to more than 0.8."""
    done, _, _ = a_run(lambda: SortLetters(BYTES, 0), 30, lr=3e-4, prompts=8, group=16, shown=75)
    rewards = [each.metrics["reward"] for each in done]
    assert rewards[0] < 0.35
    assert sum(rewards[-5:]) / 5 > 0.8

"""The asynchronous loop on real engines: bounds, in-flight updates and accounting, in one process and in two."""

import os
import random
import signal
import time

import pytest
import torch
from support.batches import recipe

from reference_impl.generation.registry import create_backend
from reference_impl.models import tiny
from reference_impl.models.gpt import build_gpt_model
from reference_impl.platforms.cpu import cpu_platform
from reference_impl.rl.asynchronous import Colocated, train
from reference_impl.rl.environments import EpisodeError, Reply
from reference_impl.rl.judging import Room
from reference_impl.rl.player import Player
from reference_impl.rl.queue import Counts, Queue
from reference_impl.rl.steps import Learner, Plan
from reference_impl.rl.worker import Worker, WorkerError

ON_POLICY = (1.0, 0, 0.0)


class Slow:
    """Takes between nothing and 60 ms over each of two responses, by the episode and how often it was asked."""

    def reset(self, episode):
        self.turn, self.draw = 0, random.Random(episode)
        return [episode % 7, 200]

    def step(self, response):
        self.turn += 1
        time.sleep(self.draw.choice([0.0, 0.0, 0.01, 0.06]))
        share = sum(token < 128 for token in response) / len(response)
        return Reply(done=self.turn == 2, reward=share, observation=(9,))


class Fails(Slow):
    def step(self, response):
        raise EpisodeError("broken")


def a_run(name, make, steps, *, lag, in_flight=True, prompts=3, group=2, tokens=6, requests=8, mode="persist"):
    """The steps of a colocated run on `tiny`; the engine has room for 8 requests, so that some always wait."""
    mcore = {"max_requests": requests, "kv_cache_management_mode": mode}
    made = recipe(backend=name, length=32, max_new_tokens=tokens, stop_token_ids=[], mcore=mcore)
    with cpu_platform():
        model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
        storage = [parameter.data_ptr() for parameter in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        with create_backend(made, model=model, shape=tiny.SHAPE) as backend:
            queue = Queue(prompts, group, lag)
            generation = Colocated(Player(backend, Room(make, 5.0), group, 32, in_flight))
            done = list(train(generation, Learner(model, optimizer, ON_POLICY, Plan(prompts, group, steps, 32)), queue))
            generation.close()
            assert [parameter.data_ptr() for parameter in model.parameters()] == storage
    return done


def hold(done, lag):
    """What is true of every run: the bound for each consumed token, and a place for every rollout, each consumed once."""
    seen = set()
    for each in done:
        for rollout in each.rollouts:
            assert rollout.name not in seen
            seen.add(rollout.name)
            if rollout.reward is not None:
                ages = each.step - rollout.record.of_sampled("policy_epoch").oldest
                assert 0 <= ages <= lag
        taken = sum(rollout.reward is not None for step in done[: each.step + 1] for rollout in step.rollouts)
        assert each.counts.consumed == taken
        assert each.metrics.get("max_policy_staleness", 0) <= lag


@pytest.mark.parametrize("name", ["reference", "megatron"])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_no_consumed_token_is_over_the_bound(name, lag):
    """Environments of every speed, and an engine with too few places."""
    done = a_run(name, Slow, 10, lag=lag)
    hold(done, lag)
    oldest = max(each.metrics["max_policy_staleness"] for each in done)
    assert oldest > 0 if lag else oldest == 0
    assert lag or all(each.metrics["token_mult_prob_error"] < 1.001 for each in done)


@pytest.mark.parametrize("name", ["reference", "megatron"])
def test_without_in_flight_updates_every_turn_is_of_one_checkpoint(name):
    """And so is every rollout, for an update waits until none is under way; with them, some are of two."""
    for in_flight in (False, True):
        done = a_run(name, Slow, 8, lag=2, in_flight=in_flight)
        hold(done, 2)
        mixed = [each.metrics["mixed_policy_ratio"] for each in done]
        assert max(mixed) > 0 if in_flight else max(mixed) == 0


@pytest.mark.parametrize("name", ["reference", "megatron"])
@pytest.mark.parametrize("mode", ["persist", "recompute", "offload"])
def test_what_a_cache_mode_does_to_staleness(name, mode):
    """Nothing is evicted. A kept cache is as old as its tokens, but for the one before each update, which had none yet;
    one that is computed anew is younger wherever a rollout lived through an update."""
    done = a_run(name, Slow, 10, lag=2, tokens=10, mode=mode)
    hold(done, 2)
    younger = crossed = 0
    for each in done:
        assert each.metrics["max_num_evictions"] == 0
        for rollout in each.rollouts:
            for turn in rollout.turns:
                policy, kv = (getattr(turn, f"{kind}_epoch").expand().tolist() for kind in ("policy", "kv_cache"))
                (start, stop), *_ = turn.sampled
                inside = [place for place in range(start + 1, stop) if policy[place] != policy[place - 1]]
                crossed += len(inside)
                differ = [place for place in range(start, stop) if kv[place] != policy[place]]
                assert all(kv[place] > policy[place] for place in differ)
                younger += len(differ)
                if mode != "recompute":
                    assert differ == [place - 1 for place in inside]
    assert crossed > 0
    assert younger > crossed if mode == "recompute" else younger == crossed


def test_steps_in_which_all_fail_go_by():
    done = a_run("reference", Fails, 4, lag=1)
    assert [each.consumption.failed for each in done] == [6] * 4
    assert not [each for each in done if "reward" in each.metrics or "max_policy_staleness" in each.metrics]
    counts = done[-1].counts
    assert (counts.consumed, counts.failed) == (0, 24)


# --- a process of its own -------------------------------------------------------------------------------------


def a_recipe(backend="reference", mode="direct", **changes):
    from reference_impl.config.loader import load_recipe

    keys = {
        "policy.model_name": "tiny",
        "policy.max_total_sequence_length": 16,
        "policy.generation.backend": backend,
        "policy.generation.mode": mode,
        "policy.generation.max_new_tokens": 6,
        "policy.generation.stop_token_ids": "[]",
        "policy.generation.colocated.enabled": "false",
        "policy.generation.mcore_generation_config.buffer_size_gb": 0.001,
        "policy.generation.mcore_generation_config.block_size_tokens": 4,
        "policy.generation.mcore_generation_config.max_requests": 16,
        "policy.generation.mcore_generation_config.max_tokens": 256,
        "grpo.num_prompts_per_step": 3,
        "grpo.num_generations_per_prompt": 2,
        "grpo.async_grpo.enabled": "true",
        "grpo.async_grpo.max_trajectory_age_steps": 2,
        "grpo.async_grpo.in_flight_weight_updates": "true",
        "env.name": "sort-letters",
    }
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(None, [f"{key}={value}" for key, value in keys.items()])


@pytest.fixture
def model():
    with cpu_platform():
        yield build_gpt_model(tiny.SHAPE, tiny.random_weights())


def with_worker(model, made, steps, between=lambda worker, done: None):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    worker, done = Worker(made, model, 0, threads=1), []
    try:
        for each in train(worker, Learner(model, optimizer, ON_POLICY, Plan(3, 2, steps, 16)), Queue(3, 2, 2)):
            done.append(each)
            between(worker, done)
    finally:
        worker.close()
    assert not worker.process.is_alive()
    return done


@pytest.mark.parametrize(
    ("backend", "mode"), [("reference", "direct"), ("megatron", "direct"), ("megatron", "coordinator")]
)
def test_two_processes_keep_the_bounds_and_see_each_update(model, backend, mode):
    """The worker's probabilities are those of the weights whose epoch its tokens carry: fresh ones agree with training."""
    done = with_worker(model, a_recipe(backend, mode), 8)
    hold(done, 2)
    assert max(each.metrics["max_policy_staleness"] for each in done) > 0
    assert done[0].metrics["token_mult_prob_error"] < 1.001
    started = 6 * len(done) + done[-1].counts.in_flight + done[-1].counts.waiting
    assert done[-1].counts == Counts(started, done[-1].counts.in_flight, done[-1].counts.waiting, 48, 0, 0)


def test_the_worker_generates_with_the_weights_of_its_epoch(model):
    """Without lag each step waits for its update: generator and trainer agree on every token of every step."""
    made = a_recipe(grpo__async_grpo__max_trajectory_age_steps=0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    worker = Worker(made, model, 0, threads=1)
    try:
        done = list(train(worker, Learner(model, optimizer, ON_POLICY, Plan(3, 2, 5, 16)), Queue(3, 2, 0)))
    finally:
        worker.close()
    assert [each.metrics["max_policy_staleness"] for each in done] == [0] * 5
    assert max(each.metrics["token_mult_prob_error"] for each in done) < 1.001


def test_a_worker_that_is_killed_is_a_clear_stop(model):
    def kill(worker, done):
        if len(done) == 2:
            os.kill(worker.process.pid, signal.SIGKILL)

    with pytest.raises(WorkerError, match="generation worker: its process was ended by signal 9"):
        with_worker(model, a_recipe(), 50, kill)


def test_what_is_wrong_in_the_worker_is_said(model):
    with pytest.raises(
        WorkerError, match="generation worker: ConfigError: policy.generation.backend: no backend 'megaton'"
    ):
        with_worker(model, a_recipe("megaton"), 1)


def test_a_worker_ends_with_its_trainer(tmp_path):
    """A trainer that is killed leaves no process behind."""
    import subprocess
    import sys

    script = tmp_path / "trainer.py"
    script.write_text(
        "import os, signal, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "if __name__ == '__main__':\n"
        "    from test_asynchronous import a_recipe\n"
        "    from reference_impl.models import tiny\n"
        "    from reference_impl.models.gpt import build_gpt_model\n"
        "    from reference_impl.platforms.cpu import enable\n"
        "    from reference_impl.rl.worker import Worker\n"
        "    enable()\n"
        "    worker = Worker(a_recipe(), build_gpt_model(tiny.SHAPE, tiny.random_weights()), 0)\n"
        "    worker.play(0)\n"
        "    worker.ended()\n"
        "    print(worker.process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = os.path.dirname(__file__)
    run = subprocess.run(
        [sys.executable, script, here], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{here}/.."}
    )
    pid = int(run.stdout.split()[-1])
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.1)
    pytest.fail(f"worker {pid} is still there\n{run.stderr}")

"""Whole runs by a recipe: what is on disk, what a run that goes on does, and what a recipe is refused for."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import load_recipe
from reference_impl.rl import checkpoints
from reference_impl.rl.assembly import check, loss_settings
from reference_impl.rl.loss import LossSettings
from reference_impl.rl.run import train
from reference_impl.staleness.logger import StalenessLogger, open_sinks
from reference_impl.staleness.runs import read_run

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
SMALL = (
    "policy.generation.backend=reference",
    "policy.generation.mode=direct",
    "policy.generation.mcore_generation_config.buffer_size_gb=0.005",
    "grpo.num_prompts_per_step=3",
    "grpo.num_generations_per_prompt=4",
    "grpo.demonstration_steps=2",
    "checkpointing.save_period=2",
)


def a_recipe(kind, *changes):
    return load_recipe(RECIPES / f"grpo-tiny-megatron-{kind}.yaml", [*SMALL, *changes])


def weights(folder):
    return (checkpoints.latest(folder / "checkpoints") / "weights.safetensors").read_bytes()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hold_accounts(folder):
    """Every rollout of the run is in one line, and in one step; what is started is the sum of its ends."""
    run = read_run(folder)
    named = [index for step in run.steps for index in (*step.consumed, *step.dropped)]
    assert sorted(named) == [sequence.index for sequence in run.sequences] == list(range(len(named)))
    assert [step.step for step in run.steps] == list(range(len(run.steps)))
    assert run.bad_lines == 0
    known = lines(folder / "metrics.jsonl")
    assert [each["step"] for each in known] == [step.step for step in run.steps]
    last = known[-1]
    ended = ("in_flight", "waiting", "consumed", "dropped", "failed")
    assert last["started"] == sum(last[name] for name in ended)
    assert last["consumed"] + last["dropped"] + last["failed"] == len(run.sequences)
    return run, known


def test_a_run_is_on_disk(tmp_path):
    with StalenessLogger(open_sinks(tmp_path, ["json"])) as logger:
        done = list(train(a_recipe("sync", "grpo.max_num_steps=3"), tmp_path, logger))
    run, known = hold_accounts(tmp_path)
    assert [each.metrics["reward"] for each in done] == [each["reward"] for each in known]
    assert [step.metrics["loss"] for step in run.steps] == [each["loss"] for each in known]
    assert len(run.sequences) == 36
    rollout, sequence = done[1].rollouts[5], run.sequences[12 + 5]
    assert [*sequence.prompt_token_ids, *sequence.token_ids] == rollout.tokens
    assert (sequence.reward, sequence.prompt) == (rollout.reward, run.sequences[12 + 4].prompt)
    assert [len(step.consumed) for step in run.steps] == [12, 12, 12]
    scalars = [each["scalars"] for each in lines(tmp_path / "json" / "steps.jsonl")]
    assert [each["reward"] for each in scalars] == [each["reward"] for each in known]
    assert load_recipe(tmp_path / "recipe.yaml").model_dump() == a_recipe("sync", "grpo.max_num_steps=3").model_dump()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000003"]


def test_synchronous_runs_repeat_bit_for_bit(tmp_path):
    for name in "ab":
        list(train(a_recipe("sync", "grpo.max_num_steps=2"), tmp_path / name))
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    first, second = (lines(tmp_path / name / "run.jsonl") for name in "ab")
    for line in (*first, *second):
        line.pop("metrics", None)  # seconds
    assert first == second
    list(train(a_recipe("sync", "grpo.max_num_steps=2", "grpo.seed=7"), tmp_path / "c"))
    assert weights(tmp_path / "c") != weights(tmp_path / "a")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_goes_on_where_its_checkpoint_was(tmp_path, kind):
    """Stopped in step 4, two steps after a checkpoint: what came after it is trained again and stands there once."""
    steps = train(a_recipe(kind, "grpo.max_num_steps=9"), tmp_path)
    for _ in range(3):
        next(steps)
    before = read_run(tmp_path)
    steps.close()
    done = list(train(a_recipe(kind, "grpo.max_num_steps=6"), tmp_path))
    assert [each.step for each in done] == [2, 3, 4, 5]
    run, _ = hold_accounts(tmp_path)
    assert run.sequences[: 2 * 12] == before.sequences[: 2 * 12]
    assert len(run.steps) == 6
    episodes = [rollout.episode for each in done for rollout in each.rollouts]
    assert len(set(episodes)) * 4 == len(episodes)


def test_the_reference_is_the_policy_before_the_first_step_after_going_on_too(tmp_path):
    made = a_recipe("sync", "grpo.max_num_steps=4", "loss_fn.reference_policy_kl_penalty=0.5")
    straight = list(train(made, tmp_path / "a"))
    assert straight[0].metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert straight[-1].metrics["kl"] > 1e-6
    steps = train(made, tmp_path / "b")
    next(steps), next(steps)
    steps.close()
    again = list(train(made, tmp_path / "b"))
    assert again[0].metrics["kl"] > straight[1].metrics["kl"] / 10


def test_a_stop_finishes_the_step_and_writes_it_down(tmp_path):
    stop = Event()
    steps = train(a_recipe("sync", "checkpointing.save_period=50"), tmp_path, stop=stop)
    next(steps)
    stop.set()
    assert [each.step for each in steps] == [1]
    assert checkpoints.latest(tmp_path / "checkpoints").name == "step-00000002"


def test_a_disk_that_is_full_stops_nothing_and_is_said_in_the_end(tmp_path, monkeypatch):
    """The checkpoint of step 2 stays; the run trains on, and ends with the error."""
    save = checkpoints.save

    def full(folder, step, *rest):
        if step > 2:
            raise checkpoints.CheckpointError("no room")
        return save(folder, step, *rest)

    monkeypatch.setattr(checkpoints, "save", full)
    seen = []
    with pytest.raises(checkpoints.CheckpointError, match="no room"):
        for done in train(a_recipe("sync", "grpo.max_num_steps=5"), tmp_path):
            seen.append(done.step)
    assert seen == [0, 1, 2, 3, 4]
    assert checkpoints.latest(tmp_path / "checkpoints").name == "step-00000002"
    hold_accounts(tmp_path)


def test_failed_rollouts_are_in_the_accounts(tmp_path):
    done = list(train(a_recipe("async", "grpo.max_num_steps=5", "env.failure_rate=0.3"), tmp_path))
    run, known = hold_accounts(tmp_path)
    failed = [sequence for sequence in run.sequences if sequence.error]
    assert {sequence.error for sequence in failed} == {"the environment was told to fail"}
    assert len(failed) == known[-1]["failed"] > 0
    assert len(done) == 5


def test_an_environment_that_hangs_is_given_up(tmp_path):
    made = a_recipe("sync", "grpo.max_num_steps=1", "env.delay_seconds=20", "env.timeout_seconds=0.2")
    began = time.monotonic()
    [done] = train(made, tmp_path)
    assert time.monotonic() - began < 15
    assert {rollout.reason for rollout in done.rollouts} == {"no answer within 0.2 s"}
    assert "reward" not in done.metrics


STEPS = 60
TRAINERS = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
if __name__ == "__main__":
    import megatron.core.inference.engines.dynamic_engine, megatron.core.models.gpt
    from test_run import a_recipe
    from reference_impl.rl.run import train
    for line in sys.stdin:
        if not (child := os.fork()):
            print("begun", os.getpid(), flush=True)
            for done in train(a_recipe(sys.argv[2], "grpo.max_num_steps={STEPS}"), Path(sys.argv[3])):
                print(done.step, flush=True)
            os._exit(0)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Imports what takes seconds once, and forks a trainer for each line that it is told."""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_killed_at_any_moment_it_goes_on(tmp_path, kind):
    """Five times `kill -9` at a random moment, then to the end: every rollout is counted once, and no step is missing.

    One while it starts, four while it trains.
    """
    script = tmp_path / "trainers.py"
    script.write_text(TRAINERS)
    folder, here, draw = tmp_path / "run", Path(__file__).parent, random.Random()
    command = [sys.executable, script, here, kind, folder]
    env = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}"}
    with (tmp_path / "said").open("w+") as said:
        trainers = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=env
        )
        for moment in (0.3, 0.02, 0.15, -1.0, 0.1, None):
            trainers.stdin.write("another\n")
            trainers.stdin.flush()
            process = int(trainers.stdout.readline().removeprefix("begun "))
            if moment is not None:
                if moment > 0:
                    trainers.stdout.readline()
                time.sleep(draw.uniform(0, abs(moment)))
                os.kill(process, signal.SIGKILL)
            ended = next(line for line in trainers.stdout if line.startswith("ended"))
            said.seek(0)
            assert ended == f"ended {0 if moment is None else -signal.SIGKILL}\n", said.read()
        trainers.communicate()
    run, known = hold_accounts(folder)
    assert [step.step for step in run.steps] == list(range(STEPS))
    prompts = [sequence.prompt for sequence in run.sequences]
    assert all(len(set(prompts[at : at + 4])) == 1 for at in range(0, len(prompts), 4)), "groups are whole"
    assert known[-1]["consumed"] == STEPS * 12
    assert max(each["max_policy_staleness"] for each in known) <= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["env.name=null"],
            "env.name: nothing says what to train on; write one of sort-letters, arithmetic, calculator",
        ),
        (["env.name=sort-leters"], "no environment 'sort-leters'; did you mean sort-letters?"),
        (["env.name=arithmetic"], "grpo.demonstration_steps: 2, but arithmetic demonstrates nothing; write 0"),
        (["grpo.num_generations_per_prompt=1"], "grpo.num_generations_per_prompt: 1, but a reward is compared"),
        (["policy.train_global_batch_size=5"], "policy.train_global_batch_size: 5 does not divide the 12 rollouts"),
        (["policy.generation.temperature=0.0"], "policy.generation.temperature: 0 answers the same to a whole group"),
        (["policy.generation.colocated.enabled=false"], "synchronous training generates with the model that it trains"),
        (
            ["loss_fn.truncated_importance_sampling_type=tis"],
            "loss_fn.truncated_importance_sampling_type: tis bounds a correction that is off",
        ),
        (
            ["loss_fn.truncated_importance_sampling_type=tis", "loss_fn.use_importance_sampling_correction=true"],
            "loss_fn.truncated_importance_sampling_ratio: null, but tis needs an upper bound",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_model_is_loaded(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        next(train(a_recipe("sync", "policy.model_name=no-such-model", *changes), tmp_path))


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as error:
        check(
            a_recipe("sync", "env.name=null", "policy.generation.temperature=0.0", "policy.train_global_batch_size=5")
        )
    assert len(str(error.value).splitlines()) == 3


def test_the_loss_section():
    on = ["loss_fn.use_importance_sampling_correction=true"]
    icepop = [
        *on,
        "loss_fn.truncated_importance_sampling_type=icepop",
        "loss_fn.truncated_importance_sampling_ratio=3.0",
        "loss_fn.truncated_importance_sampling_ratio_min=0.25",
    ]
    assert loss_settings(a_recipe("sync").loss_fn) == LossSettings()
    assert loss_settings(a_recipe("sync", *on).loss_fn) == LossSettings(correction="weight")
    assert loss_settings(a_recipe("sync", *icepop).loss_fn) == LossSettings(
        correction="icepop", weight_min=0.25, weight_max=3.0
    )
    assert loss_settings(load_recipe(None).loss_fn) == LossSettings(kl_weight=0.01)

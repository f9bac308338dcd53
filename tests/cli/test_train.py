"""`genref train` and `genref sweep` as people call them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reference_impl.rl.sweep import read as read_sweep
from reference_impl.staleness.runs import read_run

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))
SYNC = ROOT / "examples" / "recipes" / "grpo-tiny-megatron-sync.yaml"
QUICK = (
    "policy.generation.backend=reference",
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=4",
    "grpo.demonstration_steps=1",
)
GENREF = Path(sys.executable).with_name("genref")


def process(*arguments, cwd):
    return subprocess.run([GENREF, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs_two_steps(genref, tmp_path, recipe):
    """The one for eight GPUs as well; each leaves a run that reads back, with its report."""
    run = genref("train", str(recipe), "--smoke", "--run-folder", "run")
    assert run.status == 0, run.err
    assert re.search(r"step    0  reward .*\nstep    1  reward ", run.out)
    assert [len(step.consumed) for step in read_run(tmp_path / "run").steps] == [8, 8]
    assert (tmp_path / "run" / "report.html").read_text().count('aria-label="Reward by training step') == 1


def test_two_processes_say_no_more_than_one(tmp_path):
    recipe = ROOT / "examples" / "recipes" / "grpo-tiny-megatron-async.yaml"
    run = process("train", recipe, "--smoke", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_run_is_gone_on_with_by_its_folder(tmp_path):
    first = process("train", SYNC, *QUICK, "grpo.max_num_steps=2", cwd=tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    assert f"run:    runs/{folder.name}" in first.stdout
    again = process("train", folder, "grpo.max_num_steps=3", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert [line.split()[1] for line in again.stdout.splitlines() if line.startswith("step")] == ["2"]
    assert "24 rollouts: 24 consumed" in again.stdout
    assert [step.step for step in read_run(folder).steps] == [0, 1, 2]


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c(tmp_path, presses):
    """Once: the step is finished, and there is a checkpoint of it and a report. Twice: at once, without either."""
    command = [GENREF, "train", SYNC, *QUICK, "checkpointing.save_period=1000", "--run-folder", "run"]
    command += ["env.delay_seconds=0.3"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    _out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "genref: interrupted; genref train run goes on from its newest checkpoint\n"
    steps = len(read_run(tmp_path / "run").steps)
    assert (tmp_path / "run" / "report.html").exists()
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.glob("*")] == ([f"step-{steps:08d}"] if presses == 1 else [])


def test_steps_in_which_all_fail_are_said(genref):
    run = genref("train", str(SYNC), *QUICK, "grpo.max_num_steps=2", "env.failure_rate=1", "--run-folder", "run")
    assert run.status == 0, run.err
    assert run.out.splitlines()[:2] == [
        "step    0  nothing trained: all 8 rollouts failed",
        "step    1  nothing trained: all 8 rollouts failed",
    ]
    assert "failed: 16 x the environment was told to fail" in run.out
    assert "16 rollouts: 16 failed" in run.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "nothing.yaml: no such file"),
        ([SYNC, "grpo.num_generations_per_prompt=1"], "grpo.num_generations_per_prompt: 1, but a reward is compared"),
        (
            [SYNC, "policy.train_global_batch_size=7"],
            "policy.train_global_batch_size: 7 does not divide the 128 rollouts",
        ),
        ([SYNC, "grpo.max_num_step=3"], "override 'grpo.max_num_step=3': no key grpo.max_num_step; did you mean"),
        ([SYNC, "env.name=sort-leters"], "no environment 'sort-leters'; did you mean sort-letters?"),
        (
            [SYNC, "+loss_fn.token_level_loss=false"],
            "loss_fn.token_level_loss: false, which genref train does not do; write true, or remove the key",
        ),
        (["."], ".: no run to go on with, it has no recipe.yaml"),
        ([SYNC, *QUICK, "grpo.max_num_steps=1", "--sinks", "tensorbord"], "--sinks: sink: expected one of tensorboard"),
    ],
)
def test_wrong_calls_take_one_line(genref, arguments, message):
    run = genref("train", *map(str, arguments))
    assert (run.status, run.out) == (2, "")
    [line] = run.err.splitlines()
    assert line.startswith(f"genref: {message}")


def test_a_folder_that_has_a_run_is_not_begun_again(genref, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("")
    run = genref("train", str(SYNC), "--run-folder", "run")
    assert (run.status, run.err) == (
        2,
        "genref: --run-folder: run has a run; genref train run goes on with it\n",
    )


def test_what_another_command_wrote_is_kept(genref, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.jsonl").write_text("{}\n")
    run = genref("train", str(SYNC), "--run-folder", "run")
    assert run.status == 2
    assert run.err.startswith("genref: --run-folder: run has what another command generated")
    assert (tmp_path / "run" / "run.jsonl").read_text() == "{}\n"


def test_a_sweep_is_a_table_a_page_and_a_file(tmp_path):
    run = process("sweep", SYNC, *QUICK, "grpo.max_num_steps=2", "grpo.seed=1,2", "--run-folder", "sweep", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert [line.split()[:2] for line in run.stdout.splitlines()[1:3]] == [["seed", "1"], ["seed", "2"]]
    found = read_sweep(tmp_path / "sweep" / "sweep.jsonl")
    assert [each.settings["grpo.seed"] for each in found] == ["1", "2"]
    metrics = [json.loads(line) for line in (tmp_path / "sweep" / "1" / "metrics.jsonl").read_text().splitlines()]
    assert found[1].curve("reward") == [step["reward"] for step in metrics]
    assert found[0].curve("reward") != found[1].curve("reward")
    assert (tmp_path / "sweep" / "sweep.html").read_text().count('class="plot"') == 2


def test_a_sweep_says_what_is_wrong_before_it_runs(genref, tmp_path):
    run = genref("sweep", str(SYNC), *QUICK, "grpo.num_generations_per_prompt=4,1")
    assert run.status == 2
    assert run.err.startswith("genref: grpo.num_generations_per_prompt: 1, but a reward is compared")
    assert not (tmp_path / "runs").exists()


def test_the_functional_script_trains_and_judges(tmp_path):
    """It passes on a run that learns, and fails on one that cannot."""
    env = {**os.environ, "GENREF": str(GENREF)}
    script = ROOT / "tests" / "functional" / "grpo_megatron_generation.sh"
    good = subprocess.run([script, "grpo.max_num_steps=40"], env=env, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert re.search(r"reward 0\.2\d\d -> 0\.[89]\d\d, token_mult_prob_error at most 1\.0", good.stdout)
    bad = subprocess.run([script, *QUICK, "grpo.max_num_steps=3"], env=env, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "the reward has not risen by 0.3" in bad.stderr

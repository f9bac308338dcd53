"""A run that is stopped anywhere goes on where it was: by comparing weights, by killing processes, and by full disks."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from reference_impl.rl.checkpoints import KEPT, CheckpointError, latest, load, save

# A process that saves step after step of a small model whose weights and optimizer all are the step's number.
WRITER = """
import json, sys, resource, torch
from pathlib import Path
from reference_impl.rl.checkpoints import CheckpointError, latest, load, save
folder, most = Path(sys.argv[1]), int(sys.argv[2])
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.AdamW(model.parameters(), 0.0, weight_decay=0.0)
model(torch.ones(1, 300)).sum().backward()
optimizer.step()
step = load(latest(folder), model, optimizer)["step"] + 1 if latest(folder) else 0
while True:
    with torch.no_grad():
        for tensor in (*model.parameters(), *(state["exp_avg"] for state in optimizer.state.values())):
            tensor.fill_(step)
    try:
        save(folder, step, model, optimizer, {"twice": 2 * step})
    except CheckpointError as error:
        print(error)
        sys.exit(3)
    print(step, flush=True)
    step += 1
"""


def a_model(width=8):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def test_going_on_is_as_if_nothing_had_been(tmp_path):
    """5 steps, or 3, a checkpoint, another process's worth of objects, and 2: the same bits, random inputs included."""
    model, optimizer = a_model()
    train(model, optimizer, 3)
    path = save(tmp_path, 3, model, optimizer, {"episode": 24})
    train(model, optimizer, 2)
    other, its_optimizer = a_model()
    assert load(path, other, its_optimizer) == {"step": 3, "episode": 24}
    train(other, its_optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_newest_stay(tmp_path):
    model, optimizer = a_model()
    for step in (8, 9, 10, 11):
        save(tmp_path, step, model, optimizer, {})
    assert latest(tmp_path).name == "step-00000011"
    assert len(list(tmp_path.iterdir())) == KEPT
    assert latest(tmp_path / "nothing") is None
    assert save(tmp_path, 11, model, optimizer, {"again": True}) == latest(tmp_path)
    assert json.loads((latest(tmp_path) / "state.json").read_text())["state"] == {"step": 11, "again": True}


def test_killed_at_ten_random_moments(tmp_path):
    """Each time the next process finds a whole checkpoint, no older than the last one that was reported, and goes on."""
    draw, reported = random.Random(4), -1
    for _ in range(10):
        command = [sys.executable, "-c", WRITER, str(tmp_path), "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            first = int(process.stdout.readline())
            time.sleep(draw.random() * 0.05)
            os.kill(process.pid, signal.SIGKILL)
            said = [first, *map(int, process.stdout.read().split())]
        assert first > reported, "no step is done twice"
        reported = said[-1]
        path = latest(tmp_path)
        step = json.loads((path / "state.json").read_text())["state"]["step"]
        assert step in (reported, reported + 1), "saved, and killed before it could say so"
        model = torch.nn.Linear(300, 300)
        optimizer = torch.optim.AdamW(model.parameters())
        assert load(path, model, optimizer) == {"step": step, "twice": 2 * step}
        tensors = [*model.parameters(), *(state["exp_avg"] for state in optimizer.state.values())]
        assert len(tensors) == 4
        assert all((tensor == step).all() for tensor in tensors)
        reported = step


@pytest.mark.parametrize("most", [1000, 400_000])
def test_a_full_disk_leaves_the_last_one(tmp_path, most):
    """Weights of 361 kB and an optimizer of 724 kB: the limit meets either file. One line, and no half of anything."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    save(tmp_path, 0, model, optimizer, {})
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), str(most)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("\n") == 1
    assert "step-00000001: cannot be written: " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000"]
    assert load(latest(tmp_path), model, optimizer)["step"] == 0


def test_what_a_killed_process_left_is_cleared(tmp_path):
    left = tmp_path / ".step-00000004.part"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    assert latest(tmp_path) is None
    save(tmp_path, 5, *a_model(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_another_models_checkpoint_changes_nothing(tmp_path):
    path = save(tmp_path, 0, *a_model(width=9), {})
    model, optimizer = a_model()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(CheckpointError, match=r"0.weight is \[8, 9\] in the checkpoint and \[8, 8\] in the model"):
        load(path, model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    (path / "optimizer.safetensors").write_bytes(b"not an archive")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path, model, optimizer)

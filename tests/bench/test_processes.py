"""Our side of the pipes to a system's process, against processes that answer, lack vLLM, refuse, or die."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference_impl.bench.processes import WORKER, SystemProcess, last_words, our_process, vllm_process
from reference_impl.bench.systems import Load, NotHereError, Place
from reference_impl.config.errors import ConfigError
from reference_impl.models.shapes import SHAPES

LOAD = Load("tiny", SHAPES["tiny"], prompt_tokens=3, new_tokens=4, batches=[1, 2])
PLACE = Place(Path("some/folder"), torch.device("cpu"), torch.float32)

# It prints what it was told beside its answers, as vLLM's libraries do to standard error.
ANSWERS = """
import json, sys
settings = json.loads(sys.stdin.readline())
print("noise", file=sys.stderr)
print(json.dumps({"versions": {"vllm": json.dumps(settings)}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    n = len(request["prompts"])
    times = {"seconds": [1.0, 2.0, 3.0, 4.0, 5.0], "tokens": [n * (i + 1) for i in range(5)]}
    print(json.dumps(times), flush=True)
"""


def start(tmp_path: Path, script: str) -> SystemProcess:
    worker = tmp_path / "worker.py"
    worker.write_text(script)
    return vllm_process(LOAD, PLACE, worker=worker)


def test_settings_go_in_and_times_come_out(tmp_path):
    vllm = start(tmp_path, ANSWERS)
    settings = json.loads(vllm.versions["vllm"])
    assert settings == {
        "model": "some/folder",
        "dtype": "float32",
        "max_model_len": 7,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 2048,
        "cache_gib": LOAD.cache_gib,
    }
    found = vllm.decode([[1, 2, 3], [4, 5, 6]], 5)
    assert (found.batch, found.tokens, found.first_token_seconds) == (2, [2, 4, 6, 8, 10], 1.0)
    assert found.decode_tokens_per_second == 2
    vllm.close()
    assert vllm._process.returncode == 0


def test_an_environment_without_vllm(tmp_path):
    with pytest.raises(
        NotHereError, match=r"cannot be imported here; --vllm-python takes .* \(No module named 'vllm'\)"
    ):
        start(tmp_path, """print('{"missing": "No module named \\'vllm\\'"}')""")


def test_the_worker_itself_says_that_vllm_is_missing():
    """Run as it is run, by a Python in which vLLM cannot be imported."""
    script = f"import runpy, sys; sys.modules['vllm'] = None; runpy.run_path({str(WORKER)!r}, run_name='__main__')"
    settings = json.dumps({"cache_gib": 0.5})
    done = subprocess.run([sys.executable, "-c", script], input=settings, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["missing"].startswith("import of vllm halted")


def test_a_process_that_dies_is_quoted(tmp_path):
    with pytest.raises(NotHereError, match="its process ended: ValueError: no such thing$"):
        start(tmp_path, "raise ValueError('no such thing')")


def test_a_process_that_dies_later(tmp_path):
    vllm = start(tmp_path, ANSWERS.replace("n = len", "raise MemoryError('too many'); n = len"))
    with pytest.raises(ConfigError, match="its process ended: MemoryError: too many"):
        vllm.decode([[1, 2, 3]], 5)
    vllm.close()


def test_the_error_at_the_end():
    assert last_words("") == "without a word"
    assert last_words("a\nb\n") == "b"
    said = "Traceback\n  File x\npydantic_core.ValidationError: 1 error\n  Value error, too small\n"
    assert last_words(said) == "pydantic_core.ValidationError: 1 error Value error, too small"


def test_a_python_that_is_none():
    with pytest.raises(ConfigError, match="--vllm-python: no/python cannot be run"):
        vllm_process(LOAD, PLACE, Path("no/python"))


def test_a_system_of_ours_answers(tmp_path):
    """`tiny` on the reference backend: a first token for each of two prompts, and four in all."""
    system = our_process("reference", LOAD, PLACE)
    found = system.decode([[1, 2, 3], [4, 5, 6]], 4)
    assert (found.batch, list(found.tokens)) == (2, [2, 4, 6, 8])
    assert list(found.seconds) == sorted(found.seconds)
    assert "torch" in system.versions
    system.close()
    assert system._process.returncode == 0


def test_what_a_system_of_ours_refuses():
    """Before it starts, and when a run is cut short."""
    with pytest.raises(ConfigError, match="policy.generation.backend: no backend 'refrence'; did you mean reference"):
        our_process("refrence", LOAD, PLACE)
    system = our_process("reference", LOAD, PLACE)
    with pytest.raises(ConfigError, match="reference sampled 4 tokens where 9 were asked for"):
        system.decode([[1, 2, 3]], 9)
    system.close()

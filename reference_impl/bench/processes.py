"""Each system in a process of its own, idle between two batches: our side of the pipes.

Two engines in one process slow each other down even by turns: OpenMP keeps a team of threads for each thread that has
computed something, and once the teams have more threads than there are cores, each wait at a barrier becomes a sleep. And
vLLM pins its own versions of torch and transformers.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_impl.bench.systems import Load, NotHereError, Place
from reference_impl.bench.timing import Timeline
from reference_impl.config.errors import ConfigError

WORKER = Path(__file__).with_name("vllm_worker.py")
ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b")


def open_process(name: str, load: Load, place: Place, vllm_python: Path | None = None) -> "SystemProcess":
    """Start a system's process and wait until its model is there.

    Raises {py:exc}`~reference_impl.bench.systems.NotHereError` for one that is not installed or does not start.
    """
    return vllm_process(load, place, vllm_python) if name == "vllm" else our_process(name, load, place)


def our_process(name: str, load: Load, place: Place) -> "SystemProcess":
    """One of the systems of {py:func}`~reference_impl.bench.systems.open_system`."""
    settings = {
        "name": name,
        "model": load.model,
        "lengths": [load.prompt_tokens, load.new_tokens],
        "batches": list(load.batches),
        "folder": str(place.folder),
        "device": str(place.device),
        "dtype": str(place.dtype).removeprefix("torch."),
    }
    command = [sys.executable, "-m", "reference_impl.bench.worker"]
    return SystemProcess(name, command, os.environ | {"HF_HUB_OFFLINE": "1"}, settings)


def vllm_process(load: Load, place: Place, python: Path | None = None, worker: Path = WORKER) -> "SystemProcess":
    """vLLM's engine in the environment of `python`."""
    if python is not None and not os.access(python, os.X_OK):
        raise ConfigError(f"--vllm-python: {python} cannot be run; expected the Python of an environment with vLLM")
    settings = {
        "model": str(place.folder),
        "dtype": str(place.dtype).removeprefix("torch."),
        "max_model_len": load.length,
        "max_num_seqs": max(load.batches),
        "max_num_batched_tokens": load.step_tokens,
        "cache_gib": load.cache_gib,
    }
    # -P: the folder of the script is not searched for modules.
    command = [str(python or sys.executable), "-P", str(worker)]
    try:
        return SystemProcess("vllm", command, vllm_environment(python), settings)
    except ModuleNotFoundError as error:
        where = f"by {python}" if python else "here; --vllm-python takes the Python of an environment that has it"
        raise NotHereError(f"cannot be imported {where} ({error})") from None


class SystemProcess:
    """A {py:class}`~reference_impl.bench.systems.System` that answers over pipes; lines of JSON go both ways.

    The first line in is `settings`. Its answer has the `versions`, or says what is `missing` (`ModuleNotFoundError`) or
    `refused` (`ConfigError`). A process that has ended without an answer is a
    {py:exc}`~reference_impl.bench.systems.NotHereError`.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], settings: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        self._process = subprocess.Popen(command, **pipes, env=environment)
        self._to: Any = self._process.stdin
        self._from: Any = self._process.stdout
        try:
            answer = self._ask(**settings)
            if "missing" in answer:
                raise ModuleNotFoundError(answer["missing"])
            if "refused" in answer:
                raise ConfigError(answer["refused"])
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = answer["versions"]

    def decode(self, prompts: list[list[int]], new_tokens: int) -> Timeline:
        """Timed by the process itself, from the moment at which it has the prompts."""
        answer = self._ask(prompts=prompts, new_tokens=new_tokens)
        if "refused" in answer:
            raise ConfigError(answer["refused"])
        return Timeline(len(prompts), answer["seconds"], answer["tokens"])

    def close(self) -> None:
        """End the process."""
        try:
            self._to.close()
            self._process.wait(timeout=30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._said.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            self._to.write(json.dumps(request).encode() + b"\n")
            self._to.flush()
        except BrokenPipeError:
            pass  # it has died, and that there is no answer says so
        answer = self._from.readline()
        if not answer:
            raise NotHereError(f"its process ended: {self._last_words()}")
        return json.loads(answer)

    def _last_words(self) -> str:
        self._said.seek(0)
        return last_words(self._said.read().decode(errors="replace"))


def last_words(said: str) -> str:
    """The error at the end of a traceback in one line, or the last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [at for at, line in enumerate(lines) if ERROR.match(line)]
    return " ".join(line.strip() for line in lines[errors[-1] if errors else -1 :][:3]) or "without a word"


def vllm_environment(python: Path | None) -> dict[str, str]:
    """With Intel's OpenMP loaded first, where that environment has it, as vLLM asks for; offline, and without our paths."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    openmp = (python or Path(sys.executable)).parent.parent / "lib" / "libiomp5.so"
    if openmp.exists() and "LD_PRELOAD" not in environment:
        environment["LD_PRELOAD"] = str(openmp.resolve())
    return environment | {"HF_HUB_OFFLINE": "1"}

"""vLLM in a process of its own, since it pins its own versions of torch and transformers: our side of the pipes."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reference_impl.bench.systems import Load, NotHereError, Place
from reference_impl.bench.timing import Timeline
from reference_impl.config.errors import ConfigError

WORKER = Path(__file__).with_name("vllm_worker.py")
ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b")


class VllmProcess:
    """vLLM's engine in the environment of `python`, idle between two batches.

    Raises {py:exc}`~reference_impl.bench.systems.NotHereError` where vLLM is not installed or does not start.
    """

    name = "vllm"

    def __init__(self, load: Load, place: Place, python: Path | None = None, worker: Path = WORKER) -> None:
        if python is not None and not os.access(python, os.X_OK):
            raise ConfigError(f"--vllm-python: {python} cannot be run; expected the Python of an environment with vLLM")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        # -P: the folder of the script is not searched for modules.
        command = [str(python or sys.executable), "-P", str(worker)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        self._process = subprocess.Popen(command, **pipes, env=_environment(python))
        self._to: Any = self._process.stdin
        self._from: Any = self._process.stdout
        try:
            answer = self._ask(
                model=str(place.folder),
                dtype=str(place.dtype).removeprefix("torch."),
                max_model_len=load.length,
                max_num_seqs=max(load.batches),
                max_num_batched_tokens=load.step_tokens,
                cache_gib=load.cache_gib,
            )
        except BaseException:
            self.close()
            raise
        if "missing" in answer:
            self.close()
            where = f"by {python}" if python else "here; --vllm-python takes the Python of an environment that has it"
            raise NotHereError(f"cannot be imported {where} ({answer['missing']})")
        self.versions: dict[str, str] = answer["versions"]

    def decode(self, prompts: list[list[int]], new_tokens: int) -> Timeline:
        """Timed by vLLM's process, from the moment at which it has the prompts."""
        answer = self._ask(prompts=prompts, new_tokens=new_tokens)
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


def _environment(python: Path | None) -> dict[str, str]:
    """With Intel's OpenMP loaded first, where that environment has it, as vLLM asks for; offline, and without our paths."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    openmp = (python or Path(sys.executable)).parent.parent / "lib" / "libiomp5.so"
    if openmp.exists() and "LD_PRELOAD" not in environment:
        environment["LD_PRELOAD"] = str(openmp.resolve())
    return environment | {"HF_HUB_OFFLINE": "1"}

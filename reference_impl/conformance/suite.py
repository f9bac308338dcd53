"""The suite: what a check is, which there are, and a run of them over a backend."""

import fnmatch
import importlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.conformance.lab import Lab, Models

GROUPS = (
    "contract",
    "sampling",
    "stopping",
    "lifecycle",
    "company",
    "invariance",
    "updates",
    "staleness",
    "faults",
)
"""Modules of `reference_impl.conformance.checks`, in the order in which they are run."""

FEATURES = {
    "max-requests": "runs max_requests sequences at once at most, and the others wait",
    "chunked-prefill": "cuts a prompt into pieces where max_tokens leaves no room for all of it",
    "prefix-cache": "shares blocks between equal prompts where enable_prefix_caching asks for it",
    "kv-buffer": "keeps to buffer_size_gb, and refuses what never fits",
    "exact-admission": "needs no room for the last sampled token, which no forward pass reads",
    "eviction": "takes a paused sequence's blocks, and prefills it again later",
    "offload": "moves the cache out of the way while it sleeps, and back",
    "recompute": "drops the cache when it sleeps or weights change, and computes it again",
    "in-place": "generates from the parameters of its model where they lie, so that training in place is seen",
    "prompt-logprobs": "computes log-probabilities of prompts",
    "own-streams": "draws each sequence from a random stream of its own, whoever runs beside it",
    "finite-logits": "ends a sequence whose logits are NaN or infinite with an error",
    "finite-weights": "refuses an update in which a weight is NaN or infinite",
}
"""What a backend may do without, and has to say so in `does_not_claim`."""

LIMIT_S = 60.0


@dataclass(frozen=True)
class Check:
    """One thing that a backend is held to: `run` raises where it is not so.

    `protects` is one line about what would go wrong without it, and `needs` are the {py:data}`FEATURES` it is about.
    """

    name: str
    protects: str
    needs: tuple[str, ...]
    run: Callable[[Lab], None]


@dataclass(frozen=True)
class Result:
    """What came of a check: `why` is one line, for a failure what was found, else the backend's reason not to claim it."""

    check: str
    outcome: Literal["passed", "failed", "does not claim"]
    why: str = ""
    seconds: float = 0.0


_checks: dict[str, Check] = {}


def check(*needs: str) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Make a function a check, under its module's and its own name: `sampling/top-k-before-top-p`."""

    def enter(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
        name = f"{run.__module__.rpartition('.')[2]}/{run.__name__.replace('_', '-')}"
        _checks[name] = Check(name, (run.__doc__ or "").strip(), needs, run)
        return run

    return enter


def all_checks(pattern: str = "*") -> list[Check]:
    """The checks whose names match a shell pattern, such as `staleness/*`. Raises `ConfigError` if none does."""
    for group in GROUPS:
        importlib.import_module(f"reference_impl.conformance.checks.{group}")
    chosen = [each for name, each in _checks.items() if fnmatch.fnmatchcase(name, pattern)]
    if not chosen:
        close = nearest(pattern, _checks)
        hint = f"did you mean {close}?" if close else f"groups: {', '.join(GROUPS)}"
        raise ConfigError(f"no check matches {pattern!r}; {hint}")
    return sorted(chosen, key=lambda each: GROUPS.index(each.name.partition("/")[0]))


def not_claimed(backend: Any) -> Mapping[str, str]:
    """What a backend's class does not claim, with its reasons. Raises `ConfigError` for what is no feature."""
    found: Mapping[str, str] = getattr(backend, "does_not_claim", {})
    for feature in found:
        if feature not in FEATURES:
            close = nearest(feature, FEATURES)
            hint = f"did you mean {close!r}?" if close else f"features: {', '.join(FEATURES)}"
            raise ConfigError(f"{backend.__name__}.does_not_claim: no feature {feature!r}; {hint}")
    return found


def run_suite(backend: Any, pattern: str = "*", *, limit_s: float = LIMIT_S) -> Iterator[Result]:
    """Hold a backend's class to the checks that match `pattern`, and yield each result as it is there.

    `backend` is called with a {py:class}`~reference_impl.config.schema.Recipe`, whose `policy.model_name` is a Hugging Face
    model folder, and with `tokenizer=`. A check that is not over after `limit_s` seconds has failed.
    """
    reasons = not_claimed(backend)
    with tempfile.TemporaryDirectory(prefix="genref-conformance-") as folder:
        models = Models(Path(folder))
        for each in all_checks(pattern):
            missing = [feature for feature in each.needs if feature in reasons]
            if missing:
                yield Result(each.name, "does not claim", f"{missing[0]}: {reasons[missing[0]]}")
            else:
                yield run_check(each, backend, models, limit_s)


def run_check(each: Check, backend: Any, models: Models, limit_s: float = LIMIT_S) -> Result:
    """Run one check on backends of its own, on a thread of its own: one that hangs is left behind."""
    import torch

    errors: list[BaseException] = []
    threads = torch.get_num_threads()

    def run() -> None:
        try:
            with Lab(backend, models) as lab:
                each.run(lab)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=each.name, daemon=True)
    start = time.monotonic()
    torch.set_num_threads(1)  # the models are so small that several threads would only wait for each other
    try:
        thread.start()
        thread.join(limit_s)
    finally:
        torch.set_num_threads(threads)
    seconds = time.monotonic() - start
    if thread.is_alive():
        return Result(each.name, "failed", f"not over after {limit_s:g} s", seconds)
    return Result(each.name, "failed" if errors else "passed", "".join(map(one_line, errors[:1])), seconds)


def one_line(error: BaseException) -> str:
    """What went wrong: a check's own words, or the kind and the words of an error that it did not expect."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"

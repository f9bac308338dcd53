"""The systems that `genref bench` compares, each behind one method: decode these prompts greedily and say when.

All get the same weights (a model folder), the same prompts, no stop, and room for the prompts of a whole batch in one step,
so that no decode step of any of them shares its time with a prompt.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from reference_impl.bench.timing import Timeline
from reference_impl.config.errors import ConfigError, nearest
from reference_impl.config.loader import load_recipe
from reference_impl.config.schema import Recipe
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.generation.registry import create_backend
from reference_impl.models.shapes import ModelShape

PEER = "huggingface"
"""The system that the others' speed is a multiple of: `transformers.generate`, as it comes."""

NAMES = ("reference", "megatron", PEER, "vllm")
GIB, BLOCK = 2**30, 16


class System(Protocol):
    """Something that generates; `versions` names the packages that it runs on."""

    name: str
    versions: dict[str, str]

    def decode(self, prompts: list[list[int]], new_tokens: int) -> Timeline:
        """Sample `new_tokens` for each prompt."""

    def close(self) -> None:
        """Let go of the model."""


@dataclass(frozen=True)
class Load:
    """What a run asks of every system: a model by name and its shape, lengths and batch sizes."""

    model: str
    shape: ModelShape
    prompt_tokens: int
    new_tokens: int
    batches: Sequence[int]

    @property
    def length(self) -> int:
        """Tokens of a finished sequence."""
        return self.prompt_tokens + self.new_tokens

    @property
    def step_tokens(self) -> int:
        """Room for the prompts of the largest batch in one step."""
        return max(2048, max(self.batches) * self.prompt_tokens)

    @property
    def cache_gib(self) -> float:
        """Room for the largest batch's keys and values in float32, with a quarter to spare, in 64ths of a GiB."""
        shape, most = self.shape, max(self.batches)
        values = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
        return math.ceil(1.25 * (most + 1) * (self.length + BLOCK) * values * 4 / GIB * 64) / 64

    def recipe(self, backend: str, overrides: Sequence[str] = ()) -> Recipe:
        """A recipe under which all requests of the largest batch run at once and nothing stops them."""
        mcore = {"buffer_size_gb": self.cache_gib, "block_size_tokens": BLOCK, "max_requests": max(self.batches)}
        mcore |= {"max_tokens": self.step_tokens}
        key = "generation.mcore_generation_config"
        settings: dict[str, object] = {f"{key}.{name}": value for name, value in mcore.items()}
        settings |= {"model_name": self.model, "max_total_sequence_length": self.length, "generation.backend": backend}
        settings |= {"generation.max_new_tokens": self.new_tokens, "generation.stop_token_ids": []}
        return load_recipe(None, [*(f"policy.{name}={json.dumps(to)}" for name, to in settings.items()), *overrides])


def chosen(text: str, known: Collection[str] = NAMES) -> list[str]:
    """The names in a list such as `reference,vllm`, which have to be among those that are `known`.

    Raises {py:exc}`~reference_impl.config.errors.ConfigError` with the nearest name for one that there is not.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"--backends: no system {name!r}; {hint}")
    if not names:
        raise ConfigError(f"--backends: {text!r} names no system; known: {', '.join(known)}")
    return names


class NotHereError(ConfigError):
    """A system that cannot run here, and why in one line; a comparison that has not begun goes on without it."""


@dataclass(frozen=True)
class Place:
    """Where a system that is not a backend of ours finds the weights, and where and how it computes: as our backends do."""

    folder: Path
    device: torch.device
    dtype: torch.dtype


def open_system(name: str, load: Load, place: Place) -> System:
    """Load the model of a system of this environment, in this process."""
    if name == PEER:
        return Transformers(place)
    return Backend(name, create_backend(load.recipe(name)))


class Backend:
    """A backend of ours through its `stream`, clocked after each step by the tokens it says it has sampled."""

    def __init__(self, name: str, backend: GenerationInterface, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name = name
        self.backend = backend
        self.clock = clock
        self.versions = installed("torch", "megatron-core") if name == "megatron" else installed("torch")
        backend.prepare_for_generation()

    def decode(self, prompts: list[list[int]], new_tokens: int) -> Timeline:
        """Sample until the recipe's limit, which is `new_tokens`."""
        lengths = torch.full((len(prompts),), len(prompts[0]))
        data = BatchedDataDict(input_ids=torch.tensor(prompts), input_lengths=lengths)
        seconds, tokens, before = [], [0], self.backend.sampled_tokens
        start = self.clock()
        for _ in self.backend.stream(data, greedy=True):
            sampled = self.backend.sampled_tokens - before
            if sampled > tokens[-1]:
                seconds.append(self.clock() - start)
                tokens.append(sampled)
        return Timeline(len(prompts), seconds, _complete(self.name, tokens[1:], len(prompts) * new_tokens))

    def close(self) -> None:
        """Stop the engine."""
        self.backend.shutdown()


class Transformers:
    """`transformers.generate` with its cache, and nothing else set."""

    name = PEER

    def __init__(self, place: Place) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        self.device = place.device
        disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(place.folder, dtype=place.dtype)
        self.model = model.to(place.device).eval()
        self.versions = installed("torch", "transformers")

    def decode(self, prompts: list[list[int]], new_tokens: int) -> Timeline:
        """Look at the clock whenever a step's logits are there."""
        from transformers import LogitsProcessor

        seconds: list[float] = []
        device = self.device

        class Clock(LogitsProcessor):
            def __call__(self, input_ids, scores):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
                return scores

        ids = torch.tensor(prompts, device=device)
        start = time.perf_counter()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            logits_processor=[Clock()],
        )
        tokens = [len(prompts) * (step + 1) for step in range(len(seconds))]
        return Timeline(len(prompts), seconds, _complete(self.name, tokens, len(prompts) * new_tokens))

    def close(self) -> None:
        """Drop the model."""
        del self.model


def installed(*distributions: str) -> dict[str, str]:
    """Versions of distributions, those that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _complete(name: str, tokens: list[int], expected: int) -> list[int]:
    """Refuse a run that was cut short: its speed would compare with nothing."""
    if not tokens or tokens[-1] != expected:
        raise ConfigError(f"{name} sampled {tokens[-1] if tokens else 0} tokens where {expected} were asked for")
    return tokens

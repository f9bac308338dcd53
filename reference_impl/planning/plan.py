"""A recipe's whole plan, from the recipe and the model's sizes."""

from dataclasses import dataclass

from reference_impl.config.schema import Recipe
from reference_impl.models.shapes import ModelShape
from reference_impl.planning.cache import KVCache, Setup, kv_cache
from reference_impl.planning.graphs import GraphSize, cuda_graphs
from reference_impl.planning.memory import Memory, memory
from reference_impl.planning.requests import Concurrency, Gain, Lengths, choose_lengths, concurrency, next_larger


@dataclass(frozen=True)
class Step:
    """Tokens that the steps of the engine process.

    `most_tokens`
    : `max_tokens`: prompts and decoding requests together.

    `decode_tokens`
    : A step in which all of `at_once` decode: one token each.

    `prefill_tokens`, `prefill_steps`
    : Prompt tokens of `at_once` requests, and the fewest steps that they take.
    """

    most_tokens: int
    decode_tokens: int
    prefill_tokens: int
    prefill_steps: int


@dataclass(frozen=True)
class Plan:
    """What a recipe will do. {func}`~reference_impl.planning.plan.make_plan` makes one."""

    model: str
    setup: Setup
    lengths: Lengths
    cache: KVCache
    concurrency: Concurrency
    gain: Gain | None
    step: Step
    graphs: tuple[GraphSize, ...]
    memory: Memory


def make_plan(
    recipe: Recipe, shape: ModelShape, *, prompt_tokens: int | None = None, response_tokens: int | None = None
) -> Plan:
    """Plan a recipe for a model of this shape; no device is asked and nothing is allocated.

    `prompt_tokens`, `response_tokens`
    : Lengths of every request. Without them, see {func}`~reference_impl.planning.requests.choose_lengths`.

    Raises {class}`~reference_impl.config.errors.ConfigError` for lengths and settings that the engine would refuse.
    """
    setup = Setup.of(recipe, shape)
    lengths = choose_lengths(recipe, prompt_tokens, response_tokens)
    cache = kv_cache(setup)
    together = concurrency(setup, cache, lengths)
    return Plan(
        model=recipe.policy.model_name,
        setup=setup,
        lengths=lengths,
        cache=cache,
        concurrency=together,
        gain=next_larger(setup, lengths),
        step=_steps(setup, together.at_once, lengths),
        graphs=cuda_graphs(setup, cache),
        memory=memory(setup, cache),
    )


def _steps(setup: Setup, at_once: int, lengths: Lengths) -> Step:
    most, prompts = setup.config.max_tokens, at_once * lengths.prompt
    return Step(most, at_once, prompts, -(-prompts // most))

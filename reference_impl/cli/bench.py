"""`genref bench`: decode speed beside transformers, and what staleness costs, each measured in one run."""

import json
from typing import Annotated, Any

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.config.errors import ConfigError

app = typer.Typer(help="Measure speed, each time as a share or a ratio within one run.", rich_markup_mode=None)

Overrides = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value.")]


@app.callback(invoke_without_command=True)
def every(context: typer.Context) -> None:
    """Measure speed, each time as a share or a ratio within one run. Without a name: everything, with its defaults."""
    if context.invoked_subcommand is None:
        decode()
        staleness()


@app.command()
def decode(
    overrides: Overrides = None,
    model: Annotated[str, typer.Option(help="smollm2, or a model folder; transformers must read it too.")] = "smollm2",
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch size; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds, each ours then the peer's.")] = 3,
) -> None:
    """Compare decode speed with `transformers.generate`: 64 tokens in, 36 out, greedy, turn by turn."""
    quiet_upstream()
    import torch

    from reference_impl.bench.decode import NEW_TOKENS, PROMPT_TOKENS, compare
    from reference_impl.generation.registry import create_backend
    from reference_impl.models.catalog import find_model

    batches = batch or [1, 8, 32]
    recipe = _recipe(model, max(batches), PROMPT_TOKENS, NEW_TOKENS, overrides)
    checkpoint = find_model(recipe.policy.model_name)
    if checkpoint.folder is None:
        raise ConfigError(
            f"--model {model}: transformers needs a model folder to compare with, and this model has none"
        )
    from transformers import AutoModelForCausalLM

    with create_backend(recipe) as backend:
        weight = next(backend.model.parameters())
        peer = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=weight.dtype).to(weight.device).eval()
        print(f"{model}, {weight.dtype} on {weight.device}, {torch.get_num_threads()} threads, {rounds} rounds each")
        for result in compare(backend, peer, checkpoint.shape.vocab_size, batches, rounds):
            print(result.line(), flush=True)


@app.command()
def staleness(
    overrides: Overrides = None,
    model: Annotated[str, typer.Option(help="smollm2, tiny or a model folder.")] = "smollm2",
    batch: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 32,
    rollouts: Annotated[int, typer.Option(min=1, help="Made-up rollouts for statistics and report.")] = 10_000,
    tokens: Annotated[int, typer.Option(min=20, help="Sampled tokens of each, in the mean.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds of the statistics.")] = 9,
) -> None:
    """Time tracking within decode steps, a training step's statistics, and the report about its rollouts."""
    quiet_upstream()
    from reference_impl.bench.staleness import (
        NEW_TOKENS,
        PROMPT_TOKENS,
        made_up,
        time_report,
        time_statistics,
        time_tracking,
        tracking_clock,
    )
    from reference_impl.generation.registry import create_backend
    from reference_impl.models.catalog import find_model

    recipe = _recipe(model, batch, PROMPT_TOKENS, NEW_TOKENS, overrides)
    vocab_size = find_model(recipe.policy.model_name).shape.vocab_size
    with tracking_clock() as clock, create_backend(recipe) as backend:
        print(time_tracking(backend, clock, vocab_size, batch).line(), flush=True)
    records = made_up(rollouts, tokens)
    print(time_statistics(records, rounds), flush=True)
    print(time_report(records, rounds=3), flush=True)


def _recipe(model: str, batch: int, prompt_tokens: int, new_tokens: int, overrides: list[str] | None) -> Any:
    """A recipe in which `batch` requests of these lengths run at once and nothing stops them."""
    from reference_impl.config.loader import load_recipe

    mcore = {"buffer_size_gb": 1, "block_size_tokens": 16, "max_requests": batch, "max_tokens": 16384}
    settings: dict[str, object] = {f"generation.mcore_generation_config.{key}": value for key, value in mcore.items()}
    settings |= {"model_name": model, "max_total_sequence_length": prompt_tokens + new_tokens}
    settings |= {"generation.max_new_tokens": new_tokens, "generation.stop_token_ids": []}
    given = [f"policy.{key}={json.dumps(value)}" for key, value in settings.items()]
    return load_recipe(None, [*given, *(overrides or [])])

"""`genref generate`: prompts in, one answer a prompt out, as text or as JSON lines."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.config.errors import ConfigError


def generate(
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value, +key=value.")] = None,
    config: Annotated[Path | None, typer.Option(help="Recipe (YAML). Without one, documented defaults.")] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A prompt; may be repeated. '-' reads one a line from standard input.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="smollm2, tiny, a model folder or a .gguf file.")] = None,
    backend: Annotated[str | None, typer.Option(help="Generation backend.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens of a response.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the best token each time.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the model's chat format.")] = False,
    update_every: Annotated[
        int | None, typer.Option(min=1, help="Change the weights each time this many tokens were sampled.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, as sequences finish.")] = False,
    run_folder: Annotated[Path | None, typer.Option(help="Where run.jsonl goes. Default: runs/generate-DATE-TIME.")] = None,
) -> None:
    """Generate text for prompts and say which checkpoint sampled each token."""
    texts = read_prompts(prompt or [])
    quiet_upstream()
    from reference_impl.config.loader import load_recipe

    named = {"model_name": model, "generation.backend": backend, "generation.max_new_tokens": max_new_tokens}
    options = [f"policy.{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
    recipe = load_recipe(config, [*options, *(overrides or [])])

    from reference_impl.cli.session import Updates, generate_run, new_run_folder
    from reference_impl.generation.interfaces import GenerationError
    from reference_impl.generation.registry import create_backend
    from reference_impl.models.catalog import chat_prompt
    from reference_impl.staleness.runs import RunWriter

    engine = create_backend(recipe)
    encode = (lambda text: chat_prompt(engine.tokenizer, text)) if chat else engine.tokenizer.encode
    prompts = [(text, encode(text)) for text in texts]
    folder = run_folder or new_run_folder("generate")

    def show(record) -> None:
        if as_json:
            print(json.dumps(asdict(record)), flush=True)
        elif record.error is None:
            print(f"{record.prompt}\n{record.text}\n", flush=True)

    try:
        with engine, RunWriter(folder) as writer:
            writer.header(
                model=recipe.policy.model_name,
                backend=recipe.policy.generation.backend,
                mode=recipe.policy.generation.mode,
                epoch=engine.epoch,
            )
            updates = Updates(update_every) if update_every else None
            records = generate_run(engine, prompts, writer, greedy=greedy, updates=updates, finished=show)
    except KeyboardInterrupt:
        print(f"genref: interrupted; what was generated is in {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    failed = [record for record in records if record.error]
    if len(failed) == len(records):
        raise GenerationError(f"prompt {failed[0].index + 1}: {failed[0].error}")
    for record in failed:
        print(f"genref: prompt {record.index + 1}: {record.error}", file=sys.stderr)
    print(f"genref: {folder}/run.jsonl", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def read_prompts(given: list[str]) -> list[str]:
    """The prompts of the command line; `-` stands for the lines of standard input."""
    texts: list[str] = []
    for text in given:
        texts += [line.rstrip("\n") for line in sys.stdin] if text == "-" else [text]
    if not texts:
        raise ConfigError("no prompt: give --prompt TEXT, or --prompt - and one prompt a line on standard input")
    return texts

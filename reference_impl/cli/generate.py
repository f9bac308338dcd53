"""`genref generate`: prompts in, one answer a prompt out, as text or as JSON lines."""

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream, show_statistics
from reference_impl.cli.streams import INTERRUPTED, drop_output, lines_of_stdin
from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from reference_impl.staleness.runs import SequenceRecord


def generate(
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value, +key=value.")] = None,
    config: Annotated[Path | None, typer.Option(help="Recipe (YAML). Without one, documented defaults.")] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="A prompt; may be repeated. '-' reads one a line from standard input, where blank lines are left out."
        ),
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
    run_folder: Annotated[
        Path | None, typer.Option(help="Where run.jsonl goes. Default: runs/generate-DATE-TIME.")
    ] = None,
) -> None:
    """Generate text for prompts and say which checkpoint sampled each token."""
    texts = read_prompts(prompt or [])
    quiet_upstream()
    from reference_impl.config.loader import load_recipe

    named = {"model_name": model, "generation.backend": backend, "generation.max_new_tokens": max_new_tokens}
    options = [f"policy.{key}={as_yaml(value)}" for key, value in named.items() if value is not None]
    recipe = load_recipe(config, [*options, *(overrides or [])])
    if recipe.policy.generation.mcore_generation_config.logging_step_interval:
        show_statistics()

    from reference_impl.generation.registry import create_backend

    # Made before the next imports, which take seconds, so that a backend that does not exist is refused at once.
    engine = create_backend(recipe)

    from reference_impl.cli.session import Updates, generate_run, interrupt_held, open_run
    from reference_impl.generation.interfaces import GenerationError
    from reference_impl.models.catalog import chat_prompt

    encode = (lambda text: chat_prompt(engine.tokenizer, text)) if chat else engine.tokenizer.encode
    prompts = [(text, encode(text)) for text in texts]
    with interrupt_held() as stop, engine, open_run("generate", run_folder) as writer:
        writer.header(
            model=recipe.policy.model_name,
            backend=recipe.policy.generation.backend,
            mode=recipe.policy.generation.mode,
            epoch=engine.epoch,
        )
        try:
            records = generate_run(
                engine,
                prompts,
                writer,
                greedy=greedy,
                updates=Updates(update_every) if update_every else None,
                finished=lambda record: show(record, as_json, stop),
                stop=stop,
            )
        except KeyboardInterrupt:
            print(f"genref: interrupted; what was generated is in {writer.path}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
    failed = [record for record in records if record.error]
    if len(failed) == len(records):
        raise GenerationError(f"prompt {failed[0].index + 1}: {failed[0].error}")
    for record in failed:
        print(f"genref: prompt {record.index + 1}: {record.error}", file=sys.stderr)
    print(f"genref: {writer.path}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def read_prompts(given: list[str]) -> list[str]:
    """The prompts of the command line; `-` stands for the lines of standard input."""
    texts: list[str] = []
    for text in given:
        texts += lines_of_stdin() if text == "-" else [text]
    if not texts:
        if "-" in given:
            raise ConfigError("no prompt: standard input holds no line of text")
        raise ConfigError("no prompt: give --prompt TEXT, or --prompt - and one prompt a line on standard input")
    for number, text in enumerate(texts, 1):
        if not is_unicode(text):
            raise ConfigError(f"prompt {number}: not UTF-8 text")
    return texts


def is_unicode(text: str) -> bool:
    """False where Python has put up with bytes that are not UTF-8, on the command line or in the C locale."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_yaml(value: str | int) -> str:
    """An option's value as an override spells it: a model called `8` or `null` stays a name."""
    return json.dumps(value, ensure_ascii=False)


def show(record: "SequenceRecord", as_json: bool, stop: threading.Event) -> None:
    """Print a finished sequence. Where nobody reads any more, as with `| head -1`, the run is to stop."""
    from reference_impl.staleness.report.tokens import control_pictures

    if as_json:
        text = json.dumps(record.to_line())
    elif record.error:
        return
    else:
        text = f"{record.prompt}\n{record.text}\n"
        if sys.stdout and sys.stdout.isatty():  # a model may sample what clears the screen
            text = control_pictures(text, keep="\n\t")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()
        stop.set()

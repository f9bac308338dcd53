"""`genref demo`: a real model answers, its weights change twice while it does, and a page shows which token saw which."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from reference_impl.cli.generate import as_yaml
from reference_impl.cli.quiet import quiet_upstream
from reference_impl.cli.streams import INTERRUPTED

PROMPTS = (
    "What is the capital of France?",
    "Which planet is known as the Red Planet?",
    "Write one sentence about the sea.",
    "What do bees make?",
    "Explain in a few words what a compiler does.",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Tell me a very short story about a robot.",
)

SETTINGS = (
    "policy.max_total_sequence_length=256",
    "policy.generation.max_new_tokens=48",
    "policy.generation.mcore_generation_config.buffer_size_gb=0.25",
    "policy.generation.mcore_generation_config.block_size_tokens=16",
    "policy.generation.mcore_generation_config.max_requests=8",
    "policy.generation.mcore_generation_config.max_tokens=1024",
    "policy.generation.mcore_generation_config.cuda_graph_impl=none",
)


def demo(
    model: Annotated[str, typer.Option(help="smollm2, tiny, a model folder or a .gguf file.")] = "smollm2",
    backend: Annotated[
        str,
        typer.Option(
            help="Generation backend. Another than megatron is held to Megatron's engine, on the same prompts."
        ),
    ] = "megatron",
    mode: Annotated[str, typer.Option(help="direct or coordinator.")] = "direct",
    update_every: Annotated[int, typer.Option(min=1, help="Sampled tokens between the two weight updates.")] = 104,
    run_folder: Annotated[Path | None, typer.Option(help="Where results go. Default: runs/demo-DATE-TIME.")] = None,
) -> None:
    """Answer eight prompts greedily, replace the weights twice meanwhile, and show each token's checkpoint."""
    quiet_upstream()
    from rich.console import Console

    from reference_impl.config.loader import load_recipe

    options = [f"policy.model_name={as_yaml(model)}", f"policy.generation.mode={as_yaml(mode)}", *SETTINGS]
    recipe = load_recipe(None, [*options, f"policy.generation.backend={as_yaml(backend)}"])

    from reference_impl.cli.session import Updates, generate_run, interrupt_held, open_run
    from reference_impl.generation.registry import create_backend
    from reference_impl.models.catalog import chat_prompt
    from reference_impl.staleness.report.page import write_html
    from reference_impl.staleness.report.terminal import print_strips
    from reference_impl.staleness.runs import read_run

    engine = create_backend(recipe)
    prompts = [(text, chat_prompt(engine.tokenizer, text)) for text in PROMPTS]
    interrupted = False
    with interrupt_held() as stop, engine, open_run("demo", run_folder) as writer:
        writer.header(model=model, backend=recipe.policy.generation.backend, mode=mode, epoch=engine.epoch)
        updates = Updates(update_every, most=2)
        try:
            generate_run(engine, prompts, writer, greedy=True, updates=updates, finished=lambda record: None, stop=stop)
        except KeyboardInterrupt:
            interrupted = True
    run = read_run(writer.path)
    report = writer.path.with_name("report.html")
    write_html(run, report)
    print_strips(run, Console(highlight=False))
    several = sum(record.has_epochs and len(record.generated_policy.runs) > 1 for record in run.sequences)
    print(
        f"{len(run.updates)} weight updates; {several} of {len(run.sequences)} answers carry more than one policy epoch"
    )
    if backend != "megatron" and not interrupted:
        from reference_impl.cli.stamps import stamp_differences

        beside = writer.path.parent / "megatron"
        with create_backend(load_recipe(None, options)) as engine, open_run("demo", beside) as other:
            other.header(model=model, backend="megatron", mode=mode, epoch=engine.epoch)
            updates = Updates(update_every, most=2)
            generate_run(engine, prompts, other, greedy=True, updates=updates, finished=lambda record: None, stop=stop)
        for line in stamp_differences(run.sequences, read_run(other.path).sequences):
            print(line)
    print(f"run:    {writer.path}")
    print(f"report: {report}")
    if interrupted:
        print("genref: interrupted; the run folder holds what was generated", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)

"""`genref bench`: systems side by side in one run, and where time and memory go, each as a share or a ratio."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from reference_impl.bench.results import Results
    from reference_impl.bench.systems import Load, Place, System

app = typer.Typer(
    help="Measure speed and memory, each time as a share or a ratio within one run.", rich_markup_mode=None
)

Overrides = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value.")]
Model = Annotated[str, typer.Option(help="smollm2, tiny or a model folder.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write what was found, unrounded, as JSON.")]


@app.callback(invoke_without_command=True)
def compare(
    context: typer.Context,
    backends: Annotated[
        str, typer.Option(metavar="A,B,...", help="Systems to compare; huggingface is transformers.generate.")
    ] = "reference,megatron,huggingface,vllm",
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Batch sizes.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option("--in", min=1, help="Tokens of each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option("--out", min=6, help="Tokens sampled for each prompt.")] = 36,
    model: Model = "smollm2",
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds; in each, every system has its turn.")] = 3,
    vllm_python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Python of an environment with vLLM, if it is not in this one.")
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Write a roofline plot, a page or .svg.")] = None,
) -> None:
    """Compare how fast systems decode, in turn within one run, with each other and with this machine's limits."""
    if context.invoked_subcommand is not None:
        return
    batches = _numbers("--batch", batch)
    quiet_upstream()
    from reference_impl.bench.roofline import drawing_for, write_plot
    from reference_impl.bench.systems import Load, chosen
    from reference_impl.models.catalog import find_model

    names = chosen(backends)
    if plot:
        drawing_for(plot)
    for file in filter(None, (json_file, plot)):
        file.parent.mkdir(parents=True, exist_ok=True)  # a long run is not to end in a wrong path
    load = Load(model, find_model(model).shape, prompt_tokens, new_tokens, batches)
    with _place(load) as place:
        results = _compare(names, load, place, rounds, vllm_python)
    print(results.text())
    if json_file:
        results.write(json_file)
    if plot:
        write_plot(results, plot)


def _compare(names: list[str], load: "Load", place: "Place", rounds: int, vllm_python: Path | None) -> "Results":
    """Open the systems that can be, let them decode in turn, and measure the machine at every batch size."""
    import datetime

    from tqdm import tqdm

    from reference_impl.bench.comparison import alternate, rows_of
    from reference_impl.bench.machine import Work, describe, measure_limits
    from reference_impl.bench.processes import open_process
    from reference_impl.bench.results import Results
    from reference_impl.bench.systems import NotHereError

    work = Work.of(load.shape, place.dtype.itemsize)
    with ExitStack() as stack:
        systems: list[System] = []
        left_out: dict[str, str] = {}
        for name in names:
            try:
                system = open_process(name, load, place, vllm_python)
            except NotHereError as error:
                left_out[name] = str(error)
                print(f"{name}: left out: {error}", flush=True)
            else:
                stack.callback(system.close)
                systems.append(system)
        if not systems:
            raise ConfigError(f"--backends: none of {', '.join(names)} can run here")
        limits, found = measure_limits(work.weight_bytes, place.device), {}
        turns = len(load.batches) * (rounds + 1) * len(systems)
        with tqdm(total=turns, unit="turn", leave=False, disable=None) as progress:
            for size in load.batches:
                found[size] = alternate(systems, load, size, rounds, progress.update)
                limits = limits.best(measure_limits(work.weight_bytes, place.device))
        versions: dict[str, str] = {}
        for each in systems:
            versions |= each.versions
    dtype = str(place.dtype).removeprefix("torch.")
    rows = [row for size, each in found.items() for row in rows_of(size, each, limits, dtype, work)]
    return Results(
        date=datetime.date.today().isoformat(),
        machine=describe(place.device),
        versions=versions,
        model=load.model,
        dtype=dtype,
        device=str(place.device),
        prompt_tokens=load.prompt_tokens,
        new_tokens=load.new_tokens,
        rounds=rounds,
        limits=limits,
        work=work,
        left_out=left_out,
        rows=rows,
    )


@contextmanager
def _place(load: "Load") -> Iterator["Place"]:
    """The model as a folder, written for the time of the run if it has none."""
    from reference_impl.bench.systems import Place
    from reference_impl.generation.devices import choose_device, choose_dtype
    from reference_impl.models.catalog import find_model
    from reference_impl.models.folder import write_folder

    policy, checkpoint = load.recipe("reference").policy, find_model(load.model)
    device = choose_device(policy)
    with tempfile.TemporaryDirectory() as written:
        folder = checkpoint.folder or write_folder(Path(written), checkpoint.read_weights(), checkpoint.shape)
        yield Place(folder, device, choose_dtype(policy, device))


@app.command()
def profile(
    overrides: Overrides = None,
    backend: Annotated[str, typer.Option(help="A backend by name.")] = "reference",
    batch: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 8,
    prompt_tokens: Annotated[int, typer.Option("--in", min=1, help="Tokens of each prompt.")] = 64,
    model: Model = "smollm2",
    json_file: JsonFile = None,
) -> None:
    """Show where the time of a decode step goes, with PyTorch's profiler."""
    quiet_upstream()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says that it starts, and that there is no GPU
    from reference_impl.bench.step_profile import NEW_TOKENS, profile_step
    from reference_impl.generation.registry import create_backend

    load = _load(model, prompt_tokens, NEW_TOKENS, batch)
    with create_backend(load.recipe(backend, overrides or ())) as running:
        found = profile_step(running, backend, model, load.shape.vocab_size, batch, prompt_tokens)
    print(found.text())
    if json_file:
        found.write(json_file)


@app.command()
def update(
    overrides: Overrides = None,
    backends: Annotated[str, typer.Option(metavar="A,B,...", help="Backends by name.")] = "reference,megatron",
    model: Model = "smollm2",
    json_file: JsonFile = None,
) -> None:
    """Time a weight update against a copy of the same tensors, and weigh a backend's memory against the weights."""
    quiet_upstream()
    from reference_impl.bench import footprint
    from reference_impl.bench.systems import chosen
    from reference_impl.generation.registry import BACKENDS

    found = [footprint.measure_apart(name, model, overrides or ()) for name in chosen(backends, BACKENDS)]
    print(footprint.table(found))
    if json_file:
        footprint.write(found, json_file)


@app.command()
def staleness(
    overrides: Overrides = None,
    backend: Annotated[str, typer.Option(help="A backend by name.")] = "reference",
    model: Model = "smollm2",
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

    load = _load(model, PROMPT_TOKENS, NEW_TOKENS, batch)
    with tracking_clock(backend) as clock, create_backend(load.recipe(backend, overrides or ())) as running:
        print(time_tracking(running, clock, load.shape.vocab_size, batch).line(), flush=True)
    records = made_up(rollouts, tokens)
    print(time_statistics(records, rounds), flush=True)
    print(time_report(records, rounds=3), flush=True)


@app.command()
def training(
    recipe: Annotated[Path, typer.Argument(help="A recipe (YAML) of asynchronous training.")],
    overrides: Overrides = None,
    delay: Annotated[float, typer.Option(min=0, help="Seconds that environments wait before they answer.")] = 0.05,
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each run.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, every way of training has its turn.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Compare synchronous with asynchronous training of a recipe, and show what parts of a step take."""
    quiet_upstream()
    from tqdm import tqdm

    from reference_impl.bench.training import WAYS, measure, settings, table, timed, write
    from reference_impl.config.loader import load_recipe
    from reference_impl.rl.assembly import check

    made = [load_recipe(recipe, changes) for changes in settings(overrides or (), delay, steps)]
    for each in made:
        check(each)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Any]] = {way: [] for way in WAYS}
    turns = measure(made, rounds)
    for way, outcome in tqdm(turns, total=rounds * len(WAYS), unit="run", leave=False, disable=None):
        found[way].append(outcome)
    rows = [timed(way, outcomes) for way, outcomes in found.items()]
    print(table(rows))
    if json_file:
        write(rows, json_file)


def _load(model: str, prompt_tokens: int, new_tokens: int, batch: int) -> Any:
    from reference_impl.bench.systems import Load
    from reference_impl.models.catalog import find_model

    return Load(model, find_model(model).shape, prompt_tokens, new_tokens, [batch])


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers above 0, with commas between them."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"{option}: {text!r}; expected whole numbers above 0, such as 1,8,32")
    return numbers

"""What `genref lint` says about recipe files: every error that loading would raise, and warnings that it would not.

Recipes of NeMo RL may ask for things that NeMo RL does and this backend does not (a dedicated generation model, an HTTP
server). Loading refuses those; here they are warnings, since nothing is wrong with the file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reference_impl.config.checking import show
from reference_impl.config.errors import ConfigError
from reference_impl.config.examining import Examination, examine, line_of
from reference_impl.config.findings import Finding, Severity
from reference_impl.config.reading import Files, Layer
from reference_impl.config.schema import MCORE_KEY, Recipe
from reference_impl.config.trees import MISSING, lookup

_GENERATION = "policy.generation"
# A value that the command line has yet to give, and a function that only another program has, are no faults of the file.
_NOT_FOR_A_FILE = {"unset", "elsewhere"}


def lint(paths: Iterable[Path]) -> list[Finding]:
    """The findings about these files and their parents, in the order of the files; each is named once.

    A finding about a parent is reported at the parent's line, however many files inherit it.
    """
    files = Files()
    seen = (finding for path in paths for finding in sorted(_lint_file(path, files), key=_position))
    return list(dict.fromkeys(seen))


def _position(finding: Finding) -> tuple[str, int]:
    return finding.path, finding.line or 0


def _lint_file(path: Path, files: Files) -> Iterator[Finding]:
    try:
        layers = files.layers(path)
    except ConfigError as error:
        yield from error.findings
        layers = _alone(path, files)
        # What is interpolated may well stand in the parent that could not be read.
        outside = {*_NOT_FOR_A_FILE, "interpolation"}
    else:
        outside = _NOT_FOR_A_FILE
    seen = examine(layers, str(path))
    for finding in seen.findings:
        if finding.code not in outside:
            yield replace(finding, severity="warning") if finding.code == "unsupported" else finding
    yield from _warnings(seen)


def _alone(path: Path, files: Files) -> list[Layer]:
    """The file without its parents, which cannot be read, or nothing if it is the file itself that cannot."""
    document = files.documents.get(path)
    if document is None:
        return []
    tree = {name: value for name, value in document.value.items() if name != "defaults"}
    return [Layer(str(path), tree, lines=document.lines, problems=document.problems)]


@dataclass(frozen=True)
class _Idle:
    """Keys that do nothing while another one has a certain value, and the values of them that ask for nothing."""

    cause: str
    when: Callable[[Any], bool]
    keys: tuple[str, ...]
    off: tuple[Any, ...]
    why: str


_IDLE = (
    _Idle(
        f"{MCORE_KEY}.cuda_graph_impl",
        lambda value: value == "none",
        tuple(
            f"{MCORE_KEY}.{name}"
            for name in ("num_cuda_graphs", "inference_cuda_graph_scope", "use_cuda_graphs_for_non_decode_steps")
        ),
        (None, 0, "none", False),
        "cuda_graph_impl: none captures no graph; delete one of the two",
    ),
    _Idle(
        f"{_GENERATION}.temperature",
        lambda value: value == 0,
        (f"{_GENERATION}.top_k", f"{_GENERATION}.top_p"),
        (None, 1),
        "temperature: 0 takes the best token; delete one of the two",
    ),
    _Idle(
        f"{MCORE_KEY}.expose_http_server",
        lambda value: value is False,
        (f"{MCORE_KEY}.parsers",),
        ([],),
        "only the HTTP server parses responses, and expose_http_server is false; delete the key",
    ),
)


def _warnings(seen: Examination) -> Iterator[Finding]:
    """What is valid key by key and does not do what the one who wrote it may think."""
    tree, wrong = seen.recipe.model_dump(), {finding.key for finding in seen.findings}
    for rule in _IDLE:
        if not rule.when(lookup(tree, rule.cause)) or rule.cause in wrong:
            continue
        # A key that a parent wrote before the cause is not what its author asked for with the cause in mind.
        since = _writer(rule.cause, seen.layers)
        for key in rule.keys:
            at, value = _writer(key, seen.layers), lookup(tree, key)
            if at >= max(since, 0) and value not in rule.off and key not in wrong:
                yield _at(seen.layers[at], key, "warning", f"{show(value)} has no effect: {rule.why}", "no-effect")
    for key, severity, text in _limits(seen.recipe):
        at = _writer(key, seen.layers)
        if at >= 0 and key not in wrong:
            yield _at(seen.layers[at], key, severity, text, "limit")


def _limits(recipe: Recipe) -> Iterator[tuple[str, Severity, str]]:
    """Lengths and counts that another key keeps from being reached."""
    policy, engine = recipe.policy, recipe.policy.generation.mcore_generation_config
    if engine.max_model_len > policy.max_total_sequence_length:
        text = f"{engine.max_model_len} is more than policy.max_total_sequence_length: {policy.max_total_sequence_length}, "
        yield f"{MCORE_KEY}.max_model_len", "warning", f"{text}which training can use; write that or less"
    if policy.generation.max_new_tokens > engine.max_model_len:
        text = f"{policy.generation.max_new_tokens} is never reached: a sequence ends at max_model_len: {engine.max_model_len}"
        yield f"{_GENERATION}.max_new_tokens", "warning", f"{text}; write that or less"
    if engine.max_requests is not None and engine.max_requests > engine.max_tokens:
        text = (
            f"{engine.max_requests} is more than max_tokens: {engine.max_tokens}, and each request needs a token a step"
        )
        yield f"{MCORE_KEY}.max_requests", "error", f"{text}; write {engine.max_tokens} or less"


def _writer(key: str, layers: Sequence[Layer]) -> int:
    """The number of the last layer that writes this key, or -1."""
    return max((at for at, layer in enumerate(layers) if lookup(layer.tree, key) is not MISSING), default=-1)


def _at(layer: Layer, key: str, severity: Severity, text: str, code: str) -> Finding:
    return Finding(layer.source, line_of(layer, key), None, severity, key, text, code)

"""Which words may stand in prose as plain inline code, and which have to be a role or a reference.

What the project defines (keys, metrics, commands, documented objects) is refused and told its role, so that it is checked
when the site is built. Plain words are those of the code base and of upstream, and the list in `docs/vocabulary.txt`.
`check_prose` is what a project's `Checks` takes.
"""

import ast
import builtins
import keyword
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from command_line import COMMANDS, PROGRAM
from external_names import PAGES
from schema_keys import KEYS, split_value

from reference_impl.config.removed import REMOVED_KEYS
from reference_impl.config.schema import Recipe
from reference_impl.config.upstream_facts import MEGATRON_CORE, NEMO_RL
from reference_impl.doctesting.evaluators import EVALUATORS
from reference_impl.doctesting.inline import prose, prose_problems
from reference_impl.staleness.aliases import ALIASES
from reference_impl.staleness.metrics import METRICS

ROOT = Path(__file__).parents[2]
PACKAGE = "reference_impl"
LIST = ROOT / "docs" / "vocabulary.txt"

_PLACED = re.compile(r"^`{3,}\{autodoc2-object\} *(\S+)", re.MULTILINE)
_INSTALLATION = re.compile(r"pip install (?:(?P<bare>[\w-]+)|'(?P<name>[\w-]+)\[(?P<extra>\w+)\]')")
_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)


def check_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of what may not stand in a page's prose."""
    return prose_problems(text, accepts)


def accepts(code: str) -> str | None:
    """Why a piece of inline code has to be written otherwise, or `None` if it may stand."""
    reason = _as_role(code) or _as_reference(code.removesuffix("()"))
    if reason is not None or code in listed_words():
        return reason
    known = code in words() or code.removesuffix("()") in words()
    known = known or _is_path(code) or _is_target(code) or _is_installation(code) or _is_reference(code)
    return None if known else "unknown here; write a role or a fence, or add it to docs/vocabulary.txt with a reason"


def _as_role(code: str) -> str | None:
    """What to write for the name of a key, a metric or a command."""
    name = split_value(code)[0]
    if name in _key_names():
        return f"write {{key}}`{code}`"
    if name.rpartition(".")[2] in REMOVED_KEYS:
        return f"write {{removed}}`{code}`"
    if code in METRICS or code in {alias.name for alias in ALIASES}:
        return f"write {{metric}}`{code}`"
    if code.split(" ")[0] == PROGRAM:
        return f"write {{command}}`{code}`, or a console fence"
    option = code.split(" ")[0].partition("=")[0]
    for command in COMMANDS.values():
        if option.startswith("-") and command.option(option):
            return f"write {{command}}`{code} <{command.name} {code}>`"
    return None


@cache
def _key_names() -> frozenset[str]:
    """Every dotted ending of a key; a single word such as `mode` is too common to be taken for one."""
    parts = [full.split(".") for full in KEYS]
    endings = {".".join(names[at:]) for names in parts for at in range(len(names))}
    return frozenset(name for name in endings if "_" in name or "." in name)


def _as_reference(name: str) -> str | None:
    """What to write for an object that a page describes."""
    full = documented_objects().get(name) or (documented_methods().get(name) if name not in package_words() else None)
    return f"write a reference, such as {{py:obj}}`~{full}`" if full else None


@cache
def documented_objects() -> dict[str, str]:
    """The objects that a page describes, by last name, by `Class.method` and in full."""
    found: dict[str, str] = {}
    for page in sorted((ROOT / "docs").glob("*/**/*.md")):
        for full in _PLACED.findall(page.read_text("utf-8")):
            owner = full.rpartition(".")[2]
            found |= {full: full, owner: full}
            found |= {f"{owner}.{method}": f"{full}.{method}" for method in _public_methods().get(owner, ())}
    return found


@cache
def documented_methods() -> dict[str, str]:
    """The methods of those objects by their own names, as far as these are no common words: `update_weights`."""
    names = [(name.rpartition(".")[2], full) for name, full in documented_objects().items() if "." in name]
    return {name: full for name, full in names if "_" in name}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The dotted name and the tree of each file of the package."""
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(file.read_text("utf-8"))


@cache
def _public_methods() -> dict[str, list[str]]:
    """The methods of each class of the package that are neither private nor called by Python itself."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name: [each.name for each in node.body if isinstance(each, functions) and not each.name.startswith("_")]
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


@cache
def words() -> frozenset[str]:
    """Every word that may stand as it is: of Python, of YAML, of the package, of upstream, and of what is installed."""
    python = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    return frozenset(
        {
            *(*python, "null", "true", "false", *EVALUATORS),
            *(*PAGES, *_choices(), *package_words(), *_of_files(), *_of_upstream(), *_installed()),
        }
    )


def _choices() -> Iterator[str]:
    """What a key with choices may be."""
    for part in Recipe.model_json_schema()["$defs"].values():
        for field in part["properties"].values():
            yield from (str(choice) for choice in field.get("enum", ()))


@cache
def package_words() -> frozenset[str]:
    """Names of modules, of the parameters and fields of public functions and classes, and the strings that they take."""
    every = list(modules())
    nodes = (node for _, tree in every for node in ast.walk(tree))
    return frozenset(name for name, _ in every) | {word for node in nodes for word in _words_of(node)}


def _words_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        constants = (each.value for each in ast.walk(node.slice) if isinstance(each, ast.Constant))
        yield from (value for value in constants if isinstance(value, str) and value)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        yield from (argument.arg for argument in arguments if argument.arg not in {"self", "cls"})
    elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield from (each.target.id, f"{node.name}.{each.target.id}")


def _of_files() -> Iterator[str]:
    """Names of files and of fields that are written or read: what other systems log, what sinks and runs are called."""
    folder = ROOT / PACKAGE / "staleness"
    for file in (*folder.glob("readers/*.py"), *folder.glob("sinks/*.py"), folder / "runs.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(r"[a-z][\w.]{3,}", value):
                yield value


def _of_upstream() -> Iterator[str]:
    """Objects that are pinned, by every ending of their names, and the members of pinned enums."""
    for fact in (*MEGATRON_CORE, *NEMO_RL):
        parts = fact.name.rpartition(":")[2].split(".")
        yield from (".".join(parts[start:end]) for end in range(1, len(parts) + 1) for start in range(end))
        if fact.kind == "members":
            for member in fact.pinned.split(", "):
                name, _, value = member.partition(" = ")
                yield from (name, f"{parts[-1]}.{name}")
                if value.startswith("'"):
                    yield value.strip("'")


def _installed() -> Iterator[str]:
    """Distributions: those that are pinned, and this one."""
    yield "megatron-generation-reference"
    yield from _REQUIREMENT.findall((ROOT / "constraints.txt").read_text("utf-8"))


def _is_path(code: str) -> bool:
    """Whether there is such a file or folder, or for `*` one of them, from the root of the repository."""
    if not re.fullmatch(r"[\w.*/-]*[./][\w.*/-]*", code) or code.startswith(("/", ".")) or ".." in code:
        return False
    return any(ROOT.glob(code.rstrip("/")))


def _is_target(code: str) -> bool:
    """Whether this is `make` with a target of the Makefile."""
    program, _, target = code.partition(" ")
    return program == "make" and target in _TARGET.findall((ROOT / "Makefile").read_text("utf-8"))


def _is_installation(code: str) -> bool:
    """Whether this installs our distribution, alone or with an extra that it has."""
    match = _INSTALLATION.fullmatch(code)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if match is None or project["name"] != (match["bare"] or match["name"]):
        return False
    return match["extra"] is None or match["extra"] in project["optional-dependencies"]


def _is_reference(code: str) -> bool:
    """Whether this is `${key}` of a key that there is."""
    return code.startswith("${") and code.endswith("}") and code[2:-1] in KEYS


@cache
def listed_words() -> dict[str, str]:
    """The words of `docs/vocabulary.txt`, each with its reason: one a line, `word  # reason`."""
    found = {}
    for line in LIST.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, reason = line.rpartition("  # ")
            found[word.strip()] = reason.strip()
    return found


def plain_words(text: str) -> set[str]:
    """The plain inline code of a page."""
    return {content for _, kind, content in prose(text) if kind == "code"}

"""Source trees for the upstream facts: copies of an installed project, trees written from the facts, and one change in either."""

import ast
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from reference_impl.config.trees import with_value
from reference_impl.config.upstream_facts import Fact

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def file_of(fact: Fact, folder: Path) -> Path:
    """The file that says what the fact is about."""
    if fact.kind == "yaml":
        return folder / fact.name.split(":")[0]
    parts = fact.name.split(".")
    files = (folder.joinpath(*parts[:length]).with_suffix(".py") for length in range(len(parts), 0, -1))
    return next(file for file in files if file.is_file())


def copy_files(facts: Iterable[Fact], source: Path, folder: Path) -> None:
    """Copy what the facts are about, and nothing else."""
    for file in {file_of(fact, source) for fact in facts}:
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def write_tree(facts: Iterable[Fact], folder: Path) -> None:
    """Write classes and YAML files of which the facts are true, as briefly as that can be done."""
    classes: dict[str, list[str]] = defaultdict(list)
    trees: dict[str, dict[str, Any]] = defaultdict(dict)
    abstract: dict[str, list[str]] = {}
    for fact in facts:
        owner, _, name = fact.name.rpartition(".")
        match fact.kind:
            case "yaml":
                file, key = fact.name.split(":")
                trees[file] = with_value(trees[file], key, ast.literal_eval(fact.pinned))
            case "abstract methods":
                abstract[fact.name] = fact.pinned.split(", ")
                classes[fact.name] += [
                    f"    @abstractmethod\n    def {name}(self): ..." for name in abstract[fact.name]
                ]
            case "field":
                classes[owner].append(f"    {name}: {fact.pinned}")
            case "signature":
                method = f"    def {name}(self, {fact.pinned.removeprefix('(')}: ...".replace("(self, )", "(self)")
                stub = f"    def {name}(self): ..."
                body = "\n".join(classes[owner])
                classes[owner] = [body.replace(stub, method) if stub in body else f"{body}\n{method}"]
    for owner, lines in classes.items():
        module, _, name = owner.rpartition(".")
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            print(f"class {name}:", *lines, sep="\n", file=stream)
    for name, tree in trees.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(tree))


def changed(fact: Fact, text: str) -> str:
    """The text of the fact's file with one thing changed, so that this fact and no other is false."""
    if fact.kind == "yaml":
        return yaml.safe_dump(with_value(yaml.safe_load(text), fact.name.split(":")[1], "changed"))
    node = _node(ast.parse(text), fact)
    match fact.kind:
        case "abstract methods":
            method = next(each for each in node.body if isinstance(each, FUNCTIONS) and each.decorator_list)
            return _replaced(text, method.decorator_list[0], "changed")
        case "members":
            member = next(each for each in node.body if isinstance(each, ast.Assign))
            return _replaced(text, member.value, "'changed'")
        case "signature":
            return _replaced(text, node.args.args[0], "self, changed")
    return _replaced(text, node.value or node.annotation, "changed")


def _node(tree: ast.AST, fact: Fact) -> Any:
    """The class, function or assignment of the fact: found by its last two names, which no other thing in the file has."""
    *_, owner, name = fact.name.split(".")
    wholes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    if fact.kind in {"members", "abstract methods"}:
        return next(each for each in wholes if each.name == name)
    for each in next(each for each in wholes if each.name == owner).body:
        if isinstance(each, FUNCTIONS) and each.name == name:
            return each
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return each
    raise LookupError(fact.name)


def _replaced(text: str, node: Any, words: str) -> str:
    """The text with other words in the place of a node."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = b"".join(lines)
    return (whole[:start] + words.encode() + whole[end:]).decode()

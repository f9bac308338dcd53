"""Check the data of a page: YAML, JSON and TOML are parsed strictly, and held to what the project or the page says.

`Checks.validate_yaml` knows the project's own data. A page names the JSON schema of other YAML, as `yaml-schema` in its
front matter, and may name one for JSON as `json-schema`; both are paths from the project's root. A caption is the name of
the file that a fence is, and writes it, for the code below. A fence of the class `refused` has to be wrong.
"""

import contextlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from referencing import Registry

from reference_impl.doctesting.case import Case, Evaluator, included_file

_ELLIPSES = frozenset({"...", "…"})


def as_file(check: Evaluator) -> Evaluator:
    """Make an evaluator heed the caption, which is the file that the fence is, and the class `refused`."""

    def evaluator(case: Case) -> str | None:
        problem = check(case)
        if "refused" in case.fence.options.get("class", "").split():
            problem = None if problem else "nothing is wrong with this, and the page says that it is refused"
        return problem or _write(case)

    return evaluator


def captioned_file(case: Case) -> Path | None:
    """Return the file that the caption of a fence names, from the project's root, or None without a caption."""
    caption = case.fence.options.get("caption")
    return case.checks.root / caption if caption else None


def _write(case: Case) -> str | None:
    """Write a fence to the file that its caption names, if that is in the folder which pages may write to."""
    file, scratch = captioned_file(case), case.checks.scratch
    if file is None:
        return None
    if scratch is None or not file.resolve().is_relative_to(scratch.resolve()):
        where = scratch or "Checks.scratch, which is not set"
        return f"the caption {case.fence.options['caption']!r} is to be a file in {where}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(case.fence.source, encoding="utf-8")
    return None


def check_yaml(case: Case) -> str | None:
    """Parse and validate a fence."""
    source = case.fence.source
    for n, line in enumerate(source.split("\n")):
        if line.strip() == "...":
            return f"line {case.fence.source_line + n}: '...' ends a YAML document; write the keys out, or a comment"
    try:
        problem = next(_careless(yaml.compose(source, yaml.SafeLoader), case.fence.source_line, set()), None)
        data = yaml.safe_load(source)
        with contextlib.chdir(case.checks.root):
            known = not problem and case.checks.validate_yaml(source, _folder(case))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"bad YAML: {error}"
    if problem is None and not known:
        problem = _break_of_schema(data, "yaml", case)
    return problem


def _folder(case: Case) -> Path | None:
    """Return the folder of the file that the data is or will be in."""
    file = included_file(case) if case.fence.kind == "{literalinclude}" else captioned_file(case)
    return None if file is None else file.parent


def check_json(case: Case) -> str | None:
    """Parse a fence, and hold it to the page's schema if it names one."""
    try:
        data = json.loads(case.fence.source, object_pairs_hook=_distinct, parse_constant=_no_number)
    except ValueError as error:
        return f"bad JSON: {error}"
    return _break_of_schema(data, "json", case) if "json-schema" in case.front_matter else None


def check_toml(case: Case) -> str | None:
    """Parse a fence."""
    try:
        tomllib.loads(case.fence.source)
    except ValueError as error:
        return f"bad TOML: {error}"
    return None


def _careless(node: yaml.Node | None, line: int, seen: set[int]) -> Iterator[str]:
    """Yield what PyYAML lets pass in the data below `node`: keys given twice, and `...` in the place of a value.

    `line` is that of the page on which the data begins.
    """
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    at = line + node.start_mark.line
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and node.value.strip() in _ELLIPSES:
            yield f"line {at}: {node.value!r} is no value; write it out, or leave a comment"
        return
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        keys = set[tuple[str, str]]()
        for key, value in node.value:
            children += [key, value]
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in keys:
                yield f"line {line + key.start_mark.line}: the key {key.value!r} is given twice"
            keys.add((key.tag, str(key.value)))
    else:
        children = node.value
    for child in children:
        yield from _careless(child, line, seen)


def _break_of_schema(data: Any, language: str, case: Case) -> str | None:
    """Say where data breaks the schema that the front matter of its page names for the language."""
    key = f"{language}-schema"
    name = case.front_matter.get(key)
    if name is None:
        return f"no check for this {language}: name its JSON schema in the front matter of the page, as {key}: PATH"
    file = case.checks.root / str(name)
    try:
        schema = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return f"{key}: {name}: {error}"
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
        # An empty registry: a schema that refers to another address fails instead of being fetched.
        worst = jsonschema.exceptions.best_match(kind(schema, registry=Registry()).iter_errors(data))
    except Exception as error:
        return f"{key}: {name}: {error}"
    return None if worst is None else f"{worst.json_path}: {worst.message} ({name})"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members, of which no two may have one name."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"given twice: {next(name for name in names if names.count(name) > 1)!r}")
    return made


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

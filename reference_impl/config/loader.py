"""Turns a recipe file and command-line overrides into a checked {class}`Recipe`.

Defaults, parents, the recipe and the overrides are merged first, and interpolation is resolved last. So a default that
follows another key follows the value that an override gave it: `policy.max_total_sequence_length=1024` moves
`max_new_tokens` and `max_model_len` as well, in a recipe that never mentions them.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from reference_impl.config.errors import ConfigError
from reference_impl.config.examining import DEFAULTS, Examination, examine
from reference_impl.config.overrides import COMMAND_LINE, apply_overrides
from reference_impl.config.parsing import parse_yaml
from reference_impl.config.reading import Files, Layer, as_mapping
from reference_impl.config.schema import Recipe


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at `path` with its parents and the overrides; `None` means the documented defaults alone.

    Precedence, weakest first: documented defaults, the files under `defaults:` in the order in which they are named, the
    recipe, the overrides from left to right. Sections that are not read here may hold anything, an interpolation that
    only a trainer can resolve included.

    Raises {class}`~reference_impl.config.errors.ConfigError` with one line for each problem of the merged recipe. A file
    that cannot be read, or a malformed override, is reported alone: what follows from it is not known.
    """
    layers = [] if path is None else Files().layers(Path(path))
    return _checked(layers, overrides, COMMAND_LINE if path is None else str(path))


def check_text(text: str, source: str, folder: Path) -> Recipe:
    """The recipe that `text` spells, as if it lay in `folder`; errors call it `source`.

    Raises {class}`~reference_impl.config.errors.ConfigError` as {func}`load_recipe` does.
    """
    document = as_mapping(parse_yaml(text, source), source)
    layers = Files().layers_of(document, folder / source, source=source)
    return _checked(layers, (), source)


def _checked(layers: list[Layer], overrides: Sequence[str], fallback: str) -> Recipe:
    seen: Examination = examine(apply_overrides(layers, overrides, DEFAULTS), fallback)
    if seen.findings:
        raise ConfigError.of(seen.findings)
    return seen.recipe


def resolved_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, every default filled in and every interpolation replaced; it loads to an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False)

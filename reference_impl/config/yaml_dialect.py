"""The YAML of recipes: PyYAML's safe one, in C where there is a choice, without dates and with the numbers people write."""

import re
from typing import Any

import yaml

TAG = "tag:yaml.org,2002:"
_TIMESTAMP, _FLOAT, MERGE, STRING = (TAG + name for name in ("timestamp", "float", "merge", "str"))
SCALARS = {TAG + name for name in ("str", "int", "float", "bool", "null", "merge", "binary")}
# The parser in C is six times as fast; where PyYAML was built without it, the other one reads the same files.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RecipeLoader(_Loader):
    """Safe YAML, without dates and with the numbers that people write."""


# No recipe key is a date, and a run name such as 2026-01-31 should stay the string that it looks like.
RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != _TIMESTAMP]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 takes `1e-5` for a string, since it has no dot; everyone who writes it means a number.
RecipeLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)

"""The dotted names of the API's entries. Sphinx gives some an id that repeats the module; the domain knows the names beside it."""

from collections import defaultdict

from docutils import nodes
from sphinx.environment import BuildEnvironment


def names_of_entries(env: BuildEnvironment, page: str) -> dict[str, set[str]]:
    """By the id of each signature of a page, the names that links use for it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, entry in env.domains.python_domain.objects.items():
        if entry.docname == page:
            found[entry.node_id].add(name)
    return found


def names_of(signature: nodes.Element, entries: dict[str, set[str]]) -> set[str]:
    """All names of one signature."""
    return set().union(*(entries.get(anchor, set()) for anchor in signature.get("ids", ())))

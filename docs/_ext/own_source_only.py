"""Keep astroid to our own source: autodoc2 parses nothing else, but astroid would follow every import into torch.

Following them costs a minute and a half and changes nothing on the site: only our names are rendered, and a base class
of another library is a name like any other.
"""

from astroid.astroid_manager import MANAGER
from astroid.manager import AstroidManager
from sphinx.application import Sphinx


class _Foreign(set):
    """A deny list of module names by rule rather than by name."""

    def __contains__(self, name: object) -> bool:
        top = str(name).partition(".")[0]
        return top not in {"reference_impl", "builtins", "typing", "enum", "abc", "dataclasses"}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # Every manager takes the list from the class's shared state when it is made; one was made at import.
    AstroidManager.brain["module_denylist"] = MANAGER.module_denylist = _Foreign()
    return {"parallel_read_safe": True}

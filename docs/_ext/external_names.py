"""Link the names of other projects that our signatures use, from a table instead of inventories fetched over a network.

A name that is neither ours nor here is a dead reference and fails the build: add it once its page has been looked up.
"""

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_PYTHON = "https://docs.python.org/3/library"
_TORCH = "https://docs.pytorch.org/docs/stable"

PAGES = {
    "abc.ABC": f"{_PYTHON}/abc.html",
    "argparse.Namespace": f"{_PYTHON}/argparse.html",
    "collections.abc.AsyncIterator": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Callable": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Collection": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Coroutine": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Hashable": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Iterable": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Iterator": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Mapping": f"{_PYTHON}/collections.abc.html",
    "collections.abc.Sequence": f"{_PYTHON}/collections.abc.html",
    "collections.UserDict": f"{_PYTHON}/collections.html",
    "concurrent.futures.Future": f"{_PYTHON}/concurrent.futures.html",
    "contextlib.AbstractContextManager": f"{_PYTHON}/contextlib.html",
    "dataclasses.dataclass": f"{_PYTHON}/dataclasses.html",
    "enum.Enum": f"{_PYTHON}/enum.html",
    "enum.IntEnum": f"{_PYTHON}/enum.html",
    "enum.StrEnum": f"{_PYTHON}/enum.html",
    "numpy.ndarray": "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html",
    "pathlib.Path": f"{_PYTHON}/pathlib.html",
    "pydantic.BaseModel": "https://docs.pydantic.dev/latest/api/base_model/",
    "rich.console.Console": "https://rich.readthedocs.io/en/stable/reference/console.html",
    "torch.Generator": f"{_TORCH}/generated/torch.Generator.html",
    "torch.Size": f"{_TORCH}/size.html",
    "torch.Tensor": f"{_TORCH}/tensors.html",
    "torch.device": f"{_TORCH}/tensor_attributes.html",
    "torch.dtype": f"{_TORCH}/tensor_attributes.html",
    "torch.optim.Optimizer": f"{_TORCH}/optim.html",
}


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement) -> nodes.Node | None:
    """Return a link to the name's page, or None to leave it unresolved."""
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if name not in PAGES:
        return _alias(app, env, node, shown)
    return nodes.reference("", "", shown, internal=False, refuri=f"{PAGES[name]}#{name}", reftitle=name)


def _alias(app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement) -> nodes.Node | None:
    """Return a link to one of our type aliases: a signature looks for a class, and the alias is described as data."""
    domain, name = env.domains["py"], node["reftarget"]
    if node.get("reftype") != "class" or getattr(domain, "objects", {}).get(name, (None,) * 3)[2] != "data":
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "data", name, node, shown)


def setup(app: Sphinx) -> dict[str, Any]:
    """Try the table before Sphinx reports a missing reference."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Facts are read off the source of a project that is never imported, and what is not there is named."""

import sys
from pathlib import Path

import pytest

from reference_impl.doctesting.installed import Field, NotFoundError, Source, installed

SOURCE = '''
"""A module that must not be imported."""
raise SystemExit("imported")

from dataclasses import dataclass, field
from enum import Enum

LIMIT: int = 2 * 32
if LIMIT > 3:
    FAST = True
else:
    SLOW = True

class Mode(str, Enum):
    """A mode."""
    ON = "on"
    OFF = "off"

@dataclass
class Options:
    required: int
    size: int = 4
    names: list[str] = field(default_factory=list)
    mode: Mode = field(default=Mode.ON, metadata={"help": "x"})
    marked: str = field(repr=False)

class Engine:
    ROUNDER = 64

    def add(self, prompt: list[int], /, limit=None, *, greedy: bool = False, **rest) -> int: ...
    @classmethod
    def make(cls, size): ...
    @staticmethod
    def check(size: int): ...
    async def step(self): ...
    @abc.abstractmethod
    def one(self): ...
    @property
    @abstractmethod
    def two(self): ...

try:
    import fast
except ImportError:
    def fallback(x): ...
'''


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "pack" / "sub").mkdir(parents=True)
    (tmp_path / "pack" / "sub" / "mod.py").write_text(SOURCE)
    (tmp_path / "pack" / "__init__.py").write_text("VERSION = '1'")
    return Source(tmp_path)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("Engine.add", "(prompt: list[int], /, limit=None, *, greedy: bool=False, **rest) -> int"),
        ("Engine.make", "(size)"),
        ("Engine.check", "(size: int)"),
        ("Engine.step", "()"),
        ("fallback", "(x)"),
    ],
)
def test_a_signature_is_what_a_caller_writes(source: Source, name: str, signature: str) -> None:
    assert source.signature(f"pack.sub.mod.{name}") == signature


def test_fields_have_their_annotation_and_the_default_that_counts(source: Source) -> None:
    assert source.fields("pack.sub.mod.Options") == {
        "required": Field("int", None),
        "size": Field("int", "4"),
        "names": Field("list[str]", "list()"),
        "mode": Field("Mode", "Mode.ON"),
        "marked": Field("str", None),
    }
    assert str(source.field("pack.sub.mod.Options.size")) == "int = 4"
    assert str(source.field("pack.sub.mod.Options.required")) == "int"


def test_members_values_and_methods(source: Source) -> None:
    assert source.members("pack.sub.mod.Mode") == {"ON": "'on'", "OFF": "'off'"}
    assert source.value("pack.sub.mod.Engine.ROUNDER") == "64"
    assert source.value("pack.sub.mod.LIMIT") == "2 * 32"
    assert source.value("pack.sub.mod.SLOW") == "True"
    assert source.value("pack.VERSION") == "'1'"
    assert source.abstract_methods("pack.sub.mod.Engine") == ("one", "two")
    assert source.methods("pack.sub.mod.Engine") == ("add", "make", "check", "step", "one", "two")


@pytest.mark.parametrize(
    ("question", "name", "message"),
    [
        ("field", "pack.sub.mod.Options.sizes", r"pack\.sub\.mod\.Options has no sizes; did you mean size\?"),
        ("signature", "pack.sub.mod.Engin.add", r"pack\.sub\.mod has no Engin; did you mean Engine\?"),
        ("signature", "pack.sub.mod.Options", r"pack\.sub\.mod\.Options is no function"),
        ("fields", "pack.sub.mod.fallback", r"pack\.sub\.mod\.fallback is no class"),
        ("value", "pack.sub.mod.Options.required", r"pack\.sub\.mod\.Options\.required has no value"),
        ("value", "pack.sub.nod.LIMIT", r"pack has no sub"),
        ("value", "pakc.LIMIT", r"pakc\.LIMIT: no module pakc in "),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest_name(
    source: Source, question: str, name: str, message: str
) -> None:
    with pytest.raises(NotFoundError, match=message):
        getattr(source, question)(name)


def test_a_file_that_has_changed_is_read_again(source: Source) -> None:
    file = source.folder / "pack" / "__init__.py"
    assert source.value("pack.VERSION") == "'1'"
    file.write_text("VERSION = '22'")
    assert source.value("pack.VERSION") == "'22'"


def test_an_installed_distribution_is_read_without_being_imported() -> None:
    """Sphinx is loaded by other tests; `mypy` is imported by none."""
    before = {name for name in sys.modules if name.partition(".")[0] == "mypy"}
    assert installed("mypy").signature("mypy.api.run") == "(args: list[str]) -> tuple[str, str, int]"
    assert {name for name in sys.modules if name.partition(".")[0] == "mypy"} == before


def test_a_distribution_that_is_not_installed_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"no distribution 'pytset' is installed; did you mean pytest\?"):
        installed("pytset")

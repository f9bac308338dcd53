"""What is said of upstream is what upstream says: the installed megatron-core, NeMo RL's contract, and where our keys go."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.upstream_trees import changed, copy_files, file_of, write_tree

from reference_impl.config.checking import section_model
from reference_impl.config.schema import Follows, Recipe
from reference_impl.config.upstream import UPSTREAM_KEYS
from reference_impl.config.upstream_facts import MEGATRON_CORE, NEMO_RL, Fact, differences, found
from reference_impl.doctesting.installed import Source, installed

ROOT = Path(__file__).parents[2]
INTERFACES = "reference_impl.generation.interfaces"
NEMO_INTERFACES = "nemo_rl.models.generation.interfaces"


def fields_of(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    """Every key of the schema that is a value, and the default that it has or follows."""
    keys: dict[str, object] = {}
    for name, field in model.model_fields.items():
        section = section_model(field.annotation)
        follows = [mark.expression for mark in field.metadata if isinstance(mark, Follows)]
        if section is None:
            keys[f"{prefix}{name}"] = follows[0] if follows else field.default
        else:
            keys |= fields_of(section, f"{prefix}{name}.")
    return keys


def test_every_key_of_the_schema_has_an_entry_and_every_entry_is_a_key() -> None:
    assert set(UPSTREAM_KEYS) == set(fields_of(Recipe))


def test_every_field_that_a_key_sets_is_pinned() -> None:
    pinned = {tuple(fact.name.split(".")[-2:]) for fact in MEGATRON_CORE if fact.kind == "field"}
    assert {(key.object, key.field) for key in UPSTREAM_KEYS.values() if key.object} <= pinned


@pytest.mark.parametrize("name", UPSTREAM_KEYS)
def test_an_entry_is_complete(name: str) -> None:
    key = UPSTREAM_KEYS[name]
    assert bool(key.object) == bool(key.field)
    assert re.fullmatch(r"NeMo RL (after )?0\.\d(\.\d)?|this project", key.since)
    assert key.on_cpu.endswith(".")


def test_the_installed_megatron_core_is_as_pinned() -> None:
    assert differences(installed("megatron-core"), MEGATRON_CORE) == []


@pytest.fixture(scope="module")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A copy of the files of megatron-core that the facts are about."""
    folder = tmp_path_factory.mktemp("megatron")
    copy_files(MEGATRON_CORE, installed("megatron-core").folder, folder)
    return Source(folder)


@pytest.fixture(scope="module")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A tree of which the facts about NeMo RL are true."""
    folder = tmp_path_factory.mktemp("nemo")
    write_tree(NEMO_RL, folder)
    return Source(folder)


def what_one_change_shows(source: Source, fact: Fact, facts: tuple[Fact, ...]) -> list[str]:
    """The differences while one thing that the fact states is otherwise."""
    file = file_of(fact, source.folder)
    before = file.read_text("utf-8")
    file.write_text(changed(fact, before), "utf-8")
    try:
        return differences(source, facts)
    finally:
        file.write_text(before, "utf-8")


def by_name(fact: Fact) -> str:
    return f"{fact.kind} {fact.name.rpartition(':')[2].split('.', 1)[-1]}"


@pytest.mark.parametrize("fact", MEGATRON_CORE, ids=by_name)
def test_one_change_in_megatron_core_is_reported_and_nothing_else_is(megatron: Source, fact: Fact) -> None:
    (line,) = what_one_change_shows(megatron, fact, MEGATRON_CORE)
    assert line.startswith(f"{fact.name}: pinned {fact.pinned}, found ")
    assert "changed" in line


@pytest.mark.parametrize("fact", NEMO_RL, ids=by_name)
def test_one_change_in_nemo_rl_is_reported_and_nothing_else_is(nemo: Source, fact: Fact) -> None:
    (line,) = what_one_change_shows(nemo, fact, NEMO_RL)
    assert line.startswith(f"{fact.name}: pinned {fact.pinned}, found ")


def test_unchanged_copies_show_no_difference(megatron: Source, nemo: Source) -> None:
    """So that what the two tests above report is the change."""
    assert differences(megatron, MEGATRON_CORE) == []
    assert differences(nemo, NEMO_RL) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda text: text.replace("buffer_size_gb:", "buffer_size_gib:"),
            "InferenceConfig has no buffer_size_gb; did you mean buffer_size_gib?",
        ),
        (lambda text: text.replace("class InferenceConfig", "class EngineConfig"), "has no InferenceConfig"),
        (lambda text: "", "has no InferenceConfig"),
    ],
)
def test_what_is_gone_upstream_is_named(megatron: Source, edit: Callable[[str], str], message: str) -> None:
    fact = next(fact for fact in MEGATRON_CORE if fact.name.endswith("InferenceConfig.buffer_size_gb"))
    file = file_of(fact, megatron.folder)
    before = file.read_text("utf-8")
    file.write_text(edit(before), "utf-8")
    try:
        (line,) = differences(megatron, [fact])
    finally:
        file.write_text(before, "utf-8")
    assert line.startswith(f"{fact.name}: pinned int = 20, found nothing: ")
    assert message in line


def test_a_folder_that_is_no_checkout_is_named_in_every_line(tmp_path: Path) -> None:
    lines = differences(Source(tmp_path), NEMO_RL)
    assert len(lines) == len(NEMO_RL)
    assert all("found nothing: " in line for line in lines)


def test_our_specifications_have_every_field_of_nemo_rl_s() -> None:
    """By the text of both: what NeMo RL requires is a tensor here, too. Ours always say whether they were truncated."""
    ours = Source(ROOT)
    for fact in NEMO_RL:
        owner, _, field = fact.name.rpartition(".")
        if fact.kind != "field" or field == "__extra__":
            continue
        annotation = ours.field(f"{INTERFACES}.{owner.rpartition('.')[2]}.{field}").annotation
        if fact.pinned == "torch.Tensor":
            assert annotation == "Tensor", fact.name
        assert annotation.startswith("NotRequired") == (field == "stop_strings"), fact.name


def test_our_interface_has_every_method_of_nemo_rl_s() -> None:
    """All that a backend has to write there, and the two refit hooks; `init_collective` is left out, as its docstring says."""
    ours = Source(ROOT).methods(f"{INTERFACES}.GenerationInterface")
    signatures = {fact.name.rpartition(".")[2] for fact in NEMO_RL if fact.kind == "signature"}
    abstract = next(fact for fact in NEMO_RL if fact.kind == "abstract methods").pinned.split(", ")
    assert {*signatures, *abstract} - set(ours) == {"init_collective"}
    theirs = next(fact for fact in NEMO_RL if fact.name == f"{NEMO_INTERFACES}.GenerationInterface.generate").pinned
    mine = Source(ROOT).signature(f"{INTERFACES}.GenerationInterface.generate")
    assert (
        theirs
        == "(data: BatchedDataDict['GenerationDatumSpec'], greedy: bool) -> BatchedDataDict['GenerationOutputSpec']"
    )
    assert mine == "(data: BatchedDataDict, greedy: bool=False) -> BatchedDataDict"


@pytest.mark.parametrize("fact", [fact for fact in NEMO_RL if fact.kind == "yaml"], ids=by_name)
def test_our_default_is_nemo_rl_s(nemo: Source, fact: Fact) -> None:
    """Read from the schema on one side and from the pinned recipe on the other; 10 and 10.0 are one number."""
    ours = fields_of(Recipe)[fact.name.split(":")[1]]
    theirs = found(nemo, fact)
    assert theirs in (repr(ours), repr(int(ours)) if isinstance(ours, float) and ours.is_integer() else repr(ours))

"""Which words prose may use as plain code: what the project defines has to be a role, and the list holds nothing idle."""

from pathlib import Path

import pytest
import vocabulary
from support.small_site import EXTENSIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(page for page in EXTENSIONS.parent.rglob("*.md") if "_build" not in page.parts)]
OURS = ["configuration", "commands", "upstream"]


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("buffer_size_gb", "write {key}`buffer_size_gb`"),
        ("policy.generation", "write {key}`policy.generation`"),
        ("async_grpo.recompute_kv_cache_after_weight_updates: true", "write {key}`async_grpo.recompute"),
        ("max_tokens=64", "write {key}`max_tokens=64`"),
        ("async_engine", "write {removed}`async_engine`"),
        ("mcore_generation_config.enable_cuda_graph", "write {removed}`mcore_generation_config.enable_cuda_graph`"),
        ("mean_policy_staleness", "write {metric}`mean_policy_staleness`"),
        ("off_policy/mean", "write {metric}`off_policy/mean`"),
        ("genref report", "write {command}`genref report`, or a console fence"),
        ("--update-every 3", "write {command}`--update-every 3 <genref generate --update-every 3>`"),
        ("EpochRuns", "{py:obj}`~reference_impl.staleness.epochs.EpochRuns`"),
        ("load_recipe()", "{py:obj}`~reference_impl.config.loader.load_recipe`"),
        ("reference_impl.config.loader.load_recipe", "{py:obj}`~reference_impl.config.loader.load_recipe`"),
        (
            "GenerationInterface.generate",
            "{py:obj}`~reference_impl.generation.interfaces.GenerationInterface.generate`",
        ),
        ("prepare_for_generation", ".prepare_for_generation`"),
    ],
)
def test_what_the_project_defines_has_to_be_a_role(code: str, written: str) -> None:
    """The message says which one."""
    reason = vocabulary.accepts(code)
    assert reason is not None
    assert written in reason


@pytest.mark.parametrize(
    "code",
    [
        "persist",
        "null",
        "ValueError",
        "await",
        "examples/recipes/base.yaml",
        "examples/recipes/*.yaml",
        "reference_impl/",
        "conf.py",
        "make test",
        "reference_impl.staleness.epochs",
        "megatron-core",
        "prompt_length",
        "policy_epoch",
        "SequenceRecord.token_ids",
        "InferenceConfig",
        "DynamicInferenceEngine.add_request",
        "EngineState.SUSPENDED",
        "coordinator",
        "input_ids",
    ],
)
def test_a_word_that_exists_elsewhere_may_stand(code: str) -> None:
    assert vocabulary.accepts(code) is None


@pytest.mark.parametrize(
    "code",
    [
        "examples/recipes/bse.yaml",
        "/etc/passwd",
        "../main",
        "make tset",
        "reference_impl.stalness",
        "EngineState.SUSPENED",
        "InferenceConfg",
        "prompt_lenght",
        "5",
        "0.19.2",
        "x = 3",
        "--no-such-option",
        "persit",
    ],
)
def test_a_word_that_exists_nowhere_is_refused(code: str) -> None:
    reason = vocabulary.accepts(code)
    assert reason is not None
    assert reason.startswith("unknown here; ")


def test_every_word_of_the_list_has_a_reason_is_needed_and_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = vocabulary.listed_words()
    assert listed
    assert all(listed.values()), listed
    used = {code for page in PAGES for code in vocabulary.plain_words(page.read_text("utf-8"))}
    assert not set(listed) - used
    monkeypatch.setattr(vocabulary, "listed_words", dict)
    assert not [word for word in listed if vocabulary.accepts(word) is None], "accepted without the list"


@pytest.mark.parametrize("page", OURS)
def test_a_reference_page_is_closed(page: str) -> None:
    text = (EXTENSIONS.parent / "reference" / f"{page}.md").read_text("utf-8")
    assert list(vocabulary.check_prose(text)) == []


def test_a_key_s_name_and_a_number_in_prose_are_found_with_their_lines() -> None:
    page = "# Page\n\nThe cache, `buffer_size_gb`, is\n10 GiB by default.\n"
    assert list(vocabulary.check_prose(page)) == [
        (3, "`buffer_size_gb`: write {key}`buffer_size_gb`"),
        (4, "10: write {value}`10 <expression>` or a role"),
    ]

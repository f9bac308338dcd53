"""What a role names is looked up: it shows the value, links to its row, and fails the build when there is none.

`sphinx-build -W` fails on any warning, so a warning is what these tests demand.
"""

import html
import re
from pathlib import Path

import command_tables
import pytest
import schema_keys
import typer
import upstream_signatures
import upstream_tables
from command_line import commands_of
from support.small_site import SmallSite, build, small_site, write_site

from reference_impl.config.removed import REMOVED_KEYS
from reference_impl.config.upstream_facts import MEGATRON_CORE, NEMO_RL
from reference_impl.doctesting.installed import Source, installed
from reference_impl.staleness.aliases import SYSTEMS

# MyST 5.2 still asks Sphinx for its application in a way that Sphinx 11 will refuse.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")

MCORE = "policy.generation.mcore_generation_config"
ALL_KEYS = "```{key-table}\n" + "\n".join(schema_keys.KEYS) + "\n```\n"
ALL_COMMANDS = "\n".join(f"```{{command-table}} {name}\n```\n" for name in command_tables.COMMANDS)
METRICS = "```{metrics-table}\n```\n\n" + "\n".join(f"```{{alias-table}} {system}\n```\n" for system in SYSTEMS)
REMOVED = "```{removed-table}\n```\n"
EXTENSIONS = ["bound_values", "key_tables", "command_tables", "metric_tables"]


def site_with(folder: Path, text: str, **pages: str) -> SmallSite:
    """A site that documents everything, and says `text`."""
    tables = ALL_KEYS + ALL_COMMANDS + METRICS + REMOVED
    return small_site(folder, EXTENSIONS, index=f"{text}\n\n[tables](tables.md)\n", tables=tables, **pages)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> SmallSite:
    """A page with every role, each right."""
    said = """
{key}`buffer_size_gb`, {key}`policy.generation.top_k`, {key}`async_grpo`, {key}`kv_cache_management_mode: recompute`,
{key}`max_tokens=64`.

Defaults {default}`buffer_size_gb`, {default}`max_new_tokens`, {default}`top_k`, {default}`kv_cache_management_mode`.

Types: {type}`block_size_tokens`; {type}`kv_cache_management_mode`; {type}`stop_token_ids`.

{removed}`async_engine`, {metric}`mean_policy_staleness`, {command}`genref report --text`,
{command}`--json <genref generate --json>`, {command}`genref generate --prompt TEXT key=value`.

{sig}`DynamicInferenceEngine.suspend` and {sig}`InferenceConfig.block_size_tokens`.
"""
    site = site_with(tmp_path_factory.mktemp("site"), said)
    assert site.warnings == []
    return site


@pytest.mark.parametrize(
    "shown",
    [
        "buffer_size_gb, policy.generation.top_k, async_grpo, kv_cache_management_mode: recompute, max_tokens=64.",
        "Defaults 10.0, ${policy.max_total_sequence_length}, null, persist.",
        "Types: integer, more than 0; one of persist, offload, recompute; list of integers, each at least 0, or null.",
        "async_engine, mean_policy_staleness, genref report --text, --json, genref generate --prompt TEXT key=value.",
        "DynamicInferenceEngine.suspend() and InferenceConfig.block_size_tokens: int = 256.",
    ],
)
def test_a_role_shows_what_the_source_says(right: SmallSite, shown: str) -> None:
    assert shown in right.text()


@pytest.mark.parametrize(
    ("shown", "anchor"),
    [
        ("buffer_size_gb", f"key-{MCORE}.buffer_size_gb"),
        ("kv_cache_management_mode: recompute", f"key-{MCORE}.kv_cache_management_mode"),
        ("async_grpo", "key-grpo.async_grpo"),
        ("async_engine", "removed-async_engine"),
        ("mean_policy_staleness", "metric-mean_policy_staleness"),
        ("genref report --text", "command-genref-report-text"),
        ("--json", "command-genref-generate-json"),
    ],
)
def test_a_role_links_as_code_to_the_row_that_describes_it(right: SmallSite, shown: str, anchor: str) -> None:
    words = re.sub(r"<[^>]+>", "", shown)
    links = re.findall(r'<a [^>]*href="tables\.html#([^"]+)"[^>]*><code[^>]*>(.*?)</code></a>', right.html())
    assert (anchor, words) in [(target, re.sub(r"<[^>]+>", "", inside)) for target, inside in links]
    assert f'id="{anchor}"' in right.html("tables")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{key}`buffer_size`", "{key}: unknown key 'buffer_size'; did you mean 'buffer_size_gb'?"),
        ("{key}`mcore.top_k`", "{key}: unknown key 'mcore.top_k'"),
        ("{default}`max_token`", "{default}: unknown key 'max_token'; did you mean 'max_tokens'?"),
        ("{default}`async_grpo`", "{default}: 'async_grpo' is a section and has no default"),
        ("{type}`tempratur`", "{type}: unknown key 'tempratur'; did you mean 'temperature'?"),
        (
            "{key}`kv_cache_management_mode: persit`",
            "'persit' is not one of persist, offload, recompute; did you mean persist?",
        ),
        ("{key}`max_tokens: '64'`", "'64' is not an integer; write 64 without quotes"),
        ("{removed}`buffer_size_gb`", "{removed}: 'buffer_size_gb' is no removed key"),
        ("{removed}`async_engin`", "{removed}: 'async_engin' is no removed key; did you mean 'async_engine'?"),
        (
            "{metric}`mean_policy_stalenes`",
            "{metric}: unknown metric 'mean_policy_stalenes'; did you mean 'mean_policy_staleness'?",
        ),
        (
            "{command}`genref generat`",
            "{command}: unknown command 'genref generat'; did you mean 'genref generate'?",
        ),
        (
            "{command}`genref report --txt`",
            "{command}: unknown option '--txt' of genref report; did you mean '--text'?",
        ),
        ("{command}`genref demo key=1`", "{command}: genref demo takes no argument, got 'key=1'"),
        ("{command}`pytest --json`", "{command}: unknown command 'pytest --json': it begins with genref"),
        (
            "{command}`--text <genref generate --json>`",
            "{command}: '--text' is not how 'genref generate --json' ends",
        ),
        (
            "{sig}`DynamicInferenceEngine.suspnd`",
            "{sig}: no pinned object 'DynamicInferenceEngine.suspnd'; did you mean 'DynamicInferenceEngine.suspend'?",
        ),
        ("{sig}`add_request`", "{sig}: ambiguous object 'add_request': "),
        ("[text](#nowhere)", "[myst.xref_missing]"),
        ("[text](nowhere.md)", "[myst.xref_missing]"),
        ("[text](tables.md#nowhere)", "[myst.xref_missing]"),
        ("{py:func}`reference_impl.nowhere`", "py:func reference target not found: reference_impl.nowhere"),
    ],
)
def test_what_is_not_there_is_a_warning_on_its_line(tmp_path: Path, text: str, warning: str) -> None:
    """With the nearest name, and nothing else is said."""
    (line,) = site_with(tmp_path, f"First line.\n\n{text}\n").warnings
    assert line.startswith("index.md:5: WARNING: ")
    assert warning in line


def test_a_warning_fails_a_strict_build(tmp_path: Path) -> None:
    """As `sphinx-build -W` does it, for one of them."""
    from sphinx.cmd.build import main

    write_site(tmp_path, EXTENSIONS, index=f"{{key}}`nothing`\n\n{ALL_KEYS}{ALL_COMMANDS}{METRICS}{REMOVED}")
    assert main(["-q", "-N", str(tmp_path), str(tmp_path / "out")]) == 0
    assert main(["-W", "-E", "-q", "-N", str(tmp_path), str(tmp_path / "out")]) == 1


def test_an_ending_that_two_keys_share_is_ambiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = schema_keys.KEYS | {"grpo.top_k": schema_keys.KEYS["policy.generation.top_k"]}
    monkeypatch.setattr(schema_keys, "KEYS", keys)
    (line,) = site_with(tmp_path, "{key}`top_k`").warnings
    assert "{key}: ambiguous key 'top_k': " in line


def test_a_row_that_is_on_no_page_is_a_warning(tmp_path: Path) -> None:
    """The key exists, and its table does not."""
    lines = small_site(tmp_path, ["bound_values"], index="{key}`buffer_size_gb`").warnings
    assert any(f"reference target not found: key-{MCORE}.buffer_size_gb" in line for line in lines)


def test_a_key_that_no_table_lists_is_a_warning(tmp_path: Path) -> None:
    """As when somebody adds a key to the schema."""
    index = ALL_KEYS.replace(f"{MCORE}.max_requests\n", "")
    assert small_site(tmp_path, ["key_tables"], index=index).warnings == [
        f"WARNING: key {MCORE}.max_requests is in no {{key-table}} [bound.key-table]"
    ]


def test_a_key_that_two_tables_list_is_a_warning(tmp_path: Path) -> None:
    other = f"```{{key-table}} {MCORE}\nmax_requests\n```\n"
    lines = small_site(tmp_path, ["key_tables"], index=ALL_KEYS, other=other).warnings
    assert any(f"key {MCORE}.max_requests is in 2 tables of the kind {{key-table}}" in line for line in lines)


def test_a_key_that_is_gone_from_the_schema_is_a_warning_on_its_line(tmp_path: Path) -> None:
    (line,) = small_site(tmp_path, ["key_tables"], index=ALL_KEYS.replace("\ngrpo\n", "\ngrpo\ngrop\n")).warnings
    at = 4 + list(schema_keys.KEYS).index("grpo") + 1
    assert line.startswith(f"index.md:{at}: WARNING: {{key-table}}: unknown key 'grop'; did you mean 'grpo'?")


def test_a_command_without_a_table_is_a_warning(tmp_path: Path) -> None:
    index = ALL_COMMANDS.replace("```{command-table} genref demo\n```\n", "")
    assert small_site(tmp_path, ["command_tables"], index=index).warnings == [
        "WARNING: command genref demo is in no {command-table} [bound.command-table]"
    ]


def test_a_command_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    index = f"{ALL_COMMANDS}\n```{{command-table}} genref dmeo\n```\n"
    (line,) = small_site(tmp_path, ["command_tables"], index=index).warnings
    assert "{command-table}: unknown command 'genref dmeo'; did you mean 'genref demo'?" in line


def test_an_option_without_a_word_of_help_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def only(fast: bool = typer.Option(False, "--fast"), slow: bool = typer.Option(False, "--slow", help="Slow.")):
        """Do it."""

    monkeypatch.setattr(command_tables, "COMMANDS", commands_of(app, "tool"))
    monkeypatch.setattr(command_tables, "find_command", lambda text: _mention(command_tables.COMMANDS[text]))
    site = small_site(tmp_path, ["command_tables"], index="```{command-table} tool\n```\n")
    assert site.warnings == ["WARNING: option --fast of tool has no help text [bound.command-table]"]


def _mention(command):
    from command_line import Mention

    return Mention(command, ())


@pytest.fixture
def other_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron Core with another default than the one that is pinned."""
    file = "megatron/core/inference/config.py"
    copy = tmp_path / "upstream" / file
    copy.parent.mkdir(parents=True)
    text = (installed("megatron-core").folder / file).read_text("utf-8")
    assert text.count("block_size_tokens: int = 256") == 1
    copy.write_text(text.replace("block_size_tokens: int = 256", "block_size_tokens: int = 128"))
    monkeypatch.setattr(upstream_signatures, "_megatron_core", lambda: Source(tmp_path / "upstream"))


@pytest.mark.usefixtures("other_upstream")
def test_a_declaration_that_upstream_has_changed_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (line,) = small_site(folder, ["bound_values"], index="{sig}`InferenceConfig.block_size_tokens`").warnings
    assert "InferenceConfig.block_size_tokens: pinned int = 256, found int = 128" in line


def test_a_page_that_is_read_again_keeps_what_the_others_document(tmp_path: Path) -> None:
    """The second build reads one page: no key is lost and none counts twice."""
    write_site(
        tmp_path, EXTENSIONS, index="{key}`demonstration_steps`", keys=ALL_KEYS, commands=ALL_COMMANDS, metrics=METRICS
    )
    assert build(tmp_path).warnings == []
    write_site(
        tmp_path,
        EXTENSIONS,
        index="{key}`demonstration_steps`, again",
        keys=ALL_KEYS,
        commands=ALL_COMMANDS,
        metrics=METRICS,
    )
    assert build(tmp_path, everything=False).warnings == []
    write_site(
        tmp_path,
        EXTENSIONS,
        index="{key}`demonstration_steps`, again",
        keys="Nothing.",
        commands=ALL_COMMANDS,
        metrics=METRICS,
    )
    lost = build(tmp_path, everything=False).warnings
    assert sum("is in no {key-table}" in line for line in lost) == len(schema_keys.KEYS)


def test_pages_may_be_read_by_several_processes(tmp_path: Path) -> None:
    pages = {f"page{number}": "Text." for number in range(12)}
    write_site(
        tmp_path,
        EXTENSIONS,
        index="{key}`demonstration_steps`",
        keys=ALL_KEYS,
        commands=ALL_COMMANDS,
        metrics=METRICS,
        **pages,
    )
    site = build(tmp_path, processes=2)
    assert site.warnings == []
    assert site.app.parallel == 2


def test_a_key_s_row_has_all_that_is_known_of_it(right: SmallSite) -> None:
    """Name, type, unit, default; what it does, and on a CPU if that differs; upstream and since when."""
    row = next(part for part in right.html("tables").split("<tr") if f'id="key-{MCORE}.max_model_len"' in part)
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row.partition(">")[2])).strip()
    assert words == (
        f"{MCORE}.max_model_len integer, more than 0 Unit: tokens Default: ${{policy.max_total_sequence_length}} "
        "Most tokens of one sequence, prompt and response together. "
        "InferenceConfig max_sequence_length Since NeMo RL 0.7"
    )
    assert "On a CPU: Always none: a CPU has no CUDA graphs." in right.text("tables")


def test_every_removed_key_has_a_row_with_what_to_write_now(right: SmallSite) -> None:
    for name, key in REMOVED_KEYS.items():
        assert f'id="removed-{name}"' in right.html("tables")
        assert key.advice in right.text("tables")
    assert "genref lint --fix turns true into cuda_graph_impl: local, false into cuda_graph_impl: none." in (
        right.text("tables")
    )


def test_every_pinned_fact_is_shown(tmp_path: Path) -> None:
    index = "```{upstream-table} megatron-core\n```\n\n```{upstream-table} nemo-rl\n```\n"
    site = small_site(tmp_path, ["upstream_tables"], index=index)
    assert site.warnings == []
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<code.*?</code>", site.html(), re.DOTALL)]
    shown = html.unescape("\n".join(cells))
    for fact in (*MEGATRON_CORE, *NEMO_RL):
        assert fact.pinned in shown
    assert len(cells) == len({*map(upstream_tables.owner_of, (*MEGATRON_CORE, *NEMO_RL))}) + len(
        MEGATRON_CORE + NEMO_RL
    )


def test_facts_of_another_project_are_refused(tmp_path: Path) -> None:
    (line,) = small_site(tmp_path, ["upstream_tables"], index="```{upstream-table} vllm\n```\n").warnings
    assert "expected one of megatron-core, nemo-rl, got 'vllm'" in line

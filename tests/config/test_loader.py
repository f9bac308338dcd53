"""What the loader promises: which file or override wins, what follows what, and the line that an unreadable recipe earns."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.config.loader import check_text, load_recipe

GENERATION = "policy.generation"
MCORE = "policy.generation.mcore_generation_config"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty working directory and gives its relative path, so that messages are short and equal."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str, text: str | bytes) -> Path:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
        return Path(name)

    return _write


def fault(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


# Defaults, parents, overrides


def test_three_keys_stand_alone(write):
    """A recipe of three keys loads, with documented defaults for all others, which follow what it says."""
    path = write("r.yaml", "policy: {model_name: tiny, max_total_sequence_length: 64, generation: {temperature: 0.7}}")
    policy = load_recipe(path).policy
    assert (policy.model_name, policy.generation.max_new_tokens, policy.generation.val_temperature) == ("tiny", 64, 0.7)
    assert policy.generation.mcore_generation_config.max_model_len == 64
    assert policy.generation.mcore_generation_config.block_size_tokens == 256


def test_empty_recipe_asks_for_the_defaults(write):
    """A file with nothing but a comment loads as the documented defaults."""
    assert load_recipe(write("r.yaml", "# nothing\n")).model_dump() == load_recipe(None).model_dump()


def test_overrides_reach_what_follows_them():
    """A sequence length of 1024 makes max_new_tokens and max_model_len 1024; temperature .7 makes val_temperature .7."""
    policy = load_recipe(None, ["policy.max_total_sequence_length=1024", f"{GENERATION}.temperature=.7"]).policy
    assert (policy.generation.max_new_tokens, policy.generation.mcore_generation_config.max_model_len) == (1024, 1024)
    assert (policy.generation.temperature, policy.generation.val_temperature) == (0.7, 0.7)


def test_what_is_written_out_does_not_follow(write):
    """A key that the recipe sets keeps its value when the key that it would follow is overridden."""
    path = write("r.yaml", "policy: {generation: {max_new_tokens: 100}}")
    policy = load_recipe(path, ["policy.max_total_sequence_length=1024"]).policy
    assert (policy.generation.max_new_tokens, policy.generation.mcore_generation_config.max_model_len) == (100, 1024)


def test_later_parent_wins_and_the_file_wins_over_both(write):
    """`defaults: [a, b]`: b wins over a, and the file over b."""
    write("a.yaml", "policy: {generation: {seed: 1, temperature: 0.1, top_p: 0.1}}")
    write("b.yaml", "policy: {generation: {seed: 2, temperature: 0.2}}")
    path = write("c.yaml", "defaults: [a.yaml, b.yaml]\npolicy: {generation: {seed: 3}}")
    generation = load_recipe(path).policy.generation
    assert (generation.seed, generation.temperature, generation.top_p) == (3, 0.2, 0.1)


def test_parents_are_found_beside_the_file_that_names_them(write):
    """A relative parent counts from the folder of the file that names it, at every depth."""
    write("shared/base.yaml", "policy: {model_name: tiny}")
    write("shared/mid.yaml", "defaults: base.yaml")
    path = write("team/run/r.yaml", "defaults: ../../shared/mid.yaml")
    assert load_recipe(path).policy.model_name == "tiny"


def test_two_children_of_one_parent_are_no_cycle(write):
    """A parent that is reached twice is read twice; only a file that reaches itself is refused."""
    write("base.yaml", "policy: {model_name: tiny}")
    write("a.yaml", "defaults: base.yaml")
    write("b.yaml", "defaults: base.yaml")
    assert load_recipe(write("r.yaml", "defaults: [a.yaml, b.yaml]")).policy.model_name == "tiny"


def test_parents_in_a_circle(write):
    """Files that inherit from each other are refused with the whole chain."""
    path = write("a.yaml", "defaults: b.yaml")
    write("b.yaml", "defaults: c.yaml")
    write("c.yaml", "defaults: a.yaml")
    assert (
        fault(path) == "c.yaml:1: defaults: these files inherit from each other: a.yaml -> b.yaml -> c.yaml -> a.yaml"
    )


def test_section_that_replaces_instead_of_merging(write):
    """A top-level section marked `_override_: true` replaces what its parents wrote; documented defaults stay beneath it."""
    write("base.yaml", "policy: {model_name: tiny, generation: {seed: 7}}\ndata: {train: [1]}")
    path = write("r.yaml", "defaults: base.yaml\npolicy: {_override_: true, generation: {top_k: 5}}\n"
                 "data: {_override_: true, train: {name: x}}")  # fmt: skip
    policy = load_recipe(path).policy
    assert (policy.model_name, policy.generation.seed, policy.generation.top_k) == ("smollm2", 1234, 5)


def test_override_signs(write):
    """A plain override sets, `+` adds, `++` does either, `~` takes out what files wrote and lets the default return."""
    path = write("r.yaml", "policy: {generation: {seed: 7, top_k: 5}}")
    overrides = [
        f"{GENERATION}.seed=8",
        f"+{GENERATION}.top_p=0.5",
        f"++{GENERATION}.mode=coordinator",
        f"~{GENERATION}.top_k",
    ]
    generation = load_recipe(path, overrides).policy.generation
    assert (generation.seed, generation.top_p, generation.mode, generation.top_k) == (8, 0.5, "coordinator", None)


def test_last_override_wins():
    """Overrides apply from left to right."""
    overrides = [f"{GENERATION}.seed=1", f"{GENERATION}.seed=2"]
    assert load_recipe(None, overrides).policy.generation.seed == 2


def test_override_values_are_yaml():
    """Lists, quoted text, text with an equals sign, and numbers without a dot keep their YAML meaning."""
    overrides = [
        f"{GENERATION}.stop_token_ids=[2, 11]",
        rf'{GENERATION}.stop_strings=["\n\n", "a=b"]',
        f"{GENERATION}.temperature=5e-1",
        f"{GENERATION}.max_new_tokens=${{policy.generation.seed}}",
    ]
    generation = load_recipe(None, overrides).policy.generation
    assert (generation.stop_token_ids, generation.stop_strings) == ([2, 11], ["\n\n", "a=b"])
    assert (generation.temperature, generation.max_new_tokens) == (0.5, 1234)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"{GENERATION}.temprature=1", f"no key {GENERATION}.temprature; did you mean {GENERATION}.temperature?"),
        ("cluster.num_nodes=2", "no key cluster.num_nodes; +cluster.num_nodes=value adds it"),
        (f"~{GENERATION}.seed", f"{GENERATION}.seed is not set, so there is nothing to remove"),
        (
            "+policy.model_name=x",
            "policy.model_name is already set; write policy.model_name=value or ++policy.model_name=value",
        ),
        (
            f"{GENERATION}.stop_strings=[a",
            "not valid YAML: did not find expected ',' or ']'",
        ),
    ],
)
def test_override_that_does_not_fit(write, override, expected):
    """An override of a key that is not there, is there already, or spells no YAML is refused and quoted."""
    path = write("r.yaml", "policy: {model_name: tiny}")
    assert fault(path, override) == f"override {override!r}: {expected}"


@pytest.mark.parametrize("override", ["", "seed", "=1", "a b=1", "a.b =1", "a..b=1", ".a=1", "+++a=1", "~a=1", "+a"])
def test_malformed_override(override):
    """What has none of the four shapes is refused with the shapes."""
    assert fault(None, override) == (
        f"override {override!r}: malformed; write key=value, +key=value, ++key=value or ~key, with dots in the key "
        "and no space before ="
    )


# Interpolation


def test_interpolation_within_a_recipe(write):
    """A recipe may follow any key of its own, by full name or from its own section."""
    path = write(
        "r.yaml",
        "length: 96\npolicy: {max_total_sequence_length: '${length}', generation: {val_top_p: '${..x}'}, x: 0.5}",
    )
    policy = load_recipe(path).policy
    assert (policy.generation.mcore_generation_config.max_model_len, policy.generation.val_top_p) == (96, 0.5)


def test_unresolved_interpolation(write):
    """An expression that names no key is an error with the key, the expression and the nearest key."""
    path = write("r.yaml", "policy: {generation: {max_new_tokens: '${policy.max_total_seq_length}'}}")
    assert fault(path) == (
        f"r.yaml:1: {GENERATION}.max_new_tokens: cannot resolve ${{policy.max_total_seq_length}}: there is no key "
        "policy.max_total_seq_length; did you mean ${policy.max_total_sequence_length}?"
    )


def test_unknown_resolver_is_reported_once(write):
    """A function that nobody registered is named, without a second line for the default that follows the key."""
    path = write("r.yaml", "policy: {generation: {temperature: '${half:1}'}}")
    assert (
        fault(path)
        == f"r.yaml:1: {GENERATION}.temperature: cannot resolve ${{half:1}} (Unsupported interpolation type half)"
    )


def test_interpolation_in_a_circle(write):
    """Keys that follow each other are an error and no endless loop."""
    path = write("r.yaml", "policy: {generation: {temperature: '${.top_p}', top_p: '${.temperature}'}}")
    first = fault(path).splitlines()[0]
    assert first == f"r.yaml:1: {GENERATION}.temperature: cannot resolve ${{.top_p}} (Recursive interpolation detected)"


def test_sections_of_others_are_not_resolved(write):
    """A section that is not read here may hold expressions that only its reader can resolve."""
    path = write(
        "r.yaml", "policy: {packing: {tokens: '${mul:${policy.max_total_sequence_length}, ${policy.absent}}'}}"
    )
    assert load_recipe(path).policy.max_total_sequence_length == 512


# Files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("policy:\n  model_name: a: b\n", "2:16: not valid YAML: mapping values are not allowed in this context"),
        ("policy:\n  x: 1\n  y: 1\n  x: 2\n", "4:3: key 'x' twice; the first is on line 2"),
        ("policy: {x: 1,\n  x: 2}\n", "2:3: key 'x' twice; the first is on line 1"),
        ("policy: 1\n---\npolicy: 2\n", "2:1: not valid YAML: a second document begins here"),
        (
            "a: !!python/name:os.system\n",
            "1:4: not valid YAML: the tag 'tag:yaml.org,2002:python/name:os.system' has no meaning here",
        ),
        ("a: !!int x\n", "1:4: not valid YAML: 'x' is not a value"),
        ("? [a]\n: 1\n", "1:5: a key has to be plain text, not a list or a mapping"),
        ("policy:\n\tmodel_name: tiny\n", "2:1: not valid YAML: a tab in the margin; indent with spaces"),
        ("a: 1\nb: \x07\n", "2:4: a control character"),
        (b"a: 1\nb: \xff\n", "2:4: not UTF-8 text"),
        ("- a\n- b\n", "1: the top level is a list; expected a mapping of keys to values"),
        ("just text\n", "1: the top level is a str; expected a mapping of keys to values"),
        ("a: 1\ndefaults: 3\n", "2: defaults: 3 is not a path or a list of paths"),
        ("a: &a\n  b: *a\n", "2:6: the anchor &a contains itself"),
        ("a: *b\n", "1:4: not valid YAML: no anchor &b before this alias"),
        ("<<: 3\n", "1:1: not valid YAML: << takes a mapping or a list of mappings"),
        ("x: 1\na: '${b'\n", "2: a: no viable alternative at input '${b'"),
    ],
)
def test_unreadable_recipe(write, text, expected):
    """A file that is no recipe is refused with its path and, where there is one, the line and column, counted from 1."""
    assert fault(write("r.yaml", text)) == f"r.yaml:{expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 10_000_000, "1:1001: not valid YAML: exceeded maximum nesting depth"),
        ("{a: " * 2_500_000, "1:257: nested too deeply to be a recipe"),
        ("- " * 5_000_000, "1:129: nested too deeply to be a recipe"),
        ("a: 1\n" + "b: [x]\n" * 3 + "c: [" + "x, " * 3_000_000, None),
    ],
    ids=["lists", "mappings", "items on a line", "a long list"],
)
def test_ten_megabytes_are_refused_at_once(write, text, expected):
    """Nesting ends after 64 levels, at column 64 w + 1 for w characters a level, a long list after 20 000 values.

    Brackets alone are refused by libyaml's scanner, which looks 1000 of them ahead.
    """
    path = write("r.yaml", text)
    taken = []
    for _ in range(3):  # of which one may fall together with a collection of all that the tests before have left
        start = time.thread_time()
        message = fault(path)
        taken.append(time.thread_time() - start)
    assert min(taken) < 1, "seconds of computing"
    assert message == f"r.yaml:{expected}" if expected else "more than 20000 values" in message


def test_aliases_that_multiply(write):
    """Nine levels of ten aliases each would be a thousand million values; the file is refused and not expanded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    # Line n + 1 adds about 10^(n + 1) values: line 5 is the first to pass 20 000.
    assert fault(write("r.yaml", "\n".join(lines))).startswith("r.yaml:5:")


def test_aliases_that_deepen(write):
    """An alias counts with its own depth: 40 levels within 40 are refused as 80 would be."""
    deep = "[" * 40 + "*a" + "]" * 40
    text = f"a: &a {deep.replace('*a', 'x')}\nb: {deep}\n"
    assert fault(write("r.yaml", text)) == "r.yaml:2:44: nested too deeply to be a recipe, aliases followed"


def test_merge_keys(write):
    """`<<` brings in what the mapping does not write itself, the first of several wins, and lines are those of the anchor."""
    path = write(
        "r.yaml",
        "x: &x {temperature: 0.1, seed: 1}\n"
        "y: &y\n  seed: 2\n  top_p: 7\n"
        "policy:\n  generation:\n    <<: [*x, *y]\n    temperature: 0.5\n",
    )
    assert (
        fault(path) == f"r.yaml:4: {GENERATION}.top_p: 7 is too large; expected at most 1; write 1.0 to keep all tokens"
    )
    generation = load_recipe(path, [f"{GENERATION}.top_p=1.0"]).policy.generation
    assert (generation.temperature, generation.seed) == (0.5, 1)


def test_all_faults_of_the_parents(write):
    """Each parent that cannot be read is named, with the line that asks for it."""
    write("bad.yaml", "a: [\n")
    path = write("r.yaml", "defaults:\n- no.yaml\n- bad.yaml\n- ../gone/x.yaml\n")
    assert fault(path) == (
        "r.yaml:2: defaults: no.yaml: no such file\n"
        "bad.yaml:2:1: not valid YAML: did not find expected node content\n"
        "r.yaml:4: defaults: ../gone/x.yaml: no such file"
    )


def test_a_parent_outside_the_folder(write):
    """`defaults:` may leave the folder; an error in such a parent is named by the path that leads there."""
    write("shared/base.yaml", "policy:\n  device: gpu\n")
    path = write("team/r.yaml", "defaults: ../shared/base.yaml\n")
    assert fault(path).startswith("shared/base.yaml:2: policy.device: 'gpu' is not one of")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("generation: 5", "5 is not a mapping"),
        ("generation: [5]", "[5] is not a mapping"),
        ("generation: null", "null is not a mapping; leave the key out for its default"),
    ],
)
def test_a_section_replaced_by_something_else(write, text, expected):
    """The line names both places: where the value is written and where the section is that it would replace."""
    write("base.yaml", "policy:\n  model_name: tiny\n  generation:\n    seed: 1\n")
    path = write("r.yaml", f"defaults: base.yaml\npolicy:\n  {text}\n")
    assert fault(path) == f"r.yaml:3: {GENERATION}: {expected}; it would replace the section at base.yaml:3"


def test_an_override_replaces_a_section(write):
    """The same for an override, whose own place is the command line."""
    path = write("r.yaml", "policy:\n  generation:\n    seed: 1\n")
    assert fault(path, f"{GENERATION}=5") == (
        f"command line: {GENERATION}: 5 is not a mapping; it would replace the section at r.yaml:2"
    )


def test_a_list_on_a_section_of_others(write):
    """OmegaConf cannot merge a list with a mapping wherever it stands, and neither do we."""
    write("base.yaml", "data:\n  train: {name: x}\n")
    path = write("r.yaml", "defaults: base.yaml\ndata:\n  train: [1]\n")
    assert fault(path) == "r.yaml:3: data.train: [1] is not a mapping; it would replace the section at base.yaml:2"


def test_a_section_that_refers_to_another(write):
    """A section may be another one by reference, and a child may add keys to it, as with OmegaConf."""
    write(
        "base.yaml",
        "engine: {max_tokens: 32, max_requests: 4}\npolicy: {generation: {mcore_generation_config: '${engine}'}}",
    )
    path = write("r.yaml", "defaults: base.yaml\npolicy: {generation: {mcore_generation_config: {max_requests: 8}}}")
    engine = load_recipe(path).policy.generation.mcore_generation_config
    assert (engine.max_tokens, engine.max_requests) == (32, 8)


def test_values_yet_to_be_given(write):
    """`???` asks for an override, does not hide what a parent gave, and is an error while nobody gives a value."""
    write("base.yaml", "policy: {model_name: tiny}")
    path = write("r.yaml", "defaults: base.yaml\npolicy:\n  model_name: ???\n  device: ???\n")
    assert fault(path) == "r.yaml:4: policy.device: ??? has yet to be given; expected a value"
    assert load_recipe(path, ["policy.device=cpu"]).policy.model_name == "tiny"


def test_text_is_checked_as_if_it_lay_in_a_folder(write):
    """`check_text` finds parents in the folder and counts lines in the text."""
    write("recipes/base.yaml", "policy:\n  device: gpu\n")
    with pytest.raises(ConfigError) as caught:
        check_text("defaults: base.yaml\npolicy:\n  model_name: 3\n", "this fence", Path("recipes"))
    assert str(caught.value).splitlines() == [
        "this fence:3: policy.model_name: 3 is not a string; write '3' in quotes",
        "recipes/base.yaml:2: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?",
    ]


def test_missing_recipe(write):
    """A path that leads nowhere is named as it was given."""
    write("other.yaml", "")
    assert fault(Path("no/such.yaml")) == "no/such.yaml: no such file"


def test_missing_parent(write):
    """A parent that does not exist is named with the file that asks for it."""
    path = write("runs/r.yaml", "defaults: ../base.yaml")
    assert fault(path) == "runs/r.yaml:1: defaults: base.yaml: no such file"


def test_dates_stay_text(write):
    """A run name that looks like a date is text, as it would be for NeMo RL."""
    assert load_recipe(write("r.yaml", "policy: {model_name: 2026-01-31}")).policy.model_name == "2026-01-31"


PIECES = ["a", "b: ", "- ", "[", "]", "{", "}", ",", ": ", "\n", "  ", "\t", "&x ", "*x", "<<: ", "? ", "| ", '"', "'", "#", "${", "}",
          "!!int ", "---\n", "policy: ", "defaults: ", "???", "null", "1e5", "%"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.binary(max_size=40))
def test_any_text_gives_a_recipe_or_a_config_error(tmp_path_factory, text):
    """Whatever a file holds, reading it ends in a recipe or in a ConfigError that names the file."""
    path = tmp_path_factory.mktemp("any") / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = str(path)
    try:
        load_recipe(path)
    except ConfigError as error:
        message = str(error)
    assert all(line.startswith(str(path.parent)) for line in message.splitlines())


# Messages and what was explicit


def test_a_problem_is_blamed_on_the_file_that_wrote_it(write):
    """A line names the parent, the recipe or the command line, whichever wrote the value last."""
    write("base.yaml", "policy: {generation: {seed: x, top_k: x}}")
    path = write(
        "r.yaml", "defaults: base.yaml\npolicy: {generation: {top_k: y, mcore_generation_config: {max_token: 64}}}"
    )
    assert fault(path, "policy.device=gpu") == (
        f"r.yaml:2: {MCORE}.max_token: unknown key; did you mean max_tokens?\n"
        "command line: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?\n"
        f"r.yaml:2: {GENERATION}.top_k: 'y' is not an integer; write null to keep all tokens\n"
        f"base.yaml:1: {GENERATION}.seed: 'x' is not an integer"
    )


def test_explicit_keys(write):
    """`explicit` holds what the recipe and the overrides write, and of a parent only what differs from the default."""
    write("base.yaml", "policy: {model_name: smollm2, generation: {seed: 7, top_p: 1.0, max_new_tokens: 8}}")
    path = write("r.yaml", "defaults: base.yaml\npolicy: {generation: {top_k: null, temperature: 1.0}}")
    explicit = load_recipe(path, [f"{MCORE}.num_cuda_graphs=4", f"~{GENERATION}.max_new_tokens"]).explicit
    assert explicit == {
        f"{GENERATION}.seed",
        f"{GENERATION}.top_k",
        f"{GENERATION}.temperature",
        f"{MCORE}.num_cuda_graphs",
    }
    assert load_recipe(None).explicit == frozenset()


def test_example_base_makes_nothing_explicit():
    """Inheriting from the file that writes every default out makes no key explicit."""
    recipe = load_recipe(Path(__file__).parents[2] / "examples" / "recipes" / "smollm2-megatron-coordinator.yaml")
    assert f"{GENERATION}.mode" in recipe.explicit
    assert f"{MCORE}.block_size_tokens" in recipe.explicit
    assert f"{MCORE}.num_cuda_graphs" not in recipe.explicit


@pytest.mark.parametrize(
    ("name", "meant"), [("max_token", "max_tokens"), ("MAX-TOKENS", "max_tokens"), ("gpro", "grpo"), ("zebra", None)]
)
def test_nearest(name, meant):
    """The nearest name ignores case and hyphens, sees through swapped letters, and is none where nothing is alike."""
    assert nearest(name, ["max_tokens", "max_requests", "grpo"]) == meant


def test_reading_a_recipe_loads_no_heavy_library():
    """A recipe is read without torch and without megatron-core."""
    code = (
        "import sys, reference_impl.config.loader as loader; loader.load_recipe(None); "
        "assert not {'torch', 'megatron'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])

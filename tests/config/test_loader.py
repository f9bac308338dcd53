"""What the loader promises: which file or override wins, what follows what, and the line that an unreadable recipe earns."""

import subprocess
import sys
from pathlib import Path

import pytest

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.config.loader import load_recipe

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
    assert fault(path) == "a.yaml: defaults: these files inherit from each other: a.yaml -> b.yaml -> c.yaml -> a.yaml"


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
            "line 1, column 3: not valid YAML: expected ',' or ']', but got '<stream end>'",
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
        f"r.yaml: {GENERATION}.max_new_tokens: cannot resolve ${{policy.max_total_seq_length}}: there is no key "
        "policy.max_total_seq_length; did you mean ${policy.max_total_sequence_length}?"
    )


def test_unknown_resolver_is_reported_once(write):
    """A function that nobody registered is named, without a second line for the default that follows the key."""
    path = write("r.yaml", "policy: {generation: {temperature: '${half:1}'}}")
    assert (
        fault(path)
        == f"r.yaml: {GENERATION}.temperature: cannot resolve ${{half:1}} (Unsupported interpolation type half)"
    )


def test_interpolation_in_a_circle(write):
    """Keys that follow each other are an error and no endless loop."""
    path = write("r.yaml", "policy: {generation: {temperature: '${.top_p}', top_p: '${.temperature}'}}")
    first = fault(path).splitlines()[0]
    assert first == f"r.yaml: {GENERATION}.temperature: cannot resolve ${{.top_p}} (Recursive interpolation detected)"


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
        ("policy:\n  model_name: a: b\n", "line 2, column 16: not valid YAML: mapping values are not allowed here"),
        ("policy:\n  x: 1\n  y: 1\n  x: 2\n", "line 4, column 3: not valid YAML: key 'x' twice"),
        ("policy: 1\n---\npolicy: 2\n", "line 2, column 1: not valid YAML: but found another document"),
        ("a: !!python/name:os.system\n", None),
        ("a: 1\nb: \x07\n", "line 2, column 4: a control character"),
        (b"a: 1\nb: \xff\n", "line 2, column 4: not UTF-8 text"),
        ("- a\n- b\n", "the top level is a list; expected a mapping of keys to values"),
        ("just text\n", "the top level is a str; expected a mapping of keys to values"),
        ("defaults: 3\n", "defaults: 3 is not a path or a list of paths"),
        ("a: &a {b: *a}\n", "an anchor that contains itself"),
        ("a: '${b'\n", "a: no viable alternative at input '${b'"),
    ],
)
def test_unreadable_recipe(write, text, expected):
    """A file that is no recipe is refused with its path and, where there is one, the line and column, counted from 1."""
    message = fault(write("r.yaml", text))
    assert (
        message.startswith("r.yaml: line 1, column 4: not valid YAML")
        if expected is None
        else message == f"r.yaml: {expected}"
    )


def test_missing_recipe(write):
    """A path that leads nowhere is named as it was given."""
    write("other.yaml", "")
    assert fault(Path("no/such.yaml")) == "no/such.yaml: no such file"


def test_missing_parent(write):
    """A parent that does not exist is named with the file that asks for it."""
    path = write("runs/r.yaml", "defaults: ../base.yaml")
    assert fault(path) == "runs/r.yaml: defaults: base.yaml: no such file"


def test_dates_stay_text(write):
    """A run name that looks like a date is text, as it would be for NeMo RL."""
    assert load_recipe(write("r.yaml", "policy: {model_name: 2026-01-31}")).policy.model_name == "2026-01-31"


# Messages and what was explicit


def test_a_problem_is_blamed_on_the_file_that_wrote_it(write):
    """A line names the parent, the recipe or the command line, whichever wrote the value last."""
    write("base.yaml", "policy: {generation: {seed: x, top_k: x}}")
    path = write(
        "r.yaml", "defaults: base.yaml\npolicy: {generation: {top_k: y, mcore_generation_config: {max_token: 64}}}"
    )
    assert fault(path, "policy.device=gpu") == (
        f"r.yaml: {MCORE}.max_token: unknown key; did you mean max_tokens?\n"
        "command line: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?\n"
        f"r.yaml: {GENERATION}.top_k: 'y' is not an integer; write null to keep all tokens\n"
        f"base.yaml: {GENERATION}.seed: 'x' is not an integer"
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

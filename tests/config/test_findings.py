"""What lint promises: every mistake of a file at its line in one run, a parent's once, and silence about sound recipes."""

import dataclasses
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from reference_impl.config.findings import Finding
from reference_impl.config.lint import lint
from reference_impl.config.removed import REMOVED_KEYS

SHAPES = Path(__file__).parent / "nemo_shapes"
RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
GENERATION = "policy.generation"
MCORE = "policy.generation.mcore_generation_config"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty working directory and gives its relative path."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str, text: str) -> Path:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
        return Path(name)

    return _write


def processor_seconds() -> float:
    """What the processes that this one started and has seen end have taken of a processor."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def said(findings: list[Finding]) -> list[str]:
    return [f"{finding.severity} {finding}" for finding in findings]


TEN_MISTAKES = """\
# a recipe with ten mistakes
polcy: {}
policy:
  model_name: tiny
  model_name: smollm2
  max_total_sequence_length: "512"
  generation:
    temprature: 0.7
    top_p: 1.5
    max_new_tokens: ${policy.max_total_seq_length}
    stop_strings:
    - END
    - ""
    mcore_generation_config:
      # two engine keys that are gone or never were
      enable_cuda_graph: true
      max_token: 64

grpo:
  async_grpo: 3
"""


def test_ten_mistakes_in_one_run(write):
    """Each of ten different mistakes is named at its own line, counted by hand, with what to write instead."""
    path = write("r.yaml", TEN_MISTAKES)
    expected = [
        (2, "polcy", "unknown key; did you mean policy?"),
        (5, None, "key 'model_name' twice; the first is on line 4"),
        (6, "policy.max_total_sequence_length", "'512' is not an integer; write 512 without quotes"),
        (8, f"{GENERATION}.temprature", "unknown key; did you mean temperature?"),
        (9, f"{GENERATION}.top_p", "1.5 is too large; expected at most 1; write 1.0 to keep all tokens"),
        (
            10,
            f"{GENERATION}.max_new_tokens",
            (
                "cannot resolve ${policy.max_total_seq_length}: there is no key policy.max_total_seq_length; "
                "did you mean ${policy.max_total_sequence_length}?"
            ),
        ),
        (13, f"{GENERATION}.stop_strings[1]", "'' would stop before the first token; expected at least one character"),
        (
            16,
            f"{MCORE}.enable_cuda_graph",
            "renamed; use cuda_graph_impl: local for true, none for false (since megatron-core 0.15)",
        ),
        (17, f"{MCORE}.max_token", "unknown key; did you mean max_tokens?"),
        (20, "grpo.async_grpo", "3 is not a mapping"),
    ]
    found = [(finding.line, finding.key, finding.message) for finding in lint([path])]
    assert found == expected
    assert {finding.severity for finding in lint([path])} == {"error"}


def test_a_contradiction_between_keys_is_found_beside_other_mistakes(write):
    """A check of two keys together runs although a third is wrong."""
    path = write(
        "r.yaml",
        "grpo: {async_grpo: {recompute_kv_cache_after_weight_updates: true}}\n"
        "policy:\n  generation:\n    top_p: 2\n    mcore_generation_config:\n      kv_cache_management_mode: offload\n",
    )
    assert [(finding.line, finding.code) for finding in lint([path])] == [(4, "value"), (6, "conflict")]


def test_a_problem_of_a_parent_is_named_once(write):
    """A hundred children of a parent with two mistakes: two findings, at the parent's lines."""
    write(
        "base.yaml", "policy:\n  device: gpu\n  generation:\n    mcore_generation_config:\n      async_engine: true\n"
    )
    children = [write(f"child{n}.yaml", f"defaults: base.yaml\npolicy: {{model_name: m{n}}}\n") for n in range(100)]
    assert said(lint(children)) == [
        "error base.yaml:2: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?",
        f"error base.yaml:5: {MCORE}.async_engine: {REMOVED_KEYS['async_engine']}",
    ]


def test_a_removed_key_in_parent_and_child_is_two_findings(write):
    """The child's value hides the parent's, and both files have to be mended."""
    write("base.yaml", "policy: {generation: {mcore_generation_config: {async_engine: true}}}")
    path = write(
        "r.yaml", "defaults: base.yaml\n\npolicy: {generation: {mcore_generation_config: {async_engine: false}}}"
    )
    assert [finding.place for finding in lint([path])] == ["base.yaml:1", "r.yaml:3"]


def test_a_file_is_checked_although_its_parent_is_missing(write):
    """The missing parent and the file's own mistakes are found; what a parent may have held is not held against it."""
    path = write("r.yaml", "defaults: no.yaml\npolicy:\n  max_total_sequence_length: ${shared.length}\n  device: gpu\n")
    assert said(lint([path])) == [
        "error r.yaml:1: defaults: no.yaml: no such file",
        "error r.yaml:4: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?",
    ]


def test_files_that_cannot_be_read_do_not_hide_others(write):
    """Every file has its say; the same file named twice has it once."""
    good, bad = write("good.yaml", "policy: {device: gpu}"), write("bad.yaml", "a: [\n")
    assert [finding.place for finding in lint([bad, Path("no.yaml"), good, good])] == [
        "bad.yaml:2:1",
        "no.yaml",
        "good.yaml:1",
    ]


@pytest.mark.parametrize("name", ["base", "other-backend", "megatron"])
def test_sound_recipes_of_nemo_rl_earn_no_line(name):
    """Keys of trainers and of other backends, their functions and variables, and values given later are no faults."""
    assert said(lint([SHAPES / f"{name}.yaml"])) == []


def test_what_only_nemo_rl_does_is_a_warning():
    """Generation with a model of its own, training graphs, automatic sizes and a server: refused on loading, no error here."""
    findings = lint([SHAPES / "dedicated-model.yaml"])
    assert [(finding.line, finding.key.rpartition(".")[2]) for finding in findings] == [
        (5, "transformer_impl"),
        (6, "tensor_model_parallel_size"),
        (7, "cuda_graph_impl"),
        (8, "num_cuda_graphs"),
        (9, "expose_http_server"),
    ]
    assert {finding.severity for finding in findings} == {"warning"}


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_recipes_are_clean(recipe):
    """What we ship lints without a line."""
    assert said(lint([recipe])) == []


IDLE = {
    "cuda_graph_impl: none\n      num_cuda_graphs: 8": (5, "8 has no effect: cuda_graph_impl: none captures no graph"),
    "cuda_graph_impl: none\n      inference_cuda_graph_scope: layer": (5, "'layer' has no effect"),
    "cuda_graph_impl: none\n      use_cuda_graphs_for_non_decode_steps: true": (5, "true has no effect"),
    "seed_is_elsewhere: &p [x]\n      parsers: [hermes]": (5, "['hermes'] has no effect: only the HTTP server"),
    "max_tokens: 64\n      max_model_len: 600": (5, "600 is more than policy.max_total_sequence_length: 512"),
    "max_tokens: 8\n      max_requests: 9": (5, "9 is more than max_tokens: 8"),
}


@pytest.mark.parametrize(("text", "expected"), IDLE.items())
def test_keys_without_effect(write, text, expected):
    """A valid key that does nothing where it stands earns a line that says which other key is the reason."""
    path = write("r.yaml", f"policy:\n  generation:\n    mcore_generation_config:\n      {text}\n")
    found = [finding for finding in lint([path]) if finding.code in ("no-effect", "limit")]
    assert [finding.line for finding in found] == [expected[0]]
    assert found[0].message.startswith(expected[1])
    assert found[0].severity == ("error" if "max_requests" in text else "warning")


@pytest.mark.parametrize(
    "text",
    [
        "cuda_graph_impl: none\n      num_cuda_graphs: 0",
        "cuda_graph_impl: none",
        "cuda_graph_impl: local\n      num_cuda_graphs: 8",
    ],
)
def test_keys_that_ask_for_nothing_more(write, text):
    """Off is no contradiction of off, and a default that nobody wrote is nobody's mistake."""
    assert lint([write("r.yaml", f"policy:\n  generation:\n    mcore_generation_config:\n      {text}\n")]) == []


def test_greedy_makes_top_p_idle(write):
    """Beside temperature 0 a top_p of 0.9 cuts nothing; one that a parent wrote for sampling is not the child's mistake."""
    both = write("both.yaml", "policy:\n  generation:\n    temperature: 0\n    top_p: 0.9\n")
    assert [(finding.line, finding.code) for finding in lint([both])] == [(4, "no-effect")]
    write("parent.yaml", "policy:\n  generation:\n    top_p: 0.9\n")
    assert lint([write("child.yaml", "defaults: parent.yaml\npolicy:\n  generation:\n    temperature: 0\n")]) == []


def test_findings_are_frozen():
    """A finding is a value: equal ones are one, and none changes."""
    one = Finding("r.yaml", 3, None, "error", "a.b", "wrong", "value")
    assert one == dataclasses.replace(one)
    assert str(one) == "r.yaml:3: a.b: wrong"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.line = 4


def test_a_hundred_recipes_take_under_three_seconds(write):
    """A hundred children of a written-out base, in a process of its own and with its start; other processes do not count."""
    write("base.yaml", (RECIPES / "base.yaml").read_text())
    children = [str(write(f"{n}.yaml", f"defaults: base.yaml\npolicy:\n  model_name: m{n}\n")) for n in range(100)]
    code = (
        "import sys; from reference_impl.cli.main import run\n"
        "try: run()\n"
        "finally: assert not {'torch', 'megatron'} & set(sys.modules)"
    )
    start = processor_seconds()
    done = subprocess.run([sys.executable, "-c", code, "lint", *children], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "100 files: 0 errors, 0 warnings\n", "")
    assert processor_seconds() - start < 3

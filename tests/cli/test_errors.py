"""What a user can mend: exit status 2, one line on standard error that says what to do, no traceback."""

from __future__ import annotations

import re

import pytest

TINY = ("generate", "--model", "tiny", "--max-new-tokens", "4")
MCORE = "policy.generation.mcore_generation_config"

WRONG = {
    "an unknown backend": (
        (*TINY, "--prompt", "a", "--backend", "megatrn"),
        "policy.generation.backend: no backend 'megatrn'; did you mean megatron?",
    ),
    "an unknown model": (
        ("generate", "--prompt", "a", "--model", "smollm"),
        "no model 'smollm': not a known name, a model folder or a .gguf file; did you mean smollm2?",
    ),
    "a model whose name YAML would take for a number": (
        ("generate", "--prompt", "a", "--model", "8"),
        "no model '8': not a known name, a model folder or a .gguf file; known names: smollm2, tiny",
    ),
    "an unknown model, demo": (("demo", "--model", "tny"), re.compile("no model 'tny': .*; did you mean tiny[?]")),
    "an unknown mode, demo": (
        ("demo", "--mode", "cordinator"),
        re.compile(r"command line: policy\.generation\.mode: 'cordinator' .*; did you mean coordinator[?]"),
    ),
    "a missing recipe": ((*TINY, "--prompt", "a", "--config", "nowhere.yaml"), "nowhere.yaml: no such file"),
    "unreadable YAML": (
        (*TINY, "--prompt", "a", "--config", "broken.yaml"),
        re.compile(r"broken\.yaml:2:16: not valid YAML: .*"),
    ),
    "an unknown engine key in a recipe": (
        (*TINY, "--prompt", "a", "--config", "misspelt.yaml"),
        f"misspelt.yaml:4: {MCORE}.max_token: unknown key; did you mean max_tokens?",
    ),
    "an unknown engine key on the command line": (
        (*TINY, "--prompt", "a", f"+{MCORE}.buffer_size_gib=1"),
        f"command line: {MCORE}.buffer_size_gib: unknown key; did you mean buffer_size_gb?",
    ),
    "a wrong type": (
        (*TINY, "--prompt", "a", f"{MCORE}.block_size_tokens='16'"),
        f"command line: {MCORE}.block_size_tokens: '16' is not an integer; write 16 without quotes",
    ),
    "no temperature": (
        (*TINY, "--prompt", "a", "policy.generation.temperature=null"),
        "command line: policy.generation.temperature: null is not a number; write 0 for greedy or 1.0",
    ),
    "top_p above 1": (
        (*TINY, "--prompt", "a", "policy.generation.top_p=1.5"),
        re.compile(r"command line: policy\.generation\.top_p: 1\.5 is too large; .*"),
    ),
    "more requests than a step has tokens": (
        (*TINY, "--prompt", "a", f"{MCORE}.max_requests=9", f"{MCORE}.max_tokens=8"),
        re.compile(rf"{MCORE}\.max_requests: 9 is more than max_tokens: 8; .*"),
    ),
    "no prompt": (
        TINY,
        "no prompt: give --prompt TEXT, or --prompt - and one prompt a line on standard input",
    ),
    "an empty prompt": ((*TINY, "--prompt", ""), "prompt 1: the prompt is empty; at least one token is needed"),
    "a prompt that is not text": ((*TINY, "--prompt", "a", "--prompt", "\udcff"), "prompt 2: not UTF-8 text"),
    "a prompt longer than the context": (
        (*TINY, "--prompt", "a" * 17, "policy.max_total_sequence_length=16"),
        "prompt 1: the prompt has 17 tokens, more than max_model_len: 16",
    ),
    "a file where the run folder should be": (
        (*TINY, "--prompt", "a", "--run-folder", "broken.yaml"),
        "run folder broken.yaml: cannot be written (File exists)",
    ),
    "a run folder below a file": (
        (*TINY, "--prompt", "a", "--run-folder", "broken.yaml/run"),
        re.compile("run folder broken.yaml.*: cannot be written [(]Not a directory[)]"),
    ),
    "a full disk": ((*TINY, "--prompt", "a", "--run-folder", "full"), "No space left on device"),
    "an option of the wrong type": (
        (*TINY, "--prompt", "a", "--max-new-tokens", "x"),
        re.compile("Invalid value for '--max-new-tokens': .*valid integer.*"),
    ),
    "an option out of range": (
        (*TINY, "--prompt", "a", "--update-every", "0"),
        re.compile("Invalid value for '--update-every': .*"),
    ),
    "an unknown option": ((*TINY, "--promt", "a"), re.compile("No such option: --promt .*--prompt.*")),
    "an option without its value": ((*TINY, "--prompt"), "Option '--prompt' requires an argument."),
    "an unknown command": (("generat",), "No such command 'generat'. Did you mean 'generate'?"),
    "an argument that is no override": (
        (*TINY, "--prompt", "a", "b"),
        re.compile("override 'b': malformed; write key=value, .*"),
    ),
}


@pytest.fixture
def folder(tmp_path):
    """Where the commands of the table run."""
    (tmp_path / "broken.yaml").write_text("policy:\n  model_name: a: b\n")
    (tmp_path / "misspelt.yaml").write_text(
        "policy:\n  generation:\n    mcore_generation_config:\n      max_token: 5\n"
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "run.jsonl").symlink_to("/dev/full")


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_one_line_and_status_2(genref, folder, arguments, message):
    result = genref(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("genref: ")
    assert result.err.count("\n") == 1
    said = result.err.removeprefix("genref: ").rstrip("\n")
    assert message.fullmatch(said) if isinstance(message, re.Pattern) else said == message


@pytest.mark.parametrize("stdin", ["", "\n  \n", None], ids=["empty", "blank", "closed"])
def test_standard_input_without_a_prompt(genref, stdin):
    result = genref(*TINY, "--prompt", "-", stdin=stdin)
    assert (result.status, result.err) == (2, "genref: no prompt: standard input holds no line of text\n")


def test_two_problems_are_two_lines(genref):
    result = genref(*TINY, "--prompt", "a", "policy.generation.top_p=0", "policy.generation.seed=-1")
    assert result.status == 2
    assert [line[: line.index(":")] for line in result.err.splitlines()] == ["genref", "genref"]


def test_a_buffer_too_small_says_what_is_needed_and_that_is_enough(genref):
    arguments = ("generate", "--model", "tiny", "--prompt", "abc", f"{MCORE}.block_size_tokens=16")
    result = genref(*arguments, "--max-new-tokens", "61", f"{MCORE}.buffer_size_gb=0.0001")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    # 3 + 61 tokens are 4 blocks of 16. A block is 16 tokens x 5 layers x 2 heads x 32 x (K and V) x 4 bytes = 40960
    # bytes; with the one that the engine keeps for itself 5 are 0.00019... GiB.
    needed = re.fullmatch(
        r"genref: prompt 1: 64 tokens need 4 KV blocks of 16, .*set buffer_size_gb to (\S+) or more\n", result.err
    )
    assert needed
    assert needed[1] == "0.0002"
    assert genref(*arguments, "--max-new-tokens", "61", f"{MCORE}.buffer_size_gb={needed[1]}").status == 0

"""`genref plan`: the whole table against numbers worked out by hand, sweeps, plots, errors, and how fast it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import cpu_time

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
LLAMA = str(RECIPES / "grpo-llama3.2-1b-instruct-1n8g-megatron_generation.yaml")
TINY = str(RECIPES / "tiny-megatron.yaml")

# A block: K and V * 16 layers * 256 tokens * 8 heads * 64 * 2 bytes = 8 MiB; 10 GiB are 1280 of them, one the
# engine's own. 256 + 256 tokens cache 511, two blocks: 1279 // 2 = 639, and of 2559 blocks 1279. max_requests: 1279
# down to a multiple of four. Steps: 639 * 256 = 163584 = 9.98 * 16384. Logits: 1276 * 128256 * 2 bytes. Graphs up to
# 1276 tokens, halved to 638, 318 (an even number) and then the smallest; with prompts, for 1, 2, 4, ..., 1024 and all
# 1276 of them as far as the tokens go: 11 + 10 + 9, and one more for each of the three sizes where the prompts are
# all tokens. Weights: 1235814400 * 2. Tables: 16384 * 36 + 1276 * 60 + 12 bytes.
PLAN = """\
meta-llama/Llama-3.2-1B-Instruct
bfloat16, 1 rank

KV cache
  block                   8.00 MiB       256 tokens, all layers
  buffer                 10.00 GiB       1280 blocks, 1 the engine's own
  active                  1279 blocks    327424 tokens
  paused                     0 blocks    a paused request may be evicted

Requests of 256 prompt and 256 response tokens
  each holds                 2 blocks    511 tokens cached in the end
  max_requests            1276 requests  from buffer_size_gb
  admitted                1276 requests  there is room for their prompts
  run at once              639 requests  to full length, none evicted
  Limited by buffer_size_gb: 20 gives 1279 requests instead of 639.

A step
  at most                16384 tokens    max_tokens, prompts and responses
  all decoding             639 tokens    one a request
  all prompts           163584 tokens    10 steps at least
  logits                312.15 MiB       1276 rows, one a request

CUDA graphs
  decode                     4 graphs    for 1276 638 318 1 tokens
  with prompts              33 graphs    for 1276 638 318 tokens

Memory of a GPU
  weights                 2.30 GiB       1235814400 parameters
  KV cache               10.00 GiB
  logits                624.29 MiB       a step's, and a graph's copy
  tables                650.78 KiB       ids, positions, block numbers
  sum                    12.91 GiB
  fits, leaving          67.09 GiB       of 80 GiB
  Not counted: activations, sampling, memory of the CUDA context, of graphs and
  of NCCL, and, where this GPU also trains, gradients and optimizer.
"""


def test_the_whole_table(genref):
    result = genref("plan", LLAMA, "--gpu-memory", "80")
    assert (result.status, result.err) == (0, "")
    assert result.out == PLAN
    assert max(map(len, PLAN.splitlines())) <= 80


def test_without_a_gpu_nothing_is_said_to_fit(genref):
    out = genref("plan", LLAMA).out
    assert out == PLAN.replace("  fits, leaving          67.09 GiB       of 80 GiB\n", "")


def test_what_does_not_fit_is_status_1(genref):
    result = genref("plan", LLAMA, "--gpu-memory", "12")
    assert result.status == 1
    assert "  does not fit, lacks   934.06 MiB       of 12 GiB\n" in result.out


def test_overrides_and_lengths(genref):
    """Twice the buffer, requests of one block: 2556 at once, a multiple of four."""
    key = "policy.generation.mcore_generation_config.buffer_size_gb=20"
    out = genref("plan", LLAMA, key, "--prompt-tokens", "100", "--response-tokens", "50").out
    assert "Requests of 100 prompt and 50 response tokens\n  each holds                 1 blocks" in out
    assert "  run at once             2556 requests" in out


def test_json_has_the_same_figures_unrounded(genref):
    tree = json.loads(genref("plan", LLAMA, "--gpu-memory", "80", "--format", "json").out)
    assert tree["cache"]["block_bytes"] == 8 * 2**20
    assert tree["requests"]["at_once"] == 639
    assert tree["requests"]["next_larger"] == {"changes": {"buffer_size_gb": 20.0}, "at_once": 1279}
    assert len(tree["cuda_graphs"]) == 37
    assert tree["memory"]["total"] == 2 * 1235814400 + 10 * 2**30 + 2 * 1276 * 256512 + 16384 * 36 + 1276 * 60 + 12
    assert tree["fits"] is True


def test_a_sweep_is_a_table(genref):
    result = genref("plan", LLAMA, "--sweep", "buffer_size_gb=5,10,20", "--gpu-memory", "13")
    assert result.out == (
        "buffer_size_gb  blocks  max_requests  at once     memory  limited by      fits 13 GiB\n"
        "             5     640           636      319   7.61 GiB  buffer_size_gb  yes\n"
        "            10    1280          1276      639  12.91 GiB  buffer_size_gb  yes\n"
        "            20    2560          2556     1279  23.52 GiB  buffer_size_gb  no\n"
    )
    assert result.status == 0, "a sweep looks for what fits"


def test_a_sweep_as_json(genref):
    trees = json.loads(genref("plan", TINY, "--sweep", "max_requests=8,16", "--format", "json").out)
    assert [tree["policy.generation.mcore_generation_config.max_requests"] for tree in trees] == ["8", "16"]
    assert [tree["requests"]["at_once"] for tree in trees] == [8, 16]


def test_a_picture_of_a_sweep(genref, tmp_path):
    """Bars as long as the numbers are large: the longest 300 pixels, half the requests half of it."""
    assert genref("plan", TINY, "--sweep", "max_requests=8,16", "--plot", "sweep.svg").status == 0
    root = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width")) for bar in root.iter(f"{space}rect")]
    assert widths[:2] == [150.0, 300.0]
    assert len(widths) == 4
    texts = [text.text for text in root.iter(f"{space}text")]
    assert texts[:5] == ["Requests that run at once, by max_requests", "8", "8 requests", "16", "16 requests"]


def test_a_page_of_a_sweep_fetches_nothing(genref, tmp_path):
    assert genref("plan", TINY, "--sweep", "max_requests=8,16", "--plot", "sweep.html").status == 0
    page = (tmp_path / "sweep.html").read_text("utf-8")
    figures = json.loads(page.split('<script id="figures" type="application/json">')[1].split("</script>")[0])
    assert [figure["data"][0]["x"] for figure in figures.values()] == [["8", "16"]] * 2
    assert figures["figure0"]["data"][0]["y"] == [8, 16]
    assert 'aria-label="Requests that run at once: 8 requests, 16 requests"' in page
    assert "<td>16</td>" in page
    assert not [tag for tag in ('<link rel="stylesheet', 'src="http', "@import") if tag in page]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "none.yaml"),
        ([TINY, "policy.model_name=foo/bar"], "the shape of 'foo/bar' is not known; give --model-config config.json"),
        ([TINY, "--prompt-tokens", "400"], "--prompt-tokens: 400 leaves no room in max_model_len: 256"),
        ([TINY, "--prompt-tokens", "0"], "--prompt-tokens"),
        ([TINY, "--sweep", "bufer_size_gb=1"], "--sweep: bufer_size_gb: unknown key; did you mean buffer_size_gb?"),
        ([TINY, "--sweep", "buffer_size_gb=1,-1"], "buffer_size_gb: -1 is too small"),
        ([TINY, "--sweep", "max_requests=64,2048"], "max_requests: 2048 is more than max_tokens: 1024"),
        ([TINY, "--sweep", "max_requests=8", "--plot", "/dev/null/x.svg"], "/dev/null: File exists"),
        (
            [TINY, "--sweep", "max_requests=8", "--plot", "x.png"],
            "--plot: x.png; expected a name that ends in .html or .svg",
        ),
        ([TINY, "--plot", "x.svg"], "--plot: there is nothing to plot without --sweep"),
        ([TINY, "--gpu-memory", "0"], "--gpu-memory: 0; expected GiB above 0"),
        ([TINY, "--gpu-memory", "nan"], "--gpu-memory: nan; expected GiB above 0"),
        ([TINY, "--model-config", "none.json"], "none.json: no such file"),
        (
            [TINY, "policy.megatron_cfg.tensor_model_parallel_size=3"],
            "does not divide the model's 4 query and 2 key-value",
        ),
    ],
)
def test_what_is_wrong_is_one_line(genref, arguments, message):
    result = genref("plan", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def run_plan(*arguments: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, which prints what heavy it has loaded as its last line of errors."""
    script = """
import sys
from reference_impl.cli.main import run
try:
    run()
finally:
    print(*sorted({"torch", "transformers", "megatron", "plotly", "numpy"} & set(sys.modules)), file=sys.stderr)
"""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script, "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env)


def test_no_heavy_library_is_loaded(tmp_path):
    for arguments in (
        [],
        ["--sweep", "max_requests=8,16"],
        ["--sweep", "max_requests=8", "--plot", str(tmp_path / "x.svg")],
    ):
        assert run_plan(TINY, *arguments).stderr == "\n"


def test_it_takes_less_than_a_second():
    """Of computing, start-up included."""
    assert min(cpu_time.of_children(lambda: run_plan(LLAMA, "--gpu-memory", "80")) for _ in range(5)) < 1.0

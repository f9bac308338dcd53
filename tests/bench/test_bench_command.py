"""`genref bench` with a tiny model: the table, the JSON, what is left out, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture
def bench(monkeypatch, capfd, tmp_path):
    """`bench(*arguments)` runs `genref bench` in this process and gives status, output and errors."""
    from reference_impl.cli.main import run

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["genref", "bench", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        return (ended.value.code or 0, *capfd.readouterr())

    return call


@pytest.fixture
def no_vllm(tmp_path):
    """A Python whose environment has no vLLM."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nread settings\necho \'{"missing": "no vllm"}\'\n')
    python.chmod(0o755)
    return str(python)


SMALL = ["--model", "tiny", "--in", "5", "--out", "6", "--rounds", "1"]


def test_the_table_and_the_json(bench, no_vllm, tmp_path):
    """Each system at each batch size; a machine-independent check of every number that follows from others."""
    names = "reference,megatron,huggingface,vllm"
    options = ["--backends", names, "--vllm-python", no_vllm, "--json", "out/x.json", "--plot", "out/x.html"]
    status, out, _ = bench(*SMALL, "--batch", "1,3", *options)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"vllm: left out: cannot be imported by {no_vllm} (no vllm)"
    assert lines[1] == "tiny, float32 on cpu: 5 tokens in, 6 out, greedy, 1 rounds"
    assert [line.split()[:2] for line in lines[-6:]] == [
        [batch, name] for batch in "13" for name in ("reference", "megatron", "huggingface")
    ]
    tree = json.loads((tmp_path / "out" / "x.json").read_text("utf-8"))
    assert tree["versions"].keys() == {"torch", "megatron-core", "transformers"}
    assert tree["left_out"].keys() == {"vllm"}
    # tiny's table is 264 by 128; a layer has Q and projection 128 * 128, K and V 64 * 128, three of 384 * 128; norms.
    matrices = 264 * 128 + 5 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128)
    assert tree["work"]["flop_per_token"] == 2 * matrices
    assert tree["work"]["weight_bytes"] == 4 * (matrices + 11 * 128)
    for row in tree["rows"]:
        theirs = next(r for r in tree["rows"] if (r["backend"], r["batch"]) == ("huggingface", row["batch"]))
        speed = row["decode_tokens_per_second"]
        assert row["ratio_to_huggingface"] == pytest.approx(speed / theirs["decode_tokens_per_second"])
        limit = row["batch"] * tree["limits"]["read_gb_s"] * 1e9 / tree["work"]["weight_bytes"]
        assert row["bandwidth_share"] == pytest.approx(speed / limit)
        assert row["first_token_seconds"] > 0
        assert row["spread"] == 0, "one round"
    assert "roofline" in (tmp_path / "out" / "x.html").read_text("utf-8")


def test_an_optional_system_that_is_missing_is_said(bench):
    status, out, _ = bench(*SMALL, "--batch", "1", "--backends", "vllm,huggingface")
    assert status == 0
    assert out.startswith("vllm: left out: cannot be imported here; --vllm-python takes the Python of an environment")
    assert out.splitlines()[1].startswith("tiny, ")


def test_with_nothing_to_run_it_fails(bench):
    status, _, err = bench(*SMALL, "--backends", "vllm")
    assert (status, err) == (2, "genref: --backends: none of vllm can run here\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backends", "vlm"], "--backends: no system 'vlm'; did you mean vllm?"),
        (["--batch", "1,0"], "--batch: '1,0'; expected whole numbers above 0, such as 1,8,32"),
        (["--batch", "1;8"], "--batch: '1;8'; expected whole numbers above 0, such as 1,8,32"),
        (["--plot", "x.png"], "--plot: x.png; expected a name that ends in .html or .svg"),
        (["--model", "smolm2"], "no model 'smolm2'"),
        (["--out", "5"], "Invalid value for '--out'"),
        (["update", "--backends", "megatorn"], "--backends: no system 'megatorn'; did you mean megatron?"),
        (["profile", "--backend", "refrence"], "no backend 'refrence'; did you mean reference?"),
    ],
)
def test_what_is_wrong_is_one_line(bench, arguments, message):
    status, out, err = bench(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_profile_adds_up(bench, tmp_path):
    """Parts sum to the profiled step, and a forward pass has its 21 matrix products: four in each of five layers, and one."""
    status, out, _ = bench("profile", "--model", "tiny", "--in", "5", "--batch", "2", "--json", "p.json")
    assert status == 0
    tree = json.loads((tmp_path / "p.json").read_text("utf-8"))
    assert out.startswith("reference, tiny: a decode step of 2 after 5 tokens: ")
    assert sum(part["seconds"] for part in tree["parts"]) == pytest.approx(tree["profiled_seconds"], rel=0.01)
    assert tree["parts"][0]["name"] == "matrix products"
    assert tree["parts"][0]["calls"] == 21


def test_an_update_and_its_memory(bench, tmp_path):
    """Loading adds the weights at least; memory is counted in pages of 4 KiB."""
    status, out, _ = bench("update", "--model", "tiny", "--backends", "reference", "--json", "u.json")
    assert status == 0
    assert out.splitlines()[1].split()[0] == "reference"
    (found,) = json.loads((tmp_path / "u.json").read_text("utf-8"))
    assert found["weight_bytes"] == 4 * (264 * 128 + 5 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128) + 11 * 128)
    assert found["update_seconds"] > 0
    assert found["peak_bytes"] >= found["held_bytes"]

"""The numbers of `genref bench`, from clocks and machines that are made up, each worked out by hand."""

from __future__ import annotations

import json

import pytest

from reference_impl.bench.comparison import alternate, rotated, rows_of
from reference_impl.bench.machine import Limits, Work
from reference_impl.bench.results import Results
from reference_impl.bench.roofline import Roofline, page, picture, write_plot
from reference_impl.bench.step_profile import parts_of
from reference_impl.bench.systems import Load, chosen
from reference_impl.bench.timing import Timeline
from reference_impl.config.errors import ConfigError
from reference_impl.models.shapes import ModelShape

# Vocabulary 10, hidden 4, feed-forward 6, one layer, two query heads and one KV head of 2. Weights: table 40; Q 4*4, K and V
# 2*4 each, projection 4*4: 48; gate, up and down 3*4*6: 72; norms 3*4: 12. Together 172, and 212 with an output layer.
TIED = ModelShape(10, 4, 6, 1, 2, 1, 2, True)
UNTIED = ModelShape(10, 4, 6, 1, 2, 1, 2, False)
LIMITS = Limits(read_gb_s=2.0, gemm_gflop_s={"float32": 64.0})
WORK = Work(weight_bytes=40_000_000, flop_per_token=20_000_000, kv_bytes_per_token=1000)


def timeline(step: float, batch: int = 2, first: float = 0.5) -> Timeline:
    """The first token after `first` seconds and seven more, each `step` seconds after the one before."""
    return Timeline(batch, [first + step * n for n in range(8)], [batch * (n + 1) for n in range(8)])


def test_a_timeline_in_numbers():
    """Token 4 is there at 0.5 + 3 * 0.1, token 8 at 0.5 + 7 * 0.1: four tokens for each of two in 0.4 s."""
    found = timeline(0.1)
    assert found.first_token_seconds == 0.5
    assert found.decode_tokens_per_second == pytest.approx(20)
    assert found.token_seconds == pytest.approx(0.1)


def test_prompts_that_take_several_steps_are_left_out():
    """The first token of the second sequence comes with step 3; both have four tokens, eight in all, with step 6."""
    found = Timeline(2, [1, 2, 3, 4, 5, 6, 7, 9], [1, 1, 2, 4, 6, 8, 10, 12])
    assert found.first_token_seconds == 3
    assert found.decode_tokens_per_second == pytest.approx(4 / 3)
    assert found.token_seconds == 1.5


@pytest.mark.parametrize(
    ("shape", "read", "multiplied"),
    [(TIED, 172, 160), (UNTIED, 172, 160)],  # a tied table is read as the output layer; one that is not, row by row
)
def test_the_work_of_a_step(shape, read, multiplied):
    work = Work.of(shape, value_bytes=4)
    assert work == Work(read * 4, 2 * multiplied, kv_bytes_per_token=2 * 2 * 4)


def test_limits():
    """2 GB/s read 40 MB 50 times a second; 64 GFLOP/s are 3200 tokens of 20 MFLOP."""
    assert LIMITS.by_bandwidth(1, WORK) == pytest.approx(50)
    assert LIMITS.by_bandwidth(100, WORK) == pytest.approx(5000)
    assert LIMITS.by_compute("float32", WORK) == pytest.approx(3200)
    assert LIMITS.best(Limits(1.0, {"float32": 70.0})) == Limits(2.0, {"float32": 70.0})


def test_a_row_by_hand():
    """Ours: 2 tokens in 0.1, 0.2 and 0.05 s, so 20, 10 and 40 a second, spread (40 - 10) / 20; theirs always 10.

    The limit of two is 100 by bandwidth: a share of 0.2. The ratios are 2, 1 and 4, their median 2.
    """
    rounds = {
        "reference": [timeline(0.1), timeline(0.2, first=0.7), timeline(0.05)],
        "huggingface": [timeline(0.2)] * 3,
    }
    ours, theirs = rows_of(2, rounds, LIMITS, "float32", WORK)
    assert (ours.backend, ours.batch) == ("reference", 2)
    assert ours.decode_tokens_per_second == pytest.approx(20)
    assert ours.spread == pytest.approx(1.5)
    assert ours.first_token_seconds == 0.5
    assert ours.token_seconds == pytest.approx(0.1)
    assert ours.bandwidth_share == pytest.approx(0.2)
    assert ours.limit_share == pytest.approx(0.2)
    assert ours.ratio_to_huggingface == pytest.approx(2)
    assert theirs.ratio_to_huggingface == 1
    assert theirs.spread == 0


def test_the_ratio_is_of_the_same_round():
    """A machine that is twice as slow in one round is that for both: the ratio stays 3."""
    rounds = {"vllm": [timeline(0.1), timeline(0.2)], "huggingface": [timeline(0.3), timeline(0.6)]}
    assert next(rows_of(2, rounds, LIMITS, "float32", WORK)).ratio_to_huggingface == pytest.approx(3)


def test_without_the_peer_there_is_no_ratio_and_arithmetic_may_be_the_limit():
    """100 requests in 0.1 s are 1000 a second, of 5000 by bandwidth and 3200 by arithmetic."""
    (row,) = rows_of(100, {"reference": [timeline(0.1, batch=100)]}, LIMITS, "float32", WORK)
    assert row.ratio_to_huggingface is None
    assert row.bandwidth_share == pytest.approx(0.2)
    assert row.limit_share == pytest.approx(1000 / 3200)


class Scripted:
    """A system that takes as long as it is told, and notes when it was asked and what."""

    versions: dict[str, str]

    def __init__(self, name: str, log: list) -> None:
        self.name, self.log, self.versions = name, log, {}

    def decode(self, prompts, new_tokens):
        self.log.append((self.name, prompts, new_tokens))
        return timeline(0.1, batch=len(prompts))

    def close(self):
        pass


def test_systems_take_turns_with_the_same_prompts():
    log: list = []
    load = Load("any", TIED, prompt_tokens=3, new_tokens=8, batches=[2])
    turns: list = []
    systems = [Scripted(name, log) for name in "abc"]
    found = alternate(systems, load, 2, rounds=2, after_turn=lambda: turns.append(1))
    assert [name for name, _, _ in log] == [*"abc", *"bca", *"cab"]
    assert len(turns) == 9
    for number in range(3):
        prompts = [given for _, given, _ in log[3 * number : 3 * number + 3]]
        assert prompts[0] == prompts[1] == prompts[2]
        assert [len(prompt) for prompt in prompts[0]] == [3, 3]
        assert all(0 <= token < 10 for prompt in prompts[0] for token in prompt)
    assert log[0][1] != log[3][1], "new ones each round, so that no cache of prefixes helps"
    assert {name: len(timelines) for name, timelines in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_rotation():
    assert [rotated([1, 2, 3], number) for number in range(4)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]


def results() -> Results:
    rounds = {"reference": [timeline(0.1)] * 3, "huggingface": [timeline(0.2)] * 3}
    return Results(
        date="2026-01-02",
        machine={"processor": "Abacus", "vectors": "NONE", "threads": 2},
        versions={"torch": "9"},
        model="any",
        dtype="float32",
        device="cpu",
        prompt_tokens=64,
        new_tokens=8,
        rounds=3,
        limits=LIMITS,
        work=WORK,
        left_out={"vllm": "not here"},
        rows=list(rows_of(2, rounds, LIMITS, "float32", WORK)),
    )


def test_the_table():
    """68 tokens of 1000 bytes are cached in the mean."""
    assert results().text() == (
        "any, float32 on cpu: 64 tokens in, 8 out, greedy, 3 rounds\n"
        "2026-01-02, Abacus, NONE, 2 threads\n"
        "reads 2.0 GB/s, matrix products float32 64 GFLOP/s\n"
        "a step reads 40 MB of weights, and 0.1 MB of cache for each request\n"
        "\n"
        "batch  backend      tokens/s  spread  first s  ms/token  ratio  limit  of limit  bandwidth\n"
        "    2  reference        20.0      0%    0.500     100.0   2.00    100       20%        20%\n"
        "    2  huggingface      10.0      0%    0.500     200.0   1.00    100       10%        10%"
    )


def test_json_has_the_rows_and_comes_back(tmp_path):
    file = tmp_path / "new" / "bench.json"
    results().write(file)
    tree = json.loads(file.read_text("utf-8"))
    fields = {"backend", "batch", "decode_tokens_per_second", "first_token_seconds", "spread", "bandwidth_share"}
    assert all(fields | {"ratio_to_huggingface"} <= row.keys() for row in tree["rows"])
    assert tree["rows"][0]["decode_tokens_per_second"] == pytest.approx(20)
    assert tree["left_out"] == {"vllm": "not here"}
    assert Results.read(file) == results()
    assert results().row("huggingface", 2).decode_tokens_per_second == pytest.approx(10)


def test_a_roofline_by_hand():
    """20 MFLOP a token over 40 MB: half an operation a byte and request. 64 GFLOP/s over 2 GB/s meet at 32."""
    roofline = Roofline(results())
    assert roofline.intensity(2) == 1
    assert roofline.ridge == 32
    assert roofline.reached(results().rows[0]) == pytest.approx(0.4)
    assert roofline.roof == [(0.5, 1.0), (32, 64), (64, 64)]


def test_the_plots(tmp_path):
    text = page(results())
    figure = json.loads(text.split('<script id="figures" type="application/json">')[1].split("</script>")[0])[
        "roofline"
    ]
    assert figure["data"][0]["y"] == [1.0, 64, 64]
    assert [trace["name"] for trace in figure["data"]] == ["limit", "reference", "huggingface"]
    assert figure["data"][1]["y"] == [pytest.approx(0.4)]
    assert not [tag for tag in ('<link rel="stylesheet', 'src="http', "@import") if tag in text]
    write_plot(results(), tmp_path / "roof.svg")
    assert (tmp_path / "roof.svg").read_text("utf-8") == picture(results())
    assert "reference 0.4 at batch 2" in picture(results())
    with pytest.raises(ConfigError, match="--plot: .*roof.png; expected a name that ends in .html or .svg"):
        write_plot(results(), tmp_path / "roof.png")


def test_names_of_systems():
    assert chosen("vllm, reference,vllm") == ["vllm", "reference"]
    with pytest.raises(ConfigError, match="--backends: no system 'refernce'; did you mean reference?"):
        chosen("megatron,refernce")
    with pytest.raises(ConfigError, match="known: reference, megatron, huggingface, vllm"):
        chosen(",")


def test_room_for_the_longest_batch():
    """Nine requests of 2036 + 16 tokens, each 2 * 30 * 3 * 64 numbers of 4 bytes, and a quarter more: 0.991 GiB."""
    smollm2 = ModelShape(49152, 576, 1536, 30, 9, 3, 64, True)
    load = Load("smollm2", smollm2, 2000, 36, [1, 8])
    assert load.cache_gib == 1.0
    assert load.step_tokens == 16000
    assert Load("smollm2", smollm2, 2000, 36, [16]).step_tokens == 32000


def test_the_parts_of_a_step():
    """Two steps of 10 ms. A product with the vocabulary is a product; any other operation on it samples."""
    events = [
        ("aten::linear", [[8, 4], [100, 4]], 0.001),
        ("mkldnn::_linear_pointwise", [[8, 4]], 0.005),
        ("aten::scaled_dot_product_attention", [[8, 2, 1, 2]], 0.001),
        ("aten::bmm", [[8, 2, 2]], 0.001),
        ("aten::index_select", [[3, 7]], 0.002),
        ("aten::max", [[8, 100]], 0.001),
        ("aten::argmax", [[8, 5]], 0.001),
        ("aten::mul", [[8, 4]], 0.002),
        ("ProfilerStep#1", [], 5.0),
    ]
    parts = {part.name: part for part in parts_of(events, 100, 2, 0.010)}
    milliseconds = {name: part.seconds * 1e3 for name, part in parts.items()}
    assert list(milliseconds.values()) == pytest.approx([3, 1, 1, 1, 1, 3])
    assert [part.calls for part in parts.values()] == [1, 1, 0.5, 1, 0.5, 0]
    assert parts["matrix products"].mostly == ["_linear_pointwise", "linear"]
    assert parts["sampling"].seconds == pytest.approx(0.001)

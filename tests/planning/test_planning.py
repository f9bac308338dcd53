"""Plans worked out by hand: lengths, limits, what more would buy, graphs, memory."""

from __future__ import annotations

import json

import pytest

from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import load_recipe
from reference_impl.models.shapes import ModelShape
from reference_impl.planning.cache import GIB, Setup, kv_cache
from reference_impl.planning.graphs import GraphSize, graph_sizes, token_counts
from reference_impl.planning.plan import make_plan
from reference_impl.planning.requests import Lengths, choose_lengths, concurrency, next_larger
from reference_impl.planning.sweep import Sweep
from reference_impl.planning.text import as_text, as_tree

# One layer, one KV head of 64: a token's keys and values are 2 * 64 * 2 bytes in bfloat16, a block of 64 tokens 16 KiB.
SHAPE = ModelShape(1000, 128, 256, 1, 2, 1, 64, True)
BLOCK = 16 * 2**10


def recipe(length: int = 256, model: str = "tiny", **mcore):
    policy = {key: mcore.pop(key) for key in ("precision", "device") if key in mcore}
    policy |= {"model_name": model, "max_total_sequence_length": length}
    new = mcore.pop("max_new_tokens", None)
    keys = {f"policy.{key}": value for key, value in policy.items()}
    settings = {"block_size_tokens": 64, "buffer_size_gb": 41 * BLOCK / GIB} | mcore
    keys |= {f"policy.generation.mcore_generation_config.{key}": value for key, value in settings.items()}
    if new is not None:
        keys["policy.generation.max_new_tokens"] = new
    return load_recipe(None, [f"{key}={json.dumps(value)}" for key, value in keys.items()])


def plan(prompt=None, response=None, **settings):
    return make_plan(recipe(**settings), SHAPE, prompt_tokens=prompt, response_tokens=response)


class TestLengths:
    @pytest.mark.parametrize(
        ("given", "new", "expected"),
        [
            ((None, None), None, (128, 128)),  # max_new_tokens is max_model_len: half is left for the prompt
            ((None, None), 56, (200, 56)),
            ((100, None), None, (100, 156)),
            ((100, None), 20, (100, 20)),
            ((None, 10), None, (246, 10)),
            ((1, 1), None, (1, 1)),
            ((200, 56), None, (200, 56)),
        ],
    )
    def test_what_is_not_given_follows_the_recipe(self, given, new, expected):
        assert choose_lengths(recipe(max_new_tokens=new), *given) == Lengths(*expected)

    @pytest.mark.parametrize(
        ("given", "settings", "message"),
        [
            (
                (200, 57),
                {},
                "--prompt-tokens: 200 and --response-tokens: 57 are 257 tokens, more than max_model_len: 256",
            ),
            ((256, None), {}, "--prompt-tokens: 256 leaves no room in max_model_len: 256"),
            ((None, 300), {}, "--response-tokens: 300 leaves no room in max_model_len: 256"),
            (
                (9, 9),
                {"max_tokens": 8, "enable_chunked_prefill": False},
                "a prompt of 9 tokens is more than max_tokens: 8",
            ),
            ((None, None), {"length": 1}, "max_model_len: 1 leaves no room for a response"),
        ],
    )
    def test_what_the_engine_refuses(self, given, settings, message):
        with pytest.raises(ConfigError, match=message):
            choose_lengths(recipe(**settings), *given)


class TestLimits:
    def test_by_the_buffer(self):
        """41 blocks, 40 to use; 128 + 128 tokens are 4 blocks: 10 requests. 82 blocks: 81 to use, 20."""
        made = plan()
        assert made.cache.block_bytes == BLOCK
        assert (made.cache.total_blocks, made.cache.active_blocks, made.cache.max_requests) == (41, 40, 40)
        assert (made.concurrency.at_once, made.concurrency.admitted) == (10, 20)
        assert made.concurrency.limited_by == ("buffer_size_gb",)
        assert made.gain.at_once == 20
        assert made.gain.changes == {"buffer_size_gb": 82 * BLOCK / GIB}

    def test_the_last_token_takes_no_room(self):
        """64 + 65 tokens cache 128 of them, two blocks; 64 + 66 are three."""
        assert plan(64, 65).concurrency.blocks_each == 2
        assert plan(64, 66).concurrency.blocks_each == 3

    def test_by_max_requests(self):
        made = plan(max_requests=6)
        assert (made.concurrency.at_once, made.concurrency.limited_by) == (6, ("max_requests",))
        assert made.gain.changes == {"max_requests": 12}
        assert made.gain.at_once == 10, "then the buffer is the limit"

    def test_by_both(self):
        """Doubling one of two limits that are equal buys nothing, so both are named."""
        made = plan(max_requests=10)
        assert made.concurrency.limited_by == ("max_requests", "buffer_size_gb")
        assert set(made.gain.changes) == {"max_requests", "buffer_size_gb"}
        assert made.gain.at_once == 20

    def test_by_max_tokens_at_which_max_requests_is_cut(self):
        """40 requests of one block fit, but a decode step has 16 tokens; twice the tokens are twice the requests."""
        made = plan(1, 15, max_tokens=16)
        assert (made.cache.max_requests, made.cache.max_requests_key) == (16, "max_tokens")
        assert made.concurrency.limited_by == ("max_tokens",)
        assert (made.gain.changes, made.gain.at_once) == ({"max_tokens": 32}, 32)

    def test_max_tokens_follows_max_requests_up(self):
        """A max_requests of 24 needs a step of 24 tokens."""
        made = plan(1, 30, max_requests=12, max_tokens=12)
        assert made.concurrency.limited_by == ("max_requests",)
        assert (made.gain.changes, made.gain.at_once) == ({"max_requests": 24, "max_tokens": 24}, 24)

    def test_by_max_tokens_when_prompts_come_too_slowly(self):
        """40 tokens a step, prompts of 40 and responses of 2 tokens, so that each request decodes in one step only.

        Step 1: the first prompt. Step 2: the first decodes, 38 tokens of the second go in (39 would leave one).
        Step 3: the other 2, and 38 of the third. Step 4: the second decodes, the third's prompt ends, the fourth begins.
        """
        made = plan(40, 2, max_tokens=40, max_requests=8)
        assert (made.concurrency.at_once, made.concurrency.limited_by) == (3, ("max_tokens",))
        assert made.step.prefill_steps == 3

    def test_a_request_larger_than_the_buffer(self):
        """Two blocks hold no 256 tokens, whose last is not cached but counted when a request is let in."""
        made = plan(buffer_size_gb=3 * BLOCK / GIB)
        assert (made.concurrency.at_once, made.concurrency.admitted) == (0, 0)
        assert made.gain.at_once == 1, "6 blocks, 5 to use"
        assert "gives 1 request instead of 0." in as_text(made)

    def test_where_nothing_helps(self):
        """A prompt that a million times the buffer does not hold."""
        setup = Setup.of(recipe(max_requests=1), SHAPE)
        assert concurrency(setup, kv_cache(setup), Lengths(2**60, 1)).at_once == 0
        assert next_larger(setup, Lengths(2**60, 1)) is None

    def test_more_requests_than_tokens_are_refused(self):
        with pytest.raises(ConfigError, match="max_requests: 9 is more than max_tokens: 8"):
            plan(max_requests=9, max_tokens=8)


class TestRanks:
    def split(self, ranks=1, stages=1, shape=SHAPE, **mcore):
        base = recipe(**mcore)
        cfg = base.policy.megatron_cfg.model_copy(
            update={"tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": stages}
        )
        return Setup.of(base.model_copy(update={"policy": base.policy.model_copy(update={"megatron_cfg": cfg})}), shape)

    def test_heads_and_layers_are_divided(self):
        shape = ModelShape(1000, 512, 256, 4, 8, 4, 64, True)
        assert kv_cache(self.split(1, 1, shape)).block_bytes == 16 * BLOCK
        assert kv_cache(self.split(2, 1, shape)).block_bytes == 8 * BLOCK
        assert kv_cache(self.split(2, 2, shape)).block_bytes == 4 * BLOCK

    @pytest.mark.parametrize(
        ("ranks", "stages", "message"),
        [
            (3, 1, "tensor_model_parallel_size: 3 does not divide the model's 2 query and 1 key-value heads"),
            (1, 2, "pipeline_model_parallel_size: 2 does not divide the model's 1 layers"),
        ],
    )
    def test_what_does_not_divide(self, ranks, stages, message):
        with pytest.raises(ConfigError, match=message):
            self.split(ranks, stages)

    def test_max_requests_is_a_multiple_of_the_ranks(self):
        with pytest.raises(ConfigError, match="max_requests: 7 is not a multiple of tensor_model_parallel_size: 2"):
            kv_cache(self.split(2, max_requests=7))
        assert kv_cache(self.split(2, max_tokens=17)).max_requests == 16


class TestGraphs:
    def test_counts_halve(self):
        """From 40 down, the smallest kept: four of 40, 20, 10, 4, 2, 1."""
        assert token_counts(4, 40) == [40, 20, 10, 1]
        assert token_counts(1, 40) == [40]
        assert token_counts(9, 40) == [40, 20, 10, 4, 2, 1]
        assert token_counts(4, 40, ranks=4) == [40, 20, 12, 4]

    def test_steps_with_prompts_have_one_for_each_power_of_two(self):
        sizes = graph_sizes(number=2, max_requests=3, max_tokens=8, max_model_len=100, with_prompts=True)
        assert sizes == (
            GraphSize(8, 3, 0),
            GraphSize(8, 2, 1),
            GraphSize(8, 1, 2),
            GraphSize(3, 0, 3),
            GraphSize(1, 0, 1),
        )
        assert graph_sizes(number=2, max_requests=3, max_tokens=8, max_model_len=100, with_prompts=False) == sizes[3:]

    @pytest.mark.parametrize(
        "off",
        [
            {"num_cuda_graphs": 0},
            {"num_cuda_graphs": None},
            {"cuda_graph_impl": "none"},
            {"inference_cuda_graph_scope": "none"},
            {"device": "cpu"},
        ],
    )
    def test_none_where_the_recipe_asks_for_none(self, off):
        made = plan(**off)
        assert made.graphs == ()
        assert "captured                   0 graphs" in as_text(made)


class TestMemory:
    def test_by_hand(self):
        """1000 * 128 embeddings, 2 * 128 * 128 + 2 * 128 * 64 attention, 3 * 128 * 256 MLP, 3 norms of 128."""
        memory = plan(max_requests=10, max_tokens=500).memory
        assert memory.parameters == 128_000 + 49_152 + 98_304 + 384
        assert memory.weights == 2 * memory.parameters
        assert memory.cache == 41 * BLOCK
        assert (memory.logits_rows, memory.logits_row_bytes, memory.logits_copies) == (10, 2000, 2)
        assert memory.logits == 40_000
        assert memory.tables == 500 * 36 + 10 * (13 + 4) * 4 + 12
        assert memory.total == 551_680 + 41 * BLOCK + 40_000 + 18_692

    def test_all_logits_are_a_row_a_token(self):
        assert plan(max_tokens=500, materialize_only_last_token_logits=False).memory.logits_rows == 500

    def test_without_graphs_logits_are_held_once(self):
        assert plan(cuda_graph_impl="none").memory.logits_copies == 1

    @pytest.mark.parametrize(
        ("settings", "bytes_each"),
        [
            ({}, 2),
            ({"device": "cpu"}, 4),
            ({"device": "cpu", "precision": "bfloat16"}, 2),
            ({"precision": "float32"}, 4),
        ],
    )
    def test_auto_precision_is_that_of_the_device_that_is_asked_for(self, settings, bytes_each):
        assert plan(**settings).setup.value_bytes == bytes_each

    def test_offload_has_a_copy_on_the_host(self):
        assert plan(kv_cache_management_mode="offload").cache.host_bytes == 41 * BLOCK
        assert plan(kv_cache_management_mode="recompute").cache.host_bytes == 0
        line = "  host copy             656.00 KiB       pinned, while the engine sleeps"
        assert line in as_text(plan(kv_cache_management_mode="offload")).splitlines()


def test_a_tree_is_json_with_the_same_figures():
    tree = json.loads(json.dumps(as_tree(plan(), 1.0)))
    assert tree["requests"]["at_once"] == 10
    assert tree["requests"]["next_larger"]["at_once"] == 20
    assert tree["cache"]["total_bytes"] == 41 * BLOCK
    assert (tree["gpu_memory"], tree["fits"]) == (GIB, True)
    assert as_tree(plan(), 0.0001)["fits"] is False
    assert as_tree(plan())["fits"] is None


def test_a_plan_says_when_it_does_not_fit():
    """551,680 + 671,744 + 160,000 bytes and the tables, 592,556, are 1.88 MiB; half a MiB is there."""
    lines = as_text(plan(), 0.5 / 1024).splitlines()
    assert [line for line in lines if "does not fit" in line] == [
        "  does not fit, lacks     1.38 MiB       of 0.000488281 GiB"
    ]


def test_equal_prompts_are_mentioned_with_prefix_caching():
    assert "Equal prompts share blocks" in as_text(plan(enable_prefix_caching=True))
    assert "Equal prompts" not in as_text(plan())


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("buffer_size_gb=5,10", "policy.generation.mcore_generation_config.buffer_size_gb", ("5", "10")),
        ("max_requests=null, 8", "policy.generation.mcore_generation_config.max_requests", ("null", "8")),
        ("policy.max_total_sequence_length=512,1024", "policy.max_total_sequence_length", ("512", "1024")),
    ],
)
def test_a_sweep_is_a_key_and_values(text, key, values):
    assert Sweep.parse(text) == Sweep(key, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("buffer_size_gb", "--sweep: 'buffer_size_gb'; expected KEY=V1,V2,V3"),
        ("buffer_size_gb=", "expected KEY=V1,V2,V3"),
        ("buffer_size_gb=1,,2", "expected KEY=V1,V2,V3"),
        ("bufer_size_gb=1", "--sweep: bufer_size_gb: unknown key; did you mean buffer_size_gb?"),
        ("colour=1", "--sweep: colour: unknown key"),
    ],
)
def test_a_sweep_that_cannot_be_read(text, message):
    with pytest.raises(ConfigError) as caught:
        Sweep.parse(text)
    assert message in str(caught.value)

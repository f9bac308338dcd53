"""Plans against megatron-core itself: its context, its list of CUDA graphs, and its engine with real requests."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import MCORE, prompts

from reference_impl.config.loader import load_recipe
from reference_impl.generation.devices import choose_dtype
from reference_impl.generation.interfaces import GenerationError
from reference_impl.generation.megatron.backend import MegatronGeneration
from reference_impl.generation.megatron.build import choose_device, inference_config
from reference_impl.models.catalog import find_model
from reference_impl.models.gpt import transformer_config
from reference_impl.models.shapes import SHAPES
from reference_impl.planning.cache import Setup, kv_cache
from reference_impl.planning.graphs import graph_sizes
from reference_impl.planning.memory import memory, table_bytes
from reference_impl.planning.plan import make_plan
from reference_impl.platforms.single_rank import ensure_single_rank

TINY_BLOCK = 2 * 5 * 2 * 32 * 4 * 16  # K and V, layers, KV heads, head size, bytes of a float32, tokens


def recipe(model: str, dtype: str, length: int, mcore: dict, **policy):
    keys = {f"{MCORE}.{key}": value for key, value in ({"max_tokens": 4096} | mcore).items()}
    keys |= {"policy.model_name": model, "policy.precision": dtype, "policy.max_total_sequence_length": length}
    keys |= {f"policy.{key}": value for key, value in policy.items()}
    return load_recipe(None, [f"{key}={json.dumps(value)}" for key, value in keys.items()])


def build_context(settings, *, ranks: int = 1):
    """The real context of a recipe, with Megatron's configuration of the model and no weights."""
    from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext

    device = choose_device(settings.policy)
    ensure_single_rank()
    shape = find_model(settings.policy.model_name).shape
    dtype = choose_dtype(settings.policy, device)
    model_config = transformer_config(shape, dtype, 1, "none", "none")
    model_config.tensor_model_parallel_size = ranks
    engine = inference_config(settings.policy.generation, shape, dtype, device)
    return DynamicInferenceContext(model_config, engine)


CONFIGURATIONS = {
    "a buffer of less than one block still has two": ("tiny", "float32", 64, {"buffer_size_gb": 1e-6}),
    "four blocks, blocks of 16": (
        "tiny",
        "float32",
        64,
        {"buffer_size_gb": 4 * TINY_BLOCK / 2**30, "block_size_tokens": 16},
    ),
    "just less than four blocks": (
        "tiny",
        "float32",
        64,
        {"buffer_size_gb": (4 * TINY_BLOCK - 1) / 2**30, "block_size_tokens": 16},
    ),
    "blocks of 64, max_requests unset": ("tiny", "float32", 256, {"buffer_size_gb": 0.02, "block_size_tokens": 64}),
    "blocks of 256": ("tiny", "float32", 1024, {"buffer_size_gb": 0.1}),
    "bfloat16 halves a block": ("tiny", "bfloat16", 1024, {"buffer_size_gb": 0.1}),
    "max_requests set": ("tiny", "float32", 128, {"buffer_size_gb": 0.02, "block_size_tokens": 16, "max_requests": 7}),
    "more max_requests than blocks": (
        "tiny",
        "float32",
        128,
        {"buffer_size_gb": 0.001, "block_size_tokens": 16, "max_requests": 200},
    ),
    "max_tokens bounds max_requests": (
        "tiny",
        "float32",
        64,
        {"buffer_size_gb": 0.5, "block_size_tokens": 16, "max_tokens": 50},
    ),
    "a large max_tokens": (
        "tiny",
        "float32",
        64,
        {"buffer_size_gb": 0.1, "block_size_tokens": 16, "max_tokens": 65536},
    ),
    "prefix caching": (
        "tiny",
        "float32",
        256,
        {"buffer_size_gb": 0.05, "block_size_tokens": 16, "enable_prefix_caching": True},
    ),
    "offload": ("tiny", "float32", 256, {"buffer_size_gb": 0.05, "kv_cache_management_mode": "offload"}),
    "recompute": ("tiny", "float32", 256, {"buffer_size_gb": 0.05, "kv_cache_management_mode": "recompute"}),
    "a longest sequence that is no whole block": (
        "tiny",
        "float32",
        512,
        {"buffer_size_gb": 0.05, "block_size_tokens": 16, "max_model_len": 321},
    ),
    "smollm2 in float32": ("smollm2", "float32", 512, {"buffer_size_gb": 0.5, "block_size_tokens": 16}),
    "smollm2 in bfloat16": ("smollm2", "bfloat16", 2048, {"buffer_size_gb": 0.5}),
}


@pytest.mark.parametrize(("model", "dtype", "length", "mcore"), CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_the_cache_is_the_context_s_to_the_block(model, dtype, length, mcore):
    settings = recipe(model, dtype, length, mcore)
    context, setup = build_context(settings), Setup.of(settings, SHAPES[model])
    compare(context, setup)


def compare(context, setup: Setup) -> None:
    """Everything that the plan says of the cache, the limits and the tables, against what was allocated."""
    cache, allocator = kv_cache(setup), context.kv_block_allocator
    assert cache.block_bytes == context.block_size_bytes
    assert (cache.total_blocks, cache.active_blocks) == (allocator.total_count, allocator.active_count)
    assert cache.active_blocks == allocator.total_avail
    assert cache.paused_blocks == allocator.paused_count
    assert cache.total_bytes == context.memory_buffer.numel() * context.memory_buffer.element_size()
    backups = context._offloadable_cpu_backups.values()
    assert cache.host_bytes == sum(backup.numel() * backup.element_size() for backup in backups)
    assert cache.max_requests == context.max_requests
    assert setup.config.max_tokens == context.max_tokens
    assert setup.config.max_model_len == context.max_sequence_length
    rows = (context.active_logit_idxs, context._decode_logit_idxs)
    tables = context.gpu_view._buf.numel() + sum(row.numel() * row.element_size() for row in rows)
    assert table_bytes(setup, cache.max_requests) == tables


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_ranks_share_the_heads(ranks):
    """Two ranks hold a key-value head of tiny's two each; four hold one each too, for none is left out."""
    mcore = {"buffer_size_gb": 0.02, "block_size_tokens": 16, "max_requests": 8}
    settings = recipe("tiny", "float32", 64, mcore)
    split = recipe("tiny", "float32", 64, {**mcore}, **{"megatron_cfg.tensor_model_parallel_size": ranks})
    setup = Setup.of(split, SHAPES["tiny"])
    assert setup.tensor_parallel == ranks
    compare(build_context(settings, ranks=ranks), setup)
    assert kv_cache(setup).block_bytes == TINY_BLOCK // 2


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("blocks", [9, 10, 23, 200])
def test_max_requests_is_what_the_context_derives(blocks, ranks):
    """With the key unset and left to Megatron: one request a block, rounded down to ranks and to four."""
    from dataclasses import replace

    from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext

    size = blocks * TINY_BLOCK // (1 if ranks == 1 else 2) / 2**30
    mcore = {"buffer_size_gb": size, "block_size_tokens": 16}
    setup = Setup.of(
        recipe("tiny", "float32", 64, mcore, **{"megatron_cfg.tensor_model_parallel_size": ranks}), SHAPES["tiny"]
    )
    device, shape = choose_device(recipe("tiny", "float32", 64, mcore).policy), find_model("tiny").shape
    model_config = transformer_config(shape, torch.float32, 1, "none", "none")
    model_config.tensor_model_parallel_size = ranks
    generation = recipe("tiny", "float32", 64, mcore).policy.generation
    config = replace(inference_config(generation, shape, torch.float32, device), max_requests=None)
    context = DynamicInferenceContext(model_config, config)
    assert context.kv_block_allocator.total_count == blocks
    assert context.max_requests == kv_cache(setup).max_requests
    assert kv_cache(setup).max_requests_key == "buffer_size_gb"


@settings(max_examples=30)
@given(
    block=st.sampled_from([1, 8, 16, 48, 64, 256]),
    blocks=st.floats(0.1, 80),
    max_requests=st.none() | st.integers(1, 100),
    max_tokens=st.integers(1, 500),
    length=st.integers(2, 700),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    mode=st.sampled_from(["persist", "recompute"]),
)
def test_any_cache_is_the_context_s_to_the_block(block, blocks, max_requests, max_tokens, length, dtype, mode):
    mcore = {
        "block_size_tokens": block,
        "buffer_size_gb": blocks * TINY_BLOCK / 16 * block / 2**30,
        "max_requests": None if max_requests is None else min(max_requests, max_tokens),
        "max_tokens": max_tokens,
        "kv_cache_management_mode": mode,
    }
    made = recipe("tiny", dtype, length, mcore)
    compare(build_context(made), Setup.of(made, SHAPES["tiny"]))


@settings(max_examples=300)
@given(
    number=st.integers(1, 64),
    max_requests=st.integers(1, 3000),
    more=st.integers(0, 20000),
    length=st.integers(2, 9000),
    with_prompts=st.booleans(),
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
)
def test_cuda_graphs_are_those_of_megatron(number, max_requests, more, length, with_prompts, ranks):
    """Its own function, called as the context calls it; that needs no GPU."""
    from megatron.core.inference.batch_dimensions_utils import CUDAGraphBatchDimensionBuilder
    from megatron.core.inference.config import InferenceConfig

    max_requests *= ranks
    max_tokens = max_requests + more
    theirs, _ = CUDAGraphBatchDimensionBuilder.generate_cuda_graph_batch_dimensions_list(
        tp_size=ranks,
        num_cuda_graphs=number,
        cuda_graph_max_tokens=min(max(InferenceConfig.cuda_graph_max_tokens, max_requests), max_tokens),
        cuda_graph_mixed_prefill_request_count=InferenceConfig.cuda_graph_mixed_prefill_count,
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_sequence_length=length,
        use_cuda_graphs_for_non_decode_steps=with_prompts,
    )
    ours = graph_sizes(
        number=number,
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_model_len=length,
        with_prompts=with_prompts,
        ranks=ranks,
    )
    assert sorted((g.tokens, g.prefill_requests, g.decode_requests) for g in ours) == sorted(
        (g.token_count, g.prefill_req_count, g.decode_req_count) for g in theirs
    )
    falling = [size.tokens - size.decode_requests for size in ours]
    assert falling == sorted(falling, reverse=True), "captured from the most prompt tokens down, as there"


class Observed:
    """What a real engine did with a batch: requests in a step, and requests that lost their place."""

    def __init__(self, settings, lengths, count: int) -> None:
        rows = [[(37 * i + 11 * j) % 250 for j in range(lengths.prompt)] for i in range(count)]
        self.together, self.paused = 0, 0
        with MegatronGeneration(settings) as backend:
            backend.prepare_for_generation()
            context = backend._engine.context
            inner = context.initialize_attention_state

            def observed(**keywords):
                self.together = max(self.together, context.total_request_count - context.paused_request_count)
                self.paused = max(self.paused, context.paused_request_count)
                return inner(**keywords)

            context.initialize_attention_state = observed
            output = backend.generate(prompts(*rows), greedy=True)
        assert output["generation_lengths"].tolist() == [lengths.response] * count
        self.evicted = int(output["num_evictions"].sum())

    @property
    def undisturbed(self) -> bool:
        return not self.paused and not self.evicted


def planned(mcore: dict, prompt: int, response: int):
    """A plan for tiny with sequences of 64 tokens, and the recipe that the engine is built from."""
    generation = {"generation.max_new_tokens": response, "generation.stop_token_ids": []}
    made = recipe("tiny", "float32", 64, {"block_size_tokens": 4} | mcore, **generation)
    return make_plan(made, SHAPES["tiny"], prompt_tokens=prompt, response_tokens=response), made


def buffer(blocks: float) -> float:
    """GiB of so many blocks of four tokens."""
    return blocks * TINY_BLOCK / 4 / 2**30


class TestConcurrency:
    """A step that holds all prompts lets all requests grow in step, so that one more than planned loses its place."""

    @pytest.mark.parametrize(
        ("blocks", "prompt", "response", "at_once", "admitted"),
        [
            (22, 8, 9, 5, 10),  # 21 blocks; 16 tokens are cached: 4 blocks; the prompt alone takes 2
            (22, 8, 10, 4, 10),  # one token more is a block more
            (22, 9, 1, 7, 7),  # the only response token is not cached: 3 blocks from the start
            (13, 4, 5, 6, 12),  # 12 blocks, 2 each
        ],
    )
    def test_limited_by_the_buffer(self, blocks, prompt, response, at_once, admitted):
        """As many as planned run undisturbed; one more, if the engine admits it, is paused or evicted."""
        plan, made = planned({"buffer_size_gb": buffer(blocks), "max_requests": 32}, prompt, response)
        assert plan.concurrency.limited_by == ("buffer_size_gb",)
        assert (plan.concurrency.at_once, plan.concurrency.admitted) == (at_once, admitted)
        planned_for = Observed(made, plan.lengths, at_once)
        assert (planned_for.together, planned_for.undisturbed) == (at_once, True)
        more = Observed(made, plan.lengths, at_once + 1)
        assert more.together == at_once or not more.undisturbed
        many = Observed(made, plan.lengths, admitted + 3)
        assert many.together == admitted

    def test_limited_by_max_requests(self):
        plan, made = planned({"buffer_size_gb": buffer(100), "max_requests": 6}, 8, 9)
        assert (plan.concurrency.at_once, plan.concurrency.limited_by) == (6, ("max_requests",))
        observed = Observed(made, plan.lengths, 15)
        assert (observed.together, observed.undisturbed) == (6, True)

    @pytest.mark.parametrize("chunked", [True, False])
    @pytest.mark.parametrize(("prompt", "response", "max_tokens"), [(8, 5, 16), (12, 7, 20), (7, 3, 32), (5, 11, 12)])
    def test_limited_by_max_tokens(self, prompt, response, max_tokens, chunked):
        """Prompts come in so slowly that the first requests end before the last begin."""
        mcore = {"buffer_size_gb": buffer(1000), "max_requests": 12, "max_tokens": max_tokens}
        plan, made = planned(mcore | {"enable_chunked_prefill": chunked}, prompt, response)
        observed = Observed(made, plan.lengths, 30)
        assert plan.concurrency.at_once == observed.together
        assert observed.undisturbed
        assert plan.concurrency.limited_by == (("max_tokens",) if observed.together < 12 else ("max_requests",))

    @settings(max_examples=15)
    @given(
        prompt=st.integers(1, 30),
        response=st.integers(1, 8),
        max_tokens=st.integers(8, 40),
        max_requests=st.integers(1, 8),
        chunked=st.booleans(),
    )
    def test_any_step_size(self, prompt, response, max_tokens, max_requests, chunked):
        """The most requests that the engine has in any step are those planned, whatever holds them back."""
        mcore = {"max_tokens": max_tokens, "max_requests": max_requests, "enable_chunked_prefill": chunked}
        if prompt > max_tokens and not chunked:
            return
        plan, made = planned(mcore | {"buffer_size_gb": buffer(1000)}, prompt, response)
        observed = Observed(made, plan.lengths, 20)
        assert (observed.together, observed.undisturbed) == (plan.concurrency.at_once, True)

    def test_the_next_larger_value_does_what_is_said(self):
        plan, made = planned({"buffer_size_gb": buffer(22), "max_requests": 32}, 8, 9)
        assert plan.gain is not None
        assert plan.gain.changes == {"buffer_size_gb": 2 * buffer(22)}
        assert plan.gain.at_once == 10, "43 blocks, 4 each"
        larger, made = planned({"buffer_size_gb": 2 * buffer(22), "max_requests": 32}, 8, 9)
        observed = Observed(made, larger.lengths, 10)
        assert (observed.together, observed.undisturbed) == (10, True)

    def test_a_request_that_never_fits(self):
        """10 blocks of 4 hold no 41 tokens: the plan says none runs, and the engine refuses it."""
        plan, made = planned({"buffer_size_gb": buffer(11), "max_requests": 8}, 20, 21)
        assert (plan.concurrency.at_once, plan.concurrency.limited_by) == (0, ("buffer_size_gb",))
        with MegatronGeneration(made) as backend:
            backend.prepare_for_generation()
            with pytest.raises(GenerationError, match="need 11 KV blocks of 4, the buffer has 10"):
                backend.generate(prompts(list(range(20))))


def test_logits_are_one_row_a_request_or_one_a_token():
    """The buffer that a controller for CUDA graphs allocates."""
    from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
    from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController

    from reference_impl.generation.megatron.build import TokenIds
    from reference_impl.models.gpt import build_gpt_model

    checkpoint = find_model("tiny")
    model = build_gpt_model(checkpoint.shape, checkpoint.read_weights())
    model.config.cuda_graph_impl = "local"
    for only_last in (True, False):
        mcore = {"buffer_size_gb": 0.02, "max_requests": 9, "max_tokens": 77, "cuda_graph_impl": "local"}
        made = recipe("tiny", "float32", 64, mcore | {"materialize_only_last_token_logits": only_last})
        controller = TextGenerationController(
            GPTInferenceWrapper(model, build_context(made)), TokenIds(checkpoint.shape.vocab_size)
        )
        buffer = controller._all_logits_cuda
        setup = Setup.of(made, SHAPES["tiny"])
        planned_for = memory(setup, kv_cache(setup))
        assert planned_for.logits_rows == buffer.shape[1] == (9 if only_last else 77)
        assert planned_for.logits_rows * planned_for.logits_row_bytes == buffer.numel() * buffer.element_size()
        assert planned_for.logits_copies == 2


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_weights_are_those_of_the_model(name):
    """Parameters of the Megatron model, a tied output layer counted once."""
    from reference_impl.models.gpt import build_gpt_model

    checkpoint = find_model(name)
    model = build_gpt_model(checkpoint.shape, checkpoint.read_weights(), dtype=torch.bfloat16)
    sizes = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    setup = Setup.of(recipe(name, "bfloat16", 64, {}), SHAPES[name])
    assert memory(setup, kv_cache(setup)).weights == sum(sizes.values())

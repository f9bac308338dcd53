"""What the schema promises about each key: its default, its type, its range, and the line that a wrong value earns."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from reference_impl.config.checking import section_model
from reference_impl.config.errors import ConfigError
from reference_impl.config.examining import defaults_tree
from reference_impl.config.loader import load_recipe, resolved_yaml
from reference_impl.config.removed import REMOVED_KEYS
from reference_impl.config.schema import MCORE_KEY, Recipe
from reference_impl.config.training import RECOMPUTE_KEY
from reference_impl.config.trees import keys, nested

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
GENERATION = "policy.generation"


def fault(*overrides: str) -> str:
    """The message that these overrides earn, without the source that starts its line."""
    with pytest.raises(ConfigError) as caught:
        load_recipe(None, overrides)
    return str(caught.value).removeprefix("command line: ")


def all_fields(model: type[BaseModel]):
    for name, field in model.model_fields.items():
        yield name, field
        if section := section_model(field.annotation):
            yield from all_fields(section)


def test_documented_defaults():
    """With no recipe at all, each key has the value that the documentation gives it."""
    policy = load_recipe(None).policy
    generation, engine = policy.generation, policy.generation.mcore_generation_config
    assert (policy.model_name, policy.precision, policy.device) == ("smollm2", "auto", "auto")
    ranks = policy.megatron_cfg
    assert (ranks.tensor_model_parallel_size, ranks.pipeline_model_parallel_size) == (1, 1)
    assert (policy.max_total_sequence_length, generation.max_new_tokens, engine.max_model_len) == (512, 512, 512)
    assert (generation.backend, generation.mode, generation.seed) == ("megatron", "direct", 1234)
    assert (generation.temperature, generation.top_p, generation.top_k) == (1.0, 1.0, None)
    assert (generation.val_temperature, generation.val_top_p, generation.val_top_k) == (1.0, 1.0, None)
    assert (generation.stop_token_ids, generation.stop_strings) == (None, None)
    assert generation.logprobs_mode == "processed_logprobs"
    assert engine.model_dump() == {
        "buffer_size_gb": 10.0,
        "block_size_tokens": 256,
        "max_tokens": 16384,
        "max_model_len": 512,
        "num_cuda_graphs": 4,
        "use_cuda_graphs_for_non_decode_steps": True,
        "cuda_graph_impl": "local",
        "inference_cuda_graph_scope": "block",
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "kv_cache_management_mode": "persist",
        "materialize_only_last_token_logits": True,
        "num_speculative_tokens": 0,
        "max_requests": None,
        "refit_backend": "nccl",
        "expose_http_server": False,
        "parsers": [],
        "logging_step_interval": 0,
    }


def test_base_recipe_writes_out_the_defaults():
    """examples/recipes/base.yaml holds every key that is read and no other, with its default, interpolation included."""
    assert yaml.safe_load((RECIPES / "base.yaml").read_text()) == defaults_tree(Recipe)


def test_every_field_is_described_in_one_sentence():
    """Each key has a description that ends as a sentence does and has no second one."""
    for name, field in all_fields(Recipe):
        description = field.description or ""
        assert description.endswith("."), name
        assert ". " not in description, name


def test_models_are_frozen():
    """A checked recipe cannot be changed."""
    with pytest.raises(ValidationError):
        load_recipe(None).policy.generation.temperature = 0.5


@pytest.mark.parametrize("off", ["null", "0", "-1"])
def test_top_k_off(off):
    """null, 0 and -1 all turn top-k off and read as None, for training and for validation."""
    generation = load_recipe(None, [f"{GENERATION}.top_k={off}"]).policy.generation
    assert (generation.top_k, generation.val_top_k) == (None, None)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_top_k_on(count):
    """A positive top_k stays as written: 1 keeps the best, 4 and 5 are for the vocabulary to decide."""
    assert load_recipe(None, [f"{GENERATION}.top_k={count}"]).policy.generation.top_k == count


@given(st.floats(min_value=0, exclude_min=True, max_value=1, allow_subnormal=False))
def test_top_p_range(mass):
    """Every top_p above 0 and up to 1 is taken as it is."""
    assert load_recipe(None, [f"{GENERATION}.top_p={mass!r}"]).policy.generation.top_p == mass


def test_integers_are_floats_too():
    """An integer is accepted where a float is expected: temperature 0 and buffer_size_gb 2 need no dot."""
    policy = load_recipe(None, [f"{GENERATION}.temperature=0", f"{MCORE_KEY}.buffer_size_gb=2"]).policy
    assert (policy.generation.temperature, policy.generation.mcore_generation_config.buffer_size_gb) == (0.0, 2.0)


def test_null_means_none_for_stops():
    """null for stop_strings and stop_token_ids means that there are none."""
    overrides = [f"{GENERATION}.stop_strings=null", f"{GENERATION}.stop_token_ids=null"]
    generation = load_recipe(None, overrides).policy.generation
    assert (generation.stop_strings, generation.stop_token_ids) == (None, None)


WRONG_ENGINE_VALUES = {
    "block_size_tokens='256'": "'256' is not an integer; write 256 without quotes",
    "block_size_tokens=0": "0 is too small; expected more than 0",
    "block_size_tokens=true": "true is not an integer",
    "block_size_tokens=16.0": "16.0 is not an integer",
    "buffer_size_gb=0": "0 is too small; expected more than 0",
    "buffer_size_gb=.inf": "inf is not a finite number",
    "buffer_size_gb=true": "true is not a number",
    "cuda_graph_impl=full_iteration": "'full_iteration' is a training graph and is not supported; use local or none",
    "cuda_graph_impl=transformer_engine": (
        "'transformer_engine' is a training graph and is not supported; use local or none"
    ),
    "cuda_graph_impl=null": "null is not one of none, local; leave the key out for its default",
    "enable_prefix_caching=flase": "'flase' is not true or false; did you mean false?",
    "enable_prefix_caching=1": "1 is not true or false",
    "expose_http_server=true": "true is not supported, this backend serves no HTTP yet; expected false",
    "inference_cuda_graph_scope=blok": "'blok' is not one of none, layer, block; did you mean block?",
    "kv_cache_management_mode=persit": "'persit' is not one of persist, offload, recompute; did you mean persist?",
    "logging_step_interval=-1": "-1 is too small; expected at least 0",
    "max_requests=0": "0 is too small; expected more than 0",
    "max_tokens=null": "null is not an integer; leave the key out for its default",
    "num_cuda_graphs=-1": "-1, sizes that megatron-core chooses, is not supported; write the most sizes that get a graph",
    "num_cuda_graphs=-2": "-2 is too small; expected at least 0",
    "num_cuda_graphs=true": "true is not an integer",
    "num_speculative_tokens=2": (
        "2 is not supported, the reference models have no multi-token prediction heads; expected 0"
    ),
    "num_speculative_tokens=false": "false is not an integer",
    "parsers=hermes": "'hermes' is not a list",
    "refit_backend=mpi": "'mpi' is not one of gloo, nccl, nvshmem",
}


@pytest.mark.parametrize(("override", "expected"), WRONG_ENGINE_VALUES.items())
def test_wrong_engine_value(override, expected):
    """A wrong value of the engine's section earns one line with the key, the value and what was expected."""
    assert fault(f"{MCORE_KEY}.{override}") == f"{MCORE_KEY}.{override.partition('=')[0]}: {expected}"


WRONG_GENERATION_VALUES = {
    "max_new_tokens=0": "0 is too small; expected more than 0",
    "mode=cordinator": "'cordinator' is not one of direct, coordinator; did you mean coordinator?",
    "seed=-1": "-1 is too small; expected at least 0",
    "stop_strings=stop": "'stop' is not a list",
    "temperature=null": "null is not a number; write 0 for greedy or 1.0",
    "temperature=-0.1": "-0.1 is too small; expected at least 0; write 0 for greedy or 1.0",
    "temperature='1.0'": "'1.0' is not a number; write 0 for greedy or 1.0",
    "temperature=.nan": "nan is not a finite number; write 0 for greedy or 1.0",
    "top_k=-2": "-2 is too small; expected at least -1; write null to keep all tokens",
    "top_k=true": "true is not an integer; write null to keep all tokens",
    "top_p=0.0": "0.0 is too small; expected more than 0; write 1.0 to keep all tokens",
    "top_p=-0.1": "-0.1 is too small; expected more than 0; write 1.0 to keep all tokens",
    "top_p=1.5": "1.5 is too large; expected at most 1; write 1.0 to keep all tokens",
    "top_p=null": "null is not a number; write 1.0 to keep all tokens",
}


@pytest.mark.parametrize(("override", "expected"), WRONG_GENERATION_VALUES.items())
def test_wrong_generation_value(override, expected):
    """A wrong sampling value earns one line, and the validation value that follows it earns none."""
    assert fault(f"{GENERATION}.{override}") == f"{GENERATION}.{override.partition('=')[0]}: {expected}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "policy.megatron_cfg.tensor_model_parallel_size=0",
            "policy.megatron_cfg.tensor_model_parallel_size: 0 is too small; expected more than 0",
        ),
        ("policy.model_name=3", "policy.model_name: 3 is not a string; write '3' in quotes"),
        (
            "policy.precision=float16",
            "policy.precision: 'float16' is not one of auto, float32, bfloat16; did you mean bfloat16?",
        ),
        ("policy.max_total_sequence_length=x", "policy.max_total_sequence_length: 'x' is not an integer"),
        ("policy.generation=null", "policy.generation: null is not a mapping; leave the key out for its default"),
        ("policy=3", "policy: 3 is not a mapping"),
        ("policy=[1]", "policy: [1] is not a mapping"),
        (f"{RECOMPUTE_KEY}=1", f"{RECOMPUTE_KEY}: 1 is not true or false"),
    ],
)
def test_wrong_policy_value(override, expected):
    """Sections and the policy's own keys are held to their types as well, and nothing follows from one mistake."""
    assert fault(override) == expected


def test_items_of_lists_are_named():
    """A wrong item of a list is named by its index, counted from 0."""
    assert fault(f"{GENERATION}.stop_strings=['a', '']") == (
        f"{GENERATION}.stop_strings[1]: '' would stop before the first token; expected at least one character"
    )
    assert fault(f"{GENERATION}.stop_token_ids=[1, true, -2]").splitlines() == [
        f"{GENERATION}.stop_token_ids[1]: true is not an integer",
        f"command line: {GENERATION}.stop_token_ids[2]: -2 is too small; expected at least 0",
    ]


@pytest.mark.parametrize("key", sorted(REMOVED_KEYS))
def test_removed_keys_say_what_to_write(key):
    """A key that a release removed is named with what to write now, set with and without a plus sign."""
    assert fault(f"{MCORE_KEY}.{key}=1") == f"{MCORE_KEY}.{key}: {REMOVED_KEYS[key].advice} ({REMOVED_KEYS[key].since})"
    assert fault(f"+{MCORE_KEY}.{key}=1") == f"{MCORE_KEY}.{key}: {REMOVED_KEYS[key]}"


def test_removed_keys_are_the_ones_found_in_the_field():
    """The six spellings that older files still carry are known."""
    assert set(REMOVED_KEYS) == {
        "async_engine",
        "buffer_guaranteed_fraction",
        "cuda_graph_max_tokens",
        "enable_cuda_graph",
        "paused_buffer_size_gb",
        "unified_memory_level",
    }


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        (f"{MCORE_KEY}.max_token", "max_tokens"),
        (f"{MCORE_KEY}.buffer-size-gb", "buffer_size_gb"),
        (f"{MCORE_KEY}.num_cudagraphs", "num_cuda_graphs"),
        (f"{GENERATION}.max_new_token", "max_new_tokens"),
        (f"{GENERATION}.temprature", "temperature"),
        (f"{GENERATION}.topk", "top_k"),
        ("policy.max_total_seqence_length", "max_total_sequence_length"),
        ("polciy.model_name", "policy"),
        ("gpro.seed", "grpo"),
        ("default", "defaults"),
        ("grpo.async_grpo.recompute_kv_cache_after_weight_update", "recompute_kv_cache_after_weight_updates"),
    ],
)
def test_misspelt_key(key, meant):
    """A key that nearly spells one that is read is an error that names the one meant, at every depth."""
    wrong = key.partition(".")[0] if meant in ("policy", "grpo") else key
    assert fault(f"+{key}=1") == f"{wrong}: unknown key; did you mean {meant}?"


def test_engine_section_has_no_room_for_strangers():
    """An unknown key of the engine's section is an error even if it resembles nothing: megatron-core would ignore it."""
    expected = f"{MCORE_KEY}.zebra: unknown key; no key of this section is spelled like it"
    assert fault(f"+{MCORE_KEY}.zebra=1") == expected


FOREIGN_KEYS = [
    "bad_words",
    "colocated",
    "model_name",
    "port_range_high",
    "port_range_low",
    "real_quant_export_cpu_offload",
    "refit_cfg",
    "refit_transport",
    "sglang_cfg",
    "use_async_rollouts",
    "vllm_cfg",
    "vllm_kwargs",
]


@pytest.mark.parametrize(
    "key",
    [f"{GENERATION}.{name}" for name in FOREIGN_KEYS]
    + [f"policy.{name}" for name in ("megatron_cfg", "dtensor_cfg", "tokenizer", "generation_batch_size", "optimizer")]
    + ["grpo.val_period", "checkpointing", "ppo", "loss_fn", "data", "cluster"],
)
def test_keys_of_other_readers_are_ignored(key):
    """Keys that NeMo RL recipes carry for trainers and other backends change nothing here."""
    assert load_recipe(None, [f"+{key}={{a: 1}}"]).model_dump() == load_recipe(None).model_dump()


@pytest.mark.parametrize("name", ["expert_model_parallel_size", "expert_tensor_parallel_size", "context_parallel_size"])
def test_other_kinds_of_parallelism_are_no_misspelling(name):
    """Keys of `megatron_cfg` that look like the two that are read belong to the trainer."""
    assert load_recipe(None, [f"+policy.megatron_cfg.{name}=2"]).model_dump() == load_recipe(None).model_dump()


def test_recompute_by_its_nemo_name():
    """The training side's flag selects the recompute mode, beside an explicit persist or recompute as well."""
    for mode in (
        [],
        [f"{MCORE_KEY}.kv_cache_management_mode=persist"],
        [f"{MCORE_KEY}.kv_cache_management_mode=recompute"],
    ):
        engine = load_recipe(None, [f"{RECOMPUTE_KEY}=true", *mode]).policy.generation.mcore_generation_config
        assert engine.kv_cache_management_mode == "recompute"


def test_recompute_against_offload():
    """The flag beside an explicit offload is an error that names both keys."""
    assert fault(f"{RECOMPUTE_KEY}=true", f"{MCORE_KEY}.kv_cache_management_mode=offload") == (
        f"{MCORE_KEY}.kv_cache_management_mode: 'offload' contradicts {RECOMPUTE_KEY}: true; remove one of the two"
    )


def test_synchronous_recipes_have_no_async_section():
    """`async_grpo: null`, as recipes for synchronous training write it, means the defaults."""
    assert load_recipe(None, ["grpo.async_grpo=null"]).model_dump() == load_recipe(None).model_dump()


def test_all_problems_at_once():
    """One load reports every problem of the recipe, one line each, unknown keys first."""
    assert fault(f"+{MCORE_KEY}.max_token=64", f"{GENERATION}.temperature=null", f"{GENERATION}.top_p=0.0") == (
        f"{MCORE_KEY}.max_token: unknown key; did you mean max_tokens?\n"
        f"command line: {GENERATION}.temperature: null is not a number; write 0 for greedy or 1.0\n"
        f"command line: {GENERATION}.top_p: 0.0 is too small; expected more than 0; write 1.0 to keep all tokens"
    )


ANY_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["${.x}", "${", "???"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)


@given(key=st.sampled_from(sorted(keys(defaults_tree(Recipe)))), value=ANY_VALUE)
def test_any_value_gives_a_recipe_or_a_config_error(tmp_path_factory, key, value):
    """Whatever stands at a key that is read, loading gives a recipe or a ConfigError, never another exception."""
    path = tmp_path_factory.mktemp("any") / "r.yaml"
    path.write_text(yaml.safe_dump(nested(key, value)))
    message = None
    try:
        load_recipe(path)
    except ConfigError as error:
        message = str(error)
    assert message is None or message.startswith(str(path))


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_resolved_yaml_loads_to_an_equal_recipe(recipe, tmp_path):
    """What `resolved_yaml` writes is a recipe that stands alone and means the same."""
    once = load_recipe(recipe)
    (tmp_path / "resolved.yaml").write_text(resolved_yaml(once))
    assert load_recipe(tmp_path / "resolved.yaml").model_dump() == once.model_dump()


def test_example_recipes_say_what_they_should():
    """The three example recipes build the engines that their comments describe."""
    tiny, small, queue = (
        load_recipe(RECIPES / f"{name}.yaml").policy
        for name in ("tiny-megatron", "smollm2-megatron", "smollm2-megatron-coordinator")
    )
    assert (tiny.model_name, tiny.max_total_sequence_length, tiny.generation.max_new_tokens) == ("tiny", 256, 256)
    engine = tiny.generation.mcore_generation_config
    assert (engine.buffer_size_gb, engine.block_size_tokens, engine.max_requests, engine.max_tokens) == (
        0.02,
        16,
        32,
        1024,
    )
    engine = small.generation.mcore_generation_config
    assert (engine.buffer_size_gb, engine.block_size_tokens, engine.max_requests, engine.max_tokens) == (
        0.5,
        16,
        64,
        4096,
    )
    assert (engine.cuda_graph_impl, engine.max_model_len, small.generation.mode) == ("none", 512, "direct")
    assert (queue.generation.mode, queue.generation.mcore_generation_config) == ("coordinator", engine)

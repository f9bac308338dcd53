"""Sizes of models: the table against published parameter counts and our own models, `config.json`, bad files."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from reference_impl.config.errors import ConfigError
from reference_impl.models.catalog import find_model
from reference_impl.models.shapes import SHAPES, ModelShape, find_shape, read_config

# As the Hub counts the weights of each model, a tied output layer once.
PUBLISHED = {
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_parameters_are_those_that_were_published():
    assert {name: SHAPES[name].parameters() for name in PUBLISHED} == PUBLISHED
    assert set(SHAPES) == {*PUBLISHED, "tiny", "smollm2"}


def test_the_row_of_smollm2_is_what_its_file_says():
    built = find_model("smollm2").shape
    assert {field.name: getattr(built, field.name) for field in fields(ModelShape)} == asdict(SHAPES["smollm2"])


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_the_parameters_of_our_own_models_are_those_of_their_weights(name):
    weights = find_model(name).read_weights()
    tied = {"lm_head.weight"} if SHAPES[name].tie_word_embeddings else set()
    assert SHAPES[name].parameters() == sum(weights[key].numel() for key in weights.keys() - tied)


def test_ranks_hold_their_share():
    """Llama 3.1 8B: matrices in four, the norms (two a layer and the last) whole; two stages of 16 layers each."""
    shape, norms = SHAPES["meta-llama/Llama-3.1-8B"], 65 * 4096
    assert shape.parameters(4) == (8_030_261_248 - norms) // 4 + norms
    a_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert shape.parameters(1, 2) == 16 * a_layer + 128256 * 4096 + 4096
    assert [shape.kv_heads_per_rank(ranks) for ranks in (1, 2, 8, 16)] == [8, 4, 1, 1]


def test_names_with_endings():
    assert find_shape("meta-llama/Llama-3.2-1B-Instruct") is SHAPES["meta-llama/Llama-3.2-1B"]
    assert find_shape("Qwen/Qwen3-8B-Base") is SHAPES["Qwen/Qwen3-8B"]


def test_a_config_json_or_its_folder(tmp_path):
    """Absent keys mean what transformers takes them for: as many KV heads as heads, and hidden size over heads."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    expected = ModelShape(1000, 64, 128, 2, 4, 4, 16, False)
    assert find_shape(str(tmp_path)) == expected
    assert find_shape("whatever", tmp_path) == find_shape("whatever", tmp_path / "config.json") == expected
    changed = LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    assert find_shape(str(tmp_path)) == ModelShape(1000, 64, 128, 2, 4, 2, 32, True, qk_norm=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json:1:2: Expecting property name"),
        ("[]", "config.json: model_type: 'list'; expected one of llama, mistral, qwen2, qwen3"),
        ('{"model_type": "mamba"}', "config.json: model_type: 'mamba'; expected one of llama"),
        (
            json.dumps(LLAMA | {"vocab_size": "1000"}),
            "config.json: vocab_size: '1000'; expected a whole number above 0",
        ),
        (json.dumps(LLAMA | {"hidden_size": 0}), "config.json: hidden_size: 0; expected a whole number above 0"),
        (json.dumps({"model_type": "llama"}), "config.json: num_attention_heads: is missing; expected a whole number"),
        (json.dumps(LLAMA | {"attention_bias": True}), "config.json: attention_bias: true; only models without it"),
        ("[" * 100_000, "config.json: nested too deeply"),
    ],
)
def test_a_file_that_is_no_such_model_is_one_line(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_other_bytes_and_no_file(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.json")


def test_an_unknown_name_says_what_would_do():
    with pytest.raises(ConfigError) as caught:
        find_shape("Qwen/Qwen2.5-1B")
    assert str(caught.value) == (
        "policy.model_name: the shape of 'Qwen/Qwen2.5-1B' is not known; give --model-config config.json; "
        "did you mean Qwen/Qwen2.5-1.5B?"
    )

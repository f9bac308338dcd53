"""Models: log-probabilities against transformers on the same weights, and weights out and in again, bit for bit."""

import json

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses

from reference_impl.models import folder, tiny
from reference_impl.models.catalog import chat_prompt, find_model
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.models.gpt import build_gpt_model, export_weights, load_weights
from reference_impl.models.llama import LlamaShape, ModelError, hf_from_megatron, megatron_from_hf
from reference_impl.platforms import cpu


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    return folder.write_folder(tmp_path_factory.mktemp("tiny"), tiny.random_weights(), tiny.SHAPE)


def transformers_model(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def megatron_log_probs(model, ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] from the model's ordinary forward pass, as training sees it."""
    from megatron.core.inference.utils import InferenceMode

    InferenceMode.unset_active()
    tokens = torch.tensor([ids])
    mask = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool).triu(1)
    with torch.no_grad(), cpu.cpu_platform():
        logits = model(tokens, torch.arange(len(ids))[None], mask)
    return logits[0].float().log_softmax(-1)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_log_probabilities_match_transformers(name, tiny_folder):
    """Prompts of 1, 37 and 300 tokens, grouped queries and tied embeddings included: within 5e-4 everywhere."""
    checkpoint = find_model(name)
    assert checkpoint.shape.tie_word_embeddings
    assert checkpoint.shape.num_key_value_heads < checkpoint.shape.num_attention_heads
    model = build_gpt_model(checkpoint.shape, checkpoint.read_weights())
    oracle = transformers_model(checkpoint.folder or tiny_folder)
    generator = torch.Generator().manual_seed(3)
    for length in (1, 37, 300):
        ids = torch.randint(checkpoint.shape.vocab_size, (length,), generator=generator)
        with torch.no_grad():
            expected = oracle(ids[None]).logits[0].log_softmax(-1)
        assert (megatron_log_probs(model, ids.tolist()) - expected).abs().max() < 5e-4


def test_the_engine_says_what_transformers_says(tmp_path):
    """`smollm2`, greedy, a real question: transformers' tokens one for one, and its log-probabilities within 5e-4."""
    from reference_impl.generation.megatron.backend import MegatronGeneration

    settings = recipe("smollm2", length=128, max_new_tokens=24, mcore={"buffer_size_gb": 0.1, "block_size_tokens": 16})
    with MegatronGeneration(settings) as backend:
        batch = [
            chat_prompt(backend.tokenizer, text) for text in ("What is the capital of France?", "What do bees make?")
        ]
        output = backend.generate(prompts(*batch), greedy=True)
        tokenizer = backend.tokenizer
    assert "Paris" in tokenizer.decode(responses(output)[0])
    oracle = transformers_model(find_model("smollm2").folder)
    for prompt, got, logprobs in zip(batch, responses(output), response_logprobs(output), strict=True):
        ids = torch.tensor([prompt])
        expected = oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=tokenizer.eos_token_id,
        )[0, len(prompt) :].tolist()
        assert got == expected
        with torch.no_grad():
            all_log_probs = oracle(torch.tensor([prompt + got])).logits[0].log_softmax(-1)
        want = [all_log_probs[len(prompt) - 1 + i, token].item() for i, token in enumerate(got)]
        assert logprobs == pytest.approx(want, abs=5e-4)


def test_untied_weights_match_transformers(tmp_path):
    """An output layer of its own, and as many KV heads as query heads."""
    shape = LlamaShape(**{**tiny.SHAPE.__dict__, "tie_word_embeddings": False, "num_key_value_heads": 4})
    weights = tiny.random_weights(shape, seed=1)
    oracle = transformers_model(folder.write_folder(tmp_path, weights, shape))
    ids = torch.arange(40) * 5 % 264
    with torch.no_grad():
        expected = oracle(ids[None]).logits[0].log_softmax(-1)
    assert (megatron_log_probs(build_gpt_model(shape, weights), ids.tolist()) - expected).abs().max() < 5e-4


def test_the_model_trains_on_the_platform(tiny_folder):
    """Loss and gradients of an ordinary training step equal transformers'; the platform gives way where gradients flow."""
    from megatron.core.inference.utils import InferenceMode

    InferenceMode.unset_active()
    model = build_gpt_model(tiny.SHAPE, tiny.random_weights()).train()
    oracle = transformers_model(tiny_folder).train()
    ids = (torch.arange(30) * 7 % 264)[None]
    mask = torch.ones(1, 1, 29, 29, dtype=torch.bool).triu(1)
    with cpu.cpu_platform():
        loss = model(ids[:, :-1], torch.arange(29)[None], mask, labels=ids[:, 1:]).mean()
        loss.backward()
    expected = oracle(ids, labels=ids).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
    ours = hf_from_megatron({name: p.grad for name, p in model.named_parameters()}, tiny.SHAPE)
    theirs = {name: p.grad for name, p in oracle.named_parameters()}
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.4.mlp.up_proj.weight",
    ):
        assert torch.allclose(ours[name], theirs[name], atol=1e-4), name


def test_weights_there_and_back(tmp_path):
    """Hugging Face -> Megatron -> model -> folder -> Hugging Face is the same bits, and transformers opens the folder."""
    weights = tiny.random_weights()
    again = hf_from_megatron(dict(megatron_from_hf(weights, tiny.SHAPE)), tiny.SHAPE)
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    model = build_gpt_model(tiny.SHAPE, weights)
    path = folder.write_folder(tmp_path / "out", export_weights(model, tiny.SHAPE), tiny.SHAPE)
    checkpoint = find_model(str(path))
    assert checkpoint.shape == tiny.SHAPE
    read = checkpoint.read_weights()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    state = transformers_model(path).state_dict()
    assert torch.equal(
        state["model.layers.3.self_attn.k_proj.weight"], weights["model.layers.3.self_attn.k_proj.weight"]
    )


def test_loading_keeps_the_parameters():
    """`load_weights` writes into the model's own tensors; nothing is replaced."""
    model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    load_weights(model, tiny.random_weights(seed=5), tiny.SHAPE)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert all(parameter.requires_grad for parameter in model.parameters())
    q = export_weights(model, tiny.SHAPE)["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(q, tiny.random_weights(seed=5)["model.layers.0.self_attn.q_proj.weight"])


def test_tiny_is_about_a_million_parameters_and_the_same_everywhere():
    """Seeded: the first embedding values are these on every machine."""
    weights = tiny.random_weights()
    assert 0.9e6 < sum(weight.numel() for weight in weights.values()) < 1.1e6
    assert torch.equal(weights["model.embed_tokens.weight"], tiny.random_weights()["model.embed_tokens.weight"])
    assert not torch.equal(
        weights["model.embed_tokens.weight"], tiny.random_weights(seed=1)["model.embed_tokens.weight"]
    )


def test_perturbed_checkpoints_differ_by_what_they_say():
    """Noise of a tenth of each matrix's deviation, another for each epoch; norms stay; epoch 0 is the original."""
    weights = dict(tiny.random_weights().items())
    one, two = perturbed(weights, 1, 0.1), perturbed(weights, 2, 0.1)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = one[name] - weights[name]
    assert moved.std() / weights[name].std() == pytest.approx(0.1, rel=0.02)
    assert not torch.equal(one[name], two[name])
    assert torch.equal(one["model.norm.weight"], weights["model.norm.weight"])
    assert torch.equal(perturbed(weights, 0)[name], weights[name])
    assert torch.equal(perturbed(weights, 1, 0.1)[name], one[name])


def test_the_byte_tokenizer_loses_nothing():
    """Text to bytes and back; specials and stray bytes do no harm."""
    tokenizer = tiny.ByteTokenizer()
    assert tokenizer.encode("aé") == [97, 195, 169]
    assert tokenizer.decode([97, 195, 169, 257]) == "aé"
    assert tokenizer.decode([195]) == "�"
    assert chat_prompt(tokenizer, "ab") == [97, 98]


def test_parameters_of_is_a_copy():
    """Training on does not change the checkpoint that was taken."""
    model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
    copy = parameters_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(copy["embedding.word_embeddings.weight"], next(model.parameters()))


class TestErrors:
    def config(self, path, **changes):
        config = tiny.SHAPE.to_hf_config() | changes
        (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return path

    def test_unknown_names(self):
        """The nearest name, or all of them."""
        with pytest.raises(ModelError, match="no model 'smollm'.*did you mean smollm2"):
            find_model("smollm")
        with pytest.raises(ModelError, match="no model 'gpt-17'.*known names: smollm2, tiny"):
            find_model("gpt-17")
        with pytest.raises(ModelError, match="nowhere.gguf: no such file"):
            find_model("nowhere.gguf")

    def test_what_is_not_built(self, tmp_path):
        """Other architectures, biases, scaled RoPE: refused by name."""
        for changes, message in (
            ({"model_type": "mamba"}, "model_type 'mamba' is not supported; expected 'llama'"),
            ({"attention_bias": True}, "attention_bias is true"),
            ({"rope_scaling": {"type": "yarn"}}, "rope_type 'yarn' is not supported"),
            ({"hidden_size": None}, "key 'hidden_size' is missing"),
        ):
            with pytest.raises(ModelError, match=message):
                find_model(str(self.config(tmp_path, **changes)))

    def test_folders_that_are_not_whole(self, tmp_path):
        """No config, unreadable config, no weights, broken weights, wrong weights: file and reason."""
        with pytest.raises(ModelError, match="config.json: no such file"):
            find_model(str(tmp_path))
        (tmp_path / "config.json").write_text("{,")
        with pytest.raises(ModelError, match=r"config.json:1:2: "):
            find_model(str(tmp_path))
        checkpoint = find_model(str(self.config(tmp_path)))
        with pytest.raises(ModelError, match="no .*safetensors file in it"):
            checkpoint.read_weights()
        (tmp_path / "model.safetensors").write_bytes(b"not weights")
        with pytest.raises(ModelError, match="model.safetensors: not a readable safetensors file"):
            checkpoint.read_weights()
        weights = tiny.random_weights()
        del weights["model.norm.weight"]
        with pytest.raises(ModelError, match="weight model.norm.weight is missing"):
            folder.write_folder(tmp_path, weights, tiny.SHAPE)
        with pytest.raises(ModelError, match="weight extra does not belong to this model"):
            folder.write_folder(tmp_path, tiny.random_weights() | {"extra": torch.ones(1)}, tiny.SHAPE)

    def test_a_file_that_is_no_gguf(self, tmp_path, monkeypatch):
        """The reason that transformers gives, in one line with the file."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        file = tmp_path / "broken.gguf"
        file.write_bytes(b"GGUF but not really")
        with pytest.raises(ModelError, match="broken.gguf: transformers cannot read it as GGUF"):
            find_model(str(file))
        assert not list((tmp_path / "cache" / "megatron-generation-reference").iterdir())

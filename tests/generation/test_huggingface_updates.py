"""What updates, broken weights and bad settings do to the oracle, and what its records say of them."""

import math
from types import SimpleNamespace

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses
from support.huggingface import finish, llama, on_table, on_tiny
from support.table_model import megatron_weights_for, table_model
from transformers import LlamaForCausalLM

from reference_impl.config.errors import ConfigError
from reference_impl.conformance.table_model import SHAPE, chain, weights_for
from reference_impl.generation.huggingface import HuggingFaceGeneration
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.models import tiny
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.staleness.records import check

PROMPT = list(b"The capital of France is")


@pytest.fixture(scope="module")
def teacher() -> LlamaForCausalLM:
    return llama(tiny.SHAPE, tiny.random_weights())


class TestStaleness:
    def test_an_update_falls_between_two_steps(self):
        """v3 until 2 of 5 tokens, then v4: policy 3, 3, 4, 4, 4, and the tokens of the new table from the third on."""
        backend = on_table(chain(1, 5, 6, 7, 8), max_new_tokens=5)
        backend.update_weights(None, epoch=3)
        new = weights_for(chain(6, 9, 10, 11))
        (output,) = finish(backend, [3, 2, 1], at={2: lambda: backend.update_weights(new, epoch=4)})
        assert responses(output) == [[5, 6, 9, 10, 11]]
        record = output["staleness"][0]
        check(record)
        assert record.policy_epoch.to_json() == [[0, 3], [5, 4]]  # 3 of the prompt and 2 sampled
        assert record.kv_cache_epoch.to_json() == [[0, 3], [4, 4]]  # the second sampled is read by the new weights
        assert record.oldest_attended_kv_epoch.to_json() == [[0, None], [3, 3]]

    def test_updates_after_3_and_6_of_8(self):
        """Prompt of 8: policy runs of 11, 3, 2 and KV runs of 10, 3, 3."""
        backend = on_table(chain(1, 2), length=32, max_new_tokens=8)
        at = {n: lambda epoch=epoch: backend.update_weights(None, epoch=epoch) for epoch, n in ((1, 3), (2, 6))}
        (output,) = finish(backend, [1] * 8, at=at)
        assert output["policy_epoch"][0].to_json() == [[0, 0], [11, 1], [14, 2]]
        assert output["kv_cache_epoch"][0].to_json() == [[0, 0], [10, 1], [13, 2]]

    def test_admitted_before_and_prefilled_after(self):
        """Admitted at v3, first prefill at v5, with v4 between: KV all v5, and no trace of v4."""
        backend = on_table(chain(1, 2))
        backend.update_weights(None, epoch=3)

        def twice() -> None:
            backend.update_weights(None, epoch=4)
            backend.update_weights(None, epoch=5)

        (output,) = finish(backend, [1] * 4, at={0: twice})
        assert output["policy_epoch"][0].to_json() == [[0, 3], [4, 5]]
        assert output["kv_cache_epoch"][0].to_json() == [[0, 5]]

    def test_recompute_renews_the_cache(self):
        """What follows the update is what a fresh engine with the new weights says to the same tokens."""
        settings = {"mcore": {"kv_cache_management_mode": "recompute"}}
        backend = on_tiny(max_new_tokens=12, **settings)
        new = perturbed(parameters_of(backend.model), 1, strength=0.3)
        (output,) = finish(backend, PROMPT, at={5: lambda: backend.update_weights(new, epoch=1)})
        (generated,) = responses(output)
        fresh = on_tiny(max_new_tokens=7)
        fresh.update_weights(new, epoch=1)
        expected = fresh.generate(prompts(PROMPT + generated[:5]), greedy=True)
        assert generated[5:] == responses(expected)[0]
        assert response_logprobs(output)[0][5:] == pytest.approx(response_logprobs(expected)[0], abs=1e-5)
        record = output["staleness"][0]
        check(record)
        assert record.policy_epoch.to_json() == [[0, 0], [len(PROMPT) + 5, 1]]
        assert record.kv_cache_epoch.to_json() == [[0, 1]]
        assert (record.num_recomputes, record.num_evictions) == (1, 0)

    @pytest.mark.parametrize(("mode", "recomputes"), [("persist", 0), ("offload", 0), ("recompute", 1)])
    def test_sleeping_changes_no_token(self, mode, recomputes):
        """Suspended after 3 of 8 tokens, told of epoch 1 and woken; asleep, nothing is generated. Only `recompute` drops
        what epoch 0 wrote: all but the third token, which has not been read."""
        undisturbed = on_tiny(max_new_tokens=8).generate(prompts(PROMPT), greedy=True)
        backend = on_tiny(max_new_tokens=8, mcore={"kv_cache_management_mode": mode})

        def nap() -> None:
            backend.finish_generation()
            backend.finish_generation()
            with pytest.raises(GenerationError, match="asleep"):
                backend.generate(prompts([1]))
            backend.update_weights(None, epoch=1)
            backend.prepare_for_generation()

        (output,) = finish(backend, PROMPT, at={3: nap})
        assert responses(output) == responses(undisturbed)
        assert response_logprobs(output)[0] == pytest.approx(response_logprobs(undisturbed)[0], abs=1e-5)
        record = output["staleness"][0]
        assert record.num_recomputes == recomputes
        kept = [[0, 0], [len(PROMPT) + 2, 1]]
        assert record.kv_cache_epoch.to_json() == ([[0, 1]] if mode == "recompute" else kept)

    def test_running_requests_share_no_slot(self):
        """Of three the second ends early and another batch takes its place: epochs stay each request's own."""
        backend = on_table(chain(1, 5, 6, 7, 8), stop_token_ids=[6])
        first = backend.stream(prompts([3, 3, 3], [1], [3, 3, 3]), greedy=True)
        while next(first).sampled_tokens < 3:
            pass
        next(first), next(first)  # the second row ends
        backend.update_weights(None, epoch=1)
        second = backend.generate(prompts([3, 3]), greedy=True)
        assert second["kv_cache_epoch"][0].to_json() == [[0, 1]]
        rest = [event[1] for event in first if not isinstance(event, Progress)]
        assert [output["kv_cache_epoch"][0].to_json()[0] for output in rest] == [[0, 0], [0, 0]]


class TestWeights:
    def test_wrong_ones_change_nothing(self):
        """Unknown, missing, misshapen, NaN and infinite: refused before the first copy; so is an epoch that falls."""
        backend = on_tiny()
        good = parameters_of(backend.model)
        name = "model.layers.1.mlp.up_proj.weight"
        spoilt = {}
        for value in (math.nan, -math.inf):
            spoilt[value] = good[name].clone()
            spoilt[value][3, 5] = value
        for bad, message in (
            ({k: v for k, v in good.items() if k != name}, f"weight {name} is missing"),
            (good | {"lm_head.bias": torch.ones(4)}, "weight lm_head.bias is not a parameter of the model"),
            (good | {name: torch.zeros(2, 2)}, rf"weight {name} has shape \[2, 2\], expected \[384, 128\]"),
            (good | {name: spoilt[math.nan]}, f"weight {name} .*nan"),
            (good | {name: spoilt[-math.inf]}, f"weight {name} .*-inf"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.update_weights({k: v + 1 for k, v in bad.items()}, epoch=1)
        assert backend.epoch == backend.tracker.epoch == 0
        assert all(torch.equal(good[k], parameter) for k, parameter in backend.model.named_parameters())
        backend.update_weights(None, epoch=2)
        for epoch, message in ((1, "epoch 1 is older than the current epoch 2"), (2.5, "epoch must be an integer")):
            with pytest.raises(ValueError, match=message):
                backend.update_weights({k: v + 1 for k, v in good.items()}, epoch=epoch)
        assert all(torch.equal(good[k], parameter) for k, parameter in backend.model.named_parameters())

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_broken_checkpoint_ends_what_it_touches(self, value):
        """Token 6 is embedded as `value` at epoch 2: the request that comes to it ends with its tokens, the other goes on."""
        backend = on_table(chain(1, 5, 6, 7, 8) + chain(2, 3, 4, 9, 10))

        def spoil() -> None:
            with torch.no_grad():
                backend.model.model.embed_tokens.weight[6] = value
            backend.update_weights(None, epoch=2)

        broken, sound = finish(backend, [1], [2], at={2: spoil})
        assert broken["errors"] == ["logits are not finite under the weights of epoch 2"]
        assert responses(broken) == [[5, 6]]
        assert broken["staleness"][0].status == "aborted"
        assert responses(sound) == [[3, 4, 9, 10]]
        with pytest.raises(GenerationError, match="not finite under the weights of epoch 2"):
            backend.generate(prompts([6]), greedy=True)

    def test_logits_may_overflow_under_finite_weights(self):
        """After token 6 the logit of token 9 is 1.25e38 times 4, past float32's 3.4e38."""
        weights = weights_for(chain(1, 5, 6, 7, 8))
        weights["lm_head.weight"][9, 6] = 1.25e38
        backend = on_table(chain(1, 2))
        backend.update_weights(weights, epoch=4)
        output = backend.generate(prompts([1], [7]), greedy=True)
        assert output["errors"] == ["logits are not finite under the weights of epoch 4", None]
        assert responses(output) == [[5, 6], [8] * 4]

    def test_a_megatron_model_is_copied(self):
        """It stays `model`, with its names; an update reaches both, and `None` takes over what training wrote."""
        model = table_model(chain(1, 5, 6))
        settings = recipe(length=8, max_new_tokens=2, stop_token_ids=[])
        with HuggingFaceGeneration(settings, model=model, shape=SHAPE) as backend:
            assert backend.model is model
            assert responses(backend.generate(prompts([1]), greedy=True)) == [[5, 6]]
            backend.update_weights(megatron_weights_for(chain(1, 7, 8)), epoch=1)
            assert responses(backend.generate(prompts([1]), greedy=True)) == [[7, 8]]
            wanted = weights_for(chain(1, 9, 10))["lm_head.weight"]
            assert not torch.equal(model.output_layer.weight, wanted)
            with torch.no_grad():
                model.output_layer.weight.copy_(wanted)
            assert responses(backend.generate(prompts([1]), greedy=True)) == [[7, 8]], "not before it is told"
            backend.update_weights(None, epoch=2)
            assert responses(backend.generate(prompts([1]), greedy=True)) == [[9, 10]]


class TestConstruction:
    def test_what_cannot_be_is_refused(self):
        """One line each; a model of another kind, a recipe for many ranks, and a coordinator."""
        with pytest.raises(ValueError, match="give both or neither"):
            HuggingFaceGeneration(recipe(), shape=tiny.SHAPE)
        with pytest.raises(ValueError, match="model is a SimpleNamespace, expected a transformers model"):
            HuggingFaceGeneration(recipe(), model=SimpleNamespace(), shape=tiny.SHAPE)
        with pytest.raises(ConfigError, match=r"policy\.generation\.mode: coordinator, .*; write direct"):
            HuggingFaceGeneration(recipe(mode="coordinator"))
        policy = recipe().policy
        ranks = policy.megatron_cfg.model_copy(update={"tensor_model_parallel_size": 2})
        many = recipe().model_copy(update={"policy": policy.model_copy(update={"megatron_cfg": ranks})})
        with pytest.raises(ConfigError, match="tensor_model_parallel_size: 2, but this backend runs on one rank"):
            HuggingFaceGeneration(many)

    def test_bfloat16_keeps_its_rotary_frequencies(self):
        """Weights are rounded, and what turns the queries is not."""
        policy = recipe().policy.model_copy(update={"precision": "bfloat16", "device": "cpu"})
        backend = HuggingFaceGeneration(recipe(max_new_tokens=2).model_copy(update={"policy": policy}))
        assert {parameter.dtype for parameter in backend.model.parameters()} == {torch.bfloat16}
        assert backend.model.model.rotary_emb.inv_freq.dtype == torch.float32
        assert backend.model.lm_head.weight is backend.model.model.embed_tokens.weight

    def test_refit_information_is_checked(self, teacher):
        """Names and shapes, before any weight arrives."""
        backend = on_tiny()
        info = {name: (parameter.shape, torch.bfloat16) for name, parameter in teacher.named_parameters()}
        assert backend.prepare_refit_info(info)
        with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \[3\], expected \[128\]"):
            backend.prepare_refit_info(info | {"model.norm.weight": (torch.Size([3]), torch.float32)})
        assert backend.invalidate_kv_cache() is False


async def test_asynchronous_streams_share_the_engine():
    """Two at once, each with its own outputs."""
    backend = on_table(chain(1, 5, 6, 7, 8))
    one = backend.generate_async(prompts([1], [5]), greedy=True)
    other = backend.generate_async(prompts([6]), greedy=True)
    found = [await anext(one), await anext(other), await anext(one)]
    assert [(index, responses(output)) for index, output in found] == [
        (0, [[5, 6, 7, 8]]),
        (0, [[7, 8, 8, 8]]),
        (1, [[6, 7, 8, 8]]),
    ]

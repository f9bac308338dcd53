"""Weight updates: between two steps, into the same storage, seen by every later token."""

import pytest
import torch
from support.batches import prompts, response_logprobs, responses, tokens_of
from support.table_model import megatron_weights_for, table_model

from reference_impl.conformance.table_model import SHAPE, Digits, chain
from reference_impl.generation.interfaces import Progress
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.staleness.records import check

PROMPT = list(b"The capital of France is")


class TestUpdates:
    def test_fall_between_two_steps(self, make):
        """Chain 1 -> 5 -> 6 -> 7 until 2 tokens are sampled, then 6 -> 9 -> 10: the third token is the new weights' first."""
        backend = make(model=table_model(chain(1, 5, 6, 7, 8)), shape=SHAPE, tokenizer=Digits(), max_new_tokens=4)
        backend.prepare_for_generation()
        for event in backend.stream(prompts([3, 2, 1]), greedy=True):
            if isinstance(event, Progress):
                if event.sampled_tokens == 2 and backend.epoch == 0:
                    backend.update_weights(megatron_weights_for(chain(6, 9, 10)), epoch=3)
            else:
                output = event[1]
        assert responses(output) == [[5, 6, 9, 10]]
        # Prompt 3, two sampled, n = 5: the policy changes at n and the KV cache at n - 1; Megatron stamps both at n - 1.
        assert output["policy_epoch"][0].to_json() == [[0, 0], [5, 3]]
        assert output["kv_cache_epoch"][0].to_json() == [[0, 0], [4, 3]]
        assert output["upstream_staleness"][0].policy_epoch.to_json() == [[0, 0], [4, 3]]

    def test_reach_the_same_storage(self, make):
        """No parameter is replaced or copied: training and generation hold the same memory before and after."""
        backend = make(max_new_tokens=4)
        model = backend.model
        pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        backend.prepare_for_generation()
        before = backend.generate(prompts(PROMPT), greedy=True)
        backend.update_weights(perturbed(parameters_of(model), 1, strength=0.5), epoch=1)
        after = backend.generate(prompts(PROMPT), greedy=True)
        assert responses(before) != responses(after)
        assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == pointers
        assert backend._engine.controller.inference_wrapped_model.model is model

    def test_in_place_training_is_seen_without_a_copy(self, make):
        """An optimizer step on the shared parameters, then `update_weights(None)`: generation follows."""
        backend = make(max_new_tokens=4)
        backend.prepare_for_generation()
        before = backend.generate(prompts(PROMPT), greedy=True)
        backend.finish_generation()
        with torch.no_grad():
            for name, weight in perturbed(parameters_of(backend.model), 1, strength=0.5).items():
                dict(backend.model.named_parameters())[name].data.copy_(weight)
        backend.update_weights(None, epoch=1)
        backend.prepare_for_generation()
        after = backend.generate(prompts(PROMPT), greedy=True)
        assert responses(before) != responses(after)
        assert after["policy_epoch"][0].to_json() == [[0, 1]]

    def test_recompute_continues_as_the_new_model_would(self, make):
        """With `recompute`, what follows an update is what a fresh engine with the new weights says to the same tokens."""
        settings = {"mcore": {"kv_cache_management_mode": "recompute"}, "stop_token_ids": []}
        backend = make(max_new_tokens=12, **settings)
        new = perturbed(parameters_of(backend.model), 1, strength=0.3)
        backend.prepare_for_generation()
        for event in backend.stream(prompts(PROMPT), greedy=True):
            if isinstance(event, Progress):
                if event.sampled_tokens == 5 and backend.epoch == 0:
                    backend.update_weights(new, epoch=1)
            else:
                output = event[1]
        generated = responses(output)[0]
        fresh = make(max_new_tokens=7, **settings)
        fresh.update_weights(new, epoch=1)
        fresh.prepare_for_generation()
        expected = fresh.generate(prompts(PROMPT + generated[:5]), greedy=True)
        assert generated[5:] == responses(expected)[0]
        assert response_logprobs(output)[0][5:] == pytest.approx(response_logprobs(expected)[0], abs=5e-4)
        assert output["kv_cache_epoch"][0].to_json() == [[0, 1]]
        assert output["num_evictions"].tolist() == [0]

    def test_wrong_weights_change_nothing(self, make):
        """Unknown, missing and misshapen names are refused before the first copy; so is an epoch that falls."""
        backend = make(max_new_tokens=2)
        good = parameters_of(backend.model)
        name = "decoder.layers.0.mlp.linear_fc1.weight"
        for bad, message in (
            ({k: v for k, v in good.items() if k != name}, f"{name} is missing"),
            (
                good | {"model.norm.weight": torch.ones(4)},
                "model.norm.weight is not a parameter of the model; one of its names is embedding.word",
            ),
            (good | {name: torch.zeros(2, 2)}, rf"{name} has shape \[2, 2\], expected \[768, 128\]"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.update_weights({k: v + 1 for k, v in bad.items()}, epoch=1)
        assert backend.epoch == 0
        assert all(torch.equal(good[k], parameter) for k, parameter in backend.model.named_parameters())
        backend.update_weights(None, epoch=2)
        with pytest.raises(ValueError, match="epoch 1 is older than the current epoch 2"):
            backend.update_weights(None, epoch=1)

    def test_direct_mode_stamps_as_the_coordinators_loop_does(self, coordinated):
        """`stamp_epoch` against upstream's own message loop, on requests that wait, prefill and decode."""
        from copy import deepcopy
        from types import SimpleNamespace

        from reference_impl.generation.megatron.weights import stamp_epoch

        backend = coordinated
        driver, engine = backend._driver, backend._engine
        stream = backend.stream(prompts(*tokens_of(5, 9, 12, 7, 11, 6)), greedy=True)
        while next(stream).sampled_tokens < 12:
            pass
        driver._thread.call(driver._pause())
        assert len(engine.waiting_request_ids) == 2, "two of six wait for a place"
        epoch = backend.epoch + 1
        copy = SimpleNamespace(
            _generation_epoch=backend.epoch,
            requests={
                i: SimpleNamespace(
                    record=[
                        SimpleNamespace(
                            **{
                                name: deepcopy(getattr(entry.record[-1], name))
                                for name in ("prompt_tokens", "generated_tokens", "policy_epoch", "kv_cache_epoch")
                            }
                        )
                    ]
                )
                for i, entry in engine.requests.items()
            },
        )
        driver._client.set_generation_epoch(epoch)
        while engine._generation_epoch != epoch:
            driver.advance().result()
        stamp_epoch(copy, epoch)
        backend.epoch = epoch
        backend.tracker.weights_changed(epoch)  # what the driver's own update would have told it
        for i, entry in engine.requests.items():
            for name in ("policy_epoch", "kv_cache_epoch"):
                assert getattr(entry.record[-1], name) == getattr(copy.requests[i].record[0], name)
        driver._thread.call(driver._unpause())
        assert all(event.finished <= 6 for event in stream if isinstance(event, Progress))

    def test_show_in_the_epochs(self, either):
        """Both modes: an update while requests run leaves sequences of two epochs, old first."""
        backend, old = either, either.epoch
        new = perturbed(parameters_of(backend.model), 1)
        outputs = []
        for event in backend.stream(prompts(PROMPT, PROMPT[:5]), greedy=True):
            if not isinstance(event, Progress):
                outputs.append(event[1])
            elif event.sampled_tokens >= 20 and backend.epoch == old:
                backend.update_weights(new, epoch=old + 4)
        for output in outputs:
            assert [epoch for _, epoch in output["policy_epoch"][0].runs] == [old, old + 4]
            assert output["policy_epoch"][0].length == output["unpadded_sequence_lengths"].item()
            exact, upstream = output["staleness"][0], output["upstream_staleness"][0]
            check(exact)
            boundary = exact.policy_epoch.runs[1][0]
            assert exact.kv_cache_epoch.runs[1] == (boundary - 1, old + 4)
            assert upstream.policy_epoch.runs[1] == upstream.kv_cache_epoch.runs[1] == (boundary - 1, old + 4)
            assert exact.oldest_attended_kv_epoch.newest == old
            assert (exact.admission_epoch, exact.completion_epoch) == (old, old + 4)

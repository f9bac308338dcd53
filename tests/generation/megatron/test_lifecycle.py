"""Sleep and wake, updates between steps, eviction, chunks, prefixes and seeds, on the real engine with `tiny`."""

import asyncio

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses
from support.table_model import SHAPE, Digits, chain, megatron_weights_for, table_model

from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.megatron.backend import MegatronGeneration
from reference_impl.models.checkpoints import parameters_of, perturbed

PROMPT = list(b"The capital of France is")


def tokens_of(*numbers: int) -> list[list[int]]:
    """Prompts of the given lengths; equal lengths are equal prompts."""
    return [[(7 * length + i) % 250 for i in range(length)] for length in numbers]


@pytest.fixture
def make():
    backends = []

    def build(**settings) -> MegatronGeneration:
        parts = {name: settings.pop(name) for name in ("model", "shape", "tokenizer") if name in settings}
        backend = MegatronGeneration(recipe(**settings), **parts)
        backends.append(backend)
        return backend

    yield build
    for backend in backends:
        backend.shutdown()


@pytest.fixture(scope="module")
def coordinated():
    """One coordinator for the tests that do not end it: its process takes seconds to start."""
    settings = {"length": 96, "max_new_tokens": 50, "stop_token_ids": [], "mcore": {"max_requests": 4}}
    with MegatronGeneration(recipe(mode="coordinator", **settings)) as backend:
        yield backend


@pytest.fixture(params=["direct", "coordinator"])
def either(request, make):
    """A running backend in either mode."""
    if request.param == "coordinator":
        return request.getfixturevalue("coordinated")
    backend = make(length=96, max_new_tokens=50, stop_token_ids=[], mcore={"max_requests": 4})
    backend.prepare_for_generation()
    return backend


class TestLife:
    @pytest.mark.parametrize("mode", ["direct", "coordinator"])
    def test_every_call_may_come_twice(self, make, mode):
        """prepare, finish and shutdown twice do nothing more; prepare-generate-finish-prepare-generate repeats itself."""
        backend = make(mode=mode, max_new_tokens=6, stop_token_ids=[])
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))
        assert backend.prepare_for_generation() and backend.prepare_for_generation()
        first = backend.generate(prompts(PROMPT), greedy=True)
        process = backend._driver.process if mode == "coordinator" else None
        assert backend.finish_generation() and backend.finish_generation()
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))
        backend.prepare_for_generation()
        again = backend.generate(prompts(PROMPT), greedy=True)
        assert responses(first) == responses(again)
        assert backend.shutdown() and backend.shutdown()
        if process is not None:  # it was asked to stop, not killed
            assert not process.is_alive()
            assert process.exitcode == 0
        with pytest.raises(GenerationError, match="asleep"):
            backend.generate(prompts(PROMPT))

    def sleeps_unharmed(self, backend):
        batch, slept, finished = prompts(PROMPT, PROMPT[:9]), False, {}
        undisturbed = backend.generate(batch, greedy=True)
        for event in backend.stream(batch, greedy=True):
            if not isinstance(event, Progress):
                finished[event[0]] = event[1]
            elif not slept and event.sampled_tokens >= 10:
                backend.suspend()
                backend.resume()
                slept = True
        assert slept
        for index in range(2):
            assert responses(finished[index])[0] == responses(undisturbed)[index]

    def test_requests_survive_a_sleep(self, either):
        """Suspended in the middle of generation and resumed: the same tokens as undisturbed."""
        self.sleeps_unharmed(either)

    @pytest.mark.parametrize("kv_mode", ["offload", "recompute"])
    def test_whatever_becomes_of_the_cache(self, make, kv_mode):
        """Moved to the host and back, or dropped and computed again: the same tokens."""
        backend = make(max_new_tokens=40, mcore={"kv_cache_management_mode": kv_mode}, stop_token_ids=[])
        backend.prepare_for_generation()
        self.sleeps_unharmed(backend)

    def test_the_model_can_train_while_the_engines_sleep(self, make, coordinated):
        """`InferenceMode` is process-wide and makes GPTModel refuse a loss; `finish_generation` takes it down."""
        from megatron.core.inference.utils import InferenceMode

        backend = make(max_new_tokens=2)
        backend.prepare_for_generation()
        coordinated.finish_generation()
        assert InferenceMode.is_active()
        backend.finish_generation()
        assert not InferenceMode.is_active()
        coordinated.prepare_for_generation()
        assert InferenceMode.is_active()

    def test_another_engine_that_goes_to_sleep_does_no_harm(self, make):
        """The flag is the process's; an engine at work keeps it up when its neighbour sleeps or is shut down."""
        one, other = (make(max_new_tokens=5, stop_token_ids=[]) for _ in range(2))
        one.prepare_for_generation()
        expected = one.generate(prompts(PROMPT), greedy=True)
        other.prepare_for_generation()
        other.finish_generation()
        assert responses(one.generate(prompts(PROMPT), greedy=True)) == responses(expected)
        other.prepare_for_generation()
        other.shutdown()
        assert responses(one.generate(prompts(PROMPT), greedy=True)) == responses(expected)

    def test_a_dead_coordinator_is_reported(self, make):
        """Fault: its process is killed under a running request; the caller gets an error and is not left waiting."""
        backend = make(
            mode="coordinator", max_new_tokens=200, length=256, stop_token_ids=[], mcore={"buffer_size_gb": 0.01}
        )
        backend.prepare_for_generation()
        with pytest.raises(RuntimeError, match="coordinator process has ended"):
            for event in backend.stream(prompts(PROMPT), greedy=True):
                if isinstance(event, Progress) and event.sampled_tokens >= 3:
                    backend._driver.process.kill()
                    backend._driver.process.join()


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
        # Prompt 3, two sampled, n = 5: Megatron stamps both boundaries at n - 1. Truth: policy 5, KV 4.
        assert output["policy_epoch"][0].to_json() == [[0, 0], [4, 3]]
        assert output["kv_cache_epoch"][0].to_json() == [[0, 0], [4, 3]]

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
            (good | {"model.norm.weight": torch.ones(4)}, "model.norm.weight is not a parameter.*Megatron's"),
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


class TestScheduling:
    def test_evicted_requests_say_the_same(self, make):
        """A cache too small for both: one is evicted, prefilled again later, and ends with the same tokens and log-probs."""
        batch = prompts(PROMPT[:8], PROMPT[8:16])
        roomy = make(max_new_tokens=24, stop_token_ids=[])
        roomy.prepare_for_generation()
        expected = roomy.generate(batch, greedy=True)
        roomy.finish_generation()
        block = 2 * 5 * 2 * 32 * 4 * 4  # K and V, layers, KV heads, head size, bytes, tokens
        tight = make(
            max_new_tokens=24, stop_token_ids=[], mcore={"buffer_size_gb": 11 * block / 2**30, "max_requests": 8}
        )
        tight.prepare_for_generation()
        output = tight.generate(batch, greedy=True)
        assert output["num_evictions"].sum() > 0
        assert responses(output) == responses(expected)
        for got, want in zip(response_logprobs(output), response_logprobs(expected), strict=True):
            assert got == pytest.approx(want, abs=5e-4)

    def test_eviction_keeps_the_stops(self, make):
        """1, 2, 3, ... in a cache for one and a bit: both end at a stop that is reached only after the eviction."""
        block = 2 * 1 * 1 * 8 * 4 * 2  # K and V, layers, KV heads, head size, bytes, tokens
        backend = make(
            model=table_model(chain(*range(1, 16))),
            shape=SHAPE,
            tokenizer=Digits(),
            max_new_tokens=14,
            stop_token_ids=[14],
            mcore={"block_size_tokens": 2, "buffer_size_gb": 11.5 * block / 2**30, "max_requests": 4},
        )
        backend.prepare_for_generation()
        for settings, last in (({}, 14), ({"stop_token_ids": [], "stop_strings": ["mn"]}, 13)):
            backend.config = backend.config.model_copy(update=settings)
            output = backend.generate(prompts([1], [1]), greedy=True)
            assert output["num_evictions"].sum() > 0
            assert responses(output) == [list(range(2, last + 1))] * 2
            assert output["truncated"].tolist() == [False, False]

    def test_chunked_prefill_changes_nothing(self, make):
        """Prompt 10 in chunks of at most 4: one token and one log-probability a sampled position, as in one piece."""
        whole = make(max_new_tokens=5, stop_token_ids=[])
        whole.prepare_for_generation()
        expected = whole.generate(prompts(PROMPT[:10]), greedy=True)
        whole.finish_generation()
        chunked = make(max_new_tokens=5, stop_token_ids=[], mcore={"max_tokens": 4, "max_requests": 4})
        chunked.prepare_for_generation()
        output = chunked.generate(prompts(PROMPT[:10]), greedy=True)
        assert responses(output) == responses(expected)
        assert response_logprobs(output)[0] == pytest.approx(response_logprobs(expected)[0], abs=5e-4)

    def test_a_stop_id_in_the_middle_of_a_chunked_prompt_does_not_stop(self, make):
        """What a partial chunk samples is thrown away: token 5 follows 1 in the prompt's first chunk, and is no stop."""
        backend = make(
            model=table_model(chain(1, 5, 6, 7)),
            shape=SHAPE,
            tokenizer=Digits(),
            max_new_tokens=3,
            stop_token_ids=[5],
            mcore={"max_tokens": 4, "max_requests": 4},
        )
        backend.prepare_for_generation()
        output = backend.generate(prompts([1, 1, 1, 1, 1, 1, 1, 1, 5]), greedy=True)
        assert responses(output) == [[6, 7, 7]]
        assert backend.sampled_tokens == 3, "what a partial chunk samples is not counted either"

    def test_a_prompt_larger_than_a_step_needs_chunks(self, make):
        """Prompt 5, max_tokens 4, no chunked prefill: that request fails, the other finishes."""
        backend = make(
            max_new_tokens=2,
            stop_token_ids=[],
            mcore={"max_tokens": 4, "max_requests": 4, "enable_chunked_prefill": False},
        )
        backend.prepare_for_generation()
        output = backend.generate(prompts(PROMPT[:5], PROMPT[:4]), greedy=True)
        assert "more than max_tokens: 4" in output["errors"][0]
        assert output["errors"][1] is None
        assert output["generation_lengths"].tolist() == [0, 2]

    def test_a_buffer_too_small_says_what_it_needs(self, make):
        """64 tokens are 16 blocks of 4; with what the message asks for, the request runs."""
        block = 2 * 5 * 2 * 32 * 4 * 4
        settings = {"max_new_tokens": 60, "stop_token_ids": []}
        small = make(**settings, mcore={"buffer_size_gb": 10.5 * block / 2**30, "max_requests": 4})
        small.prepare_for_generation()
        with pytest.raises(GenerationError, match="need 16 KV blocks of 4, the buffer has 9") as caught:
            small.generate(prompts(PROMPT[:4]))
        needed = float(str(caught.value).split("buffer_size_gb to ")[1].split()[0])
        small.finish_generation()
        enough = make(**settings, mcore={"buffer_size_gb": needed, "max_requests": 4})
        enough.prepare_for_generation()
        assert enough.generate(prompts(PROMPT[:4]))["generation_lengths"].tolist() == [60]

    def test_a_buffer_larger_than_memory(self, make):
        """One line with the key, not the allocator's."""
        from reference_impl.config.errors import ConfigError

        with pytest.raises(ConfigError, match="mcore_generation_config.buffer_size_gb: 4e.06 does not fit into memory"):
            make(mcore={"buffer_size_gb": 4_000_000, "block_size_tokens": 256}).prepare_for_generation()

    def test_the_documented_buffer_works_with_a_small_model(self, make):
        """NeMo RL's `buffer_size_gb: 10` and `block_size_tokens: 256`, where 0.19.2 asserts on max_requests."""
        mcore = {"buffer_size_gb": 10, "block_size_tokens": 256, "max_requests": None, "max_tokens": 16384}
        backend = make(max_new_tokens=2, mcore=mcore, stop_token_ids=[])
        backend.prepare_for_generation()
        assert backend.generate(prompts(PROMPT))["generation_lengths"].tolist() == [2]

    def test_batch_mates_do_not_matter(self, make):
        """Alone or in a batch of 9, the same ids and log-probabilities within 5e-4."""
        backend = make(max_new_tokens=8, stop_token_ids=[])
        backend.prepare_for_generation()
        alone = backend.generate(prompts(PROMPT), greedy=True)
        together = backend.generate(prompts(PROMPT, *tokens_of(3, 17, 30, 1, 8, 22, 5, 12)), greedy=True)
        assert responses(alone)[0] == responses(together)[0]
        assert response_logprobs(alone)[0] == pytest.approx(response_logprobs(together)[0], abs=5e-4)

    def test_bfloat16_on_a_cpu(self, make):
        """Half the memory; its log-probabilities are float32's to the two or three digits that bfloat16 has."""
        exact = make(max_new_tokens=3, stop_token_ids=[])
        exact.prepare_for_generation()
        expected = response_logprobs(exact.generate(prompts(PROMPT), greedy=True))[0]
        settings = recipe(max_new_tokens=3, stop_token_ids=[])
        policy = settings.policy.model_copy(update={"precision": "bfloat16"})
        with MegatronGeneration(settings.model_copy(update={"policy": policy})) as backend:
            assert next(backend.model.parameters()).dtype is torch.bfloat16
            output = backend.generate(prompts(PROMPT), greedy=True)
        assert response_logprobs(output)[0] == pytest.approx(expected, abs=0.1)

    def test_the_same_seed_and_order_repeat(self, make):
        """Two engines with one seed sample the same tokens; another seed samples others."""
        drawn = []
        for seed in (7, 7, 8):
            backend = make(max_new_tokens=12, seed=seed, stop_token_ids=[])
            backend.prepare_for_generation()
            drawn.append(responses(backend.generate(prompts(PROMPT, PROMPT[:3]))))
            backend.finish_generation()
        assert drawn[0] == drawn[1] != drawn[2]

    def test_prefixes_are_forgotten_when_weights_change(self, make):
        """A prefix shared with a request that still runs is used before the update, not after; logits are a fresh engine's."""
        backend = make(max_new_tokens=30, stop_token_ids=[], mcore={"enable_prefix_caching": True})
        new = perturbed(parameters_of(backend.model), 1, strength=0.3)
        backend.prepare_for_generation()
        engine, prompt = backend._engine, PROMPT[:16]
        stream = backend.stream(prompts(prompt), greedy=True)
        while next(stream).sampled_tokens < 2:
            pass
        list(backend.stream(prompts(prompt), greedy=True))
        assert engine._prefix_cache_hits == 1
        stream = backend.stream(prompts(prompt), greedy=True)
        while next(stream).sampled_tokens < 2:
            pass
        backend.update_weights(new, epoch=1)
        after = backend.generate(prompts(prompt), greedy=True)
        assert engine._prefix_cache_hits == 1
        fresh = make(max_new_tokens=30, stop_token_ids=[])
        fresh.update_weights(new, epoch=1)
        fresh.prepare_for_generation()
        expected = fresh.generate(prompts(prompt), greedy=True)
        assert responses(after) == responses(expected)
        assert response_logprobs(after)[0] == pytest.approx(response_logprobs(expected)[0], abs=5e-4)


class TestAsync:
    async def collect(self, backend, batch):
        return [(index, responses(output)[0]) async for index, output in backend.generate_async(batch, greedy=True)]

    def test_yields_as_sequences_finish(self, either):
        """Two callers at once; in each, the one that fills the context first comes first, whatever its place."""
        alone = either.generate(prompts(*tokens_of(90, 60, 80)), greedy=True)

        async def both():
            return await asyncio.gather(
                self.collect(either, prompts(*tokens_of(60, 90))), self.collect(either, prompts(*tokens_of(80)))
            )

        first, second = asyncio.run(both())
        assert [index for index, _ in first] == [1, 0]
        assert first == [(1, responses(alone)[0]), (0, responses(alone)[1])]
        assert second == [(0, responses(alone)[2])]

    def test_an_interrupted_batch_gives_what_it_has(self, either):
        """Each sequence is handed out once, by the stream or by `unfinished`: whole, or as far as it has come."""
        batch, got = prompts(*tokens_of(92, 10)), []
        for event in either.stream(batch, greedy=True):
            if not isinstance(event, Progress):
                got.append(event)
            elif event.sampled_tokens >= 3:
                break
        got += either.unfinished()
        assert sorted(index for index, _ in got) == [0, 1]
        expected = either.generate(batch, greedy=True)
        for index, output in got:
            tokens, whole = responses(output)[0], responses(expected)[index]
            assert tokens == whole[: len(tokens)]
            assert output["errors"] == [None if len(tokens) == len(whole) else "interrupted"]
        if either.config.mode == "direct":  # where the engine stands still while we look
            assert [len(responses(output)[0]) for _, output in got] == [2, 2]

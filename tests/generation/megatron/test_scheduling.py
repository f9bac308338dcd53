"""Eviction, chunks, prefixes, limits and seeds, on the real engine with `tiny`."""

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses, tokens_of
from support.table_model import table_model

from reference_impl.conformance.table_model import SHAPE, Digits, chain
from reference_impl.generation.interfaces import GenerationError
from reference_impl.generation.megatron.backend import MegatronGeneration
from reference_impl.models.checkpoints import parameters_of, perturbed

PROMPT = list(b"The capital of France is")


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

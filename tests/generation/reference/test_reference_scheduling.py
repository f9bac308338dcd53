"""Blocks, admission, chunks, evictions, prefixes and the order of the queue, each worked out by hand."""

from collections import Counter

import pytest
import torch
from generation.reference.small_llama import checkpoint, engine
from support.batches import prompts, response_logprobs, responses
from support.table_model import table_model

from reference_impl.conformance.table_model import SHAPE as TABLE_SHAPE
from reference_impl.conformance.table_model import Digits, chain
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.reference import batch as batch_module
from reference_impl.generation.reference import model as model_module
from reference_impl.generation.reference.blocks import BlockPool
from reference_impl.staleness.events import follow

PROMPT = [7, 1, 60, 33, 2, 9, 11, 52, 4, 40, 41, 8, 30, 17, 22, 5]


def watched(backend):
    """The tracker's events from now on."""
    events = []
    follow(backend.tracker, events.append)
    return events


def widths(events):
    """How many positions each forward pass computed of each request: one Counter a pass."""
    return [Counter(event["requests"]) for event in events if event["event"] == "forward"]


class TestBlocks:
    def test_two_owners_release_a_block_once_each(self):
        """Held by two, a block is free when both have let go, and free once: 3 of 4 can be given out, all different."""
        pool = BlockPool(4)
        (block,) = pool.allocate(1)
        pool.share([block])
        assert (pool.used, pool.available) == (1, 2)
        pool.release([block])
        assert (pool.used, pool.available) == (1, 2), "the other one still reads it"
        pool.release([block])
        assert (pool.used, pool.available) == (0, 3)
        assert sorted(pool.allocate(3)) == [0, 1, 2], "block 3 is reserved"

    def test_two_owners_that_end_in_one_step(self):
        """Two requests share a prefix of 12 tokens and end together: every block is free again, once."""
        backend = engine(blocks=20, max_new_tokens=3, mcore={"enable_prefix_caching": True})
        backend.generate(prompts(PROMPT[:13]), greedy=True)
        events = watched(backend)
        output = backend.generate(prompts(PROMPT[:13], PROMPT[:13]), greedy=True)
        assert [record.prefix_cached_tokens for record in output["staleness"]] == [12, 12]
        assert widths(events)[0] == {1: 1, 2: 1}, "the last token of each is computed"
        pool = backend._engine.pool
        assert (pool.used, pool.available) == (0, 20)
        assert len({*pool._free, *pool._idle}) == 20

    def test_known_blocks_are_given_out_last_and_the_oldest_first(self):
        """Of blocks 0 (known, freed first), 1 (known) and 2 (not): 2, then 0, which no lookup finds from then on."""
        pool = BlockPool(4)
        blocks = [pool.allocate(1)[0] for _ in range(3)]
        for number in (0, 1):
            pool.register(-1, (number,), blocks[number])
        for block in blocks:
            pool.release([block])
        assert pool.lookup(-1, [0], 1, 1)[0] == [blocks[0]]
        assert pool.allocate(2) == [blocks[2], blocks[0]]
        assert pool.lookup(-1, [0], 1, 1)[0] == []
        assert pool.lookup(-1, [1], 1, 1)[0] == [blocks[1]]

    def test_a_collision_of_hashes_is_no_hit(self):
        """Python's hash of 2**61 - 1 is that of 0, so the two keys collide; their tokens differ."""
        zero, alike = 0, 2**61 - 1
        assert hash((-1, (zero, 5))) == hash((-1, (alike, 5)))
        pool = BlockPool(3)
        (block,) = pool.allocate(1)
        pool.register(-1, (zero, 5), block)
        assert pool.lookup(-1, [alike, 5], 2, 1) == ([], -1)
        assert pool.lookup(-1, [zero, 5], 2, 1)[0] == [block]

    def test_the_same_block_under_another_parent_is_another(self):
        """1 2 1 2 with blocks of 2: the second block is no first one, and the first is no second."""
        pool = BlockPool(4)
        first, second = pool.allocate(2)
        name = pool.register(-1, (1, 2), first)
        pool.register(name, (1, 2), second)
        assert pool.lookup(-1, [1, 2, 1, 2, 1, 2], 2, 3)[0] == [first, second]
        assert pool.lookup(name, [1, 2], 2, 1)[0] == [second]


class TestAdmission:
    def test_the_last_token_takes_no_room(self):
        """One block of 256: 200 and 57 are 256 stored tokens and fit; 58 are refused at once, with the sum."""
        settings = {"length": 300, "mcore": {"block_size_tokens": 256, "max_tokens": 256}}
        prompt = [i % 64 for i in range(200)]
        fits = engine(blocks=1, max_new_tokens=57, **settings).generate(prompts(prompt), greedy=True)
        assert fits["generation_lengths"].tolist() == [57] and fits["num_evictions"].tolist() == [0]
        with pytest.raises(
            GenerationError, match="257 tokens need 2 KV blocks of 256, the buffer has 1; set buffer_size"
        ):
            engine(blocks=1, max_new_tokens=58, **settings).generate(prompts(prompt), greedy=True)

    def test_what_the_reason_asks_for_is_enough(self):
        """13 stored tokens are 4 blocks of 4, and one more is the engine's."""
        with pytest.raises(GenerationError) as caught:
            engine(blocks=3, max_new_tokens=10).generate(prompts(PROMPT[:4]))
        size = float(str(caught.value).split("buffer_size_gb to ")[1].split()[0])
        backend = engine(max_new_tokens=10, mcore={"buffer_size_gb": size})
        assert backend.generate(prompts(PROMPT[:4]))["generation_lengths"].tolist() == [10]

    def test_a_prompt_larger_than_a_step_needs_chunks(self):
        """Prompt 5, max_tokens 4, no chunked prefill: that request fails, the other finishes."""
        mcore = {"max_tokens": 4, "max_requests": 4, "enable_chunked_prefill": False}
        output = engine(max_new_tokens=2, mcore=mcore).generate(prompts(PROMPT[:5], PROMPT[:4]), greedy=True)
        assert output["errors"][0].startswith("the prompt has 5 tokens, more than max_tokens: 4")
        assert output["errors"][1] is None and output["generation_lengths"].tolist() == [0, 2]

    def test_max_requests(self):
        """Five prompts, two at a time: a pass has two requests at most, and all finish."""
        backend = engine(max_new_tokens=3, mcore={"max_requests": 2})
        events = watched(backend)
        output = backend.generate(prompts(*[PROMPT[: 2 + i] for i in range(5)]), greedy=True)
        assert max(map(len, widths(events))) == 2
        assert output["generation_lengths"].tolist() == [3] * 5


class TestChunks:
    def test_chunks_of_4_4_2(self):
        """Prompt 10, max_tokens 4: one token and one log-probability, as in one piece; then decode."""
        whole = engine(max_new_tokens=2).generate(prompts(PROMPT[:10]), greedy=True)
        backend = engine(max_new_tokens=2, mcore={"max_tokens": 4, "max_requests": 4})
        events = watched(backend)
        output = backend.generate(prompts(PROMPT[:10]), greedy=True)
        assert [step[0] for step in widths(events)] == [4, 4, 2, 1]
        assert [event["event"] for event in events].count("sample") == 2 == backend.sampled_tokens
        assert responses(output) == responses(whole)
        assert response_logprobs(output)[0] == pytest.approx(response_logprobs(whole)[0], abs=5e-4)

    def test_one_token_a_step(self):
        """`max_tokens: 1`: a prompt of 5 takes five passes, and nothing waits for ever."""
        whole = engine(max_new_tokens=3).generate(prompts(PROMPT[:5]), greedy=True)
        backend = engine(max_new_tokens=3, mcore={"max_tokens": 1, "max_requests": 1})
        events = watched(backend)
        assert responses(backend.generate(prompts(PROMPT[:5]), greedy=True)) == responses(whole)
        assert [step[0] for step in widths(events)] == [1] * 7

    def test_a_stop_id_in_the_middle_of_a_prompt_does_not_stop(self):
        """5 follows 1 in the first chunk, and nothing is sampled there."""
        backend = engine(
            model=table_model(chain(1, 5, 6, 7)),
            shape=TABLE_SHAPE,
            max_new_tokens=3,
            stop_token_ids=[5],
            mcore={"max_tokens": 4, "max_requests": 4},
        )
        assert responses(backend.generate(prompts([1] * 8 + [5]), greedy=True)) == [[6, 7, 7]]

    @pytest.mark.parametrize("limit", [1, 40, 300])
    def test_sliced_masks_change_nothing(self, monkeypatch, limit):
        """Long prompts in chunks beside decodes, with masks for one query at a time, for a few, and for many."""
        rows, mcore = [(PROMPT * 3)[:n] for n in (45, 13, 31, 2)], {"max_tokens": 20, "max_requests": 4}
        settings = {"length": 96, "max_new_tokens": 6, "mcore": mcore}
        expected = engine(**settings).generate(prompts(*rows), greedy=True)
        for module in (batch_module, model_module):
            monkeypatch.setattr(module, "MASK_LIMIT", limit)
        output = engine(**settings).generate(prompts(*rows), greedy=True)
        assert responses(output) == responses(expected)
        torch.testing.assert_close(output["logprobs"], expected["logprobs"], atol=1e-5, rtol=0)


class TestEvictions:
    def test_evicted_after_5_of_8_gives_the_same_8(self):
        """Prompts of 4, blocks of 4, five of them: both fill two blocks with their fifth new token, and one third is left."""
        rows = PROMPT[:4], PROMPT[4:8]
        expected = engine(max_new_tokens=8).generate(prompts(*rows), greedy=True)
        backend = engine(blocks=5, max_new_tokens=8)
        events, sampled = watched(backend), []
        output = backend.generate(prompts(*rows), greedy=True)
        for event in events:
            sampled += event["requests"] if event["event"] == "sample" else []
            if event["event"] == "evict":
                assert sampled.count(event["request"]) == 5
        assert output["num_evictions"].sum() == 1
        assert responses(output) == responses(expected)
        torch.testing.assert_close(output["logprobs"], expected["logprobs"], atol=5e-4, rtol=0)

    def test_it_keeps_stops_and_sampling(self):
        """1, 2, 3, ... : both end at a stop that is reached only after the eviction, id or string."""
        settings = {"block_size_tokens": 2, "max_requests": 4}
        for stops, last in (({"stop_token_ids": [14]}, 14), ({"stop_strings": ["mn"]}, 13)):
            backend = engine(
                blocks=10,
                model=table_model(chain(*range(1, 16))),
                shape=TABLE_SHAPE,
                tokenizer=Digits(),
                max_new_tokens=14,
                top_k=1,
                temperature=0.7,
                mcore=settings,
                **stops,
            )
            output = backend.generate(prompts([1], [1]))
            assert output["num_evictions"].sum() > 0
            assert responses(output) == [list(range(2, last + 1))] * 2, "top_k 1 draws the best, before and after"
            assert output["truncated"].tolist() == [False, False]
            assert output["logprobs"].abs().max() < 1e-6, "of one token that is kept, the probability is 1"

    def test_one_that_outgrew_a_step_is_cut_though_prompts_are_not(self):
        """No chunked prefill and max_tokens 6: evicted with 9 tokens, it comes back in two passes."""
        mcore = {"max_tokens": 6, "max_requests": 4, "enable_chunked_prefill": False}
        rows = PROMPT[:4], PROMPT[4:8]
        expected = engine(max_new_tokens=8).generate(prompts(*rows), greedy=True)
        output = engine(blocks=5, max_new_tokens=8, mcore=mcore).generate(prompts(*rows), greedy=True)
        assert output["num_evictions"].sum() == 1
        assert responses(output) == responses(expected)


class TestOrder:
    def test_a_large_request_is_not_overtaken_for_ever(self):
        """9 blocks; small requests come at each step without end, and one needs all 9: it begins before any that came later."""
        backend = engine(blocks=9, max_new_tokens=4, mcore={"max_requests": 4})
        events = watched(backend)
        streams = [backend.stream(prompts(PROMPT[:3], PROMPT[3:6]), greedy=True)]
        next(streams[0])
        large = backend.stream(prompts(PROMPT * 2), greedy=True)
        next(large)
        for _ in range(40):
            stream = backend.stream(prompts(PROMPT[:5]), greedy=True)
            next(stream)
            streams.append(stream)
            if not isinstance(next(large), Progress):
                break
        else:
            pytest.fail("the large request starved")
        began = list(
            dict.fromkeys(name for event in events if event["event"] == "forward" for name in event["requests"])
        )
        assert began == sorted(began), "in order of arrival"
        assert began[2] == 2

    def test_an_evicted_request_goes_first(self):
        """Two run in 5 blocks and one waits: the evicted one is prefilled again before the one that waits begins."""
        backend = engine(blocks=5, max_new_tokens=8, mcore={"max_requests": 2})
        events = watched(backend)
        backend.generate(prompts(PROMPT[:4], PROMPT[4:8], PROMPT[8:12]), greedy=True)
        at = next(i for i, event in enumerate(events) if event["event"] == "evict")
        evicted = events[at]["request"]
        later = [event["requests"] for event in events[at:] if event["event"] == "forward"]
        back = next(i for i, names in enumerate(later) if evicted in names)
        assert all(2 not in names for names in later[:back])


class TestPrefixes:
    def test_a_whole_prompt_that_is_cached(self):
        """8 tokens in blocks of 4, twice: the last token is always computed, so one block is used again."""
        backend = engine(max_new_tokens=5, mcore={"enable_prefix_caching": True})
        first, second = (backend.generate(prompts(PROMPT[:8]), greedy=True) for _ in range(2))
        assert [output["staleness"][0].prefix_cached_tokens for output in (first, second)] == [0, 4]
        assert responses(second) == responses(first)
        torch.testing.assert_close(second["logprobs"], first["logprobs"], atol=5e-4, rtol=0)

    @pytest.mark.parametrize("in_flight", [False, True])
    def test_nothing_is_reused_after_an_update(self, in_flight):
        """The same prompt before and after, its first request over or still running: tokens are a fresh engine's."""
        backend = engine(max_new_tokens=20, mcore={"enable_prefix_caching": True})
        stream = backend.stream(prompts(PROMPT), greedy=True)
        while isinstance(event := next(stream), Progress):
            if in_flight and event.sampled_tokens == 3:
                break
        backend.update_weights(checkpoint(1), epoch=4)
        after = backend.generate(prompts(PROMPT), greedy=True)
        fresh = engine(max_new_tokens=20)
        fresh.update_weights(checkpoint(1), epoch=4)
        assert responses(after) == responses(fresh.generate(prompts(PROMPT), greedy=True))
        assert after["staleness"][0].prefix_cached_tokens == 0
        assert after["kv_cache_epoch"][0].to_json() == [[0, 4]]
        again = backend.generate(prompts(PROMPT), greedy=True)
        assert again["staleness"][0].prefix_cached_tokens == 12, "what the new weights wrote is used again"

    def test_reuse_across_updates_reports_the_blocks_own_epoch(self):
        """16 tokens in blocks of 4: 12 of them were written at 0, and the last four at 4."""
        backend = engine(max_new_tokens=2, reuse_across_updates=True, mcore={"enable_prefix_caching": True})
        backend.generate(prompts(PROMPT), greedy=True)
        backend.update_weights(checkpoint(1), epoch=4)
        record = backend.generate(prompts(PROMPT), greedy=True)["staleness"][0]
        assert record.prefix_cached_tokens == 12
        assert record.kv_cache_epoch.to_json() == [[0, 0], [12, 4]]
        assert record.policy_epoch.to_json() == [[0, 4]]
        assert record.oldest_attended_kv_epoch.to_json() == [[0, None], [16, 0]]

    def test_invalidate(self):
        backend = engine(max_new_tokens=2, mcore={"enable_prefix_caching": True})
        backend.generate(prompts(PROMPT), greedy=True)
        assert backend.invalidate_kv_cache() is True
        assert backend.generate(prompts(PROMPT), greedy=True)["staleness"][0].prefix_cached_tokens == 0
        assert engine().invalidate_kv_cache() is False

"""The backend's parts on their own: filters, stops, limits, what a finished record says, the engine's thread."""

import asyncio
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import recipe

from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import load_recipe
from reference_impl.conformance.table_model import Digits
from reference_impl.generation.distribution import processed_log_probs, sample
from reference_impl.generation.megatron import build
from reference_impl.generation.megatron.completions import read_completion
from reference_impl.generation.megatron.requests import sampling_params
from reference_impl.generation.megatron.thread import EngineThread
from reference_impl.generation.rows import Limits, Row, tokens_to_generate, why_refused
from reference_impl.generation.stops import Stops
from reference_impl.models.tiny import SHAPE


def filtered_by_hand(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The definition, in Python floats: scale, keep the best k, renormalise, keep the smallest set that reaches p."""
    weights = {i: math.exp((value - max(logits)) / temperature) for i, value in enumerate(logits)}
    best_first = sorted(weights, key=lambda i: (-weights[i], i))
    kept = best_first[:top_k] if top_k else best_first
    total, chosen, mass = sum(weights[i] for i in kept), [], 0.0
    for i in kept:
        if mass >= top_p:
            break
        chosen.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in chosen)
    return [math.log(weights[i] / total) if i in chosen else -math.inf for i in range(len(logits))]


@settings(max_examples=200)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=9, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.15, 0.37, 0.61, 0.93, 1.0]),
)
def test_filters_are_the_definition(logits, temperature, top_k, top_p):
    """Any temperature, top-k (also beyond the vocabulary) and top-p against the definition written out."""
    values = [value / 8 for value in logits]
    expected = filtered_by_hand(values, temperature, min(top_k, len(values)), top_p)
    got = processed_log_probs(torch.tensor([values]), temperature, top_k, 0.0 if top_p == 1.0 else top_p)[0].tolist()
    assert [value == -math.inf for value in got] == [value == -math.inf for value in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine == theirs or mine == pytest.approx(theirs, abs=1e-4)


def test_sampling_follows_the_filtered_distribution():
    """10,000 draws at top_k 2 land within four deviations of .571 / .429, and nowhere else."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(10_000, 4)
    drawn = sample(logits, 1.0, 2, 0.0, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=4).tolist()
    assert counts[2:] == [0, 0]
    assert abs(counts[0] - 5714) < 4 * math.sqrt(10_000 * 0.571 * 0.429)


class TestStops:
    def test_a_string_across_borders_and_characters(self):
        """Found when its last token completes it, in the middle of a token too, and not a token later."""
        stops = Stops(strings=["cd"])
        seen = [stops.completed_by(Digits().encode("abcde")[: n + 1], Digits().decode) for n in range(5)]
        assert seen == [False, False, False, True, True]  # the engine has ended the sequence before the fifth

    def test_a_character_of_several_bytes(self):
        """'é' is two byte tokens; the first alone is no match."""
        from reference_impl.models.tiny import ByteTokenizer

        tokens = ByteTokenizer().encode("caffé")
        stops = Stops(strings=["fé"])
        assert not stops.completed_by(tokens[:-1], ByteTokenizer().decode)
        assert stops.completed_by(tokens, ByteTokenizer().decode)

    def test_strings_need_a_tokenizer(self):
        """An error, not silence."""
        with pytest.raises(ValueError, match="needs a tokenizer"):
            Stops(strings=["x"]).completed_by([1], None)

    def test_nothing_generated_is_not_stopped(self):
        """Also with stop ids."""
        assert not Stops([1], []).completed_by([], None)


class TestRequests:
    limits = Limits(
        max_model_len=8,
        max_tokens=4,
        chunked_prefill=False,
        block_size_tokens=4,
        block_size_bytes=2**20,
        usable_blocks=2,
        vocab_size=10,
    )

    def test_megatrons_spelling_of_off_and_greedy(self):
        """top_k null -> 0, top_p 1.0 -> 0.0, greedy -> temperature 0 with top_k 1; the engine itself never stops."""
        config = recipe(length=8).policy.generation
        drawn = sampling_params(Row([1], 7, Stops([3], ["x"]), tag="t"), config, greedy=False)
        assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.termination_id) == (1.0, 0, 0.0, -1)
        assert (drawn.stop_token_ids, drawn.stop_strings, drawn.tag) == ([3], ["x"], "t")
        assert drawn.num_tokens_to_generate == 7
        best = sampling_params(Row([1], 7, Stops()), config, greedy=True)
        assert (best.temperature, best.top_k, best.top_p) == (0.0, 1, 0.0)
        assert type(drawn).deserialize(drawn.serialize()).stop_token_ids == [3]

    @pytest.mark.parametrize(
        ("prompt", "reason"),
        [
            ([], "the prompt is empty"),
            ([1, 10], "token 10 at position 1 is outside the vocabulary of 10"),
            ([-1], "token -1 at position 0"),
            ([1] * 9, "9 tokens, more than max_model_len: 8"),
            ([1] * 5, "5 tokens, more than max_tokens: 4 of one step"),
        ],
    )
    def test_refusals(self, prompt, reason):
        """Each names what is wrong."""
        assert reason in why_refused(prompt, recipe(length=8).policy.generation, self.limits)

    def test_a_buffer_too_small(self):
        """8 tokens are 2 blocks of 4, and one block is the engine's: 3 MiB."""
        one = Limits(**{**self.limits.__dict__, "usable_blocks": 1})
        reason = why_refused([1], recipe(length=8).policy.generation, one)
        assert "8 tokens need 2 KV blocks of 4, the buffer has 1; set buffer_size_gb to 0.003" in reason
        assert why_refused([1], recipe(length=8).policy.generation, self.limits) is None

    def test_new_tokens_are_clamped_to_the_context(self):
        """max_new_tokens 5 after prompts of 6 and 8 in a context of 8: 2 and 0."""
        config = recipe(length=8, max_new_tokens=5).policy.generation
        assert [tokens_to_generate([1] * n, config, self.limits) for n in (1, 6, 8)] == [5, 2, 0]


class TestCompletions:
    def request(self, **changes):
        fields = {
            "status": None,
            "request_id": 3,
            "generated_tokens": [5, 6],
            "generated_log_probs": [-1.0, -2.0],
            "policy_epoch": [(0, 1), (2, 2)],
            "kv_cache_epoch": None,
            "events": [],
        }
        return SimpleNamespace(**fields | changes)

    def test_lengths_that_differ_are_an_error(self):
        """A sampled id without its log-probability is never reported as 0.0."""
        with pytest.raises(RuntimeError, match="request 3: the engine returned 2 tokens and 1 log-probabilities"):
            read_completion(self.request(generated_log_probs=[-1.0]), None, 1)

    def test_upstreams_stamps_cover_prompt_and_response(self):
        """Boundaries past the end are dropped; what was not stamped is missing, not 0."""
        done = read_completion(self.request(policy_epoch=[(0, 1), (2, 2), (9, 3)]), None, 2)
        assert done.upstream.policy_epoch.to_json() == [[0, 1], [2, 2]]
        assert done.upstream.length == 4
        assert done.upstream.sampled == ((2, 4),)
        assert done.upstream.kv_cache_epoch.to_json() == [[0, None]]
        assert done.record is None


class TestBuild:
    def test_requests_are_bounded_by_the_buffer_and_by_the_step(self):
        """One request a block, rounded to four; no more than a step has tokens."""
        one = 2 * 5 * 2 * 32 * 4 * 4  # K and V, layers, heads, head size, float32, tokens of a block
        for blocks, tokens, expected in ((14, 256, 12), (1000, 256, 256), (2, 256, 1)):
            mcore = {"block_size_tokens": 4, "buffer_size_gb": blocks * one / 2**30, "max_tokens": tokens}
            generation = recipe(mcore={**mcore, "max_requests": None}).policy.generation
            config = build.inference_config(generation, SHAPE, torch.float32, torch.device("cpu"))
            assert config.max_requests == expected

    def test_more_requests_than_tokens_in_a_step(self):
        """Named by key, before upstream's assertion."""
        generation = recipe(mcore={"max_requests": 300, "max_tokens": 256}).policy.generation
        with pytest.raises(ConfigError, match="max_requests: 300 is more than max_tokens: 256"):
            build.inference_config(generation, SHAPE, torch.float32, torch.device("cpu"))

    def test_a_device_that_is_not_there(self):
        """`cuda` on a machine without one."""
        if torch.cuda.is_available():
            pytest.skip("a CUDA device is here")
        policy = recipe().policy.model_copy(update={"device": "cuda"})
        with pytest.raises(ConfigError, match="policy.device: cuda, but PyTorch finds no CUDA device"):
            build.choose_device(policy)

    @pytest.mark.parametrize("key", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
    def test_a_recipe_for_several_ranks(self, key):
        """Refused by key before anything is built: the figures of `genref plan` would not be those of this process."""
        policy = load_recipe(None, [f"policy.megatron_cfg.{key}=2"]).policy
        with pytest.raises(
            ConfigError, match=f"policy.megatron_cfg.{key}: 2, but this backend runs on one rank; write 1"
        ):
            build.choose_device(policy)


class TestThread:
    def test_failures_reach_the_caller(self):
        """Of the work itself, and of a loop that upstream's `sys.exit` ended."""
        thread = EngineThread()

        async def wrong():
            raise ValueError("no")

        async def leave():
            raise SystemExit(1)

        with pytest.raises(ValueError, match="no"):
            thread.call(wrong())
        with pytest.raises((RuntimeError, SystemExit)):
            thread.call(leave())
        thread._thread.join(timeout=10)
        with pytest.raises(RuntimeError, match="the engine thread has ended: SystemExit"):
            thread.call(wrong())
        thread.stop()

    def test_waiting_ends(self):
        """A timeout of the caller cancels the work."""
        thread = EngineThread()
        with pytest.raises(TimeoutError):
            thread.call(asyncio.sleep(60), timeout=1)
        thread.stop()
        thread.stop()

"""Batches under way: streams side by side, aborts, interrupted sequences, and log-probabilities of prompts."""

import pytest
import torch
from generation.reference.small_llama import SHAPE, VOCABULARY, engine, hf_weights
from support.batches import prompts, responses
from support.huggingface import on_tiny
from transformers import LlamaConfig, LlamaForCausalLM

from reference_impl.generation.interfaces import GenerationError, Progress

PROMPT = [7, 1, 60, 33, 2, 9, 11, 52, 4, 40, 41, 8, 30, 17, 22, 5]
ROWS = PROMPT[:6], PROMPT[6:10], PROMPT[9:16]


@pytest.fixture
def expected():
    """What an undisturbed engine says to `ROWS`."""
    return responses(engine(max_new_tokens=8).generate(prompts(*ROWS), greedy=True))


def started(backend, *rows, tokens):
    """A stream that has sampled so many tokens at least."""
    stream = backend.stream(prompts(*rows), greedy=True)
    while next(stream).sampled_tokens < tokens:
        pass
    return stream


def rest(stream):
    return {event[0]: event[1] for event in stream if not isinstance(event, Progress)}


class TestStreams:
    def test_side_by_side(self, expected):
        """Three streams, looked at in turn: each ends with its own rows, as if alone."""
        backend = engine(max_new_tokens=8)
        streams = {i: backend.stream(prompts(row), greedy=True) for i, row in enumerate(ROWS)}
        ended = {}
        while streams:
            for number, stream in list(streams.items()):
                event = next(stream, None)
                if event is None:
                    del streams[number]
                elif not isinstance(event, Progress):
                    assert number not in ended
                    ended[number] = responses(event[1])[0]
        assert [ended[i] for i in range(3)] == expected
        assert backend.sampled_tokens == 24

    def test_one_ends_in_the_steps_of_another(self, expected):
        """A stream that nobody looks at while another runs to its end: its rows are there at the next look, no step later."""
        backend = engine(max_new_tokens=8)
        first = started(backend, ROWS[0], tokens=1)
        second = rest(backend.stream(prompts(*ROWS[1:]), greedy=True))
        sampled = backend.sampled_tokens
        assert sampled == 24
        index, output = next(first)
        assert (index, responses(output)) == (0, expected[:1])
        assert next(first, None) is None and backend.sampled_tokens == sampled
        assert [responses(second[i])[0] for i in range(2)] == expected[1:]

    async def test_generate_async(self, expected):
        backend, ended = engine(max_new_tokens=8), {}
        async for index, output in backend.generate_async(prompts(*ROWS), greedy=True):
            ended[index] = responses(output)[0]
        assert [ended[i] for i in range(3)] == expected


class TestEnds:
    def test_abort(self, expected):
        """After 3 steps each has three tokens; aborted, they keep them, give all blocks back, and the engine goes on."""
        backend = engine(max_new_tokens=8)
        stream = started(backend, *ROWS, tokens=9)
        aborted = dict(backend.abort())
        assert [responses(aborted[i])[0] for i in range(3)] == [row[:3] for row in expected]
        assert all(output["errors"] == ["aborted"] for output in aborted.values())
        assert [aborted[i]["staleness"][0].status for i in range(3)] == ["aborted"] * 3
        assert rest(stream) == {}
        assert backend._engine.pool.used == 0 and backend.abort() == []
        assert responses(backend.generate(prompts(*ROWS), greedy=True)) == expected

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_abort_in_the_middle_of_a_prompt(self, steps):
        """16 tokens at 4 a step, another one waiting behind: none of the two has sampled anything, no block stays held."""
        backend = engine(max_new_tokens=8, mcore={"max_tokens": 4, "max_requests": 4})
        stream = backend.stream(prompts(PROMPT, PROMPT), greedy=True)
        for _ in range(steps + 1):
            next(stream)
        assert backend._engine.pool.used == steps
        aborted = dict(backend.abort())
        assert [output["generation_lengths"].item() for output in aborted.values()] == [0, 0]
        assert backend._engine.pool.used == 0
        whole = engine(max_new_tokens=8).generate(prompts(PROMPT), greedy=True)
        assert responses(backend.generate(prompts(PROMPT), greedy=True)) == responses(whole)

    def test_unfinished_stops_nothing(self, expected):
        backend = engine(max_new_tokens=8)
        stream = started(backend, *ROWS, tokens=9)
        shown = dict(backend.unfinished())
        assert [responses(shown[i])[0] for i in range(3)] == [row[:3] for row in expected]
        assert {output["errors"][0] for output in shown.values()} == {"interrupted"}
        ended = rest(stream)
        assert [responses(ended[i])[0] for i in range(3)] == expected

    def test_shutdown_loses_what_is_under_way(self):
        backend = engine(max_new_tokens=8)
        stream = started(backend, *ROWS, tokens=3)
        backend.shutdown()
        backend.shutdown()
        with pytest.raises(GenerationError, match="the engine is asleep"):
            next(stream)
        backend.prepare_for_generation()
        backend.prepare_for_generation()
        assert backend.sampled_tokens == 0
        assert backend.generate(prompts(*ROWS))["generation_lengths"].tolist() == [8, 8, 8]

    def test_a_prompt_that_fills_the_context_and_one_that_is_too_long(self):
        """max_model_len 8: 6 leave room for two, 8 for none, 9 is refused; an empty one too."""
        backend = engine(length=8, max_new_tokens=5)
        output = backend.generate(prompts(PROMPT[:6], PROMPT[:8], PROMPT[:9], []), greedy=True)
        assert output["generation_lengths"].tolist() == [2, 0, 0, 0]
        assert output["truncated"].tolist() == [True, True, False, False]
        assert output["errors"][:2] == [None, None]
        assert output["errors"][2] == "the prompt has 9 tokens, more than max_model_len: 8"
        assert output["errors"][3] == "the prompt is empty; at least one token is needed"


@pytest.fixture(scope="module")
def teacher():
    """The same model, of transformers' make."""
    model = LlamaForCausalLM(LlamaConfig(**SHAPE.to_hf_config()))
    assert model.load_state_dict(hf_weights(), strict=False).missing_keys == []
    return model.eval()


class TestPromptLogprobs:
    @pytest.mark.parametrize("max_tokens", [64, 4])
    @pytest.mark.parametrize(
        ("mode", "greedy"), [("processed_logprobs", 0), ("processed_logprobs", 1), ("raw_logprobs", 0)]
    )
    def test_they_are_those_of_transformers(self, teacher, mode, greedy, max_tokens):
        """Whole or in chunks: of logits over the temperature, or as they are; the second row has not asked."""
        settings = {"temperature": 0.7, "top_k": 3, "logprobs_mode": mode, "max_new_tokens": 3}
        backend = engine(**settings, mcore={"max_tokens": max_tokens, "max_requests": 4})
        asked = prompts(*ROWS, prompt_logprobs=[True, False, True])
        output = backend.generate(asked, greedy=bool(greedy))
        temperature = 0.7 if mode == "processed_logprobs" and not greedy else 1.0
        for number in (0, 2):
            row = torch.tensor([ROWS[number]])
            with torch.no_grad():
                scores = (teacher(row).logits[0] / temperature).log_softmax(-1)
            expected = scores[:-1].gather(1, row[0, 1:, None])[:, 0]
            found = output["prompt_logprobs"][number, : row.shape[1]]
            assert found[0] == 0.0
            torch.testing.assert_close(found[1:], expected, atol=2e-5, rtol=0)
        assert output["prompt_logprobs"][1].abs().sum() == 0.0
        assert output["generation_lengths"].tolist() == [3, 3, 3]

    def test_a_prefix_hit_does_not_hide_them(self):
        backend = engine(max_new_tokens=2, mcore={"enable_prefix_caching": True})
        first, second = (backend.generate(prompts(PROMPT, prompt_logprobs=[True]), greedy=True) for _ in range(2))
        torch.testing.assert_close(second["prompt_logprobs"], first["prompt_logprobs"], atol=1e-5, rtol=0)
        assert (second["prompt_logprobs"][0, 1:] < 0).all()
        assert second["staleness"][0].prefix_cached_tokens == 0

    @pytest.mark.parametrize("make", [engine, on_tiny])
    def test_a_prompt_that_is_not_run_says_so(self, make):
        """It fills the context of 16, so nothing is computed: an error for it, and not a column of zeros."""
        backend = make(max_new_tokens=2, length=16)
        output = backend.generate(prompts(PROMPT, PROMPT[:4], prompt_logprobs=[True, True]), greedy=True)
        assert "prompt of 16 tokens fills max_model_len" in output["errors"][0]
        assert output["errors"][1] is None
        assert (output["prompt_logprobs"][1, 1:4] < 0).all()
        plain = backend.generate(prompts(PROMPT), greedy=True)
        assert (plain["errors"], plain["truncated"].tolist()) == ([None], [True])

    def test_greedy_tokens_are_those_of_transformers(self, teacher):
        tokens = responses(engine(max_new_tokens=12).generate(prompts(PROMPT), greedy=True))[0]
        with torch.no_grad():
            found = teacher.generate(
                torch.tensor([PROMPT]),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=VOCABULARY - 1,
            )
        assert found[0, len(PROMPT) :].tolist() == tokens

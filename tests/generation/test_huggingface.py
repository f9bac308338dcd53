"""The oracle against tables worked out by hand, against transformers' own `generate`, and against its logits."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses
from support.huggingface import llama, on_table, on_tiny
from transformers import LlamaForCausalLM

from reference_impl.conformance.table_model import chain, row
from reference_impl.generation.huggingface import HuggingFaceGeneration, draw
from reference_impl.generation.interfaces import GenerationError
from reference_impl.models import tiny
from reference_impl.models.checkpoints import parameters_of, perturbed

PROMPT = list(b"The capital of France is")
P4 = row(**{f"t{i}": math.log(p) for i, p in enumerate([0.4, 0.3, 0.2, 0.1])})


@pytest.fixture(scope="module")
def teacher() -> LlamaForCausalLM:
    return llama(tiny.SHAPE, tiny.random_weights())


def flat(rows: list[list]) -> list:
    return list(itertools.chain.from_iterable(rows))


def softmax_log(logits: list[float], index: int) -> float:
    return logits[index] - math.log(sum(math.exp(value) for value in logits))


class TestAgainstTransformers:
    def test_greedy_is_what_generate_gives(self, teacher):
        """Ids, and the log-softmax of the logits that `generate` hands out, for prompts of three lengths in one batch."""
        rows = [PROMPT, PROMPT[:7], [84]]
        output = on_tiny(max_new_tokens=12).generate(prompts(*rows), greedy=True)
        for prompt, tokens, logprobs in zip(rows, responses(output), response_logprobs(output), strict=True):
            theirs = teacher.generate(
                torch.tensor([prompt]),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            assert theirs.sequences[0, len(prompt) :].tolist() == tokens
            expected = torch.cat(theirs.logits).log_softmax(dim=-1)[range(12), tokens]
            assert logprobs == pytest.approx(expected.tolist(), abs=1e-5)

    @pytest.mark.parametrize(
        ("settings", "temperature"),
        [
            ({"temperature": 0.5, "top_k": 3, "top_p": 0.5}, 0.5),
            ({"temperature": 0.5, "logprobs_mode": "raw_logprobs"}, 1.0),
            ({"temperature": 0.0}, 1.0),
        ],
    )
    def test_prompt_logprobs(self, teacher, settings, temperature):
        """Log-softmax of one pass over the whole prompt: with the temperature in processed mode, never with a filter."""
        output = on_tiny(max_new_tokens=2, **settings).generate(
            prompts(PROMPT, [5, 6, 7], PROMPT[:9], prompt_logprobs=[True, False, True])
        )
        logits = teacher(torch.tensor([PROMPT])).logits[0].detach() / temperature
        expected = logits.log_softmax(dim=-1)[range(len(PROMPT) - 1), PROMPT[1:]].tolist()
        found = output["prompt_logprobs"].tolist()
        assert found[0] == pytest.approx([0.0, *expected], rel=1e-6, abs=1e-5)
        assert found[1] == [0.0] * len(PROMPT)
        assert found[2] == pytest.approx([0.0, *expected[:8]] + [0.0] * (len(PROMPT) - 9), rel=1e-6, abs=1e-5)
        assert max(found[0][1:]) < 0

    def test_prompt_logprobs_change_nothing_else(self):
        """The same tokens and log-probabilities, and no column where nobody asked."""
        backend = on_tiny(max_new_tokens=4)
        asked = backend.generate(prompts(PROMPT, prompt_logprobs=[True]), greedy=True)
        plain = backend.generate(prompts(PROMPT), greedy=True)
        assert "prompt_logprobs" not in plain
        assert responses(asked) == responses(plain)
        assert response_logprobs(asked)[0] == pytest.approx(response_logprobs(plain)[0], abs=1e-5)

    def test_a_given_model_is_used_where_it_lies(self, teacher):
        """No parameter is replaced, neither when the engine is built nor by an update."""
        model = llama(tiny.SHAPE, tiny.random_weights())
        pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        backend = HuggingFaceGeneration(recipe(max_new_tokens=4), model=model, shape=tiny.SHAPE)
        backend.prepare_for_generation()
        assert backend.model is model
        before = backend.generate(prompts(PROMPT), greedy=True)
        backend.update_weights(perturbed(parameters_of(model), 1, strength=0.5), epoch=1)
        after = backend.generate(prompts(PROMPT), greedy=True)
        assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == pointers
        assert responses(before) != responses(after)
        assert after["policy_epoch"][0].to_json() == [[0, 1]]


class TestSampling:
    def test_log_probabilities_belong_to_the_sampled_token(self):
        """Logits [2, 1, 0] at T = 0.5 are [4, 2, 0]: id 1 has -2.1429. Raw: -1.4076."""
        table = row(t0=2.0, t1=1.0, t2=0.0)
        for mode, logits, expected in (
            ("processed_logprobs", [4.0, 2.0, 0.0], -2.1429),
            ("raw_logprobs", [2.0, 1.0, 0.0], -1.4076),
        ):
            backend = on_table(table, temperature=0.5, logprobs_mode=mode, max_new_tokens=1)
            output = backend.generate(prompts(*[[5]] * 60))
            found = dict(zip(flat(responses(output)), flat(response_logprobs(output)), strict=True))
            assert found == {token: pytest.approx(softmax_log(logits, token), abs=1e-4) for token in (0, 1, 2)}
            assert found[1] == pytest.approx(expected, abs=1e-4)

    def test_shares_are_those_of_the_distribution(self):
        """p = [.4, .3, 0, .2, .1], 4000 draws over requests and positions: each count within four deviations of its mean."""
        shares = [0.4, 0.3, 0.0, 0.2, 0.1]
        log_probs = torch.tensor(shares).log()
        drawn = [draw(log_probs, (7, request, position)) for request in range(400) for position in range(10)]
        counts = np.bincount(drawn, minlength=5)
        for count, p in zip(counts, shares, strict=True):
            assert abs(count - 4000 * p) <= 4 * math.sqrt(4000 * p * (1 - p))

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"top_k": 2}, {0: math.log(4 / 7), 1: math.log(3 / 7)}),
            ({"top_k": 2, "logprobs_mode": "raw_logprobs"}, {0: math.log(0.4), 1: math.log(0.3)}),
            ({"top_k": 2, "top_p": 0.5}, {0: 0.0}),
            ({"top_p": 0.6}, {0: math.log(4 / 7), 1: math.log(3 / 7)}),
            ({"top_k": 1}, {0: 0.0}),
            ({"top_k": 1, "logprobs_mode": "raw_logprobs"}, {0: math.log(0.4)}),
        ],
    )
    def test_filters(self, settings, expected):
        """p = [.4, .3, .2, .1]: top-k first, then top-p of what it left, renormalised."""
        output = on_table(P4, max_new_tokens=1, **settings).generate(prompts(*[[5]] * 40))
        found = dict(zip(flat(responses(output)), flat(response_logprobs(output)), strict=True))
        assert found == {token: pytest.approx(value, abs=1e-5) for token, value in expected.items()}

    def test_greedy_reports_the_models_own(self):
        """Logits [2, 0, -1], by the argument and by temperature 0, in both modes, whatever the filters say."""
        expected = softmax_log([2.0, 0.0, -1.0], 0)
        for settings in ({}, {"temperature": 0.0}, {"logprobs_mode": "raw_logprobs"}, {"top_k": 1, "temperature": 0.3}):
            output = on_table(row(t0=2.0, t1=0.0, t2=-1.0), **settings).generate(
                prompts([5], [5], [5]), greedy=settings.get("temperature") != 0.0
            )
            assert responses(output) == [[0] * 4] * 3
            assert flat(response_logprobs(output)) == pytest.approx([expected] * 12, abs=1e-4)

    def test_ties_go_to_the_lowest_id(self):
        """Tokens 4, 9 and 12 are equally likely."""
        output = on_table(row(t4=1.5, t9=1.5, t12=1.5)).generate(prompts([5]), greedy=True)
        assert responses(output) == [[4] * 4]

    def test_the_same_seed_and_order_repeat(self):
        """Another engine draws the same; another seed, the next batch and another row of the same prompt do not."""
        table = row(**{f"t{i}": 0.0 for i in range(16)})
        settings = {"length": 32, "max_new_tokens": 20}
        one = on_table(table, seed=7, **settings)
        first, second = (responses(one.generate(prompts([5], [5]))) for _ in range(2))
        assert responses(on_table(table, seed=7, **settings).generate(prompts([5], [5]))) == first
        other = responses(on_table(table, seed=8, **settings).generate(prompts([5], [5])))
        drawn = [*first, *second, *other]
        assert len({tuple(row) for row in drawn}) == 6
        assert all(len(set(row)) > 5 for row in drawn), "positions draw apart too"

    def test_batch_mates_do_not_matter(self):
        """The first request draws the same alone and beside others of any length."""
        alone = on_tiny(max_new_tokens=10).generate(prompts(PROMPT))
        among = on_tiny(max_new_tokens=10).generate(prompts(PROMPT, [1, 2], PROMPT * 3))
        assert responses(among)[0] == responses(alone)[0]
        assert response_logprobs(among)[0] == response_logprobs(alone)[0]


class TestEnds:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"stop_token_ids": [2, 11]}, [5, 2]),
            ({"stop_token_ids": [5]}, [5]),
            ({"stop_token_ids": None}, [5, 2, 0]),
            ({"stop_strings": ["fca"]}, [5, 2, 0]),
            ({"stop_strings": ["b"]}, [5, 2, 0, 11]),
        ],
    )
    def test_stops(self, settings, expected):
        """Stream 5, 2, 0, 11 after prompt 1, which reads 'b': ids, the tokenizer's end, a string over several tokens."""
        output = on_table(chain(1, 5, 2, 0, 11), **settings).generate(prompts([1]), greedy=True)
        assert responses(output) == [expected]
        assert len(response_logprobs(output)[0]) == len(expected)
        assert output["truncated"].tolist() == [len(expected) == 4]

    def test_stop_strings_of_one_row(self):
        """Those in the batch stop that row alone."""
        output = on_table(chain(1, 5, 6, 7, 8)).generate(prompts([1], [1], stop_strings=[["fg"], None]), greedy=True)
        assert responses(output) == [[5, 6], [5, 6, 7, 8]]

    @pytest.mark.parametrize(
        ("stream", "prompt", "settings", "expected", "truncated"),
        [
            ([5, 6, 7, 0], [1], {}, [5, 6, 7, 0], False),
            ([5, 6, 7, 8], [1], {}, [5, 6, 7, 8], True),
            ([5, 0], [1], {}, [5, 0], False),
            ([5, 6, 7, 8], [3, 3, 3, 3, 3, 1], {}, [5, 6], True),
            ([5, 6, 7, 8], [1], {"stop_strings": ["hi"]}, [5, 6, 7, 8], False),
            ([5, 6, 7, 8], [3, 3, 3, 3, 3, 1], {"max_new_tokens": 5}, [5, 6], True),
            ([5, 6, 7, 8], [3] * 7 + [1], {}, [], True),
        ],
    )
    def test_truncated(self, stream, prompt, settings, expected, truncated):
        """max_new_tokens 4, max_model_len 8, stop id 0."""
        backend = on_table(chain(1, *stream), **({"stop_token_ids": [0]} | settings))
        output = backend.generate(prompts(prompt), greedy=True)
        assert responses(output) == [expected]
        assert output["truncated"].tolist() == [truncated]

    def test_a_bad_request_fails_alone(self):
        """A prompt too long, an empty one, and a token outside the vocabulary; the last row is answered."""
        backend = on_table(chain(1, 5, 6, 7, 8))
        output = backend.generate(prompts([1] * 9, [], [1, 16], [1]), greedy=True)
        assert output["errors"] == [
            "the prompt has 9 tokens, more than max_model_len: 8",
            "the prompt is empty; at least one token is needed",
            "token 16 at position 1 is outside the vocabulary of 16",
            None,
        ]
        assert responses(output) == [[], [], [], [5, 6, 7, 8]]
        with pytest.raises(GenerationError, match="every request of the batch failed; the first: the prompt is empty"):
            backend.generate(prompts([]))

    def test_max_tokens_bounds_a_prompt_without_chunks(self):
        """Prompt 5, max_tokens 4: refused without chunked prefill."""
        settings = {"max_tokens": 4, "enable_chunked_prefill": False}
        output = on_table(chain(1, 2), mcore=settings).generate(prompts([1] * 5, [1] * 4), greedy=True)
        assert "more than max_tokens: 4 of one step" in output["errors"][0]
        assert output["errors"][1] is None

    def test_abort_keeps_what_there_is(self):
        """After two steps: two tokens and an aborted record; the stream has nothing more, and the engine goes on."""
        backend = on_table(chain(1, 5, 6, 7, 8))
        stream = backend.stream(prompts([1]), greedy=True)
        assert [next(stream).sampled_tokens for _ in range(3)] == [0, 1, 2]
        ((_, so_far),) = backend.unfinished()
        ((_, output),) = backend.abort()
        assert (so_far["errors"], output["errors"]) == (["interrupted"], ["aborted"])
        assert responses(so_far) == responses(output) == [[5, 6]]
        assert output["staleness"][0].status == "aborted"
        assert list(stream) == []
        assert responses(backend.generate(prompts([1]), greedy=True)) == [[5, 6, 7, 8]]

"""The generation contract on Megatron's real engine, in both modes; every expected value follows from a logits table."""

import math

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses
from support.table_model import megatron_weights_for, table_model

from reference_impl.conformance.table_model import SHAPE, Digits, chain, row
from reference_impl.generation.interfaces import GenerationError, verify_right_padding
from reference_impl.generation.megatron.backend import MegatronGeneration

LENGTH = 8


class Machine:
    """One engine for many cases: the table is set by a weight update, the settings that are read for each batch by hand."""

    def __init__(self, mode: str) -> None:
        self.backend = MegatronGeneration(
            recipe(length=LENGTH, mode=mode), model=table_model(chain(1, 2)), shape=SHAPE, tokenizer=Digits()
        )
        self.backend.prepare_for_generation()
        self.defaults = self.backend.config

    def set(self, table: torch.Tensor, **settings) -> MegatronGeneration:
        backend = self.backend
        backend.update_weights(megatron_weights_for(table), epoch=backend.epoch + 1)
        backend.config = self.defaults.model_copy(update={"stop_token_ids": [], "max_new_tokens": 4} | settings)
        return backend


@pytest.fixture(scope="module", params=["direct", "coordinator"])
def machine(request):
    machine = Machine(request.param)
    yield machine
    machine.backend.shutdown()


def log_softmax_by_hand(logits: list[float], index: int) -> float:
    return logits[index] - math.log(sum(math.exp(value) for value in logits))


class TestLogProbabilities:
    def test_belong_to_the_sampled_token(self, machine):
        """Sampled id 7 at -2.00 reports -2.00, though id 3 at -0.20 is likelier."""
        rest = math.log(1 - math.exp(-0.2) - math.exp(-2.0))
        backend = machine.set(row(t3=-0.2, t7=-2.0, t9=rest), max_new_tokens=1)
        output = backend.generate(prompts(*[[1]] * 100))
        seen = {}
        for (token,), (logprob,) in zip(responses(output), response_logprobs(output), strict=True):
            seen[token] = logprob
        assert seen.keys() == {3, 7, 9}
        assert seen[3] == pytest.approx(-0.2, abs=1e-4)
        assert seen[7] == pytest.approx(-2.0, abs=1e-4)

    @pytest.mark.parametrize(("temperature", "expected"), [(1.0, -1.4076), (0.5, -2.1429), (2.0, -1.1803)])
    def test_divide_logits_by_the_temperature(self, machine, temperature, expected):
        """Logits [2, 1, 0], sampled id 1."""
        backend = machine.set(row(t0=2.0, t1=1.0, t2=0.0), temperature=temperature, max_new_tokens=1)
        output = backend.generate(prompts(*[[5]] * 60))
        found = {token: value for (token,), (value,) in zip(responses(output), response_logprobs(output), strict=True)}
        assert found[1] == pytest.approx(expected, abs=1e-4)

    def test_are_processed_by_default(self, machine):
        """p = [.4, .3, .2, .1], top_k 2, id 0: log(.4 / .7), the distribution that is sampled from."""
        table = row(**{f"t{i}": math.log(p) for i, p in enumerate([0.4, 0.3, 0.2, 0.1])})
        backend = machine.set(table, top_k=2, max_new_tokens=1)
        output = backend.generate(prompts(*[[5]] * 60))
        found = {token: value for (token,), (value,) in zip(responses(output), response_logprobs(output), strict=True)}
        assert found.keys() == {0, 1}
        assert found[0] == pytest.approx(-0.5596, abs=1e-4)
        assert found[1] == pytest.approx(math.log(3 / 7), abs=1e-4)

    def test_are_finite_when_greedy(self, machine):
        """Logits [2, 0, -1] at temperature 0, where 0.19.2's own sampler gives NaN: the model's own log-softmax."""
        table = row(t0=2.0, t1=0.0, t2=-1.0)
        expected = log_softmax_by_hand([2.0, 0.0, -1.0], 0)
        for settings, greedy in (({}, True), ({"temperature": 0.0}, False)):
            output = machine.set(table, max_new_tokens=2, **settings).generate(prompts([5]), greedy=greedy)
            assert responses(output) == [[0, 0]]
            assert response_logprobs(output)[0] == pytest.approx([expected] * 2, abs=1e-4)


class TestFilters:
    def test_top_k_comes_before_top_p(self, machine):
        """p = [.4, .3, .2, .1], top_k 2, top_p .5: after renormalising, id 0 has .571 and is all that is kept."""
        table = row(**{f"t{i}": math.log(p) for i, p in enumerate([0.4, 0.3, 0.2, 0.1])})
        output = machine.set(table, top_k=2, top_p=0.5, max_new_tokens=1).generate(prompts(*[[5]] * 40))
        assert responses(output) == [[0]] * 40
        assert response_logprobs(output) == [[pytest.approx(0.0, abs=1e-6)]] * 40

    @pytest.mark.parametrize("top_k", [None, 4, 16, 17])
    def test_large_top_k_keeps_all(self, machine, top_k):
        """A top_k that reaches or passes the vocabulary, also beside top_p 1.0, keeps everything."""
        table = row(t0=0.0, t1=0.0, t2=0.0, t3=0.0)
        output = machine.set(table, top_k=top_k, top_p=1.0, max_new_tokens=1).generate(prompts(*[[5]] * 80))
        assert {token for (token,) in responses(output)} == {0, 1, 2, 3}

    def test_top_k_of_one_keeps_the_best(self, machine):
        """The distribution has one token left, and its log-probability is 0."""
        output = machine.set(row(t0=1.0, t1=0.9), top_k=1).generate(prompts(*[[5]] * 20))
        assert responses(output) == [[0] * 4] * 20
        assert response_logprobs(output) == [[0.0] * 4] * 20


class TestStopping:
    def test_several_stop_ids(self, machine):
        """Stop ids {2, 11}, stream 5, 2, 9, 11: the output is [5, 2], not truncated."""
        output = machine.set(chain(1, 5, 2, 9, 11), stop_token_ids=[2, 11]).generate(prompts([1]), greedy=True)
        assert responses(output) == [[5, 2]]
        assert output["generation_lengths"].tolist() == [2]
        assert output["truncated"].tolist() == [False]

    def test_the_stop_token_is_part_of_the_output(self, machine):
        """stop_token_ids [7], stream 5, 7, 8: stop after 7."""
        output = machine.set(chain(1, 5, 7, 8), stop_token_ids=[7]).generate(prompts([1]), greedy=True)
        assert responses(output) == [[5, 7]]

    def test_null_stops_at_the_tokenizers_end_of_sequence(self, machine):
        """As NeMo RL reads `stop_token_ids: null`."""
        output = machine.set(chain(1, 5, 0, 8), stop_token_ids=None).generate(prompts([1]), greedy=True)
        assert responses(output) == [[5, 0]]

    def test_a_stop_string_over_several_tokens(self, machine):
        """'fgh' over tokens f, g, h: as many log-probabilities as ids, and nothing after it."""
        output = machine.set(chain(1, 5, 6, 7, 8), stop_strings=["fgh"]).generate(prompts([1]), greedy=True)
        assert responses(output) == [[5, 6, 7]]
        assert len(response_logprobs(output)[0]) == 3
        assert output["truncated"].tolist() == [False]

    def test_stop_strings_of_one_row(self, machine):
        """`stop_strings` in the batch stop that row alone."""
        backend = machine.set(chain(1, 5, 6, 7, 8))
        output = backend.generate(prompts([1], [1], stop_strings=[["fg"], None]), greedy=True)
        assert responses(output) == [[5, 6], [5, 6, 7, 8]]

    def test_a_stop_string_in_the_prompt_does_not_count(self, machine):
        """Only what was generated is searched."""
        output = machine.set(chain(5, 6, 7, 8), stop_strings=["fg"]).generate(prompts([1, 5]), greedy=True)
        assert responses(output) == [[6, 7, 8, 8]]


class TestTruncated:
    @pytest.mark.parametrize(
        ("stream", "expected", "truncated"),
        [((5, 6, 7, 0), [5, 6, 7, 0], False), ((5, 6, 7, 8), [5, 6, 7, 8], True), ((5, 0, 3), [5, 0], False)],
    )
    def test_is_about_what_ended_the_sequence(self, machine, stream, expected, truncated):
        """max_new_tokens 4, stop id 0."""
        output = machine.set(chain(1, *stream), stop_token_ids=[0]).generate(prompts([1]), greedy=True)
        assert responses(output) == [expected]
        assert output["truncated"].tolist() == [truncated]

    def test_by_the_context(self, machine):
        """A prompt of 6 in a context of 8 is clamped to 2 new tokens."""
        output = machine.set(chain(1, 5, 6, 7, 8), stop_token_ids=[0]).generate(
            prompts([2, 3, 4, 3, 4, 1]), greedy=True
        )
        assert responses(output) == [[5, 6]]
        assert output["truncated"].tolist() == [True]

    def test_not_by_a_stop_string_at_the_limit(self, machine):
        """A stop string that the 4th token of 4 completes."""
        output = machine.set(chain(1, 5, 6, 7, 8), stop_strings=["hi"]).generate(prompts([1]), greedy=True)
        assert responses(output) == [[5, 6, 7, 8]]
        assert output["truncated"].tolist() == [False]


class TestEdges:
    def test_lengths(self, machine):
        """Context 8: a prompt of 6 with 5 new gives 2, one of 8 gives 0, one of 9 and an empty one fail alone."""
        backend = machine.set(chain(1, 5, 6, 7, 8), max_new_tokens=5)
        output = backend.generate(prompts([3] * 5 + [1], [1] * 8, [1] * 9, [], [1]), greedy=True)
        assert responses(output) == [[5, 6], [], [], [], [5, 6, 7, 8, 8]]
        assert output["truncated"].tolist() == [True, True, False, False, True]
        assert output["errors"][:2] == [None, None]
        assert "9 tokens, more than max_model_len: 8" in output["errors"][2]
        assert "empty" in output["errors"][3]
        assert output["policy_epoch"][2] is None

    def test_a_token_outside_the_vocabulary_fails_alone(self, machine):
        """Token 16 of a vocabulary of 16."""
        output = machine.set(chain(1, 5)).generate(prompts([1], [1, 16]), greedy=True)
        assert output["errors"][0] is None
        assert "token 16 at position 1" in output["errors"][1]

    def test_the_prompt_comes_back_as_submitted(self, machine):
        """Whatever the engine echoes."""
        output = machine.set(chain(1, 5, 6)).generate(prompts([9, 3, 1], [1]), greedy=True)
        assert output["output_ids"][0, :3].tolist() == [9, 3, 1]
        assert output["output_ids"][1, 0].item() == 1
        assert output["logprobs"][0, :3].tolist() == [0.0] * 3

    def test_a_batch_in_which_all_fail_raises(self, machine):
        """And says why."""
        with pytest.raises(GenerationError, match="every request of the batch failed.*max_model_len: 8"):
            machine.set(chain(1, 5)).generate(prompts([1] * 9, [1] * 9))

    def test_lengths_alone_decide_padding(self, machine):
        """Pad, stop and prompt share id 0; a log-probability of 0.0 is legal; the last token stays what it is."""
        table = torch.full((16, 16), -1e4)
        table[0, 0] = 10.0  # certain: log-probability exactly 0
        table[1, 0] = 10.0
        output = machine.set(table, stop_token_ids=[0], max_new_tokens=3).generate(prompts([0, 0, 1], [1]), greedy=True)
        assert output["unpadded_sequence_lengths"].tolist() == [4, 2]
        assert output["output_ids"].tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
        assert output["logprobs"].tolist() == [[0.0] * 4] * 2
        verify_right_padding(output)

    def test_an_empty_batch(self, machine):
        """No rows in, no rows out."""
        output = machine.set(chain(1, 5)).generate(prompts())
        assert output["output_ids"].shape == (0, 0)


def test_raw_log_probabilities_on_request():
    """p = [.4, .3, .2, .1], top_k 2, id 0: raw is log .4, also beside a filter."""
    table = row(**{f"t{i}": math.log(p) for i, p in enumerate([0.4, 0.3, 0.2, 0.1])})
    settings = recipe(length=8, logprobs_mode="raw_logprobs", top_k=2, max_new_tokens=1)
    with MegatronGeneration(settings, model=table_model(table), shape=SHAPE) as backend:
        output = backend.generate(prompts(*[[5]] * 30))
    found = {token: value for (token,), (value,) in zip(responses(output), response_logprobs(output), strict=True)}
    assert found[0] == pytest.approx(-0.9163, abs=1e-4)

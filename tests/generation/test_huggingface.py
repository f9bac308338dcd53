"""The oracle against tables worked out by hand, against transformers' own `generate`, and against its logits."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses
from support.table_model import megatron_weights_for, table_model
from transformers import LlamaConfig, LlamaForCausalLM

from reference_impl.config.errors import ConfigError
from reference_impl.conformance.table_model import SHAPE, Digits, chain, row, weights_for
from reference_impl.generation.huggingface import HuggingFaceGeneration, draw
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.registry import create_backend
from reference_impl.models import tiny
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.staleness.records import check

PROMPT = list(b"The capital of France is")
P4 = row(**{f"t{i}": math.log(p) for i, p in enumerate([0.4, 0.3, 0.2, 0.1])})


def llama(shape, weights) -> LlamaForCausalLM:
    """A transformers model made without the code under test."""
    model = LlamaForCausalLM(LlamaConfig(**shape.to_hf_config()))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if shape.tie_word_embeddings else [], [])
    return model.eval()


@pytest.fixture(scope="module")
def teacher() -> LlamaForCausalLM:
    return llama(tiny.SHAPE, tiny.random_weights())


def on_table(table, **settings) -> HuggingFaceGeneration:
    """A running backend over a table, without stop ids, for sequences of 8 tokens at most and 4 new ones."""
    model = llama(SHAPE, weights_for(table))
    settings = {"length": 8, "max_new_tokens": 4, "stop_token_ids": []} | settings
    backend = HuggingFaceGeneration(recipe(**settings), model=model, shape=SHAPE, tokenizer=Digits())
    backend.prepare_for_generation()
    return backend


def on_tiny(**settings) -> HuggingFaceGeneration:
    """A running backend over `tiny`, without stop ids."""
    backend = create_backend(recipe(backend="huggingface", **({"stop_token_ids": [], "length": 128} | settings)))
    backend.prepare_for_generation()
    return backend


def finish(backend, *rows, at, greedy=True):
    """Stream a batch; `at[n]` is called between two steps, once `n` tokens are sampled. One-row outputs by index."""
    at, ended = dict(at), {}
    for event in backend.stream(prompts(*rows), greedy):
        if not isinstance(event, Progress):
            ended[event[0]] = event[1]
        elif event.sampled_tokens in at:
            at.pop(event.sampled_tokens)()
    assert not at, "each of the calls was made"
    return [ended[index] for index in range(len(rows))]


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

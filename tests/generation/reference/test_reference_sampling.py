"""Choosing tokens: the uniform numbers, the distribution, greedy ties, and seeds that depend on nobody else."""

import math

import numpy as np
import pytest
import torch
from generation.reference.small_llama import engine
from support.batches import prompts, response_logprobs, responses

from reference_impl.generation.distribution import processed_log_probs
from reference_impl.generation.reference.sampling import Rule, choose, log_probs_of, uniforms

P4 = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
OFF = Rule(1.0, 0, 1.0, raw=False)


def splitmix64(state):
    """One output of the generator in its authors' words, in Python's own integers."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


class TestUniforms:
    def test_the_recomputation_is_the_published_generator(self):
        """The first two outputs of SplitMix64 for seed 1234567, as its implementations list them."""
        assert splitmix64(1234567) == 6457827717110365317
        assert splitmix64(1234567 + 0x9E3779B97F4A7C15) == 3203168211198807973

    @pytest.mark.parametrize("seed", [0, 1234, 2**63, 2**64 + 5])
    def test_known_values(self, seed):
        """Seed, request and position go through the generator one after another; 53 bits make the number."""
        rows = [(0, 1), (0, 2), (1, 1), (7, 300)]
        expected = []
        for request, position in rows:
            state = splitmix64((splitmix64((splitmix64(seed % 2**64) + request) % 2**64) + position) % 2**64)
            expected.append((state >> 11) / 2**53)
        assert uniforms(seed, *zip(*rows, strict=True)).tolist() == expected

    def test_they_are_uniform(self):
        """100,000 numbers: the mean within five standard errors, each tenth filled within five deviations."""
        drawn, n = uniforms(1, [3] * 100_000, range(100_000)), 100_000
        assert drawn.min() >= 0.0 and drawn.max() < 1.0
        assert abs(drawn.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
        tenths = np.bincount((drawn * 10).astype(int), minlength=10)
        assert abs(tenths - n / 10).max() < 5 * math.sqrt(n * 0.1 * 0.9)

    @pytest.mark.parametrize("neighbour", ["position", "request", "seed"])
    def test_neighbours_are_independent(self, neighbour):
        """A number and the one beside it, on a grid of ten by ten: chi-square of 99 degrees within five deviations."""
        n = 100_000
        at, request = range(n), [3] * n
        here = uniforms(1, request, at)
        beside = {
            "position": uniforms(1, request, [position + 1 for position in at]),
            "request": uniforms(1, [4] * n, at),
            "seed": uniforms(2, request, at),
        }[neighbour]
        cells = np.bincount((here * 10).astype(int) * 10 + (beside * 10).astype(int), minlength=100)
        chi_square = ((cells - n / 100) ** 2 / (n / 100)).sum()
        assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)


def grid(n):
    """The midpoints of `n` equal parts of [0, 1)."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


RULES = [
    OFF,
    Rule(0.5, 0, 1.0, raw=False),
    Rule(1.3, 7, 1.0, raw=False),
    Rule(1.0, 0, 0.6, raw=False),
    Rule(0.8, 9, 0.7, raw=False),
    Rule(1.0, 50, 0.9, raw=False),
]


class TestDistribution:
    @pytest.mark.parametrize("rule", RULES)
    def test_log_probabilities_are_those_of_the_definition(self, rule):
        logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(3)) * 3
        expected = processed_log_probs(logits, rule.temperature, rule.top_k, rule.top_p)
        uniform = torch.from_numpy(uniforms(5, range(200), [1] * 200))
        tokens, logprobs = choose(logits.clone(), rule, False, uniform)
        torch.testing.assert_close(logprobs, expected.gather(1, tokens[:, None])[:, 0], atol=2e-5, rtol=0)
        raw = Rule(rule.temperature, rule.top_k, rule.top_p, raw=True)
        same, logprobs = choose(logits.clone(), raw, False, uniform)
        assert same.tolist() == tokens.tolist()
        torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0], atol=2e-5, rtol=0)

    @pytest.mark.parametrize("rule", RULES)
    def test_each_token_has_its_share_of_the_numbers(self, rule):
        """Inverted at 10,000 even places, a cumulative distribution gives each token its probability, but for the edges."""
        logits, n = torch.randn(50, generator=torch.Generator().manual_seed(4)) * 2, 10_000
        tokens, _ = choose(logits.expand(n, 50).clone(), rule, False, grid(n))
        shares = torch.bincount(tokens, minlength=50) / n
        expected = processed_log_probs(logits[None], rule.temperature, rule.top_k, rule.top_p)[0].exp()
        assert (shares - expected).abs().max() <= 1.01 / n

    def test_frequencies(self):
        """20,000 draws from four probabilities: chi-square of 3 degrees below 16.27, which chance exceeds once in 1,000."""
        n = 20_000
        tokens, _ = choose(P4.expand(n, 4).clone(), OFF, False, torch.from_numpy(uniforms(7, range(n), [9] * n)))
        expected = P4.exp() * n
        assert ((torch.bincount(tokens, minlength=4) - expected) ** 2 / expected).sum() < 16.27

    @pytest.mark.parametrize(("temperature", "expected"), [(1.0, -1.4076), (0.5, -2.1429), (2.0, -1.1803)])
    def test_temperature_divides_logits(self, temperature, expected):
        """Logits 2, 1, 0: the number in the middle of token 1's share draws it."""
        logits = torch.tensor([[2.0, 1.0, 0.0]])
        p = (logits[0] / temperature).softmax(0)
        rule = Rule(temperature, 0, 1.0, raw=False)
        token, logprob = choose(logits, rule, False, p[:1] + p[1] / 2)
        assert token.item() == 1 and logprob.item() == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize(("raw", "expected"), [(True, -0.9163), (False, -0.5596)])
    def test_raw_and_processed(self, raw, expected):
        token, logprob = choose(P4[None].clone(), Rule(1.0, 2, 1.0, raw), False, torch.tensor([0.1]))
        assert token.item() == 0 and logprob.item() == pytest.approx(expected, abs=1e-4)

    def test_top_k_then_top_p(self):
        """Of .4 and .3, renormalised .571 and .429, the first alone reaches .5."""
        tokens, logprobs = choose(P4.expand(99, 4).clone(), Rule(1.0, 2, 0.5, raw=False), False, grid(99))
        assert set(tokens.tolist()) == {0} and logprobs.abs().max() < 1e-6

    @pytest.mark.parametrize("top_k", [0, 4, 5])
    def test_off_keeps_all_and_1_keeps_the_best(self, top_k):
        tokens, _ = choose(P4.expand(100, 4).clone(), Rule(1.0, top_k, 1.0, raw=False), False, grid(100))
        assert torch.bincount(tokens, minlength=4).tolist() == [40, 30, 20, 10]
        tokens, _ = choose(P4.expand(100, 4).clone(), Rule(1.0, 1, 1.0, raw=False), False, grid(100))
        assert set(tokens.tolist()) == {0}

    def test_the_ends_of_the_unit_interval(self):
        """0 and the largest number below 1 draw the first and the last token that can be drawn at all."""
        logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).expand(2, 4)
        tokens, logprobs = choose(logits.clone(), OFF, False, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
        assert tokens.tolist() == [1, 2]
        assert logprobs.tolist() == pytest.approx([math.log(0.5)] * 2)


class TestGreedy:
    @pytest.mark.parametrize("vocabulary", [2, 5, 16, 1000, 49_152])
    def test_the_lowest_id_on_ties(self, vocabulary):
        generator = torch.Generator().manual_seed(vocabulary)
        logits = torch.randn(64, vocabulary, generator=generator)
        ties = torch.randint(vocabulary, (64, 3), generator=generator)
        logits.scatter_(1, ties, 9.0)
        tokens, _ = choose(logits, OFF, True, None)
        assert tokens.tolist() == ties.min(dim=1).values.tolist()

    def test_the_log_probability_is_the_models_own(self):
        """At temperature 0 and in a greedy batch alike; [2, 0, -1] is finite where upstream's is NaN."""
        logits = torch.tensor([[2.0, 0.0, -1.0]])
        expected = 2 - math.log(math.exp(2) + 1 + math.exp(-1))
        for rule, greedy in ((Rule(0.0, 1, 1.0, raw=False), False), (Rule(0.7, 2, 0.5, raw=False), True)):
            token, logprob = choose(logits.clone(), rule, greedy, None)
            assert token.item() == 0 and logprob.item() == pytest.approx(expected, abs=1e-6)

    def test_log_probabilities_of_given_tokens(self):
        """Temperature counts unless greedy or raw; top-k does not, though it would make token 3 impossible."""
        for rule, greedy, temperature in (
            (Rule(2.0, 2, 1.0, raw=False), False, 2.0),
            (Rule(2.0, 2, 1.0, raw=False), True, 1.0),
            (Rule(2.0, 2, 1.0, raw=True), False, 1.0),
        ):
            found = log_probs_of(P4[None], torch.tensor([3]), rule, greedy)
            assert found.item() == pytest.approx((P4 / temperature).log_softmax(0)[3].item(), abs=1e-6)


PROMPTS = [3, 1, 4, 1], [5, 9, 2], [6, 5, 3, 5, 8, 9]
SETTINGS = {"max_new_tokens": 12, "temperature": 1.5, "seed": 11}


class TestSeeds:
    def test_nobody_else_matters(self):
        """The first request of an engine samples the same alone, among others, in chunks, and with an eviction on the way."""
        alone = engine(**SETTINGS).generate(prompts(PROMPTS[0]))
        together = engine(**SETTINGS).generate(prompts(*PROMPTS))
        mcore = {"max_tokens": 3, "max_requests": 3}
        tight = engine(blocks=7, **SETTINGS, mcore=mcore).generate(prompts(*PROMPTS))
        assert tight["num_evictions"].sum() > 0
        assert responses(together)[0] == responses(alone)[0]
        assert responses(tight) == responses(together)
        for one, other in zip(response_logprobs(tight), response_logprobs(together), strict=True):
            assert one == pytest.approx(other, abs=5e-4)

    def test_seeds_requests_and_positions_differ(self):
        """The same prompt twice in a batch, and under another seed: other tokens; the same seed repeats."""
        same = [PROMPTS[0]] * 2
        first, again = (engine(**SETTINGS).generate(prompts(*same)) for _ in range(2))
        other = engine(**SETTINGS | {"seed": 12}).generate(prompts(*same))
        assert responses(first) == responses(again)
        assert len({tuple(row) for row in responses(first) + responses(other)}) == 4

    def test_greedy_and_sampled_in_one_step(self):
        """A greedy batch beside a sampled one: each says what it says without the other."""
        backend = engine(**SETTINGS)
        streams = [backend.stream(prompts(PROMPTS[0])), backend.stream(prompts(PROMPTS[1]), greedy=True)]
        ended = {}
        while len(ended) < 2:
            for number, stream in enumerate(streams):
                event = next(stream, None)
                if isinstance(event, tuple):
                    ended[number] = responses(event[1])[0]
        assert ended[0] == responses(engine(**SETTINGS).generate(prompts(PROMPTS[0])))[0]
        assert ended[1] == responses(engine(**SETTINGS).generate(prompts(PROMPTS[1]), greedy=True))[0]

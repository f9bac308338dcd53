"""Arithmetic: what is drawn, what is reported for it, and that both are the same distribution."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reference_impl.conformance.batches import PROMPT, of_lengths, prompts, response_logprobs, responses
from reference_impl.conformance.expect import close, equal, hold
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import VOCABULARY, row
from reference_impl.generation.interfaces import GenerationInterface

TENTHS = [0.4, 0.3, 0.2, 0.1]
TABLE = row(**{f"t{token}": math.log(p) for token, p in enumerate(TENTHS)})


def drawn(backend: GenerationInterface, *wanted: int, rows: int = 40) -> dict[int, float]:
    """Token -> its log-probability, of first tokens drawn for as many rows; it is the same each time.

    Fails where one of `wanted` is not among them, each of which has a probability that makes it certain.
    """
    output, found = backend.generate(prompts(*[[5]] * rows)), defaultdict(list)
    for ids, logprobs in zip(responses(output), response_logprobs(output), strict=True):
        hold(ids, "a row has no token, expected one at least")
        found[ids[0]].append(logprobs[0])
    for token in wanted:
        hold(token in found, f"token {token} was drawn for none of {rows} rows")
    for token, values in found.items():
        close(values, [values[0]] * len(values), f"log-probabilities of token {token} in equal rows", 1e-4)
    return {token: values[0] for token, values in sorted(found.items())}


def by_hand(logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The definition in float64: scale, keep the best `top_k`, renormalise, keep the smallest set that reaches `top_p`."""
    scaled = np.asarray(logits, np.float64) / temperature
    kept = np.argsort(-scaled, kind="stable")[: top_k or None]
    mass = np.exp(scaled[kept] - scaled[kept[0]])
    mass /= mass.sum()
    if top_p < 1.0:
        kept = kept[: int(np.searchsorted(np.cumsum(mass), top_p)) + 1]
    found = np.full(len(scaled), -np.inf)
    found[kept] = scaled[kept] - scaled[kept[0]] - np.log(np.exp(scaled[kept] - scaled[kept[0]]).sum())
    return found


@check()
def logprob_of_the_sampled_token(lab: Lab) -> None:
    """Sampled id 7 at -2.00 reports -2.00, though id 3 at -0.20 is likelier."""
    rest = math.log(1 - math.exp(-0.2) - math.exp(-2.0))
    found = drawn(lab.backend(row(t3=-0.2, t7=-2.0, t9=rest), max_new_tokens=1), 3, 7, rows=60)
    close([found[3], found[7]], [-0.2, -2.0], "log-probabilities of 3 and 7", 1e-4)


@check()
def temperature_divides_logits(lab: Lab) -> None:
    """The temperature is in the reported log-probability, and divides logits, not log-probabilities."""
    for temperature, expected in ((1.0, -1.4076), (0.5, -2.1429), (2.0, -1.1803)):
        backend = lab.backend(row(t0=2.0, t1=1.0, t2=0.0), temperature=temperature, max_new_tokens=1)
        close([drawn(backend, 1)[1]], [expected], f"log-probability of token 1 at temperature {temperature:g}", 1e-4)


@check()
def processed_by_default(lab: Lab) -> None:
    """Log-probabilities are those of the distribution that is sampled from, or an unchanged policy has a ratio of 0.7."""
    found = drawn(lab.backend(TABLE, top_k=2, max_new_tokens=1))
    equal(list(found), [0, 1], "tokens drawn of the best 2")
    close([found[0], found[1]], [-0.5596, math.log(3 / 7)], "log-probabilities of 0 and 1", 1e-4)


@check()
def raw_on_request(lab: Lab) -> None:
    """`raw_logprobs` are the model's own, before temperature and filters."""
    found = drawn(lab.backend(TABLE, top_k=2, max_new_tokens=1, logprobs_mode="raw_logprobs"))
    equal(list(found), [0, 1], "tokens drawn of the best 2")
    close([found[0], found[1]], [-0.9163, math.log(0.3)], "raw log-probabilities of 0 and 1", 1e-4)
    backend = lab.backend(row(t0=2.0, t1=1.0, t2=0.0), temperature=2.0, max_new_tokens=1, logprobs_mode="raw_logprobs")
    close([drawn(backend, 1)[1]], [-1.4076], "raw log-probability of token 1 at temperature 2", 1e-4)


@check()
def top_k_before_top_p(lab: Lab) -> None:
    """top_p counts what top_k left, renormalised: of .4 and .3, the first has .571 and is all that .5 keeps."""
    found = drawn(lab.backend(TABLE, top_k=2, top_p=0.5, max_new_tokens=1))
    equal(list(found), [0], "tokens drawn with top_k 2 and top_p 0.5")
    close([found[0]], [0.0], "the only token's log-probability", 1e-5)


@check()
def top_p_keeps_the_smallest_set(lab: Lab) -> None:
    """The token that reaches top_p is kept, and none after it."""
    for top_p, kept in ((0.35, 1), (0.65, 2), (0.75, 3), (0.95, 4)):
        found = drawn(lab.backend(TABLE, top_p=top_p, max_new_tokens=1), rows=20 * kept)
        equal(list(found), list(range(kept)), f"tokens drawn with top_p {top_p:g}")
        close([found[0]], [math.log(0.4 / sum(TENTHS[:kept]))], f"log-probability of 0 with top_p {top_p:g}", 1e-4)


@check()
def top_k_off(lab: Lab) -> None:
    """null, 0, -1, the vocabulary's size and more keep all, also beside top_p 1.0."""
    for top_k in (None, 0, -1, VOCABULARY, VOCABULARY + 1):
        backend = lab.backend(row(t0=0.0, t1=0.0, t2=0.0, t3=0.0), top_k=top_k, top_p=1.0, max_new_tokens=1)
        equal(list(drawn(backend)), [0, 1, 2, 3], f"tokens drawn with top_k {top_k}")


@check()
def top_k_of_one(lab: Lab) -> None:
    """One token is left, and it is certain."""
    output = lab.backend(row(t0=1.0, t1=0.9), top_k=1, max_new_tokens=4).generate(prompts(*[[5]] * 20))
    equal(responses(output), [[0] * 4] * 20, "responses with top_k 1")
    close(response_logprobs(output)[0], [0.0] * 4, "log-probabilities with top_k 1", 1e-5)


@check()
def filters_together(lab: Lab) -> None:
    """Temperature, top-k and top-p together draw from the definition's distribution, and report it."""
    logits = [1.3, -0.2, 2.1, 0.4, -1.7, 1.9, 0.0, -0.6, 0.9, 1.1, -2.5, 0.2, 1.6, -1.1, 0.6, -0.4]
    table = torch.tensor(logits).expand(VOCABULARY, VOCABULARY)
    for temperature, top_k, top_p in ((0.7, 5, 0.8), (2.0, 0, 0.5), (0.5, 3, 1.0), (1.3, 12, 0.9)):
        name = f"with temperature {temperature:g}, top_k {top_k}, top_p {top_p:g}"
        backend = lab.backend(table, temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=1)
        found, expected = drawn(backend), by_hand(logits, temperature, top_k, top_p)
        hold(np.isfinite(expected[list(found)]).all(), f"{name}, tokens drawn: {list(found)}, more than are kept")
        close(list(found.values()), expected[list(found)].tolist(), f"log-probabilities {name}", 1e-4)


@check()
def frequencies(lab: Lab) -> None:
    """Tokens are drawn as often as their log-probabilities say, within five deviations."""
    output = lab.backend(TABLE, max_new_tokens=8).generate(prompts(*[[5]] * 50))
    counts = Counter(token for ids in responses(output) for token in ids)
    for token, p in enumerate(TENTHS):
        far = abs(counts[token] - 400 * p) / math.sqrt(400 * p * (1 - p))
        hold(far < 5, f"token {token}: drawn {counts[token]} times of 400, expected {400 * p:g}")


@check()
def greedy_is_finite(lab: Lab) -> None:
    """Greedy log-probabilities are the model's own: finite, whichever way greedy is asked for."""
    expected = 2.0 - math.log(math.exp(2) + 1 + math.exp(-1))
    asked: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "top_k": 1}, False),
    ]
    for settings, flag in asked:
        backend = lab.backend(row(t0=2.0, t1=0.0, t2=-1.0), max_new_tokens=2, **settings)
        output = backend.generate(prompts([5]), greedy=flag)
        equal(responses(output), [[0, 0]], "the greedy response")
        close(response_logprobs(output)[0], [expected] * 2, f"greedy log-probabilities with {settings or flag}", 1e-4)


@check()
def greedy_takes_the_lowest_id(lab: Lab) -> None:
    """Of equally good tokens, greedy takes the lowest id, on every machine."""
    for best in ((3, 7, 12), (0, 15), (8, 9)):
        output = lab.backend(row(**{f"t{i}": 1.0 for i in best}), max_new_tokens=3).generate(prompts([5]), greedy=True)
        equal(responses(output), [[best[0]] * 3], f"the greedy response where {best} are equally good")


@check()
def greedy_overrides_the_filters(lab: Lab) -> None:
    """`greedy=True` takes the best token, whatever temperature and filters the recipe has."""
    backend = lab.backend(TABLE, temperature=5.0, top_k=3, top_p=0.9, max_new_tokens=8)
    output = backend.generate(prompts([5], [7]), greedy=True)
    equal(responses(output), [[0] * 8] * 2, "greedy responses with temperature 5")
    close(response_logprobs(output)[0], [math.log(0.4)] * 8, "their log-probabilities", 1e-4)


@check()
def agrees_with_transformers(lab: Lab) -> None:
    """Greedy tokens and their log-probabilities are those of the same model in transformers."""
    backend, rows = lab.backend(max_new_tokens=12), [PROMPT, *of_lengths(1, 17)]
    output = backend.generate(prompts(*rows), greedy=True)
    for place, (ids, logprobs) in enumerate(zip(responses(output), response_logprobs(output), strict=True)):
        lab.teacher().agrees(rows[place], ids, logprobs, f"row {place}")


@check()
def drawn_agrees_with_transformers(lab: Lab) -> None:
    """What is reported for drawn tokens follows from transformers' logits by the definition, token after token."""
    rules: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}, {"temperature": 1.5}]
    for settings in rules:
        output = lab.backend(max_new_tokens=10, **settings).generate(prompts(PROMPT, PROMPT[:5]))
        for prompt, ids, logprobs in zip(
            (PROMPT, PROMPT[:5]), responses(output), response_logprobs(output), strict=True
        ):
            logits = lab.teacher().logits([*prompt, *ids])[len(prompt) - 1 : -1].numpy()
            expected = [by_hand(line, **settings)[token] for line, token in zip(logits, ids, strict=True)]
            close(logprobs, expected, f"log-probabilities drawn with {settings or 'no filter'}")


@check()
def same_seed_repeats(lab: Lab) -> None:
    """The same seed and order of requests repeat exactly; another seed draws others."""
    found = []
    for seed in (7, 7, 8):
        backend = lab.backend(max_new_tokens=12, seed=seed)
        found.append([responses(backend.generate(prompts(PROMPT, PROMPT[:3]))) for _ in range(2)])
    equal(found[0], found[1], "responses of two engines with one seed")
    hold(found[0] != found[2], "two seeds draw the same tokens")


@check()
def equal_prompts_draw_differently(lab: Lab) -> None:
    """A group of rollouts is of one prompt: its members, and one batch after another, draw from different streams."""
    backend = lab.backend(row(t0=0.0, t1=0.0, t2=0.0, t3=0.0), max_new_tokens=12)
    found = [tuple(ids) for _ in range(2) for ids in responses(backend.generate(prompts(*[[5]] * 8)))]
    hold(len(set(found)) == 16, f"of 16 responses to one prompt, {16 - len(set(found))} repeat another")


@check("own-streams")
def own_streams(lab: Lab) -> None:
    """What a row draws does not depend on who is generated beside it."""
    found = []
    for mates in ([], [[5]], [[5, 5, 5], [7]]):
        backend = lab.backend(row(t0=0.0, t1=0.0, t2=0.0, t3=0.0), max_new_tokens=12)
        found.append(responses(backend.generate(prompts([5], *mates)))[0])
    equal(found[1], found[0], "what a row draws beside one other")
    equal(found[2], found[0], "what a row draws beside two others")


@check("prompt-logprobs")
def prompt_logprobs(lab: Lab) -> None:
    """A prompt's log-probabilities are each token's given those before it, where they were asked for."""
    rows = [PROMPT, PROMPT[:4]]
    output = lab.backend(max_new_tokens=2).generate(prompts(*rows, prompt_logprobs=[True, True]), greedy=True)
    hold("prompt_logprobs" in output, "column prompt_logprobs is missing")
    for place, tokens in enumerate(rows):
        log_probs = lab.teacher().log_probs(tokens)
        expected = [0.0, *log_probs[range(len(tokens) - 1), tokens[1:]].tolist()]
        found = output["prompt_logprobs"][place].tolist()
        close(found, expected + [0.0] * (len(PROMPT) - len(tokens)), f"prompt_logprobs of row {place}")

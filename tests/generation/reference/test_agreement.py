"""The `reference` and the `megatron` engine side by side, on random schedules: the same steps, tokens and records.

Two of Megatron's ways are kept out of the schedules, each by a rule in `random_schedules`: it counts the last sampled token
as stored, and it cannot cut an evicted request into chunks without `enable_chunked_prefill`.
"""

import gc
from collections import Counter, defaultdict

import pytest
from generation.reference.random_schedules import Arrival, Schedule, cut_prompts, play, random_schedule
from generation.reference.small_llama import SHAPE, buffer_of, checkpoint, hf_weights
from support.batches import recipe

from reference_impl.generation.megatron.backend import MegatronGeneration
from reference_impl.generation.reference import engine as reference_engine
from reference_impl.generation.reference.backend import ReferenceGeneration
from reference_impl.models.gpt import build_gpt_model
from reference_impl.staleness.events import follow
from reference_impl.staleness.records import check

TOLERANCE, NEAR_TIE = 5e-4, 1e-3


@pytest.fixture(scope="module")
def model():
    """One `GPTModel` for all engines: whichever plays, its weights are checkpoint 0 at the start."""
    made = build_gpt_model(SHAPE, hf_weights())
    gc.collect()
    gc.freeze()  # Megatron collects garbage at each suspend, which takes a third of a second in a process with torch in it
    yield made
    gc.unfreeze()


def start(kind, model, schedule):
    mcore = schedule.mcore | {"buffer_size_gb": buffer_of(schedule.blocks, schedule.mcore["block_size_tokens"])}
    settings = recipe(length=schedule.length, mcore=mcore, stop_token_ids=schedule.stop_token_ids)
    backend = kind(settings, model=model, shape=SHAPE)
    backend.update_weights(checkpoint(0), epoch=0)
    backend.prepare_for_generation()
    return backend


def played_by(kind, model, schedule, watch=None):
    backend = start(kind, model, schedule)
    try:
        if watch is not None:
            watch(backend)
        return play(backend, schedule)
    finally:
        backend.shutdown()


class Gaps:
    """By how much the best token's logit was above the next one's, of each sampled token of each request."""

    def __init__(self, monkeypatch):
        self.of_request, self._choose = defaultdict(list), reference_engine.choose
        monkeypatch.setattr(reference_engine, "choose", self._seen)

    def _seen(self, logits, *rest):
        best = logits.topk(2).values
        self._step = (best[:, 0] - best[:, 1]).tolist()
        return self._choose(logits, *rest)

    def watch(self, backend):
        self.of_request.clear()
        follow(backend.tracker, self._told)

    def _told(self, event):
        if event["event"] == "sample":  # of the requests in the order in which their tokens were chosen
            for request, gap in zip(event["requests"], self._step, strict=True):
                self.of_request[request].append(gap)


def near_tie(gaps, megatron, reference):
    """Whether the first tokens in which two outputs differ were a near-tie."""
    for number, tokens in megatron.tokens.items():
        other = reference.tokens[number]
        at = next((i for i, pair in enumerate(zip(tokens, other, strict=False)) if pair[0] != pair[1]), None)
        if at is not None:
            return gaps.of_request[reference.records[number].request][at] < NEAR_TIE
    return False


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_schedules(model, monkeypatch, first):
    gaps, schedules_with, ties = Gaps(monkeypatch), Counter(), 0
    for seed in range(first, first + 50):
        schedule = random_schedule(seed)
        megatron = played_by(MegatronGeneration, model, schedule)
        reference = played_by(ReferenceGeneration, model, schedule, gaps.watch)
        if near_tie(gaps, megatron, reference):
            ties += 1
            continue
        assert reference.tokens == megatron.tokens, f"seed {seed}"
        assert reference.steps == megatron.steps, f"seed {seed}: the engines computed different things"
        assert reference.records == megatron.records, f"seed {seed}"
        for number, values in megatron.logprobs.items():
            assert reference.logprobs[number] == pytest.approx(values, abs=TOLERANCE), f"seed {seed}, request {number}"
            assert (reference.errors[number] is None) is (megatron.errors[number] is None)
        for record in filter(None, reference.records.values()):
            check(record)
        schedules_with["prompts in chunks"] += cut_prompts(reference, schedule) > 0
        schedules_with["refusals"] += any(reference.errors.values())
        for event in ("evict", "weights_changed", "suspend", "arrival in a stream"):
            schedules_with[event] += reference.counts[event] > 0
        modes = schedule.mcore["kv_cache_management_mode"]
        schedules_with[modes] += reference.counts["suspend"] > 0
    assert ties <= 2, "where the two disagree about the best token it is by their rounding, which is rarely enough"
    few = {what: schedules_with[what] for what in WHAT_IS_HARD if schedules_with[what] < 3}
    assert not few, f"too few schedules with these: {few}"


WHAT_IS_HARD = (
    *("evict", "weights_changed", "suspend", "arrival in a stream", "prompts in chunks"),
    *("persist", "offload", "recompute"),
)


def test_admission_at_the_edge(model):
    """5 blocks of 4: 17 and 4 are 21 tokens, of which 20 are stored. Megatron counts 21 and refuses; 3 new ones both take."""
    mcore = {"block_size_tokens": 4, "max_requests": 2, "max_tokens": 32, "enable_chunked_prefill": True}
    at_the_edge, inside = (
        Schedule(40, 5, [], mcore, [Arrival(0, [list(range(17))], new_tokens)], {}, {}) for new_tokens in (4, 3)
    )
    assert played_by(ReferenceGeneration, model, at_the_edge).errors == {0: None}
    refused = played_by(MegatronGeneration, model, at_the_edge).errors[0]
    assert refused is not None and refused.startswith("21 tokens need 6 KV blocks of 4, the buffer has 5")
    tokens = [played_by(kind, model, inside).tokens for kind in (ReferenceGeneration, MegatronGeneration)]
    assert tokens[0] == tokens[1] and len(tokens[0][0]) == 3


def test_a_near_tie_is_told_from_a_mistake(model, monkeypatch):
    """Megatron's tokens with one changed: no near-tie at any of them, so the comparison above would have failed."""
    gaps, schedule = Gaps(monkeypatch), random_schedule(0)
    megatron = played_by(MegatronGeneration, model, schedule)
    reference = played_by(ReferenceGeneration, model, schedule, gaps.watch)
    number = max(megatron.tokens, key=lambda number: len(megatron.tokens[number]))
    clear = next(i for i, gap in enumerate(gaps.of_request[reference.records[number].request]) if gap > NEAR_TIE)
    megatron.tokens[number][clear] += 1
    assert not near_tie(gaps, megatron, reference)
    gaps.of_request[reference.records[number].request][clear] = NEAR_TIE / 2
    assert near_tie(gaps, megatron, reference)

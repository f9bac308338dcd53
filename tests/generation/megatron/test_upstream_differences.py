"""Where Megatron's own stamps are imprecise: each case on its real engine, with the truth and with what it says.

The truth comes from `Completion.record`, made by the tracker at forward passes and samplings; Megatron's answer from
`Completion.upstream`, its own stamps. A release in which the two agree makes the case's test fail, so that the correction
goes. D11, and the metric side of D2, D7 and D10, are formulas over records: `tests/staleness/test_upstream_formulas.py`.
The numbers D8, D12 and D13 are not used. Of D14 only the engine's side can be shown without NeMo RL installed.
"""

from collections import Counter

import pytest
from support.batches import prompts, tokens_of
from support.table_model import table_model

from reference_impl.conformance.table_model import SHAPE, Digits, chain
from reference_impl.generation.interfaces import Progress
from reference_impl.generation.megatron import drivers
from reference_impl.staleness.consumption import consume
from reference_impl.staleness.records import RequestRecord, check, merge_turns

EVICTING = {  # a cache for one request and a bit: of two requests, one is evicted after its tenth new token
    "block_size_tokens": 2,
    "buffer_size_gb": 11.5 * (2 * 1 * 1 * 8 * 4 * 2) / 2**30,  # K and V, layers, KV heads, head size, bytes, tokens
    "max_requests": 4,
}


def generate(backend, rows, updates) -> list[tuple[RequestRecord, RequestRecord]]:
    """(exact, Megatron's) records of a greedy batch; `updates` is {sampled tokens: epochs to go through then}."""
    left, records = dict(updates), {}
    for event in backend.stream(prompts(*rows), greedy=True):
        if not isinstance(event, Progress):
            records[event[0]] = (event[1]["staleness"][0], event[1]["upstream_staleness"][0])
        for epoch in left.pop(event.sampled_tokens, []) if isinstance(event, Progress) else []:
            backend.update_weights(None, epoch=epoch)
    assert not left, "an update never came"
    pairs = [records[index] for index in range(len(rows))]
    for exact, _ in pairs:
        check(exact)
    return pairs


def differ(exact, upstream, *, truth, megatron) -> None:
    """Ours is the truth, and Megatron's is what it is known to say."""
    assert exact.to_json() == truth
    if upstream.to_json() == truth:
        pytest.fail("upstream now agrees: delete this correction")
    assert upstream.to_json() == megatron


def agree(exact, upstream, truth) -> None:
    assert exact.to_json() == truth
    assert upstream.to_json() == truth


@pytest.fixture
def engine(make):
    """A running backend with `tiny` at a given epoch."""

    def start(epoch: int = 0, **settings):
        backend = make(**{"stop_token_ids": [], "length": 128} | settings)
        backend.update_weights(None, epoch=epoch)
        backend.prepare_for_generation()
        return backend

    return start


def test_d1_the_token_that_waits_for_its_forward_pass(engine):
    """Prompt 4, 3 tokens at epoch 0, change, 2 more: the policy changes at 7 and the KV cache at 6."""
    exact, upstream = generate(engine(max_new_tokens=5), tokens_of(4), {3: [1]})[0]
    differ(exact.policy_epoch, upstream.policy_epoch, truth=[[0, 0], [7, 1]], megatron=[[0, 0], [6, 1]])
    agree(exact.kv_cache_epoch, upstream.kv_cache_epoch, [[0, 0], [6, 1]])
    # Every token attended to the prompt, whose keys and values are still epoch 0's.
    assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [4, 0]]


def test_d1_two_changes_in_one_answer(engine):
    """Prompt 8, changes after 3 and 6 of 8: policy runs of 11, 3 and 2 tokens, KV runs of 10, 3 and 3."""
    exact, upstream = generate(engine(3, max_new_tokens=8), tokens_of(8), {3: [4], 6: [5]})[0]
    differ(
        exact.policy_epoch,
        upstream.policy_epoch,
        truth=[[0, 3], [11, 4], [14, 5]],
        megatron=[[0, 3], [10, 4], [13, 5]],
    )
    agree(exact.kv_cache_epoch, upstream.kv_cache_epoch, [[0, 3], [10, 4], [13, 5]])


def test_d2_a_rollout_is_as_old_as_its_oldest_sampled_token(engine):
    """Submitted at epoch 0, sampled at 1, consumed at 1: on-policy, though Megatron's first token is the prompt's."""
    exact, upstream = generate(engine(max_new_tokens=3), tokens_of(4), {0: [1]})[0]
    assert exact.policy_epoch.to_json() == [[0, 0], [4, 1]]
    assert consume(1, [exact]).per_rollout("policy").oldest.tolist() == [0.0]
    first_token = 1 - upstream.policy_epoch.runs[0][1]
    if first_token == 0:
        pytest.fail("upstream now agrees: delete this correction")
    assert first_token == 1


def test_d3_a_change_before_the_first_prefill(engine):
    """37-token prompts behind 4 running requests, 3 to 4 meanwhile: their cache is epoch 4's from the first row on."""
    backend = engine(3, max_new_tokens=6, mcore={"max_requests": 4})
    pairs = generate(backend, tokens_of(37, 37, 37, 37, 37, 37), {8: [4]})
    for exact, upstream in pairs[4:]:
        differ(exact.kv_cache_epoch, upstream.kv_cache_epoch, truth=[[0, 4]], megatron=[[0, 3], [36, 4]])
        assert exact.policy_epoch.to_json() == [[0, 3], [37, 4]], "admitted at 3, sampled at 4"
        assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [37, 4]]


def test_d3_two_changes_before_the_first_prefill(engine):
    """As before with 3, 4, 5: all rows at the last."""
    backend = engine(3, max_new_tokens=6, mcore={"max_requests": 4})
    pairs = generate(backend, tokens_of(37, 37, 37, 37, 37), {8: [4], 16: [5]})
    exact, upstream = pairs[4]
    differ(exact.kv_cache_epoch, upstream.kv_cache_epoch, truth=[[0, 5]], megatron=[[0, 3], [36, 5]])


def evicting(make, **settings):
    backend = make(
        model=table_model(chain(*range(1, 16))),
        shape=SHAPE,
        tokenizer=Digits(),
        stop_token_ids=[],
        **{"max_new_tokens": 14, "mcore": EVICTING} | settings,
    )
    backend.update_weights(None, epoch=3)
    backend.prepare_for_generation()
    return backend


def test_d4_two_changes_while_an_evicted_request_waits(make):
    """Evicted at 3, then 4 and 5 before its second prefill: all rows at 5, where Megatron leaves 4 on all but the last."""
    backend, records = evicting(make), {}
    for event in backend.stream(prompts([1], [1]), greedy=True):
        if not isinstance(event, Progress):
            records[event[0]] = event[1]
        elif backend.epoch == 3 and backend._engine.evicted_request_count:
            assert len(backend._engine.waiting_request_ids) == 1
            tokens = [len(entry.record[-1].prompt_tokens) for entry in backend._engine.requests.values()]
            backend.update_weights(None, epoch=4)
            backend.update_weights(None, epoch=5)
    evicted = next(output for output in records.values() if output["num_evictions"].item())
    at = max(tokens)  # the evicted request's tokens when it was evicted, prompt of 1 and what it had sampled
    exact, upstream = evicted["staleness"][0], evicted["upstream_staleness"][0]
    check(exact)
    differ(exact.kv_cache_epoch, upstream.kv_cache_epoch, truth=[[0, 5]], megatron=[[0, 4], [at - 1, 5]])
    differ(exact.policy_epoch, upstream.policy_epoch, truth=[[0, 3], [at, 5]], megatron=[[0, 3], [at - 1, 5]])
    assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [1, 3], [at, 5]]
    assert exact.num_evictions == upstream.num_evictions == 1
    assert exact.num_recomputes == 0


def pauses_seen_and_told(backend, rows) -> tuple[Counter, Counter, int]:
    """How often a look between two steps newly finds each request paused; what its record says; evictions in all."""
    context, seen, before, records = backend._engine.context, Counter(), set(), []
    for event in backend.stream(prompts(*rows), greedy=True):
        if not isinstance(event, Progress):
            records.append(event[1]["staleness"][0])
        paused = set(context.request_ids[: context.paused_request_count].tolist())
        seen.update(paused - before)
        before = paused
    told = Counter({record.request: record.num_preemptions for record in records})
    return seen, told, sum(record.num_evictions for record in records)


def test_an_eviction_is_no_pause(make):
    """Without room for paused requests none stays paused, though Megatron names one as newly paused that has resumed."""
    seen, told, evictions = pauses_seen_and_told(evicting(make), [[1], [1]])
    assert (seen.total(), told.total(), evictions) == (0, 0, 1)


def test_pauses_that_keep_the_blocks_are_counted(make):
    """With 5 blocks set aside for paused requests, two of three are paused, one of them twice, and two are evicted later."""
    mcore = EVICTING | {"buffer_size_gb": EVICTING["buffer_size_gb"] * 14.5 / 11.5}
    backend = evicting(make, max_new_tokens=12, mcore=mcore)
    blocks = backend._engine.context.kv_block_allocator
    blocks.paused_count, blocks.active_count = 5, blocks.active_count - 5
    seen, told, evictions = pauses_seen_and_told(backend, [[1], [1, 1], [1]])
    assert sorted(seen.values()) == [1, 2]
    assert +told == seen
    assert evictions == 2


def test_d5_a_change_between_two_chunks(engine):
    """60 of 100 rows, change, 40 rows: the boundary is the chunk's edge, where Megatron keeps the old epoch for 99."""
    backend = engine(max_new_tokens=4, mcore={"max_tokens": 60, "max_requests": 8})
    stream = backend.stream(prompts(*tokens_of(100)), greedy=True)
    assert next(stream).sampled_tokens == 0
    assert next(stream).sampled_tokens == 0, "the first chunk emits no token"
    assert backend.tracker.cached(0) == 60
    backend.update_weights(None, epoch=1)
    records = [event[1] for event in stream if not isinstance(event, Progress)]
    exact, upstream = records[0]["staleness"][0], records[0]["upstream_staleness"][0]
    differ(exact.kv_cache_epoch, upstream.kv_cache_epoch, truth=[[0, 0], [60, 1]], megatron=[[0, 0], [99, 1]])
    assert exact.policy_epoch.to_json() == [[0, 0], [100, 1]]
    assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [100, 0]]


def test_d6_a_prefix_hit_on_older_blocks(engine, monkeypatch):
    """The blocks' own epoch. Megatron says the current one, and nobody sees what the token attended to."""
    monkeypatch.setattr(drivers, "forget_prefixes", lambda engine: False)  # as Megatron leaves them under persist
    backend = engine(max_new_tokens=3, mcore={"enable_prefix_caching": True})
    prompt = tokens_of(16)
    stream = backend.stream(prompts(*prompt), greedy=True)
    while next(stream).sampled_tokens < 1:  # the blocks live as long as somebody holds them
        pass
    backend.update_weights(None, epoch=2)
    exact, upstream = generate(backend, prompt, {})[0]
    differ(exact.kv_cache_epoch, upstream.kv_cache_epoch, truth=[[0, 0], [12, 2]], megatron=[[0, 2]])
    assert exact.prefix_cached_tokens == 12, "of 4 whole blocks, one is computed again: a pass needs a token"
    assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [16, 0]]
    assert exact.admission_epoch == 2


def test_d6_this_backend_forgets_prefixes_at_an_update(engine):
    """So no token reads what older weights wrote for another request, and policy >= KV holds for prompts too."""
    backend = engine(max_new_tokens=3, mcore={"enable_prefix_caching": True})
    prompt = tokens_of(16)
    stream = backend.stream(prompts(*prompt), greedy=True)
    while next(stream).sampled_tokens < 1:
        pass
    hit = generate(backend, prompt, {})[0][0]
    assert hit.prefix_cached_tokens == 12
    backend.update_weights(None, epoch=2)
    exact = generate(backend, prompt, {})[0][0]
    assert exact.prefix_cached_tokens == 0
    assert exact.kv_cache_epoch.to_json() == [[0, 2]]


def test_d7_stop_words_cut_tokens_past_a_boundary(make):
    """Megatron's own stop words take their tokens away again; its boundary stays, past the end of the sequence."""
    backend = make(
        model=table_model(chain(1, 5, 6, 7, 8)), shape=SHAPE, tokenizer=Digits(), max_new_tokens=8, stop_token_ids=[]
    )
    backend.prepare_for_generation()
    driver, engine = backend._driver, backend._engine

    def stop_rule_then_megatrons(requests):
        return driver._stop_rule(requests) | engine._get_and_clear_stop_word_finished_ids(requests)

    engine.controller.set_stop_word_finished_ids_callback(stop_rule_then_megatrons)
    sampling = megatron_params(backend, [3, 2, 1], stop_words=["6 7"])
    future = driver._thread.submit(megatron_reply(driver, [3, 2, 1], sampling))
    while len(generated(engine)) < 2:
        driver.advance().result()
    backend.update_weights(None, epoch=1)  # 5 and 6 are there, 6 waits for its pass
    while not future.done():
        driver.advance().result()
    request, exact = future.result()
    assert request.generated_tokens == [5], "the stop word's two tokens are gone"
    assert request.policy_epoch == [(0, 0), (4, 1)]
    length = len([3, 2, 1]) + 1
    assert exact.length == length
    assert exact.policy_epoch.to_json() == [[0, 0]]
    if request.policy_epoch[-1][0] < length:
        pytest.fail("upstream now agrees: delete this correction")


def megatron_params(backend, prompt, **more):
    """Megatron's parameters for one request, with its own stop words."""
    from reference_impl.generation.megatron.requests import sampling_params
    from reference_impl.generation.rows import Row, tokens_to_generate
    from reference_impl.generation.stops import Stops

    limit = tokens_to_generate(prompt, backend.config, backend._limits())
    params = sampling_params(Row(prompt, limit, Stops(), tag="here"), backend.config, greedy=True)
    for name, value in more.items():
        setattr(params, name, value)
    return params


async def megatron_reply(driver, prompt, params):
    """The engine's own reply, before this backend holds it to its rules, and our record."""
    record = await driver._engine.add_request(99, prompt, params)
    return record.merge(), driver.stamping.take("here")


def generated(engine) -> list[int]:
    return next(iter(engine.requests.values())).record[-1].generated_tokens if engine.requests else []


def test_d9_a_recompute_leaves_what_was_attended_before(engine):
    """The cache ends as epoch 1's; the first three tokens attended to epoch 0's, which Megatron does not keep."""
    backend = engine(max_new_tokens=5, mcore={"kv_cache_management_mode": "recompute"})
    exact, upstream = generate(backend, tokens_of(4), {3: [1]})[0]
    assert exact.kv_cache_epoch.to_json() == [[0, 1]]
    assert exact.policy_epoch.to_json() == [[0, 0], [7, 1]]
    assert exact.oldest_attended_kv_epoch.to_json() == [[0, None], [4, 0], [7, 1]]
    assert (exact.num_recomputes, exact.num_evictions) == (1, 0)
    assert upstream.num_evictions == 0
    if upstream.oldest_attended_kv_epoch.stamped or upstream.num_recomputes is not None:
        pytest.fail("upstream now agrees: delete this correction")


@pytest.mark.parametrize("kv_mode", ["persist", "offload", "recompute"])
def test_d9_what_a_suspend_does_to_the_cache(engine, kv_mode):
    """Asleep from 0 to 1: persist and offload bring the cache back as it was, recompute renews it; policy is unchanged."""
    backend = engine(max_new_tokens=5, mcore={"kv_cache_management_mode": kv_mode})
    records, slept = [], False
    for event in backend.stream(prompts(*tokens_of(4)), greedy=True):
        if not isinstance(event, Progress):
            records.append(event[1]["staleness"][0])
        elif event.sampled_tokens == 3 and not slept:
            backend.suspend()
            backend.update_weights(None, epoch=1)
            backend.resume()
            slept = True
    exact = records[0]
    assert exact.policy_epoch.to_json() == [[0, 0], [7, 1]]
    assert exact.kv_cache_epoch.to_json() == ([[0, 1]] if kv_mode == "recompute" else [[0, 0], [6, 1]])
    assert exact.num_recomputes == (kv_mode == "recompute")


def test_d10_cumulative_turns(engine):
    """10 tokens at epoch 0; a turn on top of them, 16 in all, at 3: each of the 16 counts once."""
    backend = engine(max_new_tokens=6)
    first = backend.generate(prompts(*tokens_of(4)), greedy=True)
    backend.update_weights(None, epoch=3)
    second = backend.generate(prompts(first["output_ids"][0].tolist()), greedy=True)
    turns = [first["staleness"][0], second["staleness"][0]]
    merged = merge_turns(turns)
    assert merged.length == 16
    assert merged.policy_epoch.to_json() == [[0, 0], [10, 3]]
    assert merged.sampled == ((4, 10), (10, 16))
    assert merged.of_sampled("policy_epoch").histogram(3) == {0: 6, 3: 6}
    counted = sum(output["upstream_staleness"][0].length for output in (first, second))
    assert counted == 26, "what Megatron weighs"


def test_d14_without_an_epoch_there_are_no_stamps(engine):
    """NeMo RL's Megatron worker never sets an epoch, and the engine then stamps nothing; what it did is known all the same."""
    backend = engine(max_new_tokens=3)
    backend._engine._generation_epoch = None
    output = backend.generate(prompts(*tokens_of(4)), greedy=True)
    if output["upstream_staleness"] != [None]:
        pytest.fail("upstream now agrees: delete this correction")
    assert output["policy_epoch"][0].to_json() == [[0, 0]]

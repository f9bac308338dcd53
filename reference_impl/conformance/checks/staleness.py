"""Staleness: three epochs a token, exact at every boundary, and records as long as what is returned."""

from collections.abc import Callable

import numpy as np

from reference_impl.conformance.batches import finish, of_lengths, prompts
from reference_impl.conformance.expect import close, equal, hold
from reference_impl.conformance.lab import Lab
from reference_impl.conformance.suite import check
from reference_impl.conformance.table_model import chain
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.staleness.records import RequestRecord, merge_turns
from reference_impl.staleness.records import check as check_record


def change(backend: GenerationInterface, *epochs: int) -> Callable[[], None]:
    """An action that goes through these epochs; the weights stay, for only the stamps matter here."""

    def update() -> None:
        for epoch in epochs:
            backend.update_weights(None, epoch=epoch)

    return update


def record_of(output: BatchedDataDict) -> RequestRecord:
    """The record of a one-row output, which has to hold."""
    record: RequestRecord | None = output["staleness"][0]
    hold(record is not None, "a finished sequence has no staleness record")
    assert record is not None
    check_record(record)
    return record


def stamped(
    record: RequestRecord, *, policy: list | None = None, kv: list | None = None, attended: list | None = None
) -> None:
    """Hold a record's epochs, as runs `[start, epoch]`, to these."""
    wanted = {"policy_epoch": policy, "kv_cache_epoch": kv, "oldest_attended_kv_epoch": attended}
    for name, runs in wanted.items():
        if runs is not None:
            equal(getattr(record, name).to_json(), runs, name)


@check()
def nothing_changes(lab: Lab) -> None:
    """Without an update all epochs of a sequence are the engine's, those of the last, unread token too."""
    backend = lab.backend(max_new_tokens=5, epoch=3)
    record = record_of(finish(backend, *of_lengths(4))[0])
    stamped(record, policy=[[0, 3]], kv=[[0, 3]], attended=[[0, None], [4, 3]])
    equal((record.admission_epoch, record.completion_epoch), (3, 3), "admission and completion epoch")


@check()
def policy_changes_at_n(lab: Lab) -> None:
    """Epoch 3 until 2 of 5 tokens, then 4: the policy epochs of the five are 3, 3, 4, 4, 4."""
    backend = lab.backend(max_new_tokens=5, epoch=3)
    record = record_of(finish(backend, *of_lengths(4), at={2: change(backend, 4)})[0])
    equal(record.of_sampled("policy_epoch").expand().tolist(), [3, 3, 4, 4, 4], "policy epochs of sampled tokens")
    equal(record.policy_epoch.to_json(), [[0, 3], [6, 4]], "policy_epoch")


@check()
def kv_changes_at_n_minus_one(lab: Lab) -> None:
    """The token sampled last before an update has no keys and values yet: they are the new weights'."""
    backend = lab.backend(max_new_tokens=5)
    record = record_of(finish(backend, *of_lengths(4), at={3: change(backend, 1)})[0])
    stamped(record, policy=[[0, 0], [7, 1]], kv=[[0, 0], [6, 1]])


@check()
def attended_is_the_oldest_read(lab: Lab) -> None:
    """Over a cache that persists every later token attends to the old prompt, and its record says so."""
    backend = lab.backend(max_new_tokens=5)
    record = record_of(finish(backend, *of_lengths(4), at={3: change(backend, 1)})[0])
    stamped(record, attended=[[0, None], [4, 0]])
    equal((record.admission_epoch, record.completion_epoch), (0, 1), "admission and completion epoch")


@check()
def two_changes_in_one_answer(lab: Lab) -> None:
    """A prompt of 8, changes after 3 and 6 of 8 tokens: policy runs of 11, 3 and 2 tokens, KV runs of 10, 3 and 3."""
    backend = lab.backend(max_new_tokens=8, epoch=3)
    record = record_of(finish(backend, *of_lengths(8), at={3: change(backend, 4), 6: change(backend, 5)})[0])
    stamped(record, policy=[[0, 3], [11, 4], [14, 5]], kv=[[0, 3], [10, 4], [13, 5]])


@check()
def two_changes_between_two_tokens(lab: Lab) -> None:
    """Two updates with no token between: the first left no trace."""
    backend = lab.backend(max_new_tokens=5)
    record = record_of(finish(backend, *of_lengths(4), at={3: change(backend, 1, 2)})[0])
    stamped(record, policy=[[0, 0], [7, 2]], kv=[[0, 0], [6, 2]])


@check()
def average_counts_tokens(lab: Lab) -> None:
    """9 tokens at epoch 1 and 1 at epoch 5, consumed at 6, are 4.6 old on average, and two runs long."""
    backend = lab.backend(max_new_tokens=10, epoch=1)
    record = record_of(finish(backend, *of_lengths(4), at={9: change(backend, 5)})[0])
    runs = record.of_sampled("policy_epoch")
    equal(len(runs.runs), 2, "runs of the sampled tokens")
    close([np.mean(6 - runs.expand())], [4.6], "mean policy staleness at step 6", 1e-9)


@check()
def update_before_the_first_prefill(lab: Lab) -> None:
    """Admitted at 3, prefilled at 4: the prompt's policy epoch is 3, its keys and values are 4's, from the first on."""
    backend = lab.backend(max_new_tokens=3, epoch=3)
    record = record_of(finish(backend, *of_lengths(4), at={0: change(backend, 4)})[0])
    stamped(record, policy=[[0, 3], [4, 4]], kv=[[0, 4]], attended=[[0, None], [4, 4]])
    equal(record.admission_epoch, 3, "admission epoch")


@check("max-requests")
def update_while_queued(lab: Lab) -> None:
    """37-token prompts behind 4 running requests, 3 to 4 meanwhile: their cache is epoch 4's from the first row on."""
    backend = lab.backend(max_new_tokens=6, epoch=3, mcore={"max_requests": 4}, length=128)
    outputs = finish(backend, *of_lengths(*[37] * 6), at={8: change(backend, 4)})
    for output in outputs[4:]:
        stamped(record_of(output), policy=[[0, 3], [37, 4]], kv=[[0, 4]], attended=[[0, None], [37, 4]])
    for output in outputs[:4]:
        stamped(record_of(output), policy=[[0, 3], [39, 4]], kv=[[0, 3], [38, 4]])


@check("max-requests")
def two_updates_while_queued(lab: Lab) -> None:
    """As before with 3, 4 and 5: all rows are the last one's, which computed them."""
    backend = lab.backend(max_new_tokens=6, epoch=3, mcore={"max_requests": 4}, length=128)
    outputs = finish(backend, *of_lengths(*[37] * 5), at={8: change(backend, 4), 16: change(backend, 5)})
    stamped(record_of(outputs[4]), policy=[[0, 3], [37, 5]], kv=[[0, 5]])


@check("chunked-prefill")
def update_between_two_chunks(lab: Lab) -> None:
    """60 rows of 100, update, 40 rows: the KV boundary is the chunk's edge, and the first token is the new weights'."""
    backend, looks = lab.backend(max_new_tokens=4, mcore={"max_tokens": 60, "max_requests": 8}, length=128), list[int]()

    def look() -> None:
        looks.append(backend.sampled_tokens)
        if len(looks) == 2:
            backend.update_weights(None, epoch=1)

    record = record_of(finish(backend, *of_lengths(100), look=look)[0])
    equal(looks[:2], [0, 0], "sampled_tokens before and after the first chunk of 60 of 100")
    stamped(record, policy=[[0, 0], [100, 1]], kv=[[0, 0], [60, 1]], attended=[[0, None], [100, 0]])


def evicted_and_updated(lab: Lab, *epochs: int) -> tuple[RequestRecord, int]:
    """Evict one of two at epoch 3, go through `epochs` while it waits; its record, and its length when it was evicted."""
    backend = lab.backend(
        chain(*range(1, 16)), max_new_tokens=14, epoch=3, blocks=11, mcore={"block_size_tokens": 2, "max_requests": 4}
    )
    at: dict[int, int] = {}

    def look() -> None:
        for index, output in [] if at else backend.unfinished():
            if output["num_evictions"].item():
                at[index] = output["unpadded_sequence_lengths"].item()
        if at and backend.epoch == 3:
            change(backend, *epochs)()

    outputs = finish(backend, [1], [1], look=look)
    hold(at, "nothing was evicted from a buffer that cannot hold both sequences")
    index, length = next(iter(at.items()))
    record = record_of(outputs[index])
    equal(outputs[index]["num_evictions"].tolist(), [record.num_evictions], "num_evictions, and the record's")
    hold((record.num_evictions or 0) >= 1, f"num_evictions of an evicted sequence: {record.num_evictions}")
    return record, length


@check("eviction")
def eviction_renews_kv(lab: Lab) -> None:
    """Evicted at 3 and prefilled again at 4: the KV epochs are all 4, the policy epochs of what was sampled stay 3."""
    record, at = evicted_and_updated(lab, 4)
    stamped(record, policy=[[0, 3], [at, 4]], kv=[[0, 4]], attended=[[0, None], [1, 3], [at, 4]])
    oldest = {name: int((5 - getattr(record, name).expand()).max()) for name in ("policy_epoch", "kv_cache_epoch")}
    equal(oldest, {"policy_epoch": 2, "kv_cache_epoch": 1}, "oldest staleness at step 5")
    equal(record.num_recomputes, 0, "num_recomputes: an eviction is none")


@check("eviction")
def two_updates_while_evicted(lab: Lab) -> None:
    """Evicted at 3, then 4 and 5 before its second prefill: one KV run, of the prefill that finally happened."""
    record, at = evicted_and_updated(lab, 4, 5)
    stamped(record, policy=[[0, 3], [at, 5]], kv=[[0, 5]], attended=[[0, None], [1, 3], [at, 5]])


def slept(lab: Lab, mode: str) -> RequestRecord:
    """Asleep from epoch 0 to 1 after 3 of 5 tokens."""
    backend = lab.backend(max_new_tokens=5, mcore={"kv_cache_management_mode": mode})

    def sleep() -> None:
        backend.finish_generation()
        backend.update_weights(None, epoch=1)
        backend.prepare_for_generation()

    return record_of(finish(backend, *of_lengths(4), at={3: sleep})[0])


@check()
def sleep_that_persists(lab: Lab) -> None:
    """A cache that stays through a sleep keeps its epochs."""
    record = slept(lab, "persist")
    stamped(record, policy=[[0, 0], [7, 1]], kv=[[0, 0], [6, 1]])
    equal((record.num_recomputes, record.num_evictions), (0, 0), "num_recomputes and num_evictions")


@check("offload")
def sleep_that_offloads(lab: Lab) -> None:
    """A cache that went to the host and came back keeps its epochs."""
    stamped(slept(lab, "offload"), policy=[[0, 0], [7, 1]], kv=[[0, 0], [6, 1]])


@check("recompute")
def sleep_that_recomputes(lab: Lab) -> None:
    """A cache that was dropped is the new epoch's from the first row on, counted as a recompute and no eviction."""
    record = slept(lab, "recompute")
    stamped(record, policy=[[0, 0], [7, 1]], kv=[[0, 1]], attended=[[0, None], [4, 0], [7, 1]])
    equal((record.num_recomputes, record.num_evictions), (1, 0), "num_recomputes and num_evictions")


@check("recompute")
def update_that_recomputes(lab: Lab) -> None:
    """With `recompute` an update under running requests renews their cache as well."""
    backend = lab.backend(max_new_tokens=5, mcore={"kv_cache_management_mode": "recompute"})
    record = record_of(finish(backend, *of_lengths(4), at={3: change(backend, 1)})[0])
    stamped(record, policy=[[0, 0], [7, 1]], kv=[[0, 1]], attended=[[0, None], [4, 0], [7, 1]])


@check()
def records_end_where_sequences_do(lab: Lab) -> None:
    """Stop id, stop string, length limit or nothing to do: a record is as long as what is returned."""
    rows = {"a stop id": [1], "a stop string": [8], "a length limit": [13], "a full context": [13] * 15}
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=6, stop_token_ids=[6], stop_strings=["aaa"], length=16)
    for output, (ended_by, prompt) in zip(finish(backend, *rows.values()), rows.items(), strict=True):
        record, end = record_of(output), output["unpadded_sequence_lengths"].item()
        equal(record.length, end, f"length of the record of a sequence that {ended_by} ended")
        equal(record.sampled, ((len(prompt), end),), f"sampled tokens of a sequence that {ended_by} ended")
        equal(record.status, "finished", f"status of a sequence that {ended_by} ended")


@check()
def columns_are_the_records(lab: Lab) -> None:
    """The columns of epochs and evictions say what the records say, row by row."""
    backend = lab.backend(max_new_tokens=6)
    for output in finish(backend, *of_lengths(4, 9, 5), at={6: change(backend, 2)}):
        record = record_of(output)
        equal(output["policy_epoch"], [record.policy_epoch], "policy_epoch")
        equal(output["kv_cache_epoch"], [record.kv_cache_epoch], "kv_cache_epoch")
        equal(output["num_evictions"].tolist(), [record.num_evictions], "num_evictions")
        equal(record.length, output["unpadded_sequence_lengths"].item(), "length of the record")


@check()
def records_are_a_request_s_own(lab: Lab) -> None:
    """Sequences that came at different epochs, side by side: each is stamped for itself, and no two share a name."""
    backend, late = lab.backend(max_new_tokens=8), []

    def arrive() -> None:
        change(backend, 1)()
        late.append(backend.generate(prompts(*of_lengths(5)), greedy=True))

    early = record_of(finish(backend, *of_lengths(4), at={3: arrive})[0])
    later = record_of(late[0])
    stamped(early, policy=[[0, 0], [7, 1]], kv=[[0, 0], [6, 1]])
    stamped(later, policy=[[0, 1]], kv=[[0, 1]])
    equal((early.admission_epoch, later.admission_epoch), (0, 1), "admission epochs")
    hold(early.request != later.request, f"two requests are both called {early.request!r}")


@check()
def turns_count_once(lab: Lab) -> None:
    """Turns of 4 and then 7 tokens at epochs 5 and 6, consumed at 7: 1.5714 with each token counted once."""
    backend = lab.backend(chain(1, 5, 6, 7), max_new_tokens=3, epoch=5)
    first = backend.generate(prompts([1]), greedy=True)
    backend.update_weights(None, epoch=6)
    second = backend.generate(prompts(first["output_ids"][0].tolist()), greedy=True)
    merged = merge_turns([record_of(first), record_of(second)])
    equal(merged.policy_epoch.to_json(), [[0, 5], [4, 6]], "policy_epoch of both turns")
    equal(merged.sampled, ((1, 4), (4, 7)), "sampled tokens of both turns")
    close([np.mean(7 - merged.policy_epoch.expand())], [11 / 7], "mean policy staleness at step 7", 1e-9)


@check("prefix-cache")
def prefix_hits_are_counted(lab: Lab) -> None:
    """Tokens whose keys and values another sequence wrote are counted, and carry the epoch of those who wrote them."""
    backend, hits = lab.backend(max_new_tokens=8, epoch=2, mcore={"enable_prefix_caching": True}), []

    def again() -> None:
        hits.append(record_of(backend.generate(prompts(*of_lengths(16)), greedy=True)))
        change(backend, 3)()
        hits.append(record_of(backend.generate(prompts(*of_lengths(16)), greedy=True)))

    first = record_of(finish(backend, *of_lengths(16), at={1: again})[0])
    equal([record.prefix_cached_tokens for record in (first, *hits)], [0, 12, 0], "prefix_cached_tokens in blocks of 4")
    stamped(hits[0], policy=[[0, 2]], kv=[[0, 2]], attended=[[0, None], [16, 2]])
    stamped(hits[1], policy=[[0, 3]], kv=[[0, 3]], attended=[[0, None], [16, 3]])

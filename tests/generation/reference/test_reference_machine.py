"""The engine under random use: admissions, steps, updates, suspends, aborts and shutdowns in any order, with small buffers.

After each action the blocks add up, and of each request that ends the record is the staleness oracle's, the tokens are those
of its prompt alone in a fresh engine wherever the record says that one checkpoint did it all, and it has not ended before.
`make fuzz` runs this file with fresh sequences; otherwise it draws the same five hundred every time.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import ClassVar

from generation.reference import small_llama
from generation.reference.small_llama import Shared, engine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracle.comparison import as_lists
from oracle.simulator import Simulator
from support.batches import prompts, responses

from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.models.llama import megatron_from_hf
from reference_impl.models.tiny import random_weights
from reference_impl.staleness.events import ARGUMENTS, follow
from reference_impl.staleness.records import check

FUZZ = os.environ.get("GENREF_FUZZ")
SEQUENCES = int(FUZZ or 500)
CHECKPOINTS, LENGTH, MOST_NEW = 3, 26, 10
MOST_STEPS = 1000  # a stream takes two hundred at most, one token at a time

SHAPE = replace(
    small_llama.SHAPE,
    vocab_size=16,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
)

# Prompts are beginnings of these, so that many share theirs.
SOURCES = [[7, 1, 4, 4, 2, 9, 11, 3, 0, 15, 6, 2, 8, 5], [7, 1, 4, 4, 2, 9, 1, 1, 12, 13, 14, 0, 3, 3], [5] * 14]
PROMPTS = st.sampled_from([source[:length] for length in (13, 5, 14, 9, 1, 2, 8, 11, 4) for source in SOURCES])


@cache
def weights(epoch):
    """An epoch's checkpoint; every third is the same."""
    return dict(megatron_from_hf(random_weights(SHAPE, seed=epoch % CHECKPOINTS), SHAPE))


@cache
def alone(prompt, number):
    """What a fresh engine says to the prompt with nobody else in it."""
    model = Shared({name: tensor.clone() for name, tensor in weights(number).items()})
    fresh = engine(model=model, shape=SHAPE, length=LENGTH, max_new_tokens=MOST_NEW)
    return responses(fresh.generate(prompts(list(prompt)), greedy=True))[0]


class Machine(RuleBasedStateMachine):
    """One backend with small buffers, its streams, and what the oracle has been told."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        size=st.sampled_from((1, 2, 3, 4)),
        tokens=st.sampled_from((2, 0, 1, 3, 4, 6, 10, 30)),
        requests=st.integers(1, 5),
        mode=st.sampled_from(("persist", "offload", "recompute")),
        chunked=st.booleans(),
        prefixes=st.sampled_from(("across updates", "salted", "across updates", "off")),
        data=st.data(),
    )
    def start(self, size, tokens, requests, mode, chunked, prefixes, data):
        self.size, self.prefixes, self.mode = size, prefixes, mode
        self.model = Shared({name: tensor.clone() for name, tensor in weights(0).items()})
        self.backend = engine(
            # Some sequences of the longest prompt and the most new tokens are refused.
            blocks=data.draw(st.integers(18 // size, 60 // size), "blocks"),
            model=self.model,
            shape=SHAPE,
            length=LENGTH,
            reuse_across_updates=prefixes == "across updates",
            mcore={
                "block_size_tokens": size,
                "max_requests": requests,
                "max_tokens": requests + tokens,
                "enable_chunked_prefill": chunked,
                "enable_prefix_caching": prefixes != "off",
                "kv_cache_management_mode": mode,
            },
        )
        self.streams, self.prompts, self.expected, self.ended = [], {}, {}, Counter()
        self.follow()

    def follow(self):
        self.oracle = Simulator(self.backend.epoch)
        follow(self.backend.tracker, self.told)

    def told(self, event):
        """Tell the oracle what the tracker was told, and keep what it says of a request that ends."""
        name = event["event"]
        said = getattr(self.oracle, name)(*(event.get(argument) for argument in ARGUMENTS[name]))
        if said is not None:
            self.expected[event["request"]] = said
        self.seen[name] += 1
        if name == "forward":
            last = dict(zip(event["requests"], event["positions"], strict=True))
            self.seen["chunk"] += any(at < self.oracle.requests[number].length - 1 for number, at in last.items())

    # --- what ends ----------------------------------------------------------------------------------------------

    def end(self, output, *, so_far=False):
        """Hold an output to the oracle and to the prompt alone."""
        record, error = output["staleness"][0], output["errors"][0]
        if record is None:
            assert error is not None and ("KV blocks" in error or "max_tokens" in error)
            self.seen["refused"] += 1
            return
        number, lists = record.request, as_lists(record)
        check(record)
        if so_far:
            assert lists == self.oracle.so_far(number)
        else:
            self.ended[number] += 1
            assert self.ended[number] == 1, f"request {number} ended twice"
            assert lists == self.expected.pop(number)
        if self.prefixes == "off":
            assert record.prefix_cached_tokens == 0
        tokens = responses(output)[0]
        assert len(tokens) == record.num_sampled
        prompt = self.prompts[number]
        sampled = slice(len(prompt), None)
        epochs = {*lists["policy"][sampled], *lists["attended"][sampled]}
        if len(epochs) == 1:
            assert tokens == alone(prompt, epochs.pop() % CHECKPOINTS)[: len(tokens)]
            self.seen["as alone"] += 1
        kv = lists["kv"][0]
        if record.prefix_cached_tokens and kv is not None and kv < record.admission_epoch:
            assert self.prefixes == "across updates"
            self.seen["older prefix"] += 1

    def look(self, stream):
        """Give a stream one look at the engine; whether there is more of it."""
        for event in stream:
            if isinstance(event, Progress):
                return True
            self.end(event[1])
        return False

    # --- what happens -------------------------------------------------------------------------------------------

    @property
    def awake(self):
        return not self.backend.asleep

    @precondition(lambda self: self.awake and len(self.streams) < 4)
    @rule(
        rows=st.lists(PROMPTS, min_size=1, max_size=3),
        new_tokens=st.sampled_from((6, 1, 3, MOST_NEW)),
        to_the_end=st.sampled_from((False, False, True)),
    )
    def admit(self, rows, new_tokens, to_the_end):
        self.backend.config = self.backend.config.model_copy(update={"max_new_tokens": new_tokens})
        stream = self.backend.stream(prompts(*rows), greedy=True)
        if self.look(stream):  # they are queued, and nothing of them has run
            self.streams.append(stream)
        self.prompts |= {number: tuple(each.row.prompt) for number, each in self.backend._engine._requests.items()}
        while to_the_end and self.streams:
            self.finish_one()

    @precondition(lambda self: self.awake and self.streams)
    @rule(which=st.integers(0, 3), times=st.integers(1, 6))
    def step(self, which, times):
        for _ in range(times):
            if self.streams:
                stream = self.streams[which % len(self.streams)]
                if not self.look(stream):
                    self.streams.remove(stream)

    @precondition(lambda self: self.awake and self.streams)
    @rule()
    def finish_one(self):
        for _ in range(MOST_STEPS):
            if not self.look(self.streams[0]):
                self.streams.pop(0)
                return
        raise AssertionError("somebody waits for ever")

    @rule(more=st.integers(0, 2), in_place=st.booleans())
    def update(self, more, in_place):
        epoch = self.backend.epoch + more
        if in_place:
            for name, parameter in self.model.items():
                parameter.copy_(weights(epoch)[name])
        self.backend.update_weights(None if in_place else weights(epoch), epoch=epoch)

    @rule()
    def suspend(self):
        self.backend.suspend()

    @precondition(lambda self: not self.awake)
    @rule()
    def resume(self):
        self.backend.resume()

    @precondition(lambda self: self.awake)
    @rule()
    def unfinished(self):
        for _, output in self.backend.unfinished():
            self.end(output, so_far=output["errors"][0] == "interrupted")

    @precondition(lambda self: self.awake and len(self.streams) > 1)
    @rule()
    def abort(self):
        for _, output in self.backend.abort():
            self.end(output)
        assert not self.backend._engine._requests
        assert not any(self.look(stream) for stream in self.streams)
        self.streams.clear()

    @precondition(lambda self: len(self.streams) > 1)
    @rule()
    def shutdown(self):
        running = set(self.backend._engine._requests)
        self.backend.shutdown()
        for stream in self.streams:
            try:
                self.look(stream)
            except GenerationError:
                self.seen["lost at a shutdown"] += 1
        assert not running & set(self.ended)
        self.streams, self.prompts, self.expected, self.ended = [], {}, {}, Counter()
        self.backend.prepare_for_generation()
        self.follow()

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def blocks_add_up_and_everybody_is_somewhere(self):
        if not hasattr(self, "backend"):
            return
        pool, scheduler = self.backend._engine.pool, self.backend._engine.scheduler
        assert pool.available + pool.used + 1 == pool.total
        holders = Counter(block for request in scheduler.requests for block in request.blocks)
        owners = {block: count for block, count in enumerate(pool._owners) if count}
        assert owners == dict(holders)
        assert pool.reserved not in holders
        assert len(set(pool._free) | set(pool._idle)) == pool.available, "no block is free twice"
        for request in scheduler.requests:
            assert request.cached <= len(request.blocks) * self.size
            assert len(set(request.blocks)) == len(request.blocks)
        assert len(scheduler.rows) <= scheduler.max_requests
        queued, tracker = [request.id for request in scheduler.requests], self.backend._engine.tracker
        assert sorted(queued) == sorted(self.backend._engine._requests) == sorted(tracker), (
            "queued or running, and once"
        )

    def teardown(self):
        if not hasattr(self, "backend"):
            return
        self.backend.resume()
        while self.streams:
            self.finish_one()
        assert self.ended == Counter(self.prompts.keys()), "each request has ended once"
        assert not self.expected
        assert self.backend._engine.pool.used == 0
        self.backend.shutdown()


def test_five_hundred_sequences():
    Machine.seen.clear()
    many = settings(
        max_examples=SEQUENCES,
        stateful_step_count=20,
        derandomize=not FUZZ,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=many)
    assert [what for what in WHAT_IS_HARD if not Machine.seen[what]] == [], "never came up"


WHAT_IS_HARD = (
    *("evict", "chunk", "reuse", "older prefix", "weights_changed", "suspend", "resume", "abort"),
    *("lost at a shutdown", "refused", "as alone"),
)

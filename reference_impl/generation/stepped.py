"""What backends have in common whose engine runs in this process, one step whenever somebody waits for it.

An engine is anything with the methods of {py:class}`Engine`. Around it stand the contract's batches: rows go in, steps are
taken until all of a batch have ended, and each ends exactly once, as an output, an error or an abort.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.outputs import Completion, to_output
from reference_impl.generation.rows import Limits, Row, rows_of, why_refused
from reference_impl.generation.rowwise import RowwiseGeneration
from reference_impl.generation.stops import stops_for
from reference_impl.staleness.tracker import StalenessTracker


class Engine(Protocol):
    """What {py:class}`SteppedGeneration` asks of an engine; requests are known by the number that `add` gives them."""

    tracker: StalenessTracker
    sampled_tokens: int
    limits: Limits

    def add(self, row: Row, greedy: bool) -> int:
        """Queue a row that {py:func}`~reference_impl.generation.rows.why_refused` has nothing against."""

    def step(self) -> list[tuple[int, Completion]]:
        """One step over whatever is ready; what it ended."""

    def so_far(self, request: int) -> Completion:
        """What a running request has come to."""

    def abort(self, request: int) -> Completion:
        """End a running request; what it had come to."""

    def suspend(self) -> None:
        """Sleep, with the cache as `kv_cache_management_mode` says."""

    def resume(self) -> None:
        """Wake."""

    def close(self) -> None:
        """Let go of memory and files; requests under way are lost."""


@dataclass
class Batch:
    """A batch under way.

    `running`
    : Indices of its rows by request.

    `ready`
    : (index, completion) that nobody has been given yet.
    """

    rows: list[Row]
    running: dict[int, int] = field(default_factory=dict)
    ready: list[tuple[int, Completion]] = field(default_factory=list)


class SteppedGeneration(RowwiseGeneration):
    """The contract over an {py:class}`Engine`: a subclass builds one in `_start`, and changes its weights.

    The caller's thread steps the engine, so an `update_weights` between two events of a stream falls exactly between two
    steps. `generate_async` steps it on the event loop, which stands still for the length of a step.
    """

    _engine: Engine | None = None
    asleep = True

    @abstractmethod
    def _start(self) -> Engine:
        """Build the engine, stamped with the epoch of the backend."""

    # --- life ---------------------------------------------------------------------------------------------------

    def prepare_for_generation(self) -> bool:
        """Build the engine on the first call, wake it on later ones; a running engine is left alone."""
        if not self.asleep:
            return True
        if self._engine is None:
            self._batches: list[Batch] = []
            self._engine = self._start()
        else:
            self._engine.resume()
        self.asleep = False
        return True

    def finish_generation(self) -> bool:
        """Put the engine to sleep; requests under way go on after the next `prepare_for_generation`."""
        if self._engine is not None and not self.asleep:
            self._engine.suspend()
            self.asleep = True
        return True

    def shutdown(self) -> bool:
        """Let the engine go; requests under way are lost, and `prepare_for_generation` would build a new one."""
        engine, self._engine = self._engine, None
        self.asleep = True
        if engine is not None:
            self._batches.clear()
            engine.close()
        return True

    # --- generation ---------------------------------------------------------------------------------------------

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled since the engine was built, over all batches."""
        return self._engine.sampled_tokens if self._engine is not None else 0

    @property
    def tracker(self) -> StalenessTracker:
        """What tags the KV slots of the engine; `follow` of `reference_impl.staleness.events` shows its events."""
        return self._awake().tracker

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        """Yield (index, one-row output) as sequences finish. Any number may run at once; they share the engine's steps."""
        batch = self.submit(data, greedy)
        while True:
            for index, output in self.take(batch):
                yield index, output
            if not batch.running:
                return
            await self._shared.wait(lambda: asyncio.ensure_future(self._step_once()))

    async def _step_once(self) -> None:
        self.step()

    def submit(self, data: BatchedDataDict, greedy: bool = False) -> Batch:
        """Queue a batch, for a caller that takes the engine's steps by itself: `step`, then `take`, until nothing runs."""
        return self._submit(self._awake(), self._rows(data), greedy)

    def step(self) -> None:
        """One step over whatever is ready, of all batches."""
        for request, completion in self._awake().step():
            batch = next(batch for batch in self._batches if request in batch.running)
            batch.ready.append((batch.running.pop(request), completion))

    def take(self, batch: Batch) -> list[tuple[int, BatchedDataDict]]:
        """(index, one-row output) of the sequences of a batch that have ended since the last look."""
        return self._outputs(batch, [])

    def unfinished(self) -> list[tuple[int, BatchedDataDict]]:
        """(index, one-row output) of every sequence that nobody has been given yet, as far as it has come.

        `errors` says `interrupted` of those that the engine still works on. Nothing is stopped by this; `abort` does that.
        """
        engine, found = self._awake(), []
        for batch in list(self._batches):
            running = [
                (i, replace(engine.so_far(request), error="interrupted")) for request, i in batch.running.items()
            ]
            found += self._outputs(batch, running)
        return found

    def abort(self) -> list[tuple[int, BatchedDataDict]]:
        """End every sequence that is under way; as `unfinished`, with `errors` saying `aborted`."""
        engine, found = self._awake(), []
        for batch in list(self._batches):
            running = [(i, replace(engine.abort(request), error="aborted")) for request, i in batch.running.items()]
            batch.running.clear()
            found += self._outputs(batch, running)
        return found

    # --- inside -------------------------------------------------------------------------------------------------

    def _awake(self) -> Engine:
        if self._engine is None or self.asleep:
            raise GenerationError("the engine is asleep: call prepare_for_generation first")
        return self._engine

    def _rows(self, data: BatchedDataDict) -> list[Row]:
        limits = self._awake().limits
        return rows_of(data, self.config, limits, lambda strings: stops_for(self.config, self.tokenizer, strings))

    def _run(self, rows: list[Row], greedy: bool) -> Iterator[Progress | tuple[int, Completion]]:
        engine = self._awake()
        start, finished = engine.sampled_tokens, 0
        batch = self._submit(engine, rows, greedy)
        while True:
            ready = self._take(batch)
            yield from ready
            finished += len(ready)
            if not (batch.running or batch.ready):
                return
            yield Progress(engine.sampled_tokens - start, finished)
            if batch.running and not batch.ready:  # another stream's steps may have ended some of this batch
                self.step()

    def _submit(self, engine: Engine, rows: list[Row], greedy: bool) -> Batch:
        """Queue the rows: what is under way, and what is over before it begins."""
        batch = Batch(rows)
        for index, row in enumerate(rows):
            if reason := why_refused(row.prompt, self.config, engine.limits) or _why_not_scored(row):
                batch.ready.append((index, Completion(error=reason)))
            elif row.limit == 0:
                batch.ready.append((index, Completion(truncated=True)))  # the prompt fills the context
            else:
                batch.running[engine.add(row, greedy)] = index
        self._batches.append(batch)
        return batch

    def _take(self, batch: Batch) -> list[tuple[int, Completion]]:
        ready, batch.ready = batch.ready, []
        if not batch.running and batch in self._batches:
            self._batches.remove(batch)
        return ready

    def _outputs(self, batch: Batch, more: list[tuple[int, Completion]]) -> list[tuple[int, BatchedDataDict]]:
        done = [*self._take(batch), *more]
        return [(index, to_output([batch.rows[index].prompt], [completion])) for index, completion in done]


def _why_not_scored(row: Row) -> str | None:
    if row.limit == 0 and row.prompt_logprobs:
        return f"prompt_logprobs: the prompt of {len(row.prompt)} tokens fills max_model_len, so it is not run; raise it by 1"
    return None

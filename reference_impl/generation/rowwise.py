"""Backends that take a batch apart into rows: a whole batch, and a stream, over completions as they come."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationError, GenerationInterface, Progress
from reference_impl.generation.outputs import Completion, to_output
from reference_impl.generation.rows import Row


class SharedWait:
    """Something that many coroutines wait for and one of them begins, such as the engine's next step.

    If each took a step of its own, whoever comes with a new request would wait for as many steps as others run.
    """

    _under_way: "asyncio.Future[None] | None" = None

    async def wait(self, begin: "Callable[[], asyncio.Future[None]]") -> None:
        """Wait for what is under way, or `begin` it."""
        future = self._under_way
        if future is None or future.done() or future.get_loop() is not asyncio.get_running_loop():
            future = self._under_way = begin()
        await asyncio.shield(future)  # one that is cancelled does not cancel it for the others


class RowwiseGeneration(GenerationInterface):
    """The contract's blocking calls over `_rows`, which takes a batch apart, and `_run`, which runs the rows."""

    @cached_property
    def _shared(self) -> SharedWait:
        return SharedWait()

    @abstractmethod
    def _rows(self, data: BatchedDataDict) -> list[Row]:
        """Take the batch apart; raises what is wrong with the batch as a whole, or with the backend."""

    @abstractmethod
    def _run(self, rows: list[Row], greedy: bool) -> Iterator[Progress | tuple[int, Completion]]:
        """(index, completion) of each row as it ends, and a `Progress` between two looks at the engine."""

    def suspend(self) -> bool:
        """The same as `finish_generation`, under the engine's name for it."""
        return self.finish_generation()

    def resume(self) -> bool:
        """The same as `prepare_for_generation`, under the engine's name for it."""
        return self.prepare_for_generation()

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        """Generate for a whole batch; see {py:meth}`~reference_impl.generation.interfaces.GenerationInterface.generate`."""
        rows, finished = self._rows(data), {}
        for event in self._run(rows, greedy):
            if not isinstance(event, Progress):
                index, completion = event
                finished[index] = completion
        completions = [finished[i] for i in range(len(rows))]
        if completions and all(completion.error for completion in completions):
            raise GenerationError(f"every request of the batch failed; the first: {completions[0].error}")
        return to_output([row.prompt for row in rows], completions)

    def stream(self, data: BatchedDataDict, greedy: bool = False) -> Iterator[Progress | tuple[int, BatchedDataDict]]:
        """Yield (index, one-row output) as sequences finish, and between two looks at the engine a
        {py:class}`~reference_impl.generation.interfaces.Progress`.

        Where the caller steps the engine, it stands still while a `Progress` is held, so an `update_weights` there falls
        exactly between two steps. In coordinator mode the engine runs on by itself.
        """
        rows = self._rows(data)
        for event in self._run(rows, greedy):
            if isinstance(event, Progress):
                yield event
            else:
                index, completion = event
                yield index, to_output([rows[index].prompt], [completion])

"""The two ways to drive Megatron's engine, behind one small interface.

* {py:class}`DirectDriver` steps the engine itself. A step happens when somebody asks for it, so a weight update can be put
  between any two steps.
* {py:class}`CoordinatorDriver` runs Megatron's own coordinator process and talks to it through `InferenceClient`, as NeMo RL
  and Megatron-RL do. The engine steps by itself, and an update pauses it first.

All methods are called from outside the engine's thread and return `concurrent.futures.Future`s, so that blocking and
asynchronous callers share them.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import zmq

from reference_impl.generation.megatron.completions import read_completion
from reference_impl.generation.megatron.requests import TAG
from reference_impl.generation.megatron.stamping import Stamping
from reference_impl.generation.megatron.stopping import StopRule
from reference_impl.generation.megatron.thread import EngineThread
from reference_impl.generation.megatron.weights import forget_prefixes, stamp_epoch
from reference_impl.generation.outputs import Completion
from reference_impl.platforms.seams import Seam, install

log = logging.getLogger("genref")

OWN_ZMQ_CONTEXT = Seam(
    "own_zmq_context",
    "zmq:Context.instance",
    "megatron.core.inference.engines.dynamic_engine: self.zmq_context = zmq.Context.instance()",
    lambda original: zmq.Context,
)
"""Upstream takes the process's shared context and terminates it at shutdown, which waits for ever while another engine of
the same process still has its sockets open."""

IDLE_POLL_S = 0.01
STOP_TIMEOUT_S = 10.0


_awake: set["Driver"] = set()
"""Drivers whose engine is awake. Upstream's `InferenceMode` is one flag for the process: each engine raises it when it wakes
and lowers it when it sleeps, also under another one that is at work and would then sample from the wrong logits."""


def keep_inference_mode(driver: "Driver", awake: bool) -> None:
    """Note that a driver's engine has woken or gone to sleep; the flag stays up while any engine is awake."""
    from megatron.core.inference.utils import InferenceMode

    (_awake.add if awake else _awake.discard)(driver)
    if _awake:
        InferenceMode.set_active()


class Driver(ABC):
    """Requests in, completions out; weights, sleep and wake in between."""

    def __init__(self, thread: EngineThread, engine: Any, stop_rule: StopRule, stamping: Stamping) -> None:
        self._thread = thread
        self._engine = engine
        self._stop_rule = stop_rule
        self.stamping = stamping
        engine.controller.set_stop_word_finished_ids_callback(stop_rule)
        keep_inference_mode(self, awake=True)

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled since the engine was built."""
        return self._stop_rule.sampled_tokens

    def submit(self, prompt: list[int], params: Any) -> Future[Completion]:
        """Queue one request."""
        return self._thread.submit(self._submit(prompt, params))

    def advance(self) -> Future[None]:
        """Let the engine get on: one step where the caller steps it, a moment where it steps by itself."""
        return self._thread.submit(self._advance())

    def so_far(self, tag: str, prompt: list[int]) -> Completion | None:
        """What the request with this tag has generated until now; `None` if the engine does not have it (any more)."""
        return self._thread.call(self._so_far(tag, prompt))

    async def _so_far(self, tag: str, prompt: list[int]) -> Completion | None:
        for entry in self._engine.requests.values():
            if getattr(entry.record[0].sampling_params, TAG, None) == tag:
                for part in entry.record.requests:  # one that was evicted has a part that has not begun
                    part.generated_log_probs = part.generated_log_probs or []
                request = entry.record.merge()
                length = len(prompt) + len(request.generated_tokens)
                return read_completion(request, self.stamping.tracker.so_far(request.request_id, length), len(prompt))
        return None

    def update(self, change: Callable[[], None], epoch: int) -> None:
        """Run `change` between two steps and stamp `epoch`."""
        self._thread.call(self._update(change, epoch))

    def suspend(self) -> None:
        """Put the engine to sleep; what happens to the KV cache is `kv_cache_management_mode`."""
        self._thread.call(self._suspend())
        keep_inference_mode(self, awake=False)

    def resume(self) -> None:
        """Wake the engine; suspended requests go on."""
        self._thread.call(self._resume())
        keep_inference_mode(self, awake=True)

    def close(self) -> None:
        """Stop the engine and the thread."""
        try:
            if self._thread.alive:
                self._thread.call(self._close(), timeout=4 * STOP_TIMEOUT_S)
        finally:
            self._thread.stop()
            keep_inference_mode(self, awake=False)

    @abstractmethod
    async def _submit(self, prompt: list[int], params: Any) -> Completion: ...

    @abstractmethod
    async def _advance(self) -> None: ...

    @abstractmethod
    async def _update(self, change: Callable[[], None], epoch: int) -> None: ...

    @abstractmethod
    async def _suspend(self) -> None: ...

    @abstractmethod
    async def _resume(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...

    def _recomputes(self) -> bool:
        return self._engine.context.kv_cache_management_mode.value == "recompute"


class DirectDriver(Driver):
    """Steps the engine in this process, one step for each `advance`."""

    def __init__(self, thread: EngineThread, engine: Any, stop_rule: StopRule, stamping: Stamping) -> None:
        super().__init__(thread, engine, stop_rule, stamping)
        self._next_id = 0
        # Upstream's step yields to the loop between forward pass and sampling; nothing may slip in there.
        self._between_steps = asyncio.Lock()

    async def _submit(self, prompt: list[int], params: Any) -> Completion:
        request_id, self._next_id = self._next_id, self._next_id + 1
        record = await self._engine.add_request(request_id, prompt, params)
        return read_completion(record.merge(), self.stamping.take(getattr(params, TAG)), len(prompt))

    async def _advance(self) -> None:
        async with self._between_steps:
            if self._engine.has_unfinished_requests():
                await self._engine.async_step()
            elif self._engine.failed_request_ids:
                # A refused request is only cleared away by a step's book-keeping.
                await self._engine.async_bookkeep(None, {"kv_stats": None}, 0.0)
        await asyncio.sleep(0)  # let finished futures reach those who wait for them

    async def _update(self, change: Callable[[], None], epoch: int) -> None:
        async with self._between_steps:
            asleep = self._engine.state.name == "SUSPENDED"
            rebuild_cache = self._recomputes() and not asleep
            if rebuild_cache:
                self._engine.suspend()
            change()
            self.stamping.tracker.weights_changed(epoch)
            forget_prefixes(self._engine)
            stamp_epoch(self._engine, epoch)
            if rebuild_cache:
                self._engine.resume()

    async def _suspend(self) -> None:
        async with self._between_steps:
            self._engine.suspend()

    async def _resume(self) -> None:
        async with self._between_steps:
            self._engine.resume()

    async def _close(self) -> None:
        for entry in self._engine.requests.values():
            entry.future.cancel()
        if self._engine.state.name != "SUSPENDED":
            self._engine.suspend()


class CoordinatorDriver(Driver):
    """Megatron's coordinator process and client; the engine's loop runs on the engine thread."""

    def __init__(self, thread: EngineThread, engine: Any, stop_rule: StopRule, stamping: Stamping) -> None:
        super().__init__(thread, engine, stop_rule, stamping)
        self._client: Any = None
        try:
            self._thread.call(self._start())
        except BaseException:
            process = getattr(engine, "inference_coordinator_process", None)
            if process is not None:
                process.kill()
            raise

    async def _start(self) -> None:
        from megatron.core.inference.inference_client import InferenceClient

        undo = install([OWN_ZMQ_CONTEXT])
        try:
            address = await self._engine.start_listening_to_data_parallel_coordinator(
                inference_coordinator_port=None, launch_inference_coordinator=True, hostname="127.0.0.1"
            )
        finally:
            undo()
        self._client = InferenceClient(inference_coordinator_address=address, deserialize=True)
        self._client.start()

    @property
    def process(self) -> Any:
        """The coordinator's process."""
        return self._engine.inference_coordinator_process

    def close(self) -> None:
        """Stop the engine, the coordinator's process and the thread; the process goes in any case."""
        process = self.process
        try:
            super().close()
        finally:
            if process.is_alive():
                process.kill()
                process.join(STOP_TIMEOUT_S)

    async def _submit(self, prompt: list[int], params: Any) -> Completion:
        request = await self._client.add_request(prompt, params)
        return read_completion(request, self.stamping.take(getattr(params, TAG)), len(prompt))

    async def _advance(self) -> None:
        self._check_alive()
        await asyncio.sleep(IDLE_POLL_S)

    def _check_alive(self) -> None:
        if not self.process.is_alive():
            raise RuntimeError(f"the coordinator process has ended with exit code {self.process.exitcode}")
        if self._engine.engine_loop_task.done():
            raise RuntimeError("the engine's loop has ended")

    async def _update(self, change: Callable[[], None], epoch: int) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        asleep = self._engine.state is EngineState.SUSPENDED
        if not asleep:
            await self._pause()
            if self._recomputes():
                await self._to(EngineState.SUSPENDED)
        change()
        self.stamping.tracker.weights_changed(epoch)
        forget_prefixes(self._engine)
        self._client.set_generation_epoch(epoch)
        while self._engine._generation_epoch != epoch:  # the message passes through the coordinator
            self._check_alive()
            await asyncio.sleep(0.001)
        if not asleep:
            if self._recomputes():
                await self._to(EngineState.RESUMED)
            await self._unpause()

    async def _suspend(self) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        await self._pause()
        await self._to(EngineState.SUSPENDED)

    async def _resume(self) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        await self._to(EngineState.RESUMED)
        await self._unpause()

    async def _pause(self) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        self._client.pause_engines()
        await self._engine.wait_until(EngineState.PAUSED)

    async def _unpause(self) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        self._client.unpause_engines()
        await self._engine.wait_until(EngineState.RUNNING)

    async def _to(self, state: Any) -> None:
        signal = {"SUSPENDED": self._client.suspend_engines, "RESUMED": self._client.resume_engines}[state.name]
        signal()
        await self._engine.wait_until(state)

    async def _close(self) -> None:
        from megatron.core.inference.engines.dynamic_engine import EngineState

        process = self.process
        try:
            self._check_alive()
            if self._engine.state is not EngineState.SUSPENDED:
                self._client.pause_engines()
                await asyncio.wait_for(self._engine.wait_until(EngineState.PAUSED), STOP_TIMEOUT_S)
            self._client.stop_engines()
            await asyncio.wait_for(self._engine.wait_until(EngineState.STOPPED), STOP_TIMEOUT_S)
            self._client.shutdown_coordinator()
        except Exception as error:
            log.warning(
                "the coordinator did not stop in order (%s: %s); ending its process", type(error).__name__, error
            )
            process.terminate()
        finally:
            self._client.stop()
            await asyncio.to_thread(process.join, STOP_TIMEOUT_S)

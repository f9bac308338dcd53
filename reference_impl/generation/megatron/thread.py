"""The thread that owns the engine: its event loop runs every step, every weight update, every suspend and resume.

One owner makes "between two steps" a fact rather than a hope, keeps the engine's futures on one loop, and keeps OpenMP's
worker threads attached to one master.
"""

import asyncio
import concurrent.futures
import multiprocessing.resource_tracker
import signal
import threading
from collections.abc import Coroutine
from typing import Any

from reference_impl.platforms.threads import release_team


class EngineThread:
    """A daemon thread that runs an event loop until {py:meth}`stop`."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.loop = asyncio.new_event_loop()
        # A child process inherits the signal mask of the thread that starts it. Ctrl-C is blocked in this thread, so that
        # the coordinator process lives until the backend ends it in order; the tracker must start first, with no mask.
        multiprocessing.resource_tracker.ensure_running()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether work can still be submitted."""
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future:
        """Start a coroutine on the engine's loop."""
        release_team()  # a second team, of the thread that is here, would slow the engine's down
        if not self.alive:
            work.close()
            raise RuntimeError(f"the engine thread has ended: {self.failure!r}")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine on the engine's loop and wait for its result."""
        future = self.submit(work)
        waited = 0.0
        while True:
            try:
                return future.result(timeout=1.0)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise  # the work itself timed out
                waited += 1.0
                if not self._thread.is_alive():
                    raise RuntimeError(f"the engine thread has ended: {self.failure!r}") from self.failure
                if timeout is not None and waited >= timeout:
                    future.cancel()
                    raise

    def stop(self) -> None:
        """End the loop and the thread; twice is once."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=10)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except BaseException as error:  # upstream's tasks leave by SystemExit when they fail
            self.failure = error
        finally:
            _cancel_all(self.loop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()

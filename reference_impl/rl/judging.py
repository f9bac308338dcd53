"""Environments at work: many at once, each in its own time, and none can stop the training.

An environment is somebody else's code. It may raise, return what is no reward, be slow, or never return. Whatever it does
becomes a {py:class}`~reference_impl.rl.environments.Reply` or an
{py:class}`~reference_impl.rl.environments.EpisodeError`, within the time that it has.
"""

import asyncio
import math
import numbers
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from reference_impl.rl.environments import Environment, EpisodeError, Reply

Answer = Reply | EpisodeError


def judge(environment: Environment, response: list[int]) -> Reply:
    """`environment.step`, with whatever goes wrong in it as `EpisodeError`: what it raises, and a reward that is no number."""
    try:
        reply = environment.step(response)
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(f"{type(error).__name__}: {error}") from error
    if not isinstance(reply, Reply):
        raise EpisodeError(f"expected a Reply, got {type(reply).__name__}")
    reward: Any = reply.reward
    if not isinstance(reward, numbers.Real) or isinstance(reward, bool) or not math.isfinite(reward):
        raise EpisodeError(f"reward: expected a finite number, got {reward!r}")
    return reply


class Table:
    """One environment, and how many `seconds` it may take over a response.

    With `None` it judges in the caller's thread, which waits for as long as it takes.
    """

    def __init__(self, environment: Environment, seconds: float | None) -> None:
        self.environment, self.seconds = environment, seconds
        self.hangs = False
        self._until = math.inf

    def judge(self, response: list[int]) -> Future[Answer]:
        """Begin to judge; {py:meth}`wait` or {py:meth}`wait_async` has the answer."""
        answer: Future[Answer] = Future()
        if self.seconds is None:
            self._answer(answer, response)
        else:
            self._until = time.monotonic() + self.seconds
            # A thread for each response: one that never ends holds up nobody, not even the end of the process.
            threading.Thread(target=self._answer, args=(answer, response), daemon=True).start()
        return answer

    def wait(self, answer: Future[Answer]) -> Answer:
        """What the environment says, or an error once its time is over."""
        try:
            return answer.result(None if self.seconds is None else self._left)
        except TimeoutError:
            return self._give_up()

    async def wait_async(self, answer: Future[Answer]) -> Answer:
        """As {py:meth}`wait`, on an event loop."""
        if self.seconds is None:
            return answer.result()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._left)
        except TimeoutError:
            return self._give_up()

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _answer(self, answer: Future[Answer], response: list[int]) -> None:
        answer.set_running_or_notify_cancel()  # from here on nobody can cancel it
        try:
            answer.set_result(judge(self.environment, response))
        except EpisodeError as error:
            answer.set_result(error)

    def _give_up(self) -> EpisodeError:
        self.hangs = True
        return EpisodeError(f"no answer within {self.seconds:g} s")


class Room:
    """Tables for as many rollouts as are under way; one whose environment hangs is not used again."""

    def __init__(self, make: Callable[[], Environment], seconds: float | None = None) -> None:
        self._make, self._seconds = make, seconds
        self._free: list[Table] = []

    def table(self) -> Table:
        """One that nobody uses."""
        return self._free.pop() if self._free else Table(self._make(), self._seconds)

    def give_back(self, table: Table) -> None:
        """The rollout is over."""
        if not table.hangs:
            self._free.append(table)

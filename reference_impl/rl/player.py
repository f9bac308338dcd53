"""Groups played on a backend, as many at once as there is work for, each rollout in its own time.

A rollout that its environment keeps waiting holds up no other, and weights may change while rollouts are under way. This is
the side of asynchronous training that generates; {py:mod}`reference_impl.rl.asynchronous` decides what it is given to do.
"""

import asyncio
from dataclasses import dataclass

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.rl.judging import Room, Table
from reference_impl.rl.rollouts import Rollout, begin, hear, prompts_of, reply_to


@dataclass
class _Seat:
    """A rollout under way, and the environment that it plays with."""

    rollout: Rollout
    table: Table


Ended = tuple[int, list[Rollout]]
"""A group's number and its rollouts, all over."""


class Player:
    """Plays groups on an event loop: a batch a group, all of which share the steps of `backend`'s engine.

    `context`
    : Most tokens of a conversation.

    `in_flight`
    : Whether weights change while rollouts are under way. If not, {py:meth}`pause` waits until none is, and groups that come
      meanwhile wait for {py:meth}`go_on`, so that every rollout is of one checkpoint.
    """

    def __init__(
        self, backend: GenerationInterface, room: Room, group_size: int, context: int, in_flight: bool = True
    ) -> None:
        self.backend, self.room = backend, room
        self.group_size, self.context, self.in_flight = group_size, context, in_flight
        self.groups = 0
        self._idle, self._open = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._open.set()

    async def play(self, number: int) -> Ended:
        """Play the group of this number, which is also its episode's."""
        await self._open.wait()
        self.groups += 1
        self._idle.clear()
        try:
            seats = []
            for member in range(self.group_size):
                table = self.room.table()
                seats.append(_Seat(begin(table.environment, number, member), table))
            await self._turn(seats)  # one batch: the prompt is the same
            for seat in seats:
                self.room.give_back(seat.table)
            return number, [seat.rollout for seat in seats]
        finally:
            self.groups -= 1
            if not self.groups:
                self._idle.set()

    async def pause(self) -> None:
        """Before the weights change: unless they may do so in flight, let nothing begin, and wait for what is under way."""
        if not self.in_flight:
            self._open.clear()
            await self._idle.wait()

    def go_on(self) -> None:
        """After the weights have changed."""
        self._open.set()

    async def _turn(self, seats: list[_Seat]) -> None:
        """Get the next response of each rollout that is not over; each then goes on by itself, to its end."""
        waiting = [seat for seat in seats if not seat.rollout.over]
        if not waiting:
            return
        going_on = []
        try:
            async for row, output in self.backend.generate_async(prompts_of([seat.rollout for seat in waiting])):
                going_on.append(asyncio.ensure_future(self._answer(waiting[row], output)))
        finally:
            await asyncio.gather(*going_on)

    async def _answer(self, seat: _Seat, output: BatchedDataDict) -> None:
        if (response := hear(seat.rollout, output)) is not None:
            reply_to(seat.rollout, await seat.table.wait_async(seat.table.judge(response)), self.context)
            await self._turn([seat])

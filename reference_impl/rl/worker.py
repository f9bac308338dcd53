"""Generation in a process of its own: it has its own copy of the model, and goes on while the trainer's process trains.

Two pipes lead to it. Down go numbers of groups and of epochs; up come rollouts. Weights lie in memory that both processes see:
the trainer writes them there, the worker copies them into its model between two engine steps. `GPTModel` cannot be trained in
a process whose engine is awake, so for Megatron's engine a second process is the only way to do both at once.
"""

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.rl.player import Ended, Player

STOP_S = 10.0
"""How long a worker that is told to stop has for it."""


class WorkerError(ConfigError):
    """The worker's process has ended, or said that it cannot go on."""


class Worker:
    """Plays groups in a process, by a {py:class}`~reference_impl.rl.player.Player` on the backend that `recipe` names.

    `model`
    : The model that is trained: the worker begins with a copy of its weights, as `epoch`.

    `threads`
    : Of the worker's computations; 0 leaves it to PyTorch.
    """

    def __init__(self, recipe: Recipe, model: Any, epoch: int, threads: int = 0) -> None:
        self._parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        shapes = {name: tensor.shape for name, tensor in self._parameters.items()}
        first, *_ = self._parameters.values()
        # One piece of memory: each that is shared costs both processes an open file.
        memory = torch.empty(sum(size.numel() for size in shapes.values()), dtype=first.dtype).share_memory_()
        self._shared = _views(memory, shapes)
        self._write()
        self._ended: list[Ended] = []
        self._unread = True  # the worker has not yet copied what lies in the shared memory
        context = multiprocessing.get_context("spawn")
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._up, answers = context.Pipe(duplex=False)
        orders, self._orders = context.Pipe(duplex=False)
        # Ctrl-C goes to every process of a terminal; what it means is the trainer's to say.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = context.Process(
                target=_serve,
                args=(recipe, memory, shapes, epoch, threads, orders, answers),
                name="generation",
                daemon=False,
            )
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for end in (orders, answers):
            end.close()  # so that a pipe breaks when the worker is gone
        # Read while the model trains: a pipe holds little, and rollouts are to be here when the step wants them.
        self._reader = threading.Thread(target=_read_all, args=(self._up, self._answers), daemon=True)
        self._reader.start()
        while self._unread:  # a worker that cannot begin says why
            self._receive()

    def play(self, number: int) -> None:
        """Begin the group of this number."""
        self._send(("play", number))

    def ended(self) -> list[Ended]:
        """Groups that have ended since the last call; waits until there is one."""
        while not self._ended:
            self._receive()
        while not self._answers.empty():
            self._receive()
        ended, self._ended = self._ended, []
        return ended

    @contextmanager
    def training(self) -> Iterator[None]:
        """The worker goes on."""
        yield

    def update(self, epoch: int) -> None:
        """Write the model's weights where the worker sees them, and tell it. Waits until it has copied those before."""
        while self._unread:
            self._receive()
        self._write()
        self._unread = True
        self._send(("update", epoch))

    def _write(self) -> None:
        for name, tensor in self._parameters.items():
            self._shared[name].copy_(tensor)

    def close(self) -> None:
        """Stop the process; groups under way are lost."""
        with suppress(OSError):
            self._orders.send(("stop", 0))
        self.process.join(STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._orders.close()
        self._reader.join(STOP_S)
        self._up.close()

    def _send(self, order: tuple[str, int]) -> None:
        try:
            self._orders.send(order)
        except OSError:
            self._gone()

    def _receive(self) -> None:
        kind, answer = self._answers.get()
        if kind == "ended":
            self._ended.append(answer)
        elif kind == "copied":
            self._unread = False
        elif kind == "gone":
            self._answers.put((kind, answer))  # it stays so
            self._gone()
        else:
            raise WorkerError(f"generation worker: {answer}")

    def _gone(self) -> NoReturn:
        self.process.join(STOP_S)
        code = self.process.exitcode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        raise WorkerError(f"generation worker: its process {how}")


def _views(memory: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Tensors of these shapes, one after the other in `memory`."""
    pieces = memory.split([size.numel() for size in shapes.values()])
    return {name: piece.view(size) for (name, size), piece in zip(shapes.items(), pieces, strict=True)}


def _serve(
    recipe: Recipe,
    memory: Tensor,
    shapes: dict[str, torch.Size],
    epoch: int,
    threads: int,
    orders: Connection,
    answers: Connection,
) -> None:
    """What the process does: build the backend, then follow orders until it is told to stop, or nobody is left to tell."""
    if threads:
        torch.set_num_threads(threads)
    shared = _views(memory, shapes)
    replies: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
    # By a thread: a pipe that is full until the trainer looks must not hold up the engine.
    sender = threading.Thread(target=_send_all, args=(replies, answers), daemon=True)
    sender.start()
    try:
        from reference_impl.rl.assembly import generation_side

        with generation_side(recipe, shared, epoch) as player:
            replies.put(("copied", epoch))
            asyncio.run(_follow(player, shared, orders, replies))
    except BaseException as error:
        replies.put(
            ("failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "))
        )
        raise
    finally:
        replies.put(None)
        sender.join(STOP_S)


async def _follow(
    player: Player, shared: dict[str, Tensor], orders: Connection, replies: "queue.SimpleQueue[tuple[str, Any] | None]"
) -> None:
    loop, coming = asyncio.get_running_loop(), asyncio.Queue[tuple[str, int]]()
    threading.Thread(target=_listen, args=(orders, loop, coming), daemon=True).start()
    playing: set[asyncio.Task[None]] = set()
    failed: asyncio.Future[None] = loop.create_future()

    async def play(number: int) -> None:
        try:
            replies.put(("ended", await player.play(number)))
        except Exception as error:
            if not failed.done():
                failed.set_exception(error)

    while True:
        order = asyncio.ensure_future(coming.get())
        either: set[asyncio.Future[Any]] = {order, failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        kind, number = order.result()
        if kind == "play":
            playing.add(task := asyncio.ensure_future(play(number)))
            task.add_done_callback(playing.discard)
        elif kind == "update":
            await player.pause()
            player.backend.update_weights(shared, epoch=number)
            player.go_on()
            replies.put(("copied", number))
        else:
            return


def _listen(orders: Connection, loop: asyncio.AbstractEventLoop, coming: "asyncio.Queue[tuple[str, int]]") -> None:
    """Hand orders to the event loop; a trainer that is gone is an order to stop."""
    with suppress(RuntimeError):  # the loop has ended
        try:
            while True:
                loop.call_soon_threadsafe(coming.put_nowait, orders.recv())
        except (EOFError, OSError):
            loop.call_soon_threadsafe(coming.put_nowait, ("stop", 0))


def _read_all(up: Connection, answers: "queue.SimpleQueue[tuple[str, Any]]") -> None:
    try:
        while True:
            answers.put(up.recv())
    except (EOFError, OSError):
        answers.put(("gone", None))


def _send_all(replies: "queue.SimpleQueue[tuple[str, Any] | None]", answers: Connection) -> None:
    try:
        while (reply := replies.get()) is not None:
            answers.send(reply)
    except OSError:
        os._exit(1)  # nobody is left to answer to

"""Whatever an environment does, it becomes a reply or an error, in time."""

import asyncio
import threading
import time

import pytest

from reference_impl.rl.environments import EpisodeError, Reply
from reference_impl.rl.judging import Room, Table


class Does:
    """Answers by calling `what`."""

    def __init__(self, what):
        self.step = lambda response: what()

    def reset(self, episode):
        return [1]


def fails():
    raise ValueError("no judge")


def hang(free):
    free.wait(30)
    return Reply(done=True, reward=1.0)


def answer(table):
    return table.wait(table.judge([7]))


async def answer_async(table):
    return await table.wait_async(table.judge([7]))


ASKED = [answer, lambda table: asyncio.run(answer_async(table))]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("seconds", [None, 5.0])
def test_what_it_says_comes_through(ask, seconds):
    assert ask(Table(Does(lambda: Reply(done=True, reward=0.5)), seconds)) == Reply(done=True, reward=0.5)
    error = ask(Table(Does(fails), seconds))
    assert isinstance(error, EpisodeError)
    assert str(error) == "ValueError: no judge"
    assert str(ask(Table(Does(lambda: Reply(done=True, reward=float("nan"))), seconds))) == (
        "reward: expected a finite number, got nan"
    )


@pytest.mark.parametrize("ask", ASKED)
def test_one_that_hangs_is_given_up_and_not_used_again(ask):
    free = threading.Event()
    room = Room(lambda: Does(lambda: hang(free)), 0.05)
    table = room.table()
    began = time.monotonic()
    assert str(ask(table)) == "no answer within 0.05 s"
    assert time.monotonic() - began < 5
    room.give_back(table)
    assert room.table() is not table
    free.set()


def test_tables_are_used_again():
    room = Room(lambda: Does(lambda: Reply(done=True)), 1.0)
    table = room.table()
    assert answer(table) == Reply(done=True)
    room.give_back(table)
    assert room.table() is table


def test_many_are_judged_side_by_side():
    """Ten that take 0.2 s each: together far less than 2 s."""
    room = Room(lambda: Does(lambda: time.sleep(0.2) or Reply(done=True)), 5.0)
    tables = [room.table() for _ in range(10)]
    began = time.monotonic()
    waited = [(table, table.judge([1])) for table in tables]
    assert [table.wait(found) for table, found in waited] == [Reply(done=True)] * 10
    assert time.monotonic() - began < 1.5

"""Episodes by hand: rewards, tool calls, and what is a failure."""

import math

import pytest

from reference_impl.config.errors import ConfigError
from reference_impl.models.tiny import ByteTokenizer
from reference_impl.rl.environments import (
    ENVIRONMENTS,
    Arithmetic,
    Calculator,
    EpisodeError,
    Reply,
    SortLetters,
    Unreliable,
    find_environment,
)
from reference_impl.rl.judging import judge

BYTES = ByteTokenizer()


def say(text):
    return list(text.encode())


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_number_names_an_episode(name):
    """The same number and seed in two environments give one prompt; 20 numbers, and two seeds, give several."""
    first, second = (find_environment(name)(BYTES, 7) for _ in range(2))
    assert [first.reset(n) for n in range(20)] == [second.reset(n) for n in range(20)]
    assert len({tuple(first.reset(n)) for n in range(20)}) > 10
    assert first.reset(3) != find_environment(name)(BYTES, 8).reset(3)


class TestSortLetters:
    def letters(self, episode=0):
        environment = SortLetters(BYTES)
        prompt = bytes(environment.reset(episode)).decode()
        assert prompt[4:] == "="
        assert len(set(prompt[:4])) == 4
        return environment, prompt[:4]

    def test_the_share_in_the_right_place(self):
        environment, letters = self.letters()
        right = "".join(sorted(letters))
        swapped = right[1] + right[0] + right[2:]
        for answer, reward in [(right, 1), (right + "zz", 1), (swapped, 0.5), (right[:2], 0.5), ("", 0), ("====", 0)]:
            assert environment.step(say(answer)) == Reply(done=True, reward=reward)

    def test_bytes_that_are_no_text(self):
        environment, _ = self.letters()
        assert environment.step([255, 254, 256, 258]).reward == 0

    def test_a_demonstration_has_the_letters_and_not_their_order(self):
        """Over 200 episodes a shuffled answer has a quarter of its letters in place, and no letter that was not asked for."""
        environment, rewards = SortLetters(BYTES), []
        for episode in range(200):
            prompt, answer = environment.demonstration(episode)
            assert sorted(prompt[:4]) == sorted(answer)
            rewards.append(environment.step(answer).reward)
        assert 0.2 < sum(rewards) / 200 < 0.3


@pytest.mark.parametrize(
    ("answer", "reward"), [("{}", 1), ("It is {}.", 1), ("17 and 4 make {}", 1), ("{} or 99", 0), ("", 0), ("x", 0)]
)
def test_arithmetic_reads_the_last_number(answer, reward):
    environment = Arithmetic(BYTES)
    for episode in range(30):
        question = bytes(environment.reset(episode)).decode()
        right = eval(question.removeprefix("What is ").split("?")[0])
        assert environment.step(say(answer.format(right))).reward == reward


class TestCalculator:
    def question(self, episode=0):
        environment = Calculator(BYTES)
        text = bytes(environment.reset(episode)).decode()
        expression = text.removeprefix("What is ").split("?")[0]
        return environment, expression, eval(expression)

    def test_a_call_is_answered_and_then_an_answer_judged(self):
        environment, expression, right = self.question()
        product = expression.split("+")[0]
        reply = environment.step(say(f"let me see [{product}]"))
        assert (reply.done, bytes(reply.observation).decode()) == (False, f"={eval(product)} ")
        assert environment.step(say(f"#{right}")) == Reply(done=True, reward=1)

    @pytest.mark.parametrize("answer", ["", "#", "#999", "[2/3]", "[2**3]", "no idea"])
    def test_what_ends_it_with_nothing(self, answer):
        environment, _, _ = self.question()
        assert environment.step(say(answer)) == Reply(done=True, reward=0)

    def test_what_comes_first_counts(self):
        environment, _, right = self.question()
        assert not environment.step(say(f"[1+1] #{right}")).done
        assert environment.step(say(f"#{right} [1+1]")).reward == 1

    def test_the_last_turn(self):
        """Three calls are answered, the fourth is not."""
        environment, _, _ = self.question()
        assert [environment.step(say("[1-2]")).done for _ in range(4)] == [False, False, False, True]
        environment.reset(1)
        assert environment.step(say("[1-2]")) == Reply(done=False, observation=tuple(say("=-1 ")))


class Says:
    """An environment that answers with a given thing, or raises it."""

    def __init__(self, thing):
        self.thing = thing

    def reset(self, episode):
        return [episode]

    def step(self, response):
        if isinstance(self.thing, Exception):
            raise self.thing
        return self.thing


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (Reply(done=True, reward=math.nan), "expected a finite number, got nan"),
        (Reply(done=True, reward=math.inf), "expected a finite number, got inf"),
        (Reply(done=True, reward="0.5"), "expected a finite number, got '0.5'"),
        (Reply(done=True, reward=None), "expected a finite number, got None"),
        (1.0, "expected a Reply, got float"),
    ],
)
def test_a_mistake_of_an_environment_is_an_episode_error(thing, words):
    with pytest.raises(EpisodeError, match=words):
        judge(Says(thing), [1])


def test_unreliable():
    """A third of 300 episodes fail, the same in two of a kind; one that failed may succeed when it is begun again."""
    made = [Unreliable(Says(Reply(done=True, reward=1.0)), failures=1 / 3, seed=1) for _ in range(2)]

    def outcome(environment, episode):
        environment.reset(episode)
        try:
            return judge(environment, []).reward
        except EpisodeError:
            return None

    found = [[outcome(environment, episode) for episode in range(300)] for environment in made]
    assert found[0] == found[1]
    assert 70 < found[0].count(None) < 130
    failed = [episode for episode, reward in enumerate(found[0]) if reward is None]
    assert {outcome(made[0], episode) for episode in failed} == {None, 1.0}


def test_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean sort-letters"):
        find_environment("sort-leters")

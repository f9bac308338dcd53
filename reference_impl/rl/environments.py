"""What a policy is trained on: an episode gives a prompt, answers each response, and ends with a reward.

An environment speaks tokens, so that what a response was sampled as is what it is judged and trained on. An episode is
known by a number: the same number is the same episode, which is how the members of a group get one prompt, and how a run
that is resumed goes on where it was.
"""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.models.catalog import Tokenizer, chat_prompt


class EpisodeError(Exception):
    """An environment failed: the rollout counts as failed, with this as its reason, and joins no statistic."""


@dataclass(frozen=True)
class Reply:
    """What an environment says to a response.

    `done`
    : Whether the episode is over; then `reward` is its reward.

    `observation`
    : Tokens that follow the response, such as a tool's answer, and that the next response continues. Nobody sampled them:
      they have no policy epoch and are not trained on.
    """

    done: bool
    reward: float = 0.0
    observation: tuple[int, ...] = ()


class Environment(Protocol):
    """One episode at a time."""

    def reset(self, episode: int) -> list[int]:
        """Begin the episode of this number; the tokens of its prompt."""

    def step(self, response: list[int]) -> Reply:
        """Judge the tokens that the policy has sampled since the last observation, or the prompt."""


class SortLetters:
    """Put letters in order: `fbea=` is answered by `abef`. The reward is the share of letters in the right place.

    A random order of four has one letter in its place on average, so that one who knows the form and nothing else gets 0.25.
    """

    LETTERS, COUNT = "abcdef", 4

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.letters: list[str] = []

    def reset(self, episode: int) -> list[int]:
        """Four letters in random order, and a sign that asks for them in order."""
        self.letters = _random(self.seed, episode).sample(self.LETTERS, self.COUNT)
        return self.tokenizer.encode("".join(self.letters) + "=")

    def step(self, response: list[int]) -> Reply:
        """Over at once; what follows the fourth letter does not count."""
        said = self.tokenizer.decode(response, skip_special_tokens=True)
        places = zip(said, sorted(self.letters), strict=False)
        return Reply(done=True, reward=sum(a == b for a, b in places) / self.COUNT)

    def demonstration(self, episode: int) -> tuple[list[int], list[int]]:
        """A prompt and an answer in the right form, its letters in any order: what a policy is shown before it is trained."""
        prompt = self.reset(episode)
        shuffled = _random(self.seed, episode, "demonstration").sample(self.letters, self.COUNT)
        return prompt, self.tokenizer.encode("".join(shuffled))


class Arithmetic:
    """Add or subtract two numbers below 20. The reward is 1 if the last number in the answer is right."""

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.result = 0

    def reset(self, episode: int) -> list[int]:
        """A question in the model's own chat format, where it has one."""
        draw = _random(self.seed, episode)
        a, b, sign = draw.randrange(20), draw.randrange(20), draw.choice("+-")
        self.result = a + b if sign == "+" else a - b
        return chat_prompt(self.tokenizer, f"What is {a} {sign} {b}? Answer with the number.")

    def step(self, response: list[int]) -> Reply:
        """Over at once."""
        found = re.findall(r"-?\d+", self.tokenizer.decode(response, skip_special_tokens=True))
        return Reply(done=True, reward=float(bool(found) and int(found[-1]) == self.result))


class Calculator:
    """Compute `a*b+c` with a tool: `[a*b]` is answered by its result, `#n` ends the episode, with reward 1 if `n` is right.

    A response that is neither ends it with 0, and so does the last of `TURNS` turns.
    """

    TURNS = 4
    CALL, ANSWER = re.compile(r"\[(-?\d+)([-+*])(-?\d+)\]"), re.compile(r"#(-?\d+)")

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.result = self.turns = 0

    def reset(self, episode: int) -> list[int]:
        """A question that says how to ask the tool."""
        draw = _random(self.seed, episode)
        a, b, c = (draw.randrange(2, 10) for _ in range(3))
        self.result, self.turns = a * b + c, 0
        return chat_prompt(
            self.tokenizer, f"What is {a}*{b}+{c}? Write [{a}*{b}] to have it computed. Write # before your answer."
        )

    def step(self, response: list[int]) -> Reply:
        """Answer a call, or judge an answer; what comes first in the response counts."""
        self.turns += 1
        text = self.tokenizer.decode(response, skip_special_tokens=True)
        call, answer = self.CALL.search(text), self.ANSWER.search(text)
        if answer and not (call and call.start() < answer.start()):
            return Reply(done=True, reward=float(int(answer[1]) == self.result))
        if call is None or self.turns >= self.TURNS:
            return Reply(done=True)
        a, b = int(call[1]), int(call[3])
        result = {"+": a + b, "-": a - b, "*": a * b}[call[2]]
        return Reply(done=False, observation=tuple(self.tokenizer.encode(f"={result} ")))


class Unreliable:
    """Another environment, slowed down and failing now and then: by `delay` seconds a step, and one episode in `1 / failures`.

    Which episodes fail is decided by `seed`, the episode and how often it was begun.
    """

    def __init__(self, inner: Environment, delay: float = 0.0, failures: float = 0.0, seed: int = 0) -> None:
        self.inner, self.delay, self.failures, self.seed = inner, delay, failures, seed
        self._begun: dict[int, int] = {}
        self._fails = False

    def reset(self, episode: int) -> list[int]:
        """That of the other; whether the episode will fail is decided here."""
        self._begun[episode] = self._begun.get(episode, 0) + 1
        self._fails = _random(self.seed, episode, self._begun[episode]).random() < self.failures
        return self.inner.reset(episode)

    def step(self, response: list[int]) -> Reply:
        """That of the other after the delay, or `EpisodeError`."""
        time.sleep(self.delay)
        if self._fails:
            raise EpisodeError("the environment was told to fail")
        return self.inner.step(response)


ENVIRONMENTS: dict[str, Callable[[Tokenizer, int], Environment]] = {
    "sort-letters": SortLetters,
    "arithmetic": Arithmetic,
    "calculator": Calculator,
}
"""By the name that recipes use: makes an environment of a tokenizer and a seed."""


def find_environment(name: str) -> Callable[[Tokenizer, int], Environment]:
    """The maker of a named environment. Raises `ConfigError` with the nearest name for an unknown one."""
    if name not in ENVIRONMENTS:
        close = nearest(name, ENVIRONMENTS)
        hint = f"did you mean {close}?" if close else f"known: {', '.join(ENVIRONMENTS)}"
        raise ConfigError(f"no environment {name!r}; {hint}")
    return ENVIRONMENTS[name]


def _random(*parts: object) -> random.Random:
    """A generator of its own for every combination, the same in every process."""
    return random.Random("/".join(map(str, parts)))

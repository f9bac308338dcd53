"""A request as the scheduler and the engine see it, from its arrival to its end."""

from dataclasses import dataclass, field

from reference_impl.generation.rows import Row


@dataclass(eq=False)
class Request:
    """One sequence.

    `tokens`
    : Prompt, then what was sampled. The last token has no keys and values until a forward pass reads it.

    `cached`
    : Leading positions whose keys and values lie in `blocks`.

    `blocks`
    : The block table: physical blocks in the order of positions.

    `chain`
    : Name in the prefix index of the blocks that are registered so far; `None` once they no longer are what one
      checkpoint wrote, so that nothing more of this request is registered.

    `registered`
    : Leading blocks that `chain` stands for.
    """

    id: int
    row: Row
    greedy: bool
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] | None = None
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    chain: int | None = None
    registered: int = 0

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt as it was submitted."""
        return len(self.row.prompt)

    @property
    def generated(self) -> list[int]:
        """Tokens sampled so far."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens without keys and values: those of the prompt that are left, or 1 in decode."""
        return len(self.tokens) - self.cached


@dataclass(frozen=True)
class Span:
    """What one step computes for one request: positions `start` to `stop`, stop exclusive.

    `samples` says whether the last of them is the request's last token, so that a token follows.
    """

    request: Request
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        """Whether a token is sampled after this span."""
        return self.stop == len(self.request.tokens)

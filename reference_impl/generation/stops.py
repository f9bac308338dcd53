"""What ends a sequence: stop ids, and stop strings across token borders, in the step that completes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference_impl.config.schema import GenerationConfig

Decode = Callable[[list[int]], str]
"""Token ids to text, as a tokenizer's `decode`."""


@dataclass(frozen=True)
class Stops:
    """What ends one sequence. What stops it is part of it."""

    token_ids: list[int] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)

    def completed_by(self, generated: list[int], decode: Decode | None) -> bool:
        """Whether the last token of `generated` is a stop id or completes a stop string."""
        if not generated:
            return False
        if generated[-1] in self.token_ids:
            return True
        if not self.strings:
            return False
        if decode is None:
            raise ValueError("stop_strings needs a tokenizer, and none was given")
        # A token stands for one byte at least, so the match lies in the last bytes; four more for a character cut open.
        tail = max(len(string.encode()) for string in self.strings) + 4
        text = decode(generated[-tail:])
        return any(string in text for string in self.strings)


def stops_for(config: GenerationConfig, tokenizer: Any, strings: list[str] | None = None) -> Stops:
    """The stops of one sequence: the recipe's, and `strings` of its own.

    `stop_token_ids: null` means the tokenizer's end of sequence, as NeMo RL reads it. Raises `ValueError` for strings
    without a tokenizer.
    """
    ids = config.stop_token_ids
    if ids is None:
        eos = tokenizer.eos_token_id if tokenizer is not None else None
        ids = [] if eos is None else [eos]
    strings = [*(config.stop_strings or []), *(strings or [])]
    if strings and tokenizer is None:
        raise ValueError("stop_strings needs a tokenizer, and none was given")
    return Stops(list(ids), strings)

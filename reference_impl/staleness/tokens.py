"""One generated token with all that the report says of it, so that page, figure and terminal say the same."""

from __future__ import annotations

from dataclasses import dataclass

from reference_impl.staleness.runs import SequenceRecord


@dataclass(frozen=True)
class Token:
    """A generated token: its text, its two epochs, its log-probability and its position in the whole sequence."""

    text: str
    policy: int
    kv: int
    logprob: float
    position: int

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts as short phrases, in the order in which they are shown."""
        return (
            visible(self.text),
            f"policy epoch {self.policy}",
            f"KV epoch {self.kv}",
            f"log-probability {self.logprob:.3f}",
            f"position {self.position}",
        )


def generated_tokens(record: SequenceRecord) -> list[Token]:
    """The record's generated tokens in order; none for a failed sequence."""
    if not record.has_epochs:
        return []
    epochs = zip(record.generated_policy.expand().tolist(), record.generated_kv.expand().tolist(), strict=True)
    return [
        Token(text, policy, kv, logprob, record.prompt_length + index)
        for index, (text, (policy, kv), logprob) in enumerate(zip(record.tokens, epochs, record.logprobs, strict=True))
    ]


def visible(text: str) -> str:
    """`text` on one line, with its edges to be seen: spaces as `␣`, control characters as their pictures."""
    return control_pictures(text.replace("\n", "⏎")).replace(" ", "␣") or "(empty)"


def control_pictures(text: str, keep: str = "") -> str:
    """`text` with control characters other than `keep` as their Unicode pictures, so that none acts on a terminal.

    Lone surrogates, which are half a character and have no encoding, become U+FFFD.
    """
    return "".join(c if c in keep else _picture(ord(c), c) for c in text)


def _picture(code: int, character: str) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return "\ufffd"
    return character


def shortened(text: str, width: int) -> str:
    """`text` on one line and at most `width` characters long."""
    line = control_pictures(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"

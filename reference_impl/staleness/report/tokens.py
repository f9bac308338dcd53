"""One generated token with all that the report says of it, so that the page's text and its figure say the same."""

from __future__ import annotations

from dataclasses import dataclass

from reference_impl.staleness.epochs import MISSING, EpochRuns
from reference_impl.staleness.runs import SequenceRecord

NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Token:
    """A generated token: its text, its epochs, its log-probability and its position in the whole sequence.

    What is not known is `None`. `upstream_policy` and `upstream_kv` are what the engine itself stamped, where that is
    something else.
    """

    text: str | None
    policy: int | None
    kv: int | None
    attended: int | None
    logprob: float | None
    position: int
    upstream_policy: int | None = None
    upstream_kv: int | None = None

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts as short phrases, in the order in which they are shown."""
        own = [f"upstream's own stamp: policy epoch {self.upstream_policy}"] if self.upstream_policy is not None else []
        own += [f"upstream's own stamp: KV epoch {self.upstream_kv}"] if self.upstream_kv is not None else []
        return (
            *([] if self.text is None else [visible(self.text)]),
            f"policy epoch {_said(self.policy)}",
            f"KV epoch {_said(self.kv)}",
            f"oldest attended KV epoch {_said(self.attended)}",
            *own,
            *([] if self.logprob is None else [f"log-probability {self.logprob:.3f}"]),
            f"position {self.position}",
        )


def generated_tokens(sequence: SequenceRecord, most: int | None = None) -> list[Token]:
    """The first `most` (all without it) of the sequence's generated tokens, in order; none for a failed sequence."""
    record = sequence.rollout()
    positions = [position for start, stop in record.sampled for position in range(start, stop)][:most]
    if not positions:
        return []
    length = positions[-1] + 1
    policy, kv, attended = (
        _epochs(runs, length) for runs in (record.policy_epoch, record.kv_cache_epoch, record.oldest_attended_kv_epoch)
    )
    theirs, theirs_kv = policy, kv
    if sequence.upstream is not None and sequence.upstream.length >= length:
        theirs = _epochs(sequence.upstream.policy_epoch, length)
        theirs_kv = _epochs(sequence.upstream.kv_cache_epoch, length)
    first = sequence.prompt_length
    return [
        Token(
            text=sequence.tokens[at - first] if sequence.tokens else None,
            policy=policy[at],
            kv=kv[at],
            attended=attended[at],
            logprob=sequence.logprobs[at - first] if sequence.logprobs else None,
            position=at,
            upstream_policy=theirs[at] if theirs[at] != policy[at] else None,
            upstream_kv=theirs_kv[at] if theirs_kv[at] != kv[at] else None,
        )
        for at in positions
    ]


def _epochs(runs: EpochRuns, length: int) -> list[int | None]:
    """Of each of the first `length` tokens."""
    return [None if epoch == MISSING else epoch for epoch in runs.truncate(length).expand().tolist()]


def _said(epoch: int | None) -> str:
    return NOT_KNOWN if epoch is None else str(epoch)


def in_words(runs: EpochRuns) -> str:
    """`0 x 12, 1 x 20`: each run's epoch and its tokens."""
    if not runs.stamped and runs.length:
        return NOT_KNOWN
    return ", ".join(f"{_said(epoch)} x {stop - start}" for start, stop, epoch in runs.spans()) or "none"


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

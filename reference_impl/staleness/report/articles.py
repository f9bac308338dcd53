"""The report's text of sequences, each token in its epochs' colours, and the legend that names the colours."""

from __future__ import annotations

import html
from collections.abc import Sequence

from reference_impl.staleness.consumption import KINDS
from reference_impl.staleness.report.palette import UNKNOWN, Colours, epochs_of
from reference_impl.staleness.report.tokens import Token, control_pictures, in_words
from reference_impl.staleness.report.view import View
from reference_impl.staleness.runs import SequenceRecord


def legend(view: View, colours: Colours) -> str:
    """The run's epochs: colour, cause, and how many tokens each sampled."""
    run, sampled = view.run, view.tokens_by_epoch()
    said = {run.header["epoch"]: "loaded at the start"} if run.header.get("epoch") is not None else {}
    for update in run.updates:
        said[update["epoch"]] = f"{update['what']}, after {update['after_tokens']} tokens"
    rows = []
    for epoch in sorted(epochs_of(run)):
        notes = [said.get(epoch, ""), f"{sampled.get(epoch, 0):,} tokens sampled"]
        rows.append((colours[epoch], f"epoch {epoch}", "; ".join(filter(None, notes))))
    if any(view.everything.per_rollout(kind).stamped.sum() < view.everything.tokens.sum() for kind in KINDS):
        rows.append((UNKNOWN, "not known", "tokens without a stamp"))
    items = "".join(
        f'<li style="--c:{colour}"><i></i><b>{name}</b><span>{html.escape(note)}</span></li>'
        for colour, name, note in rows
    )
    return f'<ul class="legend">{items}</ul>'


def epoch_classes(colours: Colours) -> str:
    """The style that gives a token's fill (`p`) and underline (`k`) their colours, shorter than one on each token."""
    rules = [f".p{_class(e)}{{--p:{colour}}}.k{_class(e)}{{--k:{colour}}}" for e, colour in colours.items()]
    return f"<style>{''.join(rules)}</style>"


def article(sequence: SequenceRecord, tokens: Sequence[Token], level: int = 3) -> str:
    """One sequence: what happened to it, its prompt, and the given tokens of its answer."""
    heading = [f"sequence {sequence.index}", f"{sequence.num_generated:,} tokens", *_events(sequence)]
    if len(tokens) < sequence.num_generated:
        heading.append(f"the first {len(tokens):,} are shown")
    parts = [f'<p class="prompt">{text_of(sequence.prompt)}</p>'] if sequence.prompt else []
    if sequence.tokens or (sequence.text == "" and sequence.error is None and not tokens):
        parts.append(f'<p class="answer">{"".join(map(_span, tokens))}</p>')
    elif sequence.text:
        parts.append(f'<p class="whole">{text_of(sequence.text)}</p>')
    if sequence.error is not None:
        parts.append(f'<p class="error">{how_it_ended(sequence)}: {text_of(sequence.error)}</p>')
    body = "\n".join(parts)
    return f"<article>\n<h{level}>{html.escape(' · '.join(heading))}</h{level}>\n{body}\n</article>"


def _events(sequence: SequenceRecord) -> list[str]:
    said = []
    if record := sequence.record:
        said += [f"policy {in_words(sequence.generated_policy)}", f"KV {in_words(sequence.generated_kv)}"]
        said += [f"attended {in_words(sequence.generated_attended)}"]
        counts = {
            "evictions": record.num_evictions,
            "preemptions": record.num_preemptions,
            "recomputes": record.num_recomputes,
            "prefix-cached tokens": record.prefix_cached_tokens,
        }
        said += [f"{name} {count:,}" for name, count in counts.items() if count]
    if sequence.reward is not None:
        said.append(f"reward {sequence.reward:g}")
    if sequence.truncated:
        said.append("cut at the length limit")
    return said


def _span(token: Token) -> str:
    # What is said of the token is in the figure's data; the page's script makes it the title of what is pointed at.
    return f'<span class="p{_class(token.policy)} k{_class(token.kv)}">{text_of(token.text or "")}</span>'


def _class(epoch: int | None) -> str:
    return "n" if epoch is None else str(epoch)


def text_of(text: str) -> str:
    """`text` as HTML. A carriage return is no line of its own, and HTML has no form for other control characters."""
    return html.escape(control_pictures(text.replace("\r\n", "\n"), keep="\n\t"))


def how_it_ended(sequence: SequenceRecord) -> str:
    """For a sequence with an error."""
    return "Ended early" if sequence.num_generated else "Failed"

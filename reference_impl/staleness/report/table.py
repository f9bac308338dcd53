"""The report's table of rollouts, which sorts by a press on a heading, and its plain tables.

The rollouts' rows are data for the page's script, which shows the first of them in the reader's order; rows that are
not shown cost no more than their numbers.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from reference_impl.staleness.records import COUNTS
from reference_impl.staleness.report.view import View
from reference_impl.staleness.steps import ROLLOUT_COLUMNS, step_log

MOST_ROWS = 10_000  # in the page
SHOWN_ROWS = 200  # at a time

# Megatron-RL's table under headings that people read: group, name, decimals (None: text).
HEADINGS: dict[str, tuple[str, str, int | None]] = {
    "rollout": ("", "sequence", 0),
    "step": ("", "step", 0),
    "reward": ("", "reward", 2),
    "traj_length": ("", "tokens", 0),
    "policy_staleness": ("policy staleness", "oldest", 0),
    "policy_last_token_staleness": ("policy staleness", "last", 0),
    "policy_avg_staleness": ("policy staleness", "mean", 2),
    "policy_staleness_std": ("policy staleness", "std", 2),
    "kv_staleness": ("KV staleness", "oldest", 0),
    "kv_last_token_staleness": ("KV staleness", "last", 0),
    "kv_avg_staleness": ("KV staleness", "mean", 2),
    "kv_staleness_std": ("KV staleness", "std", 2),
    "attended_kv_staleness": ("attended KV", "oldest", 0),
    "completion_gap": ("", "gap", 0),
    "num_evictions": ("events", "evict", 0),
    "num_preemptions": ("events", "preempt", 0),
    "num_recomputes": ("events", "recompute", 0),
    "prefix_cached_tokens": ("events", "prefix tokens", 0),
    "rollout_status": ("", "status", None),
}


def rollout_table(view: View) -> str:
    """The consumed rollouts of all steps, the stalest first; columns of which nothing is known are left out."""
    rows = [
        (consumption.step, *row)
        for consumption in view.consumptions
        for row in step_log(consumption).rollout_table.rows
    ]
    if not rows:
        return '<p class="quiet">No rollout was consumed.</p>'
    names = ("step", *ROLLOUT_COLUMNS)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    # A column of dashes, or of events that never were, says as much in a word.
    kept = [
        name for name in HEADINGS if any(cell is not None and (cell or name not in COUNTS) for cell in columns[name])
    ]
    left_out = _in_groups([name for name in HEADINGS if name not in kept])
    if len(view.consumptions) == 1:
        kept.remove("step")
    order = [name for name in ("policy_staleness", "kv_staleness", "rollout") if name in kept]
    first = (
        sorted(range(len(rows)), key=lambda n: -(columns[order[0]][n] or 0))
        if order[0] != "rollout"
        else range(len(rows))
    )
    chosen = first[:MOST_ROWS]
    table = [[_rounded(columns[name][number], HEADINGS[name][2]) for name in kept] for number in chosen]
    data = {
        "digits": [HEADINGS[name][2] for name in kept],
        "rows": table,
        "sort": kept.index(order[0]),
        "descending": order[0] != "rollout",
        "shown": SHOWN_ROWS,
        "total": len(rows),
    }
    note = f'<p class="quiet">0 or not known throughout: {", ".join(left_out)}.</p>' if left_out else ""
    return f"""<div class="rollouts">
<p class="quiet" aria-live="polite"></p>
<div class="wide" tabindex="0" role="region" aria-label="Table of rollouts"><table>
<thead>{_heads([HEADINGS[name][:2] for name in kept], sortable=True)}</thead><tbody></tbody></table></div>
{note}
<script type="application/json">{as_json(data)}</script>
</div>"""


def _in_groups(names: Sequence[str]) -> list[str]:
    """The columns' headings; a group of which all are among them by its own name alone."""
    said = []
    for name in names:
        group, heading, _ = HEADINGS[name]
        whole = group and all(other in names for other, (its, *_) in HEADINGS.items() if its == group)
        said.append(group if whole else f"{group} {heading}".strip())
    return list(dict.fromkeys(said))


def plain_table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table whose first column names the rows; `heads` are (group, name)."""
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>{"".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f"""<div class="wide" tabindex="0" role="region" aria-label="{html.escape(label)}"><table>
<thead>{_heads(heads)}</thead><tbody>{body}</tbody></table></div>"""


def _heads(heads: Sequence[tuple[str, str]], sortable: bool = False) -> str:
    """One line of headings, and above it one that names groups of them, where there are groups."""
    groups: list[tuple[str, int]] = []
    for group, _ in heads:
        if groups and group and groups[-1][0] == group:
            groups[-1] = (group, groups[-1][1] + 1)
        else:
            groups.append((group, 1))
    above = "".join(
        f'<th class="group" scope="colgroup" colspan="{span}">{html.escape(group)}</th>'
        if group
        else f'<td colspan="{span}"></td>'
        for group, span in groups
    )
    names = "".join(
        f'<th scope="col">{f"<button>{html.escape(name)}</button>" if sortable else html.escape(name)}</th>'
        for _, name in heads
    )
    return f"<tr>{above}</tr><tr>{names}</tr>" if any(group for group, _ in groups) else f"<tr>{names}</tr>"


def _rounded(cell: Any, digits: int | None) -> Any:
    return round(cell, digits) if isinstance(cell, float) else cell


def as_json(data: Any) -> str:
    """JSON that may stand in a script element, whatever a prompt or a token says."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")

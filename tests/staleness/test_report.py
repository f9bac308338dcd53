"""The report of a run made by hand: the page's text and tokens, and the terminal with and without colour."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from rich.console import Console

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.report.page import write_html
from reference_impl.staleness.report.palette import UNKNOWN, colours_of, epoch_colours, ink_on
from reference_impl.staleness.report.strips import label, strips_figure
from reference_impl.staleness.report.terminal import print_strips
from reference_impl.staleness.report.tokens import Token, generated_tokens
from reference_impl.staleness.runs import Run, SequenceRecord


def sequence(index, tokens, policy, kv, upstream=None, error=None, truncated=False, **more):
    """A sequence with a prompt of 3 tokens and made-up ids and log-probabilities; its answer attended to epoch 0."""
    length = 3 + len(tokens)
    record = RequestRecord(
        request=index,
        policy_epoch=EpochRuns.from_boundaries(policy, length),
        kv_cache_epoch=EpochRuns.from_boundaries(kv, length),
        oldest_attended_kv_epoch=EpochRuns.from_boundaries([(0, None), (3, 0)], length),
        sampled=((3, length),),
        **more,
    )
    stamps = upstream and EpochRuns.from_boundaries(upstream, length)
    return SequenceRecord(
        index=index,
        prompt="Say <hello>\n& go",
        prompt_length=3,
        prompt_token_ids=[1, 2, 3],
        token_ids=list(range(len(tokens))),
        tokens=tokens,
        text="".join(tokens),
        logprobs=[-0.12345 * n for n in range(len(tokens))],
        record=record,
        upstream=stamps and replace(record, policy_epoch=stamps),
        error=error,
        truncated=truncated,
    )


@pytest.fixture
def run():
    return Run(
        header={"model": "smollm2", "backend": "megatron", "mode": "direct", "epoch": 0},
        updates=[{"epoch": 1, "after_tokens": 2, "what": "a <step> of SGD"}],
        sequences=[
            sequence(
                0,
                [" Hello", "</script><script>alert(1)</script>", "\n", " <b>"],
                [[0, 0], [5, 1]],
                [[0, 0], [4, 1]],
                upstream=[[0, 0], [4, 1]],
            ),
            sequence(1, ["\x1b[31m", "", "\ud83d"], [[0, 1]], [[0, 1]], num_evictions=2, truncated=True),
            SequenceRecord(index=2, prompt="x", error="the engine said: <no>"),
        ],
        bad_lines=1,
    )


class Page(HTMLParser):
    """What a browser would take from the page: attributes that fetch, styles, answers' spans, data, and visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links, self.styles, self.spans, self.text = [], [], [], ""
        self.scripts, self.data = 0, {}
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        self.styles += [value for name, value in attributes if name == "style"]
        self.scripts += tag == "script"
        self._inside, self._id = tag, dict(attributes).get("id")
        if tag == "span" and "class" in dict(attributes):
            self.spans.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "style":
            self.styles.append(data)
        elif self._inside == "script":
            self.data[self._id] = data
        else:
            self.text += data
        if self._inside == "span" and self.spans:
            self.spans[-1][1] += data


@pytest.fixture
def page(run, tmp_path):
    write_html(run, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_the_page_fetches_nothing(page):
    assert page.links == ["data:,"]
    assert not [style for style in page.styles if re.search(r"@import|url\(", style)]


def test_the_page_shows_every_token_and_no_token_becomes_markup(page):
    assert [text for _, text in page.spans] == [
        " Hello",
        "</script><script>alert(1)</script>",
        "\n",
        " <b>",
        "␛[31m",
        "",
        "\ufffd",
    ]
    assert (
        page.scripts == 5
    )  # the figures, plotly.js, the table's data, the table's script, the page's; none from a token


def test_a_token_carries_its_colours_and_its_facts(page, run):
    attributes, _ = page.spans[1]
    assert attributes["class"] == "p0 k1"
    colours = epoch_colours(run)
    assert f".p0{{--p:{colours[0]}}}" in "".join(page.styles)
    assert f".k1{{--k:{colours[1]}}}" in "".join(page.styles)
    figures = json.loads(page.data["figures"])
    [facts] = [figure["shared"]["customdata"] for figure in figures.values() if "shared" in figure]
    assert facts[0][1].split("\n")[1:] == [
        "policy epoch 0",
        "KV epoch 1",
        "oldest attended KV epoch 0",
        "upstream's own stamp: policy epoch 1",
        "log-probability -0.123",
        "position 4",
    ]
    assert [len(row) for row in facts] == [4, 3, 0]
    assert "upstream" not in facts[0][0]  # where the engine's own stamp is ours, nothing is said of it


def test_the_page_says_what_happened(page):
    for said in (
        "smollm2 on megatron, direct",
        "loaded at the start; 2 tokens sampled",
        "a <step> of SGD, after 2 tokens; 5 tokens sampled",
        "policy 0 x 2, 1 x 2 · KV 0 x 1, 1 x 3 · attended 0 x 4",
        "evictions 2 · cut at the length limit",
        "Failed: the engine said: <no>",
        "Say <hello>\n& go",
        "unreadable lines, left out",
    ):
        assert said in page.text


def test_the_numbers(tmp_path, run):
    write_html(run, tmp_path / "report.html")
    numbers = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", (tmp_path / "report.html").read_text(encoding="utf-8")))
    # As if step 1, the newest epoch, had consumed both: policy epochs 0 and 1, KV 0 and 1, attended 0 and 0; no
    # completion epoch is known.
    assert numbers == {
        "sequences": "3",
        "generated tokens": "7",
        "weight updates": "1",
        "mean policy staleness": "0.50",
        "mean KV staleness": "0.50",
        "mean attended KV staleness": "1.00",
        "mean completion gap": "–",
        "sequences with two or more policy epochs": "1",
        "evictions": "2",
        "failed sequences": "1",
        "unreadable lines, left out": "1",
    }


def test_the_figure_has_a_strip_a_sequence_in_each_of_three_plots(run):
    rows = {each.index: generated_tokens(each) for each in run.sequences}
    figure = strips_figure(run.sequences, rows, epoch_colours(run))
    policy, kv, attended = figure["data"]
    assert policy["z"] == [[0, 0, 1, 1], [1, 1, 1], []]
    assert kv["z"] == [[0, 1, 1, 1], [1, 1, 1], []]
    assert attended["z"] == [[0, 0, 0, 0], [0, 0, 0], []]
    assert figure["layout"]["yaxis"]["ticktext"] == [
        "0 · Say &lt;hello&gt; &amp; go",
        "1 · Say &lt;hello&gt; &amp; go",
        "2 · (failed)",
    ]
    go.Figure(data=figure["data"], layout=figure["layout"])  # Plotly refuses what it does not know


def test_what_is_not_known_is_grey_and_said(tmp_path, run):
    record = run.sequences[0].record
    run.sequences[0].record = replace(record, kv_cache_epoch=EpochRuns.missing(record.length))
    run.sequences[1].record = None
    tokens = generated_tokens(run.sequences[0])
    assert {token.kv for token in tokens} == {None}
    assert tokens[0].facts[1:3] == ("policy epoch 0", "KV epoch not known")
    colours = epoch_colours(run)
    assert list(colours.items())[-1] == (None, UNKNOWN)
    rows = {each.index: generated_tokens(each) for each in run.sequences}
    policy, kv, _ = strips_figure(run.sequences, rows, colours)["data"]
    assert (policy["z"][1], kv["z"][0]) == ([2, 2, 2], [2, 2, 2, 2])  # the third and last colour
    write_html(run, tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    # 4 of 7 tokens have policy and attended epochs, none a KV epoch.
    assert "Tokens with a stamp: policy 57%, KV 0%, attended KV 57%." in page.text
    assert "KV not known · attended 0 x 4" in page.text
    assert [attributes["class"] for attributes, _ in page.spans[3:5]] == ["p1 kn", "pn kn"]


def test_a_sequence_without_text_has_cells_and_its_runs_in_words(tmp_path, run):
    bare = SequenceRecord(index=4, prompt_length=3, record=replace(run.sequences[0].record, request="roll <4>"))
    run.sequences = [bare]
    assert label(bare) == "4 · roll <4>"
    token = generated_tokens(bare)[3]
    assert token.facts == ("policy epoch 1", "KV epoch 1", "oldest attended KV epoch 0", "position 6")
    write_html(run, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sequence 4 · 4 tokens · policy 0 x 2, 1 x 2" in Page(text).text


def test_the_tokens_of_two_turns_are_those_that_were_sampled(run):
    turns = run.sequences[0]
    turns.record = replace(turns.record, sampled=((3, 4), (6, 7)))
    assert [(token.text, token.position, token.policy) for token in generated_tokens(turns)] == [
        (" Hello", 3, 0),
        (" <b>", 6, 1),
    ]


def test_a_run_in_which_all_failed_still_has_a_page(tmp_path, run):
    run.sequences = run.sequences[2:]
    write_html(run, tmp_path / "report.html")
    assert "the engine said" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_sequence_shows_its_tokens_and_that_it_ended_early(tmp_path, run):
    run.sequences[0].error = "interrupted"
    run.sequences[0].record = replace(run.sequences[0].record, status="aborted")
    write_html(run, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.spans[0][1] == " Hello"
    assert "policy 0 x 2, 1 x 2 · KV 0 x 1, 1 x 3" in page.text
    assert "Ended early: interrupted" in page.text
    numbers = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    expected = {"generated tokens": "7", "sequences ended early": "1", "failed sequences": "1"}
    assert expected.items() <= numbers.items()
    assert printed(run, color_system=None).split("\n")[2:6] == [
        "⟦0⟧ Hello</script><script>alert(1)</script>⟦1⟧",
        " <b>",
        "policy 0 x 2, 1 x 2 | kv 0 x 1, 1 x 3 | evictions 0",
        "ended early: interrupted",
    ]


def test_each_epoch_has_a_colour_of_its_own_however_many_there_are():
    for count in (1, 2, 6, 7, 40):
        assert len({*colours_of(range(count)).values(), UNKNOWN}) == count + 1
    assert list(colours_of([9, 3, 9])) == [3, 9]


def test_ink_is_white_on_dark_and_black_on_light():
    assert (ink_on("#333333"), ink_on("#ccbb44")) == ("#ffffff", "#000000")


def printed(run, **options) -> str:
    file = options.pop("file", None) or io.StringIO()
    print_strips(run, Console(file=file, width=40, **options))
    return file.getvalue()


def test_strips_without_colour_mark_where_the_epoch_changes(run):
    assert printed(run, color_system=None).split("\n") == [
        "Say <hello>",
        "& go",
        "⟦0⟧ Hello</script><script>alert(1)</script>⟦1⟧",
        " <b>",
        "policy 0 x 2, 1 x 2 | kv 0 x 1, 1 x 3 | evictions 0",
        "",
        "Say <hello>",
        "& go",
        "⟦1⟧␛[31m\ufffd",
        "policy 1 x 3 | kv 1 x 3 | evictions 2",
        "",
        "x",
        "failed: the engine said: <no>",
        "",
    ]


def test_no_color_on_a_terminal_marks_too(run):
    assert "⟦0⟧ Hello" in printed(run, force_terminal=True, color_system="truecolor", no_color=True)


def test_strips_with_colour_fill_each_token_and_leave_the_marks_out(run):
    text = printed(run, force_terminal=True, color_system="truecolor", no_color=False, legacy_windows=False)
    fills = [";".join(str(int(colour[n : n + 2], 16)) for n in (1, 3, 5)) for colour in epoch_colours(run).values()]
    assert re.search(rf"\x1b\[[0-9;]*48;2;{fills[0]}m Hello", text)
    assert re.search(rf"\x1b\[[0-9;]*48;2;{fills[1]}m <b>", text)
    assert "⟦" not in text
    assert "\x1b[31m" not in text  # the token's own escape must not colour the reader's terminal


def test_strips_on_a_terminal_that_knows_ascii_only(run):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_strips(run, Console(file=file, width=40, color_system=None))
    file.flush()
    assert b"[[0]] Hello" in raw.getvalue()


def test_a_token_on_one_line():
    token = Token(text=" a\n", policy=1, kv=2, attended=None, logprob=-1.23456, position=9)
    assert token.facts[0] == "␣a⏎"
    assert token.facts[3:5] == ("oldest attended KV epoch not known", "log-probability -1.235")

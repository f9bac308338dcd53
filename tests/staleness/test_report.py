"""The report's two forms, from a run made by hand: the page as text, and the terminal with and without colour."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console

from reference_impl.staleness.figure import strips_figure
from reference_impl.staleness.palette import colours_of, epoch_colours, ink_on
from reference_impl.staleness.report import print_strips, write_html
from reference_impl.staleness.runs import Run, SequenceRecord
from reference_impl.staleness.tokens import Token


def sequence(index, tokens, policy, kv, **more):
    """A record with a prompt of 3 tokens and made-up ids and log-probabilities."""
    return SequenceRecord(
        index=index,
        prompt="Say <hello>\n& go",
        prompt_length=3,
        prompt_token_ids=[1, 2, 3],
        token_ids=list(range(len(tokens))),
        tokens=tokens,
        text="".join(tokens),
        logprobs=[-0.12345 * n for n in range(len(tokens))],
        policy_epoch=policy,
        kv_cache_epoch=kv,
        **more,
    )


@pytest.fixture
def run():
    return Run(
        header={"model": "smollm2", "backend": "megatron", "mode": "direct", "epoch": 0},
        updates=[{"epoch": 1, "after_tokens": 2, "what": "a <step> of SGD"}],
        sequences=[
            sequence(
                0, [" Hello", "</script><script>alert(1)</script>", "\n", " <b>"], [[0, 0], [5, 1]], [[0, 0], [4, 1]]
            ),
            sequence(1, ["\x1b[31m", "", "\ud83d"], [[0, 1]], [[0, 1]], num_evictions=2, truncated=True),
            SequenceRecord(index=2, prompt="x", error="the engine said: <no>"),
        ],
        bad_lines=1,
    )


class Page(HTMLParser):
    """What a browser would take from the page: attributes that fetch, styles, spans, and visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links, self.styles, self.spans, self.text = [], [], [], ""
        self.scripts = 0
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        self.styles += [value for name, value in attributes if name == "style"]
        self.scripts += tag == "script"
        self._inside = tag
        if tag == "span" and "title" in dict(attributes):
            self.spans.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "style":
            self.styles.append(data)
        elif self._inside != "script":
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
    assert page.scripts == 4  # plotly's settings, plotly.js, the figure and the page's own; none from a token


def test_a_span_carries_its_colours_and_its_facts(page, run):
    colours = epoch_colours(run)
    attributes, _ = page.spans[1]
    assert attributes["style"] == f"--p:{colours[0]};--k:{colours[1]}"
    assert attributes["title"].split("\n")[1:] == [
        "policy epoch 0",
        "KV epoch 1",
        "log-probability -0.123",
        "position 4",
    ]


def test_the_page_says_what_happened(page):
    for said in (
        "smollm2 on megatron, direct",
        "loaded at the start; 2 tokens sampled",
        "a <step> of SGD, after 2 tokens; 5 tokens sampled",
        "policy 0 x 2, 1 x 2 · KV 0 x 1, 1 x 3",
        "evictions 2 · cut at the length limit",
        "Failed: the engine said: <no>",
        "Say <hello>\n& go",
        "unreadable lines, left out",
    ):
        assert said in page.text


def test_the_numbers(tmp_path, run):
    write_html(run, tmp_path / "report.html")
    numbers = dict(re.findall(r"<dt>(.*?)</dt><dd>(\d+)</dd>", (tmp_path / "report.html").read_text(encoding="utf-8")))
    assert numbers == {
        "sequences": "3",
        "generated tokens": "7",
        "weight updates": "1",
        "sequences with two or more policy epochs": "1",
        "evictions": "2",
        "failed sequences": "1",
        "unreadable lines, left out": "1",
    }


def test_the_figure_has_a_strip_a_sequence_in_each_of_two_plots(run):
    figure = strips_figure(run.sequences, epoch_colours(run))
    policy, kv = figure.data
    assert [list(row) for row in policy.z] == [[0, 0, 1, 1], [1, 1, 1, None], [None] * 4]
    assert [list(row) for row in kv.z] == [[0, 1, 1, 1], [1, 1, 1, None], [None] * 4]
    hover = policy.customdata[0][3].split("<br>")
    assert hover == ["␣&lt;b&gt;", "policy epoch 1", "KV epoch 1", "log-probability -0.370", "position 6"]
    assert list(figure.layout.yaxis.ticktext) == [
        "0 · Say &lt;hello&gt; &amp; go",
        "1 · Say &lt;hello&gt; &amp; go",
        "2 · (failed)",
    ]


def test_a_run_in_which_all_failed_still_has_a_page(tmp_path, run):
    run.sequences = run.sequences[2:]
    write_html(run, tmp_path / "report.html")
    assert "the engine said" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_sequence_shows_its_tokens_and_that_it_ended_early(tmp_path, run):
    run.sequences[0].error = "interrupted"
    write_html(run, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.spans[0][1] == " Hello"
    assert "policy 0 x 2, 1 x 2 · KV 0 x 1, 1 x 3" in page.text
    assert "Ended early: interrupted" in page.text
    numbers = dict(re.findall(r"<dt>(.*?)</dt><dd>(\d+)</dd>", text))
    expected = {"generated tokens": "7", "sequences ended early": "1", "failed sequences": "1"}
    assert expected.items() <= numbers.items()
    assert printed(run, color_system=None).split("\n")[2:6] == [
        "⟦0⟧ Hello</script><script>alert(1)</script>⟦1⟧",
        " <b>",
        "policy 0 x 2, 1 x 2 | kv 0 x 1, 1 x 3 | evictions 0",
        "ended early: interrupted",
    ]


def test_each_epoch_has_a_colour_of_its_own_however_many_there_are():
    for count in (1, 2, 7, 8, 40):
        assert len(set(colours_of(range(count)).values())) == count
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
    token = Token(text=" a\n", policy=1, kv=2, logprob=-1.23456, position=9)
    assert token.facts[0] == "␣a⏎"
    assert token.facts[3] == "log-probability -1.235"


def test_the_report_module_loads_plotly_and_rich_only_when_asked():
    script = (
        "import sys, reference_impl.staleness.report;"
        "print(*[name for name in ('torch', 'megatron', 'plotly', 'rich') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []

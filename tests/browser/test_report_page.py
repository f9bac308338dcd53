"""The report page in a real browser: it draws, fetches nothing, fits a phone, and follows the reader's scheme."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_impl.staleness.report import write_html
from reference_impl.staleness.runs import Run, SequenceRecord

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip("Chromium is not installed (apt-get install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")

QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]

PROMPTS = ["The capital of France is", "Write <b>two</b> lines\nabout rain:", "Explain tides"]
ANSWERS = [
    "␣Paris,␣a␣city␣of␣two␣million␣people␣on␣the␣Seine.␣It␣has␣been␣the␣capital␣since␣the␣tenth␣century",
    "⏎Rain␣on␣the␣roof␣and␣<script>␣in␣the␣gutter;⏎the␣street␣is␣a␣river␣that␣the␣lamps␣&␣I␣cross␣at␣night.",
]


def sequence(index: int, policy: list[list[int]], kv: list[list[int]]) -> SequenceRecord:
    tokens = [word.replace("⏎", "\n") for word in ANSWERS[index].replace("␣", "\0 ").split("\0") if word]
    return SequenceRecord(
        index=index,
        prompt=PROMPTS[index],
        prompt_length=6,
        prompt_token_ids=list(range(6)),
        token_ids=list(range(len(tokens))),
        tokens=tokens,
        text="".join(tokens),
        logprobs=[-0.07 * (n % 9) for n in range(len(tokens))],
        policy_epoch=policy,
        kv_cache_epoch=kv,
        num_evictions=index,
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A report of three sequences: updated twice, evicted, failed."""
    run = Run(
        header={"model": "smollm2", "backend": "megatron", "mode": "direct", "epoch": 0},
        updates=[
            {"epoch": 1, "after_tokens": 14, "what": "one step of SGD on the first rollouts"},
            {"epoch": 2, "after_tokens": 26, "what": "one step of SGD on the next"},
        ],
        sequences=[
            sequence(0, [[0, 0], [13, 1], [19, 2]], [[0, 0], [12, 1], [18, 2]]),
            sequence(1, [[0, 0], [13, 1], [19, 2]], [[0, 1], [18, 2]]),
            SequenceRecord(index=2, prompt=PROMPTS[2], error="the prompt has 9000 tokens, the limit is 2048"),
        ],
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(run, path)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu", *QUIET]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """Open the report; the page comes back with what it asked for and complained of as `requests` and `complaints`."""
    contexts = []

    def opened(width=1100, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".js-plotly-plot .heatmaplayer image")
        return page

    yield opened
    for context in contexts:
        context.close()


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_draws_both_plots_without_a_request_or_a_complaint(open_page, address):
    page = open_page()
    page.wait_for_load_state("networkidle")
    assert page.locator(".js-plotly-plot").count() == 1
    assert page.locator(".js-plotly-plot .heatmaplayer image").count() == 2
    assert [url for url in page.requests if not url.startswith("data:")] == [address]
    assert page.complaints == []


def test_hovering_a_cell_shows_the_tokens_facts(open_page):
    page = open_page()
    strip = page.locator(".js-plotly-plot .nsewdrag").first
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + box["height"] / 6)
    shown = page.locator(".hoverlayer .hovertext")
    shown.wait_for()
    for fact in ("␣Paris,", "policy epoch 0", "KV epoch 0", "log-probability -0.000", "position 6"):
        assert fact in shown.text_content()


def test_every_token_is_on_the_page_as_text(open_page):
    page = open_page()
    answers = page.locator("article .answer").all_text_contents()
    assert answers == [answer.replace("␣", " ").replace("⏎", "\n") for answer in ANSWERS]
    assert page.locator("article .error").inner_text() == "Failed: the prompt has 9000 tokens, the limit is 2048"


@pytest.mark.parametrize("width", [375, 1100])
def test_the_page_does_not_scroll_sideways(open_page, width):
    page = open_page(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_figure_scrolls_within_its_box_on_a_phone(open_page):
    page = open_page(width=375)
    assert page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.strips'))")


def test_the_page_and_its_figure_follow_the_readers_scheme(open_page):
    page = open_page()
    ink = "getComputedStyle(document.querySelector('.js-plotly-plot .ytick text')).fill"
    light = background(page), page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{ink} !== '{light[1]}'")
    dark = background(page), page.evaluate(ink)
    assert light[0] != dark[0]
    opened_dark = open_page(scheme="dark")
    opened_dark.wait_for_function(f"{ink} === '{dark[1]}'")
    assert background(opened_dark) == dark[0]

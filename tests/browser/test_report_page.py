"""The report page in a real browser: it draws, fetches nothing, fits a phone, and follows the reader's scheme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.report.page import write_html, write_views
from reference_impl.staleness.report.view import view_of
from reference_impl.staleness.runs import Run, SequenceRecord, Step

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
    """Six prompt tokens and an answer that attended to epoch 0; upstream stamps each change one token early."""
    tokens = [word.replace("⏎", "\n") for word in ANSWERS[index].replace("␣", "\0 ").split("\0") if word]
    length = 6 + len(tokens)
    record = RequestRecord(
        request=index,
        policy_epoch=EpochRuns.from_boundaries(policy, length),
        kv_cache_epoch=EpochRuns.from_boundaries(kv, length),
        oldest_attended_kv_epoch=EpochRuns.from_boundaries([(0, None), (6, 0)], length),
        sampled=((6, length),),
        num_evictions=index,
        completion_epoch=2,
    )
    early = EpochRuns.from_boundaries([(max(start - 1, 0), epoch) for start, epoch in policy], length)
    return SequenceRecord(
        index=index,
        prompt=PROMPTS[index],
        prompt_length=6,
        prompt_token_ids=list(range(6)),
        token_ids=list(range(len(tokens))),
        tokens=tokens,
        text="".join(tokens),
        logprobs=[-0.07 * (n % 9) for n in range(len(tokens))],
        record=record,
        upstream=replace(record, policy_epoch=early),
        reward=0.5 - index,
    )


@pytest.fixture(scope="module")
def run():
    """Three sequences: updated twice, evicted, failed."""
    return Run(
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


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    """The report of the three, as at one step."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(run, path)
    return path.as_uri()


@pytest.fixture(scope="module")
def trained(run):
    """Forty rollouts like the first two, five a step."""
    sequences = [replace(run.sequences[number % 2], index=number, reward=number / 40) for number in range(40)]
    steps = [Step(2 + at, tuple(range(5 * at, 5 * at + 5))) for at in range(8)]
    return Run(run.header, run.updates, sequences, steps)


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

    def opened(width=1100, scheme="light", address=address, drawn=".js-plotly-plot .heatmaplayer image"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(address)
        page.wait_for_selector(drawn)
        page.wait_for_function(
            "document.querySelectorAll('.js-plotly-plot').length === document.querySelectorAll('.plot').length"
        )
        return page

    yield opened
    for context in contexts:
        context.close()


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_draws_its_plots_without_a_request_or_a_complaint(open_page, address):
    page = open_page()
    page.wait_for_load_state("networkidle")
    # Tokens and rollouts, three kinds each, completion gap, events, and the strips.
    assert page.locator(".js-plotly-plot").count() == 9
    assert page.locator(".js-plotly-plot .heatmaplayer image").count() == 3
    assert [url for url in page.requests if not url.startswith("data:")] == [address]
    assert page.complaints == []


def test_hovering_a_cell_shows_the_tokens_facts(open_page):
    page = open_page()
    strip = page.locator(".strips .nsewdrag").first
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + box["height"] / 6)  # the first token of the first of three strips
    shown = page.locator(".hoverlayer .hovertext")
    shown.wait_for()
    facts = (
        "␣Paris,",
        "policy epoch 0",
        "KV epoch 0",
        "oldest attended KV epoch 0",
        "log-probability -0.000",
        "position 6",
    )
    assert shown.text_content() == "".join(facts)
    cells = page.evaluate("document.querySelector('.strips .plot').layout.xaxis.range[1] + 0.5")
    # Token 12 of the whole sequence is the seventh cell; upstream stamps it with the epoch that came after it.
    page.mouse.move(box["x"] + 6.5 * box["width"] / cells, box["y"] + box["height"] / 6)
    page.wait_for_function("document.querySelector('.hovertext').textContent.includes('position 12')")
    assert "policy epoch 0" in shown.text_content()
    assert "upstream's own stamp: policy epoch 1" in shown.text_content()


def test_a_token_that_looks_like_markup_is_hovered_as_it_is(open_page):
    page = open_page()
    token = page.locator(".answer span", has_text="<script>")
    token.hover()
    assert token.get_attribute("title").split("\n")[:3] == ["␣<script>", "policy epoch 0", "KV epoch 1"]
    facts = page.evaluate("document.querySelector('.strips .plot').data[0].customdata[1]")
    assert [fact.split("<br>")[0] for fact in facts if "script" in fact] == ["␣&lt;script>"]


def test_every_token_is_on_the_page_as_text(open_page):
    page = open_page()
    answers = page.locator("article .answer").all_text_contents()
    assert answers == [answer.replace("␣", " ").replace("⏎", "\n") for answer in ANSWERS]
    assert page.locator("article .error").inner_text() == "Failed: the prompt has 9000 tokens, the limit is 2048"


def column(page, heading: str) -> list[str]:
    """The cells below a heading, as they are shown."""
    names = page.locator(".rollouts thead tr:last-child th").all_text_contents()
    return page.locator(f".rollouts tbody tr :nth-child({names.index(heading) + 1})").all_text_contents()


@pytest.fixture
def trained_page(open_page, trained, tmp_path):
    write_html(trained, tmp_path / "trained.html", show=[0])
    return open_page(address=(tmp_path / "trained.html").as_uri())


def test_the_table_sorts_by_click_and_by_key(trained_page):
    page = trained_page
    steps = column(page, "step")
    assert (len(steps), steps[0]) == (40, "9")  # the stalest first: oldest epoch 0 at the last step
    assert page.locator(".rollouts th[aria-sort]").all_text_contents() == ["oldest"]
    reward = page.get_by_role("columnheader", name="reward").locator("button")
    reward.click()
    assert column(page, "reward")[:3] == ["0.97", "0.95", "0.93"]  # 39, 38 and 37 of 40
    assert page.locator("th[aria-sort=descending]").all_text_contents() == ["reward"]
    page.keyboard.press("Enter")  # the heading has the focus
    assert column(page, "reward")[:3] == ["0.00", "0.03", "0.05"]
    assert page.locator("th[aria-sort=ascending]").all_text_contents() == ["reward"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator("th[aria-sort]").all_text_contents() == ["step"]
    assert page.locator(".rollouts [aria-live]").inner_text() == "40 rollouts."
    assert page.complaints == []


def test_a_table_of_many_rollouts_shows_the_first_of_each_order(open_page, trained, tmp_path):
    many = [replace(trained.sequences[0], index=number, reward=float(number)) for number in range(300)]
    write_html(Run(trained.header, [], many, [Step(5, tuple(range(300)))]), tmp_path / "many.html", show=[0])
    page = open_page(address=(tmp_path / "many.html").as_uri())
    assert page.locator(".rollouts [aria-live]").inner_text() == "The first 200 in this order, of 300 rollouts."
    page.get_by_role("columnheader", name="reward").locator("button").click()
    assert column(page, "reward")[0] == "299.00"
    assert len(column(page, "reward")) == 200


def test_steps_are_drawn_as_lines_in_bands(trained_page):
    lines = "[...document.querySelectorAll('.plot')].map(plot => plot.data.filter(trace => trace.fill).length)"
    # Policy, KV, attended and completion gap have a band; evictions, six histograms and strips have none.
    assert trained_page.evaluate(lines) == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_two_runs_compared(open_page, run, trained, tmp_path):
    views = [view_of(trained, "first"), view_of(run, "second")]
    write_views(views, tmp_path / "both.html", compare=True)
    for width in (375, 1100):
        page = open_page(width, address=(tmp_path / "both.html").as_uri(), drawn=".js-plotly-plot .main-svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.complaints == []
    row = page.get_by_role("row").filter(has=page.get_by_text("consumed_rollouts", exact=True))
    assert row.locator("td").all_text_contents()[:3] == ["40", "2", "−38"]


def test_a_browser_that_cannot_unpack_says_so_and_keeps_the_rest(browser, address):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(address)
    page.get_by_text("This browser cannot unpack the page's charts").wait_for()
    assert page.locator(".rollouts tbody tr").count() == 2
    page.close()


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

"""The site as its readers use it, in Chromium: searching, copying, stepping through, with a keyboard, on a phone, in the dark."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.built_site import DOCS, ROOT

from reference_impl.staleness.events import replay
from reference_impl.staleness.tracker import StalenessTracker

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip("Chromium is not installed (apt-get install chromium)", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")

pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")

FIRST_PAGE_BYTES, SECONDS_TO_TEXT = 300_000, 1.0
SAMPLE = (
    "index",
    "design/staleness",
    "guides/choose-a-kv-mode",
    "recipes/grpo-tiny-megatron-async",
    "reference/configuration",
    "reference/metrics",
    "reference/glossary",
    "reference/api/staleness",
    "404",
)
"""A page of each kind, for the checks that take a second a page."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served, on this machine."""
    handler = functools.partial(Quiet, directory=site.html)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser, address):
    """A tab that fails the test for an error of a page's script, and for a request to anywhere else."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, base_url=address)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, wrong = context.new_page(), []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else wrong.append(asked.url))
    yield page
    context.close()
    assert not wrong


def pages_of(site):
    return sorted(path.relative_to(site.html).with_suffix("").as_posix() for path in site.html.rglob("*.html"))


def listed_by(page):
    """The file that a page of the source shows."""
    return ROOT / f"{page.removeprefix('source/')}.py"


def test_no_page_scrolls_sideways_on_a_phone(site, tab):
    """And no table is wider than its column; a source file scrolls within its box, the widest and the longest name as well."""
    tab.set_viewport_size({"width": 375, "height": 800})
    listings = [page for page in pages_of(site) if page.startswith("source/")]
    widest = max(listings, key=lambda page: max(map(len, listed_by(page).read_text("utf-8").splitlines()), default=0))
    pages = [page for page in pages_of(site) if page not in listings]
    for page in [*pages, widest, max(listings, key=len)]:
        tab.goto(f"/{page}.html")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        tables = tab.evaluate(
            "[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > 376"
            " && !t.closest('.table-wrapper')).length"
        )
        assert (page, wide, tables) == (page, 375, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readers_with_other_eyes_and_hands_can_use_it(tab, scheme):
    """axe-core finds nothing against WCAG 2, levels A and AA, contrast included."""
    from axe_playwright_python.sync_playwright import Axe

    tab.emulate_media(color_scheme=scheme)
    # What a page says and how it is built does not depend on its colours; these two do.
    rules = ["wcag2a", "wcag2aa"] if scheme == "light" else ["color-contrast", "link-in-text-block"]
    for page in SAMPLE:
        tab.goto(f"/{page}.html")
        found = Axe().run(tab, options={"runOnly": rules}).response["violations"]
        said = [
            f"{page}: {each['id']}: {node['html'][:120]} {node['failureSummary'][:300]}"
            for each in found
            for node in each["nodes"]
        ]
        assert not said, "\n".join(said[:8])


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("buffer_size_gb", "configuration.html#key-policy.generation.mcore_generation_config.buffer_size_gb"),
        ("mean_completion_gap", "metrics.html#metric-mean_completion_gap"),
        ("buffer_guaranteed_fraction", "configuration.html#removed-buffer_guaranteed_fraction"),
    ],
)
def test_search_finds_the_row_first(tab, words, row):
    tab.goto(f"/search.html?q={words}")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    assert row in first.get_attribute("href")
    first.click()
    name = tab.locator(f"[id='{row.partition('#')[2]}']").first
    name.wait_for(state="attached")


@pytest.mark.parametrize(
    ("clicks", "answer"),
    [
        (["Staleness"], "it changes twice while an evicted request waits"),
        (["Keys that are gone"], "size the cache with buffer_size_gb alone"),
        (["Implement a backend"], "A generation backend is a class that does what"),
        (["Recipes", "tiny-megatron"], "This recipe generates with a model of random weights"),
    ],
    ids=[
        "what an eviction does to KV staleness",
        "what to write for a key",
        "how to write a backend",
        "where to start",
    ],
)
def test_a_newcomer_finds_it_within_two_clicks(tab, clicks, answer):
    tab.goto("/index.html")
    for link in clicks:
        tab.locator("article").get_by_role("link", name=link, exact=True).first.click()
    found = tab.locator("article").get_by_text(answer).first
    found.scroll_into_view_if_needed()
    assert found.is_visible()


def test_a_copy_button_copies_what_is_typed_and_no_output(tab):
    tab.goto("/quickstart.html")
    block = tab.locator("div.highlight-console", has_text="genref --version").first
    block.hover()
    block.locator("button.copybtn").click()
    assert tab.evaluate("navigator.clipboard.readText()") == "genref --version"
    assert tab.locator("div.highlight-text button.copybtn").count() == 0


def test_the_timeline_tells_what_the_tracker_recorded(tab):
    """Its last state is the records that Python makes of the same events; keys and buttons move it."""
    tab.goto("/design/staleness.html")
    tab.locator(".timeline[data-ready]").wait_for()
    assert tab.locator(".timeline-still").is_hidden()
    lines = (DOCS / "figures" / "timeline.jsonl").read_text().splitlines()
    records = sorted(replay(map(json.loads, lines), StalenessTracker()), key=lambda record: record.request)
    last = tab.evaluate("recordsOf(document.querySelector('.timeline').timeline.all.at(-1))")
    assert last == [
        {
            "request": record.request,
            "num_evictions": record.num_evictions,
            **{
                name: [list(pair) for pair in getattr(record, name).to_json()]
                for name in ("policy_epoch", "kv_cache_epoch", "oldest_attended_kv_epoch")
            },
        }
        for record in records
    ]
    told, slider = tab.locator(".timeline-told"), tab.locator(".timeline input")
    assert told.inner_text().startswith(f"{len(lines)}/"), "the figure opens with the finished run"
    slider.focus()
    slider.press("Home")
    for _ in range(4):
        slider.press("ArrowRight")
    assert told.inner_text().startswith(f"4/{len(lines)}")
    assert "writes keys and values: 4 of request 0, 3 of request 1" in told.inner_text()
    assert tab.locator(".timeline-slots .timeline-cell").nth(12).inner_text() == "0:0"
    tab.get_by_role("button", name="Next event").click()
    assert told.inner_text().startswith("5/")
    slider.press("End")
    assert told.inner_text().startswith(f"{len(lines)}/")


def test_without_scripts_the_figure_stands_there(browser, address):
    context = browser.new_context(java_script_enabled=False, base_url=address)
    page = context.new_page()
    page.goto("/design/staleness.html")
    assert page.locator(".timeline-still img").first.is_visible()
    assert page.locator(".timeline-controls").count() == 0
    context.close()


def test_a_reader_chooses_the_dark(tab):
    tab.goto("/index.html")
    seen = set()
    for _ in range(3):
        seen.add(
            (
                tab.evaluate("document.body.dataset.theme"),
                tab.evaluate("getComputedStyle(document.body).backgroundColor"),
            )
        )
        tab.locator(".theme-toggle-content button").click()
    assert {theme for theme, _ in seen} == {"auto", "light", "dark"}
    assert len({colour for _, colour in seen}) == 2


def test_the_keyboard_comes_to_everything_in_order(tab):
    """The first stop skips the navigation; each stop is further down the document than the one before."""
    tab.goto("/guides/choose-a-lag.html")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent").strip() == "Skip to content"
    tab.evaluate("window.stops = [document.activeElement]")
    for _ in range(12):
        tab.keyboard.press("Tab")
        further = tab.evaluate(
            "(() => { const last = stops.at(-1), now = document.activeElement; stops.push(now);"
            " return Boolean(last.compareDocumentPosition(now) & Node.DOCUMENT_POSITION_FOLLOWING); })()"
        )
        assert further


def test_the_first_page_is_small_and_there_at_once(site, browser, address):
    context = browser.new_context(base_url=address)
    page, sizes = context.new_page(), []
    page.on("response", lambda answer: sizes.append(len(answer.body())))
    page.goto("/index.html", wait_until="networkidle")
    assert 10_000 < sum(sizes) < FIRST_PAGE_BYTES
    taken = []
    for _ in range(3):  # the tests beside this one take their turns
        began = time.perf_counter()
        page.goto((site.html / "index.html").as_uri(), wait_until="domcontentloaded")
        page.get_by_role("heading", level=1).wait_for()
        taken.append(time.perf_counter() - began)
    assert min(taken) < SECONDS_TO_TEXT
    context.close()


def test_what_machines_read_is_there(site):
    """Every page has its Markdown, unchanged, and is in llms.txt with what it says first; the whole site is small."""
    listed = (site.html / "llms.txt").read_text("utf-8")
    for page in site.app.env.found_docs - {"404"}:
        assert (site.html / f"{page}.md").read_bytes() == (DOCS / f"{page}.md").read_bytes()
        assert f"]({page}.md): " in listed, page
    assert "- [Staleness](design/staleness.md): This page defines how stale a generated token is" in listed
    assert sum(path.stat().st_size for path in site.html.rglob("*") if path.is_file()) < 8_000_000


def test_an_entry_leads_to_its_lines_and_to_what_explains_it(tab):
    tab.goto("/reference/api/rl.html")
    entry = tab.locator("dt[id$='.queue.Queue.Queue']")
    explained = tab.locator("dt[id$='.queue.Queue.Queue'] + dd > .explained-in").inner_text()
    assert explained.startswith("Explained in ") and "Asynchronous training" in explained
    entry.locator(".source-link").click()
    line = next(
        number
        for number, text in enumerate((ROOT / "reference_impl/rl/queue.py").read_text().splitlines(), 1)
        if text.startswith("class Queue")
    )
    assert tab.url.endswith(f"source/reference_impl/rl/queue.html#L{line}")
    assert tab.locator(":target").inner_text().startswith("class Queue")


def test_a_published_site_knows_its_address(tmp_path):
    """Its card and sitemap hold it, and the page for a missing address says where the site begins before it names a file."""
    env = {**os.environ, "SITE_URL": "https://example.org/docs/"}
    command = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT, "-D", "extensions=myst_parser,mathml,site_files"]
    (tmp_path / "in").mkdir()
    for name, words in {"index": "# A\n\nThis is A. More.\n", "404": "---\norphan: true\n---\n\n# Gone\n"}.items():
        (tmp_path / "in" / f"{name}.md").write_text(words)
    subprocess.run([*command, tmp_path / "in", tmp_path / "out"], env=env, check=True, capture_output=True)
    missing = (tmp_path / "out" / "404.html").read_text()
    base = missing.index('<base href="https://example.org/docs/">')
    assert base < min(missing.index(" href=", base + 6), missing.index(" src="))
    index = (tmp_path / "out" / "index.html").read_text()
    assert "<base" not in index
    assert '<meta name="description" content="This is A.">' in index
    card = re.search(r'<meta property="og:image" content="https://example.org/docs/([^"]*)">', index)[1]
    assert (tmp_path / "out" / card).read_bytes() == (DOCS / "_static" / "card.png").read_bytes()
    assert "https://example.org/docs/index.html</loc>" in (tmp_path / "out" / "sitemap.xml").read_text()
    assert "- [A](index.md): This is A.\n" in (tmp_path / "out" / "llms.txt").read_text()

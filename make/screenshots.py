"""Take a picture of every page of the built site, light, dark and as wide as a phone, and lay them out on contact sheets.

`make screenshots` builds the site first, and writes `docs/_build/screenshots/`: a PNG for each page and form, `index.html` with
all of them side by side, and `sheet-1.png` and so on, which are pictures of it. Listings of source files are left out.
"""

import sys
from html import escape
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

BUILD = Path(__file__).parents[1] / "docs" / "_build"
SITE, OUT = BUILD / "html", BUILD / "screenshots"
CHROMIUM = "/usr/bin/chromium"
FORMS = {"light": ("light", 1200), "dark": ("dark", 1200), "phone": ("light", 375)}
SETTLE_MS = 200
MOST, PAGES_A_SHEET = 4000, 6  # pixels of a page's height that are shown; pages on a sheet


def pages(words: list[str]) -> list[str]:
    """The pages whose name has one of the words; all of them without any."""
    found = sorted(path.relative_to(SITE).with_suffix("").as_posix() for path in SITE.rglob("*.html"))
    return [page for page in found if not page.startswith("source/") and any(word in page for word in words or [""])]


def photograph(browser: Browser, names: list[str]) -> None:
    """One file for each page and form, as high as the page."""
    for form, (scheme, width) in FORMS.items():
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        for name in names:
            tab.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
            high = tab.evaluate("document.documentElement.scrollHeight")
            # As high as the page, for Chromium leaves out a diagram that was never in view.
            tab.set_viewport_size({"width": width, "height": high})
            tab.wait_for_timeout(SETTLE_MS)
            tab.screenshot(path=picture(name, form))
            tab.set_viewport_size({"width": width, "height": 800})
        tab.close()


def picture(name: str, form: str) -> Path:
    return OUT / f"{name.replace('/', '.')}-{form}.png"


def contact_sheet(names: list[str]) -> str:
    """A page with a row for each page of the site."""
    rows = (
        f"<h2>{escape(name)}</h2><div>"
        + "".join(f'<img src="{picture(name, form).name}" alt="{escape(name)}, {form}">' for form in FORMS)
        + "</div>"
        for name in names
    )
    style = (
        "body{font:14px sans-serif;margin:16px;background:#888}div{display:flex;gap:12px;align-items:start}"
        f"img{{width:600px;max-height:{MOST}px;object-fit:cover;object-position:top}}img:last-child{{width:300px}}"
    )
    return f'<!doctype html><meta charset="utf-8"><title>Contact sheet</title><style>{style}</style>{"".join(rows)}'


def main() -> None:
    names = pages(sys.argv[1:])
    if not names:
        sys.exit(f"no page of the site has {' or '.join(sys.argv[1:])} in its name")
    if not Path(CHROMIUM).exists():
        sys.exit("Chromium is not installed (apt-get install chromium)")
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        photograph(browser, names)
        tab = browser.new_page(viewport={"width": 1560, "height": 800})
        for sheet, start in enumerate(range(0, len(names), PAGES_A_SHEET), 1):
            page = OUT / f"sheet-{sheet}.html"
            page.write_text(contact_sheet(names[start : start + PAGES_A_SHEET]), encoding="utf-8")
            tab.goto(page.as_uri(), wait_until="load")
            tab.screenshot(path=page.with_suffix(".png"), full_page=True)
            page.unlink()
        browser.close()
    index = OUT / "index.html"
    index.write_text(contact_sheet(names), encoding="utf-8")
    print(index)


if __name__ == "__main__":
    sys.exit(main())

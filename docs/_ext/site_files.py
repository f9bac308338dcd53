"""What machines read: `llms.txt`, the pages' Markdown, a sitemap, cards of links; and what the footer says of the build.

`llms.txt` lists every page with its first sentence, as https://llmstxt.org describes; it links the Markdown that a page was made
of, which is published next to it. The sitemap and the picture of a link's card, `social_card`, need the site's address,
`html_baseurl`; without one they are left out.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

NOT_LISTED = frozenset({"404"})


def pages_in_order(env: BuildEnvironment) -> list[str]:
    """Pages as a reader meets them, depth first from the root."""
    found: list[str] = []

    def visit(page: str) -> None:
        if page not in found:
            found.append(page)
            for below in env.toctree_includes.get(page, ()):
                visit(below)

    visit(env.config.root_doc)
    return found


def note_first_sentence(app: Sphinx, tree: nodes.document) -> None:
    """Keep the first sentence of a page, on one line."""
    words = next((" ".join(paragraph.astext().split()) for paragraph in tree.findall(nodes.paragraph)), "")
    about: Any = app.env.metadata[app.env.docname]
    about["first-sentence"] = re.split(r"(?<=[.:])\s", words)[0].rstrip(":")


def first_sentence(env: BuildEnvironment, page: str) -> str:
    """What a page says first: what it is."""
    return str(env.metadata[page].get("first-sentence", ""))


def llms_txt(env: BuildEnvironment) -> Iterator[str]:
    """The lines of `llms.txt`."""
    yield f"# {env.config.project}"
    yield ""
    yield f"> {first_sentence(env, env.config.root_doc)}"
    section = ""
    for page in pages_in_order(env):
        folder = page.partition("/")[0] if "/" in page else "start"
        if folder != section:
            section = folder
            yield from ("", f"## {section.capitalize()}", "")
        yield f"- [{env.titles[page].astext()}]({page}.md): {first_sentence(env, page)}"


def write_files(app: Sphinx, error: Exception | None) -> None:
    """Write them once all pages are."""
    if error or app.builder.name != "html":
        return
    out, pages = Path(app.outdir), pages_in_order(app.env)
    (out / "llms.txt").write_text("\n".join(llms_txt(app.env)) + "\n", encoding="utf-8")
    for page in pages:
        (out / f"{page}.md").parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(app.env.doc2path(page), out / f"{page}.md")
    if base := app.config.html_baseurl.rstrip("/"):
        places = "".join(f"<url><loc>{escape(f'{base}/{page}.html')}</loc></url>\n" for page in pages)
        head = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        (out / "sitemap.xml").write_text(f"{head}{places}</urlset>\n", encoding="utf-8")
        (out / "robots.txt").write_text(f"User-agent: *\nSitemap: {base}/sitemap.xml\n", encoding="utf-8")


@cache
def commit(folder: str) -> str:
    """The commit that the sources are at, shortened; empty outside a checkout."""
    asked = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def add_to_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give the page a description for what shows links to it, and tell the 404 page where the site begins."""
    context["commit"] = commit(app.confdir)
    context["html_baseurl_root"] = app.config.html_baseurl.rstrip("/")
    context["has_markdown"] = doctree is not None and page not in NOT_LISTED
    if doctree is None:
        return
    about = first_sentence(app.env, page) if page in app.env.titles else ""
    described = {
        "description": about,
        "og:title": context.get("title", ""),
        "og:description": about,
        "og:type": "website",
    }
    if base := app.config.html_baseurl.rstrip("/"):
        described["og:url"] = f"{base}/{page}.html"
        if card := app.config.social_card:
            described |= {"og:image": f"{base}/{card}", "twitter:card": "summary_large_image"}
    for name, words in described.items():
        kind = "property" if ":" in name else "name"
        clean = escape(re.sub(r"<[^>]+>", "", words), {'"': "&quot;"})
        context["metatags"] = context.get("metatags", "") + f'\n<meta {kind}="{name}" content="{clean}">'


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("social_card", "", "html", str)
    app.connect("doctree-read", note_first_sentence)
    app.connect("build-finished", write_files)
    app.connect("html-page-context", add_to_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""Configure the site: `sphinx-build -W -n -c . docs docs/_build/html` builds it, without torch and without a network.

Warnings are errors and every reference must lead somewhere. What is excused is listed here, each with its reason.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from reference_impl import __version__  # noqa: E402
from reference_impl.doctesting.fences import MYST_EXTENSIONS  # noqa: E402

project = "Megatron Generation Reference"
author = "The Megatron Generation Reference authors"
project_copyright = author
version = release = __version__
language = "en"

extensions = [
    "myst_parser",
    "autodoc2",
    "sphinx.ext.graphviz",
    "sphinx_copybutton",
    "reference_impl.doctesting.sphinx_roles",
    # Ours, in docs/_ext.
    "accessible",
    "acronyms",
    "api_renderer",
    "bound_values",
    "command_tables",
    "explained_in",
    "external_names",
    "findable",
    "key_tables",
    "long_names",
    "mathml",
    "metric_tables",
    "own_source_only",
    "page_rules",
    "site_files",
    "source_pages",
    "timeline",
    "upstream_tables",
]
# Paths here are relative to docs/; those in html_static_path and the like are relative to this file.
exclude_patterns = ["_build", "_ext", "_static", "_templates"]
nitpicky = True
# Excused: nothing.
suppress_warnings: list[str] = []
nitpick_ignore: list[tuple[str, str]] = []

# Markdown
myst_enable_extensions = sorted(MYST_EXTENSIONS)
myst_heading_anchors = 3

# The API, from the source: pages place each object with {autodoc2-object}, so an undocumented type is a dead link.
autodoc2_packages = [{"path": "../reference_impl", "auto_mode": False}]
autodoc2_render_plugin = "api_renderer.Renderer"
autodoc2_docstring_parser_regexes = [(r".*", "myst")]
autodoc2_hidden_objects = ["dunder", "inherited", "private"]
autodoc2_class_docstring = "merge"
autodoc2_index_template = None
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# Figures and formulas are drawn when the site is built: no script, no font, no network when it is read.
graphviz_output_format = "svg"
graphviz_dot_args = ["-Gbgcolor=transparent", "-Nfontname=sans-serif", "-Efontname=sans-serif", "-Gfontname=sans-serif"]
html_math_renderer = "mathml"

# Copy what is typed, never what is printed.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_selector = "div.highlight:not(.highlight-text *) pre"

# Where the site is published, for addresses that have to be whole: the sitemap, descriptions of links, and the 404 page.
html_baseurl = os.environ.get("SITE_URL", "")
# The picture beside a link to the site; `make figures` makes it.
social_card = "_static/card.png"

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["docs/_static"]
templates_path = ["docs/_templates"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
# The search box and the pages of the API find a name sooner.
html_use_index = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "monokai"

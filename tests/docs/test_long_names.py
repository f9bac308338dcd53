"""Where a long name may break, and that nothing else of a page changes."""

import re

import pytest
from long_names import with_places


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (
            '<code><span class="pre">policy.max_new_tokens=8</span></code>',
            '<code><span class="pre">policy.<wbr>max_<wbr>new_<wbr>tokens=<wbr>8</span></code>',
        ),
        ('<span class="pre">HuggingFaceGeneration</span>', '<span class="pre">Hugging<wbr>Face<wbr>Generation</span>'),
        ("<td><p>engines/test_events.py</p></td>", "<td><p>engines/<wbr>test_<wbr>events.<wbr>py</p></td>"),
        ("reference_impl.config", "reference_<wbr>impl.<wbr>config"),
        ('<span class="pre">max_tokens</span>', '<span class="pre">max_tokens</span>'),
        ("<p>Words of a sentence about a/b and so on.</p>", "<p>Words of a sentence about a/b and so on.</p>"),
        ('<a href="../reference/api/config.html">API</a>', '<a href="../reference/api/config.html">API</a>'),
        (
            "<pre>\n<span>kv_cache_management_mode</span>\n</pre>",
            "<pre>\n<span>kv_cache_management_mode</span>\n</pre>",
        ),
    ],
    ids=["key", "class", "file", "title", "short", "sentence", "link", "listing"],
)
def test_a_long_name_breaks_between_its_parts(html, expected):
    assert with_places(html) == expected
    assert re.sub("<wbr>", "", with_places(html)) == html

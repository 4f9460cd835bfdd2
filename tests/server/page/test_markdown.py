"""Markdown of a model becomes HTML that can do nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretune.server.markdown import ATTRIBUTES, TAGS, render

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java&#x0A;script:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "<javascript:alert(1)>",
    "[a](vbscript:x)",
    "![x](http://elsewhere.example/pixel.png)",
    '![x](x "onerror=alert(1)")',
    '[a](https://e.example" onmouseover="alert(1))',
    "`<b onclick=x>`",
    "<a href='https://e.example' style='position:fixed'>a</a>",
    "<iframe src=//e.example></iframe>",
    '<form action="/v1/models"><input></form>',
    "[a]: javascript:alert(1)\n\n[a]",
    '```"><img src=x onerror=alert(1)>\n```',
]


def _check(html: str) -> None:
    for tag, attributes in re.findall(r"<\s*/?\s*([A-Za-z0-9]+)([^>]*)>", html):
        assert tag in TAGS
        for name in re.findall(r"([\w-]+)\s*=\s*\"", attributes):
            assert name in {*ATTRIBUTES.get(tag, ()), "rel", "target"}
    for address in re.findall(r'href="([^"]*)"', html):
        assert address.split(":")[0].lower() in ("http", "https", "mailto")


@pytest.mark.parametrize("text", ATTACKS)
def test_nothing_dangerous_is_left(text: str) -> None:
    _check(render(text))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*ATTACKS, "*", "`", "[", "](", "<", ">", '"', "\n", "&lt;", "|-|", "a"]), max_size=12))
def test_nothing_dangerous_is_left_in_any_mixture(parts: list[str]) -> None:
    _check(render("".join(parts)))


def test_what_answers_use_is_kept() -> None:
    html = render("# Tea\n\n1. *hot*\n2. **strong**\n\n~~cold~~ `x < 1`\n\n|a|b|\n|-|-|\n|1|2|\n\n> said")
    for part in ("<h4>Tea</h4>", "<ol>", "<em>hot</em>", "<strong>strong</strong>", "<s>cold</s>", "<td>1</td>"):
        assert part in html
    assert "<code>x &lt; 1</code>" in html and "<blockquote>" in html


def test_a_link_leads_out_and_tells_nobody_from_where() -> None:
    html = render("[a](https://e.example/x) [own](/v1/models) [also](//e.example)")
    assert html.count("href=") == 1
    assert 'href="https://e.example/x"' in html
    assert html.count('rel="noopener noreferrer nofollow"') == 3 and html.count('target="_blank"') == 3


def test_an_image_is_a_link_at_most() -> None:
    html = render("![a cat](https://e.example/cat.png)")
    assert "<img" not in html and ">a cat</a>" in html


def test_html_in_a_text_is_shown_as_it_is() -> None:
    assert render("<b>x</b>") == "<p>&lt;b&gt;x&lt;/b&gt;</p>\n"


def test_headings_skip_no_level() -> None:
    html = render("### a\n\n# b\n\n#### c\n\n###### d\n\n## e\n\n# f")
    assert re.findall(r"<(h\d)>(\w)</\1>", html) == [
        *(("h4", "a"), ("h4", "b"), ("h5", "c"), ("h6", "d"), ("h5", "e"), ("h4", "f")),
    ]

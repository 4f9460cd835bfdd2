"""A model's answer as HTML that can do nothing: Markdown to HTML, then every tag and attribute that is not listed out.

CommonMark with tables and strikethrough by markdown-it-py, where HTML in the text stays text; then nh3 (ammonia) with
the list below. Two locks on one door: what a fault in the first would let through, the second takes out, and the
page's content security policy runs no script and loads no image from elsewhere besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

LONGEST = 32_768
"""Characters of a text that are rendered; a longer one is shown as it is."""
_BLOCKS = ("p", "br", "hr", "pre", "blockquote", "ul", "ol", "li", "h4", "h5", "h6")
_TABLES = ("table", "thead", "tbody", "tr", "th", "td")
TAGS = frozenset({*_BLOCKS, *_TABLES, "strong", "em", "s", "code", "a"})
"""What may be in an answer. No image: it would tell another server who reads what."""
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES = {"http", "https", "mailto"}
_TOP = 4
"""The level of an answer's first heading: it stands below the page's third."""


def render(text: str) -> str:
    """A text as HTML that is safe to put into the page. Links open elsewhere, and tell nobody where they were found."""
    parser = _parser()
    tokens = parser.parse(text)
    _place_headings(tokens)
    html = parser.renderer.render(tokens, parser.options, {})
    return nh3.clean(
        html,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        clean_content_tags={"script", "style"},
        url_schemes=SCHEMES,
        url_relative="deny",  # a link to a path of this server is none that a model can know
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )


def _place_headings(tokens: Sequence[Token]) -> None:
    """Give headings levels that skip none, whatever the text has: one below the nearest larger one before it."""
    above: list[str] = []
    for token in tokens:
        if token.type == "heading_open":
            while above and above[-1] >= token.tag:
                above.pop()
            above.append(token.tag)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, _TOP - 1 + len(above))}"


@cache
def _parser() -> MarkdownIt:
    # without the rule for images, `![alt](address)` is the sign "!" and a link
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")

"""The page's files and its route for Markdown, as a client gets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files

from paretune.server.markdown import LONGEST
from server.conftest import Running

Start = Callable[..., Running]
STATIC = files("paretune.server.page").joinpath("static")


def test_the_page_lets_nothing_in_but_itself(tea: Running) -> None:
    status, headers, body = tea.ask("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    text = body.decode()
    assert "style=" not in text and not re.search(r"\son\w+=", text)
    assert all(re.search(r'src="page/', tag) for tag in re.findall(r"<script[^>]*>", text))


def test_every_file_is_served_with_its_type_and_from_here(tea: Running) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for each in STATIC.iterdir():
        status, headers, body = tea.ask("GET", f"/page/{each.name}")
        assert status == 200 and body == each.read_bytes()
        assert headers["content-type"].partition(";")[0] == kinds[each.name.rpartition(".")[2]]
        # no address of another server but the name space of SVG
        assert set(re.findall(r"https?://[\w./]+", body.decode())) <= {"http://www.w3.org/2000/svg"}
    assert tea.ask("HEAD", "/favicon.ico")[:1] == (200,)


def test_a_browser_that_has_a_file_gets_no_copy(tea: Running) -> None:
    _, headers, _ = tea.ask("GET", "/page/main.js")
    status, _, body = tea.ask("GET", "/page/main.js", if_none_match=headers["etag"])
    assert (status, body) == (304, b"")


def test_only_the_files_that_are_there(tea: Running) -> None:
    for name in ("nothing.js", "__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py"):
        status, _, body = tea.ask("GET", f"/page/{name}")
        assert status == 404 and json.loads(body)["error"]["code"] == "unknown_url"


def test_markdown_is_rendered(tea: Running) -> None:
    assert tea.post("/page/markdown", {"text": "*tea* <b>"}) == (200, {"html": "<p><em>tea</em> &lt;b&gt;</p>\n"})


def test_markdown_that_is_no_text_or_too_long_is_refused(start: Start) -> None:
    tea = start()
    for body in ({}, {"text": 5}, {"text": None}, {"text": "x" * (LONGEST + 1)}):
        status, answer = tea.post("/page/markdown", body)
        assert status == 400 and answer["error"]["param"] == "text"
    assert tea.post("/page/markdown", {"text": "x" * LONGEST})[0] == 200


def test_the_files_need_no_key_and_the_route_does(start: Start) -> None:
    tea = start(keys=("secret",))
    assert tea.ask("GET", "/")[0] == tea.ask("GET", "/page/main.js")[0] == 200
    assert tea.post("/page/markdown", {"text": "x"})[0] == 401
    assert tea.post("/page/markdown", {"text": "x"}, authorization="Bearer secret")[0] == 200

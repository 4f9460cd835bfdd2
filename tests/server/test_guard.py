"""Who may ask: keys, the Host header, pages of other origins; and what the log and the counters say of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from paretune.errors import InputError
from paretune.server.guard import Guard, check_origin, digest, hosts_of, is_loopback, read_keys
from paretune.server.limits import ServerLimits
from server.conftest import Running, chat_body, soon

CHAT = "/v1/chat/completions"


def test_every_route_asks_for_a_key_but_health_and_the_page(start: Callable[..., Running]) -> None:
    tea = start(keys=("one", "two"))
    for path in ("/v1/models", "/v1/models/tea", "/v1/objectives", "/metrics", "/openapi.json", "/nothing"):
        status, headers, data = tea.ask("GET", path)
        assert status == 401 and headers["www-authenticate"] == "Bearer", path
        assert json.loads(data)["error"]["type"] == "authentication_error"
    for path in (CHAT, "/v1/completions", "/v1/sense", "/page/markdown", "/"):
        assert tea.ask("POST", path, {})[0] == 401, path
    assert [tea.ask("GET", path)[0] for path in ("/health", "/", "/favicon.svg")] == [200, 200, 200]
    for key in ("one", "two"):
        assert tea.ask("POST", CHAT, chat_body(), authorization=f"Bearer {key}")[0] == 200
        assert tea.ask("GET", "/v1/models", authorization=f"bearer {key}")[0] == 200
    for wrong in ("Bearer three", "Bearer", "Bearer one two", "Basic one", "one", "Bearer \xe9"):
        assert tea.ask("POST", CHAT, chat_body(), authorization=wrong)[0] == 401, wrong
    assert "bearer" in json.dumps(json.loads(tea.ask("GET", "/openapi.json", authorization="Bearer one")[2]))


def test_all_digests_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared = []
    same = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or same(a, b))
    guard = Guard(tuple(map(digest, ("one", "two", "three"))))
    assert guard._knows("Bearer one") and len(compared) == 3


def test_keys_come_from_three_places(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nfirst\n second \nfirst\n")
    assert read_keys(["third"], file, "fourth, fifth,") == tuple(
        map(digest, ("third", "fourth", "fifth", "first", "second"))
    )
    assert read_keys([], None, None) == ()


@pytest.mark.parametrize("blank", ["", " ", ",", " , ,"])
def test_a_variable_that_is_set_and_holds_no_key_is_no_open_server(blank: str) -> None:
    with pytest.raises(InputError, match="PARETUNE_API_KEYS is set and holds no key"):
        read_keys(["one"], None, blank)


@pytest.mark.parametrize("key", ["", "a b", "naïve", "tab\tkey", "new\nline"])
def test_a_key_that_no_header_can_carry(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="printable ASCII") as caught:
        read_keys([key])
    assert not key or key not in str(caught.value)


def test_a_file_without_keys(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    for file, said in ((empty, "holds no key"), (tmp_path / "missing", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(InputError, match=said):
            read_keys([], file)


def test_names_that_a_server_on_loopback_answers_to(start: Callable[..., Running]) -> None:
    tea = start(hosts=hosts_of("127.0.0.1", "127.0.0.1", ["Tea.Example"], ()))
    for good in ("127.0.0.1", f"localhost:{tea.port}", "LOCALHOST", "[::1]:80", "tea.example:1", "tea.example."):
        assert tea.ask("GET", "/v1/models", host=good)[0] == 200, good
    for bad in ("evil.example", "127.0.0.1.evil.example", "localhost@evil", ""):
        status, _, data = tea.ask("GET", "/v1/models", host=bad)
        assert status == 403 and json.loads(data)["error"]["code"] == "host_not_allowed", bad


def test_names_by_what_is_bound() -> None:
    local = ("127.0.0.1", "localhost", "::1")
    assert hosts_of("127.0.0.1", "127.0.0.1", (), [b"key"]) is None
    assert hosts_of("0.0.0.0", "0.0.0.0", (), ()) is None
    assert hosts_of("0.0.0.0", "0.0.0.0", ["a.example:80"], ()) == ("0.0.0.0", "a.example")
    # a name, or another address, that comes to loopback is as open to pages that point a name of theirs at it
    assert hosts_of("My-Machine", "127.0.1.1", (), ()) == (*local, "my-machine", "127.0.1.1")
    assert hosts_of("::1", "::1", ["[fd00::1]:80", "fd00::2"], ()) == (*local, "fd00::1", "fd00::2")
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.53", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1")))


@pytest.mark.parametrize(
    "name", ["", "http://a.example", "a.example/", "*", "*.example", "tee.\xe9", "a b", "u@a.example"]
)
def test_a_name_that_no_host_header_says(name: str) -> None:
    with pytest.raises(InputError, match="a further host is a name"):
        hosts_of("127.0.0.1", "127.0.0.1", [name], ())


@pytest.mark.parametrize("origin", ["https://a.example", "http://localhost:3000", "http://[::1]:80", "*"])
def test_origins_are_written_as_browsers_send_them(origin: str) -> None:
    check_origin(origin)
    for bad in (f"{origin}/", f"{origin}/x", origin.replace("http", "ftp"), f"{origin} "):
        if bad != origin:
            with pytest.raises(InputError, match="an origin is written"):
                check_origin(bad)


@pytest.mark.parametrize(
    "origin",
    ["", "a.example", "https://A.example", "https://", "https://u@a.example", "http://[", "https://\xe9", "null"],
)
def test_an_origin_that_no_browser_sends(origin: str) -> None:
    with pytest.raises(InputError, match="an origin is written"):
        check_origin(origin)


def test_pages_of_other_origins_are_let_in_by_name_only(start: Callable[..., Running], tea: Running) -> None:
    preflight = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    assert tea.ask("OPTIONS", CHAT, **preflight)[0] == 405
    assert "access-control-allow-origin" not in tea.ask("GET", "/v1/models", origin="https://a.example")[1]
    let = start(origins=("https://a.example",), keys=("one",))
    status, headers, _ = let.ask("OPTIONS", CHAT, **preflight)
    assert status == 200 and headers["access-control-allow-origin"] == "https://a.example"
    assert let.ask("GET", "/v1/models", origin="https://a.example")[0] == 401
    assert let.ask("OPTIONS", CHAT, **(preflight | {"origin": "https://b.example"}))[0] == 400


def test_the_log_has_a_line_a_request_and_no_content(tea: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paretune.server.access")
    secret = "my private question"
    tea.ask("POST", CHAT + "?token=hidden", chat_body(secret), authorization="Bearer sesame")
    tea.ask("GET", "/%0aforged%1b[31m")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "paretune.server.access"]

    assert soon(lambda: len(said()) == 2)  # a line is written when the answer is out
    lines = said()
    assert f"POST {CHAT} 200" in lines[0]
    assert not any(each in " ".join(lines) for each in (secret, "hidden", "sesame", "\n", "\x1b"))


def test_counters_know_routes_and_not_what_anybody_makes_up(start: Callable[..., Running]) -> None:
    tea = start(limits=ServerLimits())
    tea.chat(n=2)
    tea.chat(n=0)
    tea.ask("GET", "/made/up")
    tea.ask("BREW", "/v1/models")
    text = tea.ask("GET", "/metrics")[2].decode()
    wanted = {
        'requests_total{method="POST",route="/v1/chat/completions",status="200"}': 1,
        'requests_total{method="POST",route="/v1/chat/completions",status="400"}': 1,
        'requests_total{method="GET",route="other",status="404"}': 1,
        'tokens_total{kind="prompt"}': 11,
        'tokens_total{kind="cached"}': 3,
        'tokens_total{kind="completion"}': 8,
        "time_to_first_token_seconds_count": 1,
        "time_per_token_seconds_count": 2,
        "running": 0,
        "waiting": 0,
        "capacity": 16,
        "queue_capacity": 64,
        "cancelled_total": 0,
        "rejected_total": 0,
        "up": 1,
    }
    for name, value in wanted.items():
        assert f"paretune_{name} {float(value)}\n" in text, name
    assert "made" not in text and "BREW" not in text

"""The small routes: models, objectives and the front, sense, health, the page's presence, the schema."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.server import schema
from paretune.server.limits import ServerLimits
from paretune.server.served import Served, read_front
from paretune.server.state import LONG, SENSES_WAITING
from server.conftest import SERVED, Running, soon
from server.fake_engine import FakeEngine


def get(tea: Running, path: str) -> Any:
    """JSON of a GET."""
    status, headers, data = tea.ask("GET", path)
    assert status == 200 and headers["content-type"] == "application/json", data
    return json.loads(data)


def test_the_one_model(tea: Running) -> None:
    (model,) = schema.ModelsAnswer.model_validate(get(tea, "/v1/models")).data
    assert model.id == "tea" and schema.ModelAnswer.model_validate(get(tea, "/v1/models/tea")) == model
    status, _, data = tea.ask("GET", "/v1/models/a/b")
    assert status == 404 and json.loads(data)["error"]["code"] == "model_not_found"


def test_a_name_with_a_slash_is_found(start: Callable[..., Running]) -> None:
    tea = start(served=replace(SERVED, name="house/tea"))
    assert get(tea, "/v1/models/house/tea")["id"] == "house/tea"
    assert tea.chat(model="house/tea")[0] == 200


def test_objectives_tell_what_can_be_asked_for(start: Callable[..., Running]) -> None:
    front = {"objectives": ["brevity"], "points": [{"name": "sensed", "values": {"brevity": 0.5}, "on_front": True}]}
    tea = start(served=replace(SERVED, front=front))
    told = get(tea, "/v1/objectives")
    schema.ObjectivesAnswer.model_validate(told)
    assert told["senses"] and told["takes_profile"] and not told["takes_weights"] and told["front"] == front
    assert [each["name"] for each in told["data"]] == ["brevity", "cheer"]
    assert told["data"][0] == {
        "name": "brevity",
        "direction": "maximise",
        "spec": "lexical:brevity",
        "phrases": [],
        "mean": 0.5,
    }


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/openapi.json", "/v1/models", "/v1/models/tea"])
def test_head_is_answered_as_get_is_without_a_body(tea: Running, path: str) -> None:
    status, headers, data = tea.ask("GET", path)
    found, told, nothing = tea.ask("HEAD", path)
    assert status == found == 200 and data and nothing == b""
    same = ("content-type",) if path == "/metrics" else ("content-type", "content-length")  # its counters move
    assert [told[each] for each in same] == [headers[each] for each in same]


def test_head_says_what_get_would_say(start: Callable[..., Running]) -> None:
    tea = start(keys=("sesame",))
    assert tea.ask("HEAD", "/health")[0] == 200 and tea.ask("HEAD", "/v1/models")[0] == 401
    tea.engine.dead = True
    assert tea.ask("HEAD", "/health")[0] == 503
    assert tea.ask("HEAD", "/v1/chat/completions", authorization="Bearer sesame")[0] == 405
    told = tea.ask("GET", "/metrics", authorization="Bearer sesame")[2].decode()
    assert 'paretune_requests_total{method="HEAD",route="/health",status="503"} 1.0' in told


def test_long_prompts_wait_for_each_other_and_short_ones_for_none(start: Callable[..., Running]) -> None:
    engine, entered, gate = FakeEngine(), threading.Event(), threading.Event()

    def slow(ask: Any) -> None:
        if len(ask.messages[0]["content"]) >= LONG:
            entered.set()
            assert gate.wait(20)

    engine.on_submit = slow
    tea = start(engine)
    with ThreadPoolExecutor(6) as pool:
        long = [pool.submit(tea.chat, "a" * LONG) for _ in range(6)]
        assert entered.wait(20) and soon(lambda: len(tea.server.server_state.connections) == 6)
        assert tea.chat("Hi")[0] == 200 and len(engine.tickets) == 1
        gate.set()
        assert [each.result()[0] for each in long] == [200] * 6


def test_paths_on_this_machine_are_not_told() -> None:
    from paretune.profile import Objective

    served = replace(SERVED, objectives=(Objective("kind", "trained:/home/ann/model"),))
    assert "/home" not in json.dumps(served.describe()) and served.describe()["data"][0]["spec"] == "trained"


def test_sense(tea: Running) -> None:
    status, answer = tea.post("/v1/sense", {"input": ["Hi", "Ho"], "profile": {"cheer": 1}})
    assert status == 200
    schema.SenseAnswer.model_validate(answer)
    assert answer["data"][1] == {
        "object": "sensed",
        "index": 1,
        "profile": {"brevity": 0.75, "cheer": 1.0},
        "interval": {"brevity": [0.6, 0.9], "cheer": [0.25, 0.75]},
    }
    one = tea.post("/v1/sense", {"model": "tea", "messages": [{"role": "user", "content": "Hi"}]})
    assert one[0] == 200 and one[1]["data"][0]["profile"] == {"brevity": 0.75, "cheer": 0.5}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "either 'messages'"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "either 'messages'"),
        ({"input": []}, "a text, or a list of texts"),
        ({"input": [5]}, "arrays of tokens"),
        ({"input": " "}, "empty"),
        ({"input": ["a"] * 5}, "4 texts, found 5"),
        ({"input": "a", "profile": {"cheer": 2}}, "less than or equal to 1"),
        ({"input": "a", "profile": {"joy": 1}}, "unknown objective 'joy'"),
        ({"input": "please refuse"}, "context is 512"),
    ],
)
def test_what_sense_refuses(tea: Running, body: dict[str, Any], said: str) -> None:
    status, answer = tea.post("/v1/sense", body)
    assert status == 400 and said in answer["error"]["message"]
    assert tea.post("/v1/sense", {"input": "a", "model": "other"})[0] == 404


def test_a_text_too_long_to_sense_names_its_field(tea: Running) -> None:
    bodies = {"input": ["a", "please refuse"], "messages": [{"role": "user", "content": "please refuse"}]}
    for name, value in bodies.items():
        status, answer = tea.post("/v1/sense", {name: value})
        assert (status, answer["error"]["param"]) == (400, name)
        assert answer["error"]["code"] == "context_length_exceeded"


def test_health_tells_what_runs(start: Callable[..., Running]) -> None:
    tea = start()
    assert get(tea, "/health") == {"status": "ok", "running": 0, "waiting": 0}
    tea.server.config.app.state.server.draining = True  # type: ignore[union-attr]
    status, _, data = tea.ask("GET", "/health")
    assert status == 503 and json.loads(data)["status"] == "stopping"
    assert tea.post("/v1/sense", {"input": "a"})[0] == 503
    tea.engine.stopping.set()
    assert tea.chat()[0] == 503


def test_the_schema_names_what_this_server_knows(tea: Running) -> None:
    told = get(tea, "/openapi.json")
    chat = told["components"]["schemas"]["ChatBody"]["properties"]
    assert chat["model"] == {"type": "string", "enum": ["tea"]}
    assert set(chat["profile"]["anyOf"][0]["properties"]) == {"brevity", "cheer"}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/sense", "/v1/models", "/v1/objectives"} <= set(
        told["paths"]
    )


def test_the_page_is_there(tea: Running) -> None:
    status, headers, _ = tea.ask("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]


def points(*names: str) -> dict[str, Any]:
    """A front as an evaluation writes it."""
    values = dict.fromkeys(names, 0.5)
    return {
        "objectives": list(names),
        "points": [{"name": "sensed", "kind": "natural", "values": values, "on_front": 1}],
    }


def test_the_front_of_an_evaluation(tmp_path: Path) -> None:
    def written(policies: Any) -> Path:
        (tmp_path / "metrics.json").write_text(json.dumps({"policies": policies}))
        return tmp_path

    wanted = {"objectives": ["a"], "points": [{"name": "sensed", "values": {"a": 0.5}, "on_front": True}]}
    assert read_front(written({"p": {"front": points("a"), "front_set": None}}), ["a", "b"]) == wanted
    both = {"other": {"front_set": points("x")}, "p": {"front_set": points("a"), "front": points("a", "b")}}
    assert read_front(written(both), ["a", "b"]) == wanted
    assert read_front(written({"p": {"front": None}}), ["a"]) is None
    with pytest.raises(InputError, match="other objectives than c"):
        read_front(written({"p": {"front": points("a")}}), ["c"])
    with pytest.raises(InputError, match="no evaluation's"):
        read_front(written([]), ["a"])
    broken = points("a")
    del broken["points"][0]["values"]
    with pytest.raises(InputError, match="cannot be read"):
        read_front(written({"p": {"front": broken}}), ["a"])
    for value in (float("nan"), float("inf"), 10**400, True, "0.5", None):  # no answer could say it
        broken["points"][0]["values"] = {"a": value}
        with pytest.raises(InputError, match="cannot be read"):
            read_front(written({"p": {"front": broken}}), ["a"])
    for axes in (7, "a", {"a": 1}, [["a"]], [None], None):
        with pytest.raises(InputError, match="other objectives than a"):
            read_front(written({"p": {"front": points("a") | {"objectives": axes}}}), ["a"])
    with pytest.raises(InputError, match="no such file"):
        read_front(tmp_path / "missing", ["a"])


@pytest.mark.parametrize("name", ["", "two\nlines"])
def test_a_name_that_no_client_can_say(name: str) -> None:
    class Policy:
        """A policy is not looked at before its name."""

    with pytest.raises(InputError, match="printable"):
        Served.of(Policy(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["body_bytes", "n", "deadline", "connections", "heartbeat"])
def test_limits_are_above_zero(field: str) -> None:
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=field):
            ServerLimits(**{field: value})


def test_too_many_that_wait_to_sense_are_told_to_come_back(start: Callable[..., Running]) -> None:
    held, release = threading.Semaphore(0), threading.Event()

    class Slow(FakeEngine):
        """Senses when it is let."""

        def sense(self, messages: Any, pins: Any) -> Any:
            held.release()
            assert release.wait(20)
            return super().sense(messages, pins)

    tea = start(Slow())
    with ThreadPoolExecutor(SENSES_WAITING) as pool:
        waiting = [pool.submit(tea.post, "/v1/sense", {"input": "a"}) for _ in range(SENSES_WAITING)]
        assert held.acquire(timeout=10)
        assert soon(lambda: tea.server.config.app.state.server._sensing == SENSES_WAITING)  # type: ignore[union-attr]
        status, headers, data = tea.ask("POST", "/v1/sense", {"input": "a"})
        assert status == 429 and headers["retry-after"] == "1"
        assert json.loads(data)["error"]["code"] == "rate_limit_exceeded"
        release.set()
        assert all(each.result()[0] == 200 for each in waiting)
    assert tea.post("/v1/sense", {"input": "a"})[0] == 200

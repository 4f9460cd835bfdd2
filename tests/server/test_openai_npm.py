"""OpenAI's own JavaScript client, from npm, against a tiny policy's server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paretune.policy import Policy
from paretune.server.engine import BatchEngine, EngineLimits
from paretune.server.served import Served
from server.conftest import Running, Starter, soon
from server.engine.listening import make, user

FILES = Path(__file__).parent / "npm"
PROMPT = user("Tell me a joke.")
UNREACHED = ("npm error network", "ECONN", "ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT", "E401", "E403", "E404", "proxy")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and the client of the lock file; skips where it cannot be had."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    for file in FILES.iterdir():
        shutil.copy(file, folder)
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=20000")
    try:
        done = subprocess.run(("npm", "ci", *quiet), cwd=folder, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode and any(each in done.stderr for each in UNREACHED):
        pytest.skip("the npm registry is not reached")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def policy(tiny_llama: Path) -> Policy:
    """The policy that is served."""
    return make(tiny_llama)


@pytest.fixture(scope="module")
def tea(policy: Policy) -> Iterator[Running]:
    """A server of it."""
    starter = Starter()
    yield starter(BatchEngine(policy, EngineLimits(max_batch=4)), served=Served.of(policy, "tea"))
    starter.stop()


def test_what_the_javascript_client_reads(client: Path, tea: Running, tiny_llama: Path) -> None:
    command = ("node", "client.mjs", tea.url)
    done = subprocess.run(command, cwd=client, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    alone = make(tiny_llama)
    wanted = alone.generate([PROMPT], max_new_tokens=12)[0]
    pinned = alone.generate([PROMPT], max_new_tokens=12, pins=[{"cheer": 0.75}])[0]

    assert found["chat"]["texts"] == [pinned.text] * 2 and found["chat"]["used"]["cheer"] == 0.75
    assert found["chat"]["reason"] == ("length" if pinned.tokens == 12 else "stop")
    assert found["chat"]["completion_tokens"] == 2 * pinned.tokens
    assert found["stream"]["text"] == found["accumulated"] == wanted.text
    assert found["stream"]["guided"] == pytest.approx(wanted.profile, abs=1e-5)
    assert len(found["stream"]["reasons"]) == 1
    assert found["stream"]["usage"]["choices"] == 0 and found["stream"]["usage"]["tokens"] > wanted.tokens
    assert found["models"] == ["tea"] and found["model"] == "paretune" and found["completion"] == "text_completion"
    assert found["errors"] == {
        "model": {"name": "NotFoundError", "status": 404, "param": "model", "code": "model_not_found"},
        "messages": {"name": "BadRequestError", "status": 400, "param": "messages", "code": "invalid_value"},
        "stream": {"name": "BadRequestError", "status": 400, "param": "profile.cheer", "code": "invalid_value"},
    }
    # an aborted stream and a request that is left, of long answers, free their places
    assert alone.generate([PROMPT], max_new_tokens=200)[0].tokens == 200
    assert found["aborted"] >= 3 and not found["finished"] and found["left"] == "APIUserAbortError"
    assert soon(lambda: tea.engine.load().running == 0 and tea.engine.load().waiting == 0)

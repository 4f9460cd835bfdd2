"""`examples/ray_serve.py`: two replicas on a local cluster, as a program of its own, and what needs no cluster."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import openai
import pytest
import typer
from prometheus_client import CollectorRegistry, Counter, generate_latest
from typer.testing import CliRunner

from paretune.policy.folder import save_policy
from paretune.server.run import bind
from server.conftest import soon
from server.engine.listening import make, user

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"
KEY = "sesame"
START = 240.0
"""Seconds for a cluster and two replicas to come up beside other work."""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("ray_serve", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_serve"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def test_counters_of_replicas_are_told_apart(example: ModuleType) -> None:
    counted = {}
    for replica, count in (("a", 2), ("b", 3)):
        registry = CollectorRegistry()
        Counter("tea", "Cups.", ("kind",), registry=registry).labels("green").inc(count)
        counted[replica] = list(registry.collect())
    text = generate_latest(example.Merged(counted)).decode()
    assert text.count("# TYPE tea_total counter") == 1
    assert 'tea_total{kind="green",replica="a"} 2.0' in text and 'tea_total{kind="green",replica="b"} 3.0' in text


def test_what_is_wrong_is_told_before_a_cluster_starts(
    example: ModuleType, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "connect", lambda *_: pytest.fail("a cluster was started"))
    cli = typer.Typer()
    cli.command()(example.main)
    policy, keys = tmp_path / "tea", tmp_path / "keys"
    save_policy(make(tiny_llama), policy, metrics={})
    keys.write_text("")
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        for arguments, said in (
            ([tmp_path], "policy.json"),
            ([policy, "--report", tmp_path], "metrics.json"),
            ([policy, "--api-key-file", keys], "holds no key"),
            ([policy, "--port", taken.getsockname()[1]], "is in use"),
            ([policy, "--port", 0, "--name", ""], "name"),
            ([policy, "--drain", "nan"], "--drain"),
            ([policy, "--replicas", 3, "--max-replicas", 2], "--max-replicas 2 is below --replicas 3"),
        ):
            done = CliRunner().invoke(cli, list(map(str, arguments)))
            assert done.exit_code == 2 and said in done.stderr, (arguments, done.output)


class Cluster:
    """The running example."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def client(self, key: str = KEY, **settings: object) -> openai.OpenAI:
        """OpenAI's client, which tries nothing again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60, **settings)

    def ask(self, **fields: object) -> tuple[str, str]:
        """(replica, answer) to one question."""
        with self.client() as client:
            asked = {"model": "tea", "messages": user("Hi"), "max_tokens": 8, "seed": 3} | fields
            raw = client.chat.completions.with_raw_response.create(**asked)
        return raw.headers["x-replica"], raw.parse().choices[0].message.content

    def metrics(self) -> str:
        """All replicas' counters."""
        with self.client() as client:
            return client._client.get(f"{self.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text

    def up(self) -> set[str]:
        """Replicas whose engine works."""
        return set(re.findall(r'paretune_up\{replica="(\w+)"\} 1\.0', self.metrics()))

    def cancelled(self) -> float:
        """Requests whose client left, at all replicas."""
        return sum(map(float, re.findall(r"paretune_cancelled_total\{.*\} (\S+)", self.metrics())))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Cluster]:
    """Two replicas of a tiny policy behind a key, each with room for one answer and two that wait."""
    pytest.importorskip("grpc", reason="needs ray[serve]")
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    folder = tmp_path_factory.mktemp("ray")
    save_policy(make(tiny_llama), folder / "tea", metrics={})
    command = [sys.executable, EXAMPLE, folder / "tea", "--replicas", "2", "--port", "0", "--by-session"]
    command += ["--max-batch", "1", "--queue", "2", "--drain", "30"]
    env = os.environ | {"PARETUNE_API_KEYS": KEY, "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}
    with (folder / "out").open("w") as out, (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=out, stderr=log, text=True, env=env)
    try:
        served = re.compile(r"tea is served at (\S+) by 2 replicas\n")
        assert soon(lambda: served.search((folder / "out").read_text()) or process.poll() is not None, START)
        found = served.search((folder / "out").read_text())
        assert found, (folder / "log").read_text()
        yield Cluster(process, found[1], folder / "log")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(90)


def in_both(ask: Callable[[], tuple[str, str]]) -> dict[str, set[str]]:
    """Replica -> its answers, asked until two replicas answered."""
    found: dict[str, set[str]] = {}
    end = time.monotonic() + 60
    while len(found) < 2:
        assert time.monotonic() < end, found
        replica, text = ask()
        found.setdefault(replica, set()).add(text)
    return found


@pytest.mark.slow
def test_both_replicas_answer_and_the_same_seed_is_the_same_answer(cluster: Cluster) -> None:
    found = in_both(cluster.ask)
    assert len(set.union(*found.values())) == 1
    assert set(found) == cluster.up()
    for replica in found:
        assert f"replica {replica} has tea on " in cluster.log.read_text()


@pytest.mark.slow
def test_a_session_stays_at_one_replica_and_finds_its_cache(cluster: Cluster) -> None:
    seen = {}
    for session in range(8):
        header = {"x-session-id": f"session {session}"}
        seen[session] = {cluster.ask(extra_headers=header)[0] for _ in range(3)}
        assert len(seen[session]) == 1
    assert len(set.union(*seen.values())) == 2  # eight sessions at one replica: once in 128 draws of the names
    assert 'paretune_tokens_total{kind="cached"' in cluster.metrics()


@pytest.mark.slow
def test_every_replica_asks_for_the_key(cluster: Cluster) -> None:
    with cluster.client("wrong") as client:
        for _ in range(6):
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
        assert client._client.get(f"{cluster.url}/metrics").status_code == 401
        assert client._client.get(f"{cluster.url}/health").status_code == 200


@pytest.mark.slow
def test_a_full_replica_s_refusal_reaches_the_client(cluster: Cluster) -> None:
    def ask(seed: int) -> str | None:
        try:
            cluster.ask(seed=seed, max_tokens=100)
        except openai.RateLimitError as error:
            return error.response.headers["retry-after"]
        return None

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, range(24)))
    refused = [each for each in found if each is not None]
    assert refused and all(int(each) > 0 for each in refused)
    assert None in found


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_place(cluster: Cluster) -> None:
    before = cluster.cancelled()
    with cluster.client() as client:
        fields = {"model": "tea", "messages": user("Hi"), "max_tokens": 400, "stream": True}
        stream = client.chat.completions.create(**fields)
        next(iter(stream))
        stream.close()
    assert soon(lambda: cluster.cancelled() == before + 1)
    assert soon(lambda: "} 1.0" not in "".join(re.findall("paretune_running.*", cluster.metrics())))


@pytest.mark.slow
def test_a_replica_that_is_killed_is_replaced(cluster: Cluster) -> None:
    before = cluster.up()
    replica, process = re.findall(r"replica (\w+) has tea on cpu, process (\d+)", cluster.log.read_text())[-1]
    os.kill(int(process), signal.SIGKILL)
    assert soon(lambda: len(up := cluster.up()) == 2 and replica not in up, START)
    assert len(cluster.up() & before) == 1
    assert in_both(cluster.ask)


@pytest.mark.slow
def test_the_end_lets_a_running_stream_finish(cluster: Cluster) -> None:
    with cluster.client() as client:
        fields = {"model": "tea", "messages": user("Hi"), "max_tokens": 400, "seed": 1, "stream": True}
        stream = client.chat.completions.create(**fields)
        chunks = iter(stream)
        next(chunks)
        cluster.process.send_signal(signal.SIGTERM)
        assert soon(lambda: client._client.get(f"{cluster.url}/health").status_code == 404)  # nothing new is taken
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] in ("stop", "length")
    assert cluster.process.wait(90) == 0
    with cluster.client() as client, pytest.raises(openai.APIConnectionError):
        client.models.list()

"""A server under many requests of every kind, a third of them cancelled: nothing lost, nothing mixed up, no growth."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from paretune.policy import save_policy
from paretune.server.engine import BatchEngine, EngineLimits
from paretune.server.limits import ServerLimits
from paretune.server.served import Served
from server.conftest import Running, soon
from server.engine.listening import make
from server.soak.process import serving
from server.soak.soaking import Soak, gauge, questions

MIB = 1 << 20


def check(soak: Soak, requests: int) -> None:
    """Every request is accounted for, every kind came, and every answer belongs to its question."""
    assert soak.wrong == []
    assert sum(soak.counts.values()) == requests, soak.counts
    assert soak.counts["cancelled"] > requests / 10 and soak.counts["known"] > requests / 3
    assert soak.counts["bad"] and soak.counts["new"]


def at_rest(metrics: Callable[[], str]) -> bool:
    """Does nothing run, and nothing wait?"""
    return soon(lambda: not any(gauge(metrics(), f"paretune_{name}") for name in ("running", "waiting")), 20)


def test_three_hundred_requests(tiny_llama: Path, start: Callable[..., Running]) -> None:
    policy = make(tiny_llama)
    engine = BatchEngine(policy, EngineLimits(max_batch=8, max_queue=256, prefix_cache_mib=1))
    tea = start(engine, served=Served.of(policy, "tea"), limits=ServerLimits(body_bytes=1 << 18))
    soak = Soak(tea.url, questions(3))
    soak.wanted = asyncio.run(soak.alone())
    assert len({str(each) for each in soak.wanted}) == len(soak.wanted)  # no answer can pass for another one's
    asyncio.run(soak.run(300, patience=0.3))
    check(soak, 300)
    assert at_rest(lambda: tea.ask("GET", "/metrics")[2].decode())
    assert gauge(tea.ask("GET", "/metrics")[2].decode(), "paretune_cancelled_total") > 0
    assert asyncio.run(soak.alone()) == soak.wanted


@pytest.mark.slow
def test_ten_thousand_requests_in_flat_memory(tiny_llama: Path, tmp_path: Path) -> None:
    save_policy(make(tiny_llama), tmp_path / "tea", metrics={})
    with serving(tmp_path / "tea", "--port", 0, "--prefix-cache", 1, "--queue", 256, "--no-access-log") as server:
        soak, rss = Soak(server.url), list[int]()
        soak.wanted = asyncio.run(soak.alone())
        asyncio.run(soak.run(10_000, patience=0.5, watch=lambda done: rss.append(server.rss())))
        check(soak, 10_000)
        assert at_rest(lambda: httpx2.get(f"{server.url}/metrics").text)
        warm, last = statistics.median(rss[10:30]), statistics.median(rss[-20:])
        figures = {name: round(value / MIB, 1) for name, value in (("warm", warm), ("last", last), ("most", max(rss)))}
        print(json.dumps({"requests": dict(soak.counts), "rss_mib": figures, "threads": server.threads()}))
        assert last - warm < 32 * MIB, figures  # 10 KiB a request would be three times that
        assert asyncio.run(soak.alone()) == soak.wanted

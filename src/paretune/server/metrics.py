"""What `/metrics` tells, in Prometheus' text format: requests, tokens, times, and what the engine does now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from paretune.server.request import Engine, Load

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """The counters of one server; a registry of its own, so that several live in one process."""

    def __init__(self, engine: Engine) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "paretune_requests",
            "Requests by route, method and status.",
            ("route", "method", "status"),
            registry=registry,
        )
        self.tokens = Counter(
            "paretune_tokens",
            "Tokens: of prompts, of these from the prefix cache, and generated.",
            ("kind",),
            registry=registry,
        )
        self.cancelled = Counter("paretune_cancelled", "Requests whose client left.", registry=registry)
        self.rejected = Counter("paretune_rejected", "Requests refused because the queue is full.", registry=registry)
        self.first = Histogram(
            "paretune_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_FIRST,
            registry=registry,
        )
        self.each = Histogram(
            "paretune_time_per_token_seconds",
            "Between two tokens of an answer, the mean of each answer.",
            buckets=_EACH,
            registry=registry,
        )
        self.whole = Histogram(
            "paretune_request_seconds", "From arrival to the end.", ("route",), buckets=_WHOLE, registry=registry
        )
        for kind in ("prompt", "cached", "completion"):
            self.tokens.labels(kind)
        registry.register(_Now(engine.load))

    def watch(self) -> Stopwatch:
        """A stopwatch for a request that begins now."""
        return Stopwatch(self)


class _Now(Collector):
    """The engine's load, read when it is asked for."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            now, alive = self._load(), 1
        except RuntimeError:  # an engine that died
            now, alive = Load(0, 0, 0, 0), 0
        for name, value, said in (
            ("up", alive, "1 while the engine works."),
            ("running", now.running, "Answers in the running batch."),
            ("waiting", now.waiting, "Requests that wait for a place in it."),
            ("capacity", now.capacity, "Answers that the batch has room for."),
            ("queue_capacity", now.queue, "Requests that may wait."),
        ):
            yield GaugeMetricFamily(f"paretune_{name}", said, value)


class Stopwatch:
    """Times of one request's answers, from its arrival on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        self._first: dict[int, float] = {}

    def began(self, prompt: int, cached: int) -> None:
        """A prompt is computed."""
        self._metrics.tokens.labels("prompt").inc(prompt)
        self._metrics.tokens.labels("cached").inc(cached)

    def token(self, answer: int) -> None:
        """A token of an answer came."""
        if answer not in self._first:
            self._first[answer] = time.monotonic()
            if len(self._first) == 1:
                self._metrics.first.observe(self._first[answer] - self._start)

    def ended(self, answer: int, tokens: int) -> None:
        """An answer is over."""
        self._metrics.tokens.labels("completion").inc(tokens)
        if answer in self._first and tokens > 1:
            self._metrics.each.observe((time.monotonic() - self._first[answer]) / (tokens - 1))

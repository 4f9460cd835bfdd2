"""Many replicas of `paretune serve` behind one address, by Ray Serve: one policy, its API, its page.

    pip install 'paretune[serve]' 'ray[serve]>=2.60'
    python examples/ray_serve.py POLICY --replicas 2 [--gpus 1] [--max-replicas 8] [--api-key-file keys.txt]

Each replica is a process with the whole policy and an engine of its own, and answers as `paretune serve` does. The
proxy of Ray Serve takes the connections and gives each request to the less busy of two replicas drawn at random. With
`--by-session` requests with the same `x-session-id` header go to the same replica, which has the earlier turns of the
chat in its cache. Every answer has the header `x-replica`; `/metrics` asks all replicas, and its label `replica` tells
them apart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretune.cli.output import complain, say
from paretune.errors import InputError, check_number

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client import Metric
    from ray.serve import Application
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

APP = "paretune"
SPARE = 64
"""Requests that are not answers (health, metrics, the page), for which a replica with a full queue has room."""
GRACE = 15.0
"""Seconds in which Ray notices that a replica is gone, beyond those that answers are given."""
PATIENCE = 5.0
"""Seconds to wait for a replica's counters."""


@dataclass(frozen=True)
class Recipe:
    """What a replica is made from. `keys` are digests: no key leaves the process that read it."""

    policy: Path
    name: str
    base: str | None
    dtype: str | None
    front: dict[str, Any] | None
    max_batch: int
    queue: int
    keys: tuple[bytes, ...]
    hosts: tuple[str, ...] | None

    def app(self, replica: str) -> FastAPI:
        """The server's own application over an engine in this process, and a line in the log that tells of it."""
        from paretune.policy import load_policy
        from paretune.server.app import create_app
        from paretune.server.engine import BatchEngine, EngineLimits
        from paretune.server.served import Served

        policy = load_policy(self.policy, base=self.base, dtype=self.dtype)
        served = Served.of(policy, self.name, front=self.front)
        engine = BatchEngine(policy, EngineLimits(max_batch=self.max_batch, max_queue=self.queue))
        where = policy.causal.device
        logging.getLogger("ray.serve").info(
            "replica %s has %s on %s, process %d", replica, self.name, where, os.getpid()
        )
        return create_app(engine, served, keys=self.keys, hosts=self.hosts)


class Named:
    """Says with each answer which replica gave it, and counts the clients that left.

    Ray cancels the request of a client that left, where uvicorn tells the application of it, which counts it then.
    """

    def __init__(self, app: ASGIApp, replica: str, left: Callable[[], None]) -> None:
        self._app, self._header, self._left = app, (b"x-replica", replica.encode()), left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), self._header]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] == "http":
                self._left()
            raise


class Merged:
    """The counters of all replicas, each sample with the label `replica`; a registry that can be written as text."""

    def __init__(self, counted: Mapping[str, Iterable[Metric]]) -> None:
        self._counted = counted

    def collect(self) -> Iterable[Metric]:
        """One family a metric."""
        from prometheus_client import Metric

        families: dict[str, Metric] = {}
        for replica, metrics in sorted(self._counted.items()):
            for each in metrics:
                family = families.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                for sample in each.samples:
                    family.add_sample(sample.name, sample.labels | {"replica": replica}, sample.value)
        return families.values()


async def metrics_of_all() -> Any:
    """The answer of `/metrics`, without replicas that died; one that does not tell in time fails it."""
    from prometheus_client import generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from ray import serve
    from starlette.responses import Response

    asked = serve.get_deployment_handle(APP, APP).broadcast("counters")
    told = await asked.results_async(timeout_s=PATIENCE, return_exceptions=True)
    merged = Merged(dict(each for each in told if not isinstance(each, BaseException)))
    return Response(generate_latest(merged), media_type=CONTENT_TYPE_LATEST)  # type: ignore[arg-type]


def deployment(
    recipe: Recipe, *, cpus: float, gpus: float, drain: float, by_session: bool, **count: Any
) -> Application:
    """What Ray Serve runs. `count`: `num_replicas`, or `autoscaling_config`."""
    from ray import serve

    def build() -> FastAPI:
        replica = serve.get_replica_context().replica_id.unique_id
        app = recipe.app(replica)
        app.add_middleware(Named, replica=replica, left=app.state.server.metrics.cancelled.inc)
        app.add_api_route("/metrics", metrics_of_all, include_in_schema=False)
        app.router.routes.insert(0, app.router.routes.pop())  # before the one that tells of this replica alone
        return app

    # the replica's own queue is what says 429, so those of Ray must not be full before it
    room = recipe.max_batch + recipe.queue + SPARE
    router = {"request_router_class": "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"}

    @serve.deployment(
        name=APP,
        max_ongoing_requests=room,
        max_queued_requests=room,  # at a proxy, which says 503 beyond
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        graceful_shutdown_timeout_s=drain,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=1,  # a policy that cannot be loaded will not be loaded the next time
        **({"request_router_config": router} if by_session else {}),
        **count,
    )
    @serve.ingress(build)
    class Replica:
        """One process of the policy; the application is built in it, for a model cannot be sent."""

        app: Any

        def check_health(self) -> None:
            """Raises what an engine that died raises, and Ray starts another replica."""
            self.app.state.server.engine.load()

        def counters(self) -> tuple[str, list[Metric]]:
            """This replica's name and its counters."""
            replica = serve.get_replica_context().replica_id.unique_id
            return replica, list(self.app.state.server.metrics.registry.collect())

    return Replica.bind()


def stop(drain: float) -> None:
    """Take nothing more, let running answers finish while the proxy still passes them on, then end Ray Serve."""
    from ray import serve

    serve.delete(APP, _blocking=False)  # blocking, it gives up after a minute
    end = time.monotonic() + drain + GRACE
    while APP in serve.status().applications and time.monotonic() < end:
        time.sleep(0.2)
    serve.shutdown()


def until_told() -> None:
    """Wait for SIGTERM or Ctrl-C; after it, another one ends the process at once."""
    told = threading.Event()

    def tell(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        told.set()

    for each in (signal.SIGINT, signal.SIGTERM):  # now, because Ray puts handlers of its own in their place
        signal.signal(each, tell)
    told.wait()


def connect(address: str, cpus: float) -> None:
    """Join a cluster, or start one on this machine. Raises `InputError`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.serve
    except ImportError as error:
        raise InputError(
            f"this needs Ray Serve ({error.name} is missing); run: pip install 'ray[serve]>=2.60'"
        ) from None
    own: dict[str, Any] = {}
    if address == "local":
        own = {"include_dashboard": False, "num_cpus": max(cpus, os.cpu_count() or 1)}
    try:
        ray.init(address=address, **own)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"there is no Ray cluster at '{address}': {error}") from None


def main(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="A policy folder; on a cluster, on every node.")],
    replicas: Annotated[int, typer.Option(min=1, help="Processes that each hold the policy.")] = 1,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="Grow up to this when batches are full.")] = None,
    cpus: Annotated[float, typer.Option(min=0.0, help="Of each replica: its threads, too.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0.0, help="Of each replica; 0.5 lets two share one.")] = 0.0,
    host: Annotated[str, typer.Option(help="Address of the proxy; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the proxy; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name. Default: the policy folder's.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys, one a line. $PARETUNE_API_KEYS: with commas.")
    ] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="A further name that requests may use.")] = None,
    base: Annotated[str | None, typer.Option(help="Where the base model is, if not where it was in training.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. Default: as in training.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="An evaluation of the policy, whose front the page shows.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Answers that a replica writes at a time.")] = 32,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait at a replica.")] = 256,
    drain: Annotated[float, typer.Option(min=0.0, help="Seconds for running answers when it is stopped.")] = 30.0,
    by_session: Annotated[bool, typer.Option(help="The same x-session-id header, the same replica.")] = False,
    address: Annotated[str, typer.Option(help="A Ray cluster's; auto joins this machine's.")] = "local",
) -> None:
    """Serve a policy by many replicas on a Ray cluster, until SIGTERM or Ctrl-C."""
    from paretune.policy.folder import read_objectives
    from paretune.server.guard import hosts_of, is_loopback, read_keys
    from paretune.server.run import address_of, bind
    from paretune.server.served import check_name, read_front

    try:
        check_number(drain, "--drain")
        if max_replicas is not None and max_replicas < replicas:
            raise InputError(f"--max-replicas {max_replicas} is below --replicas {replicas}")
        names = [each.name for each in read_objectives(policy)]  # a folder that is none is told before a cluster is up
        front = read_front(report, names) if report is not None else None
        keys = read_keys((), api_key_file, os.environ.get("PARETUNE_API_KEYS"))
        with bind(host, port) as sock:  # the proxy would only log that its port is in use
            url, (bound, free) = address_of(sock), sock.getsockname()[:2]
        hosts = hosts_of(host, bound, allow_host or (), keys)
        if not is_loopback(bound) and not keys:
            complain(f"bound to {host} without an API key: whoever reaches it can use it", "warning: ")
        folder = policy.resolve()
        recipe = Recipe(
            folder,
            check_name(folder.name if name is None else name),
            base,
            dtype,
            front,
            max_batch,
            queue,
            keys,
            hosts,
        )
        connect(address, (max_replicas or replicas) * cpus)
    except InputError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    count: dict[str, Any] = {"num_replicas": replicas}
    if max_replicas is not None:
        growth = {"min_replicas": replicas, "max_replicas": max_replicas, "target_ongoing_requests": max_batch}
        count = {"autoscaling_config": growth}
    app = deployment(recipe, cpus=cpus, gpus=gpus, drain=drain, by_session=by_session, **count)
    serve_until_told(
        app, bound, free, drain, f"{recipe.name} is served at {url} by {replicas} replica{'s' * (replicas > 1)}"
    )


def serve_until_told(app: Application, host: str, port: int, drain: float, ready: str) -> None:
    """Deploy on the cluster that this process is connected to, say that it is ready, and drain at the end."""
    from ray import serve

    serve.start(http_options={"host": host, "port": port, "keep_alive_timeout_s": 65})
    try:
        serve.run(app, name=APP)
    except RuntimeError as error:
        complain(f"{error} The log above says why.")
        serve.shutdown()
        raise typer.Exit(1) from None
    say(ready)
    until_told()
    stop(drain)


if __name__ == "__main__":
    cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    cli.command()(main)
    cli()

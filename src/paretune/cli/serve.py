"""`paretune serve`: a policy behind OpenAI's API, and the page."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretune.cli.options import Base, PolicyFolder
from paretune.cli.output import complain, say

if TYPE_CHECKING:
    from paretune.server.request import Engine
    from paretune.server.served import Served


def serve(
    policy: PolicyFolder,
    host: Annotated[str, typer.Option("--host", help="Address to bind; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to bind; 0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name in the API. Default: the policy folder's.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="KEY", help="Ask for this key. Repeatable; seen by who lists processes."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", help="Keys, one a line. $PARETUNE_API_KEYS: with commas."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="batch|vllm", help="What computes: this package's own batches, or vLLM.")
    ] = "batch",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="float32|bfloat16|float16", help="Precision. Default: the one of training."),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Answers written at a time.")] = 32,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option("--max-batch-tokens", min=1, help="Tokens of all of them, prompts and all. Default: 32768."),
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Requests that may wait for a place; more are told to come back.")
    ] = 256,
    prefix_cache: Annotated[
        int | None,
        typer.Option("--prefix-cache", metavar="MIB", min=0, help="For prompts seen before; 0 is none. Default: 256."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest answer that a request may ask for.")
    ] = 4096,
    default_tokens: Annotated[
        int, typer.Option("--default-tokens", min=1, help="Longest answer in a chat whose request names no length.")
    ] = 1024,
    max_n: Annotated[int, typer.Option("--max-n", min=1, help="Answers one request may ask for.")] = 32,
    max_body: Annotated[float, typer.Option("--max-body", metavar="MIB", help="Largest request body.")] = 4.0,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="After it an answer ends with what it has.")
    ] = 600.0,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, max=2.0, help="For requests that name none, as OpenAI's.")
    ] = 1.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", min=0.0, help="For running answers when it is stopped.")
    ] = 30.0,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FOLDER",
            help="An evaluation of the policy, whose front the page shows. Default: a `report` beside the policy.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="URL", help="A web origin whose pages may ask (CORS). Repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A further name that requests may use. Repeatable."),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="A line on stderr for each request; never its content.")
    ] = True,
    base: Base = None,
) -> None:
    """Serve a policy by OpenAI's API, and a page to try it at /.

    Answers are guided by what the policy senses; the extra fields `profile` (pins), `weights` and `sense` steer it.
    SIGTERM and Ctrl-C let running answers finish.
    """
    from paretune.errors import InputError, check_number
    from paretune.server.guard import check_origin, hosts_of, is_loopback, read_keys
    from paretune.server.limits import ServerLimits
    from paretune.server.served import check_name

    check_number(max_body, "--max-body")
    check_number(drain, "--drain")
    limits = ServerLimits(
        body_bytes=int(max_body * 2**20),
        n=max_n,
        output_tokens=max_tokens,
        default_tokens=default_tokens,
        deadline=deadline,
    )
    keys = read_keys(api_key or (), api_key_file, os.environ.get("PARETUNE_API_KEYS"))
    if engine not in ("batch", "vllm"):
        raise InputError(f"unknown engine '{engine}'; there are batch and vllm")
    if engine == "vllm" and (max_batch_tokens is not None or prefix_cache is not None):
        raise InputError("--max-batch-tokens and --prefix-cache are for --engine batch; vLLM sizes its own memory")
    for origin in allow_origin or ():
        check_origin(origin)
    _need_packages()
    from paretune.server.app import create_app
    from paretune.server.run import address_of, bind
    from paretune.server.run import serve as run

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    # it warns of each broken request, of which anybody can send any number
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("paretune.server.access").setLevel(logging.INFO if access_log else logging.WARNING)
    model = check_name(name if name is not None else policy.resolve().name)
    settings = _Settings(policy, base, dtype, model, report, max_batch, max_batch_tokens, queue, prefix_cache)
    sock = bind(host, port)
    try:
        address = sock.getsockname()[0]
        hosts = hosts_of(host, address, allow_host or (), keys)
        computing, served = settings.vllm() if engine == "vllm" else settings.batch()
        if not is_loopback(address) and not keys:
            complain(f"bound to {host} without an API key: whoever reaches it can use it", "warning: ")
        app = create_app(
            computing,
            served,
            limits=limits,
            keys=keys,
            origins=allow_origin or (),
            hosts=hosts,
            temperature=temperature,
        )
        run(app, sock, drain=drain, ready=lambda: say(f"{served.name} is served at {address_of(sock)}"))
    finally:
        sock.close()


def _need_packages() -> None:
    """Raises `InputError` where the extra `serve` is not installed."""
    from importlib.util import find_spec

    from paretune.errors import InputError

    packages = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client", "nh3": "nh3"}
    packages["markdown_it"] = "markdown-it-py"
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise InputError(f"serving needs {', '.join(missing)}; run: pip install 'paretune[serve]'")


@dataclass(frozen=True)
class _Settings:
    """What an engine is made from."""

    policy: Path
    base: str | None
    dtype: str | None
    name: str
    report: Path | None
    max_batch: int
    max_batch_tokens: int | None
    queue: int
    prefix_cache: int | None

    def batch(self) -> tuple[Engine, Served]:
        """The package's own engine, on this machine."""
        from paretune.policy import load_policy
        from paretune.server.engine import BatchEngine, EngineLimits
        from paretune.server.served import Served

        # merged where it is one model: a step is faster, and the answers are the same up to rounding
        policy = load_policy(self.policy, base=self.base, dtype=self.dtype).fuse()
        memory = {"max_batch_tokens": self.max_batch_tokens, "prefix_cache_mib": self.prefix_cache}
        given = {name: value for name, value in memory.items() if value is not None}
        limits = EngineLimits(max_batch=self.max_batch, max_queue=self.queue, **given)
        served = Served.of(policy, self.name, front=self._front(policy.names))
        return BatchEngine(policy, limits), served

    def vllm(self) -> tuple[Engine, Served]:
        """vLLM's engine, where it is installed."""
        from paretune.server.served import Served
        from paretune.server.vllm import VLLMEngine

        engine = VLLMEngine.of(
            self.policy, base=self.base, dtype=self.dtype, queue=self.queue, max_batch=self.max_batch
        )
        return engine, Served.of(engine.policy, self.name, front=self._front(engine.policy.names))

    def _front(self, names: Sequence[str]) -> dict[str, Any] | None:
        """The front of the evaluation that was given, else of a `report` beside the policy where there is a fitting
        one."""
        from paretune.errors import InputError
        from paretune.server.served import read_front

        if self.report is not None:
            return read_front(self.report, names)
        beside = self.policy.resolve().parent / "report"
        if not (beside / "metrics.json").is_file():
            return None
        try:
            return read_front(beside, names)
        except InputError as error:
            complain(f"no front is shown: {error}", "note: ")
            return None


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(serve)

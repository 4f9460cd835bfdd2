"""What serving costs: clients at once against one after another, guided against plain, and `transformers serve`.

    python benchmarks/serving.py [--json] [--policy FOLDER] [--requests 16] [--prompt 48] [--new 32] [--rounds 2]
                                 [--threads 1] [--theirs plain|batching|none] [--model FOLDER] [--small]

Starts `paretune serve` as a process of its own, and `transformers serve` on the same model, merged. Every arm answers
as many requests over HTTP, streamed, greedy, with prompts that no arm saw before; in each round all arms run once, in
turning order, and a server whose turn it is not is stopped. Ratios are medians over rounds:

    throughput_ratio_16_sequential       output tokens a second of 16 clients at once / of one client, one request
                                         after another
    throughput_ratio_16_generate         the same / of `Policy.generate`, prompt after prompt, without a server
    time_ratio_guided_plain              seconds an output token of 16 clients: self-guided chats / completions of the
                                         text that the guided ones were answered from (same tokens, nothing sensed)
    throughput_ratio_transformers_serve  output tokens a second of 16 clients: guided chats here / completions of that
                                         same text there

Without `--policy` the model is the demo's (or `--model`) with a fresh adapter and head: they have learnt nothing, and
the work is the same. The prompts ask to count, so that hardly an answer ends before `--new` tokens. No server is told
to write on past the end of an answer, so throughput is of the tokens that came: those of the answers' text, by one
tokenizer for all arms. Where `transformers serve` is not installed or does not start, its arm is left out, and why is
said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import run

from paretune.demo import demo_model
from paretune.errors import InputError, check_whole

NAMES = ("helpfulness", "depth", "formality")
CLIENTS = (1, 4, 16)
MANY = CLIENTS[-1]
FILLER = "Think of the rows of a very long table that somebody else will read aloud tomorrow to a large class. "
START = 240.0
"""Seconds a server may take to load its model."""


@dataclass
class Answers:
    """What an arm's run took: `first` and `gaps` are seconds to the first piece of an answer, and then a token."""

    seconds: float
    tokens: int = 0
    texts: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def add(self, text: str, tokens: int, begun: float, moments: Sequence[float]) -> None:
        """One answer more, asked for at `begun`, whose pieces came at these moments."""
        self.texts.append(text)
        self.tokens += tokens
        if moments:
            self.first.append(moments[0] - begun)
            if tokens > 1:
                self.gaps.append((moments[-1] - moments[0]) / (tokens - 1))

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


@dataclass
class Server:
    """A server that listens, in a process of its own."""

    url: str
    model: str
    process: subprocess.Popen[bytes]

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """It runs only meanwhile, so that an idle one takes nothing from the others."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)


def fresh_policy(model: Path, folder: Path, dtype: str) -> None:
    """A policy folder of a model with an adapter and a head that have learnt nothing."""
    import torch

    from paretune.policy import Policy, Renderer
    from paretune.policy.backbone import hidden_size, load_backbone
    from paretune.policy.folder import save_policy
    from paretune.policy.head import HeadConfig, SensingHead
    from paretune.profile import Objective, Scale
    from paretune.training import TrainConfig
    from paretune.training.module import add_adapter

    causal, tokenizer = load_backbone(str(model), dtype=dtype)
    torch.manual_seed(0)
    peft = add_adapter(causal, TrainConfig(lora_dropout=0.0))
    objectives = [Objective(name, f"column:{name}", scale=Scale("fixed"), scale_kind="fixed") for name in NAMES]
    causal = peft.get_base_model()
    policy = Policy(
        causal=causal,
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, objectives),
        objectives=objectives,
        method="sga",
        base=str(model),
        head=SensingHead(hidden_size(causal), len(NAMES), HeadConfig()).eval(),
        peft=peft.eval(),
        metadata={"dtype": str(causal.dtype).removeprefix("torch."), "adapter": True, "data": {"path": "none"}},
    )
    save_policy(policy, folder, metrics={})


def questions(policy: Any, count: int, tokens: int, seed: str) -> list[str]:
    """Prompts that ask for a long answer, of about that many tokens each, no two alike from their first words on."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        begin = draw.randrange(10**6)
        ask = f"Count from {begin} to {begin + 500}, every number on a line of its own, and write nothing else. "
        filler = FILLER * (tokens // 10)
        ids = policy.tokenizer(ask + filler, add_special_tokens=False)["input_ids"][: max(8, tokens)]
        out.append(policy.tokenizer.decode(ids, skip_special_tokens=True).strip())
    return out


def free_port() -> int:
    """A port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def serving(command: Sequence[str], model: str, threads: int, log: Path) -> Iterator[Server]:
    """A server started by a command that takes `--port`, when it answers."""
    port = free_port()
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        wait_for(port, process, log)
        yield Server(f"http://127.0.0.1:{port}", model, process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when `/health` answers 200; raise `InputError` with the log's end when it never does."""
    import http.client

    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.2)
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise InputError(f"the server did not start: {' / '.join(said) or 'it said nothing'}")


Ask = Callable[[Any, str, int], Awaitable[tuple[str, list[float]]]]
"""(client, prompt, tokens) -> the answer's text and the moments at which pieces of it came."""

Count = Callable[[str], int]
"""The tokens of a text."""


def chat(model: str, **extra: Any) -> Ask:
    """Asks a chat of one message."""

    async def ask(client: Any, prompt: str, new: int) -> tuple[str, list[float]]:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=new,
            stream=True,
            extra_body=extra,
        )
        return await read(stream, lambda choice: choice.delta.content)

    return ask


def complete(model: str) -> Ask:
    """Asks to continue a text."""

    async def ask(client: Any, prompt: str, new: int) -> tuple[str, list[float]]:
        stream = await client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=new, stream=True)
        return await read(stream, lambda choice: choice.text)

    return ask


async def read(stream: Any, text_of: Callable[[Any], str | None]) -> tuple[str, list[float]]:
    """The text of a streamed answer, and when its pieces came."""
    moments, pieces = [], []
    async for chunk in stream:
        if chunk.choices and (text := text_of(chunk.choices[0])):
            moments.append(time.perf_counter())
            pieces.append(text)
    return "".join(pieces), moments


def drive(server: Server, ask: Ask, prompts: Sequence[str], new: int, clients: int, count: Count) -> Answers:
    """Ask all prompts, `clients` at a time. Raises `InputError` when the server does not answer."""
    import openai

    replies: list[tuple[float, str, list[float]]] = []

    async def main() -> float:
        waiting = list(reversed(prompts))
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:

            async def work() -> None:
                while waiting:
                    prompt, begun = waiting.pop(), time.perf_counter()
                    replies.append((begun, *await ask(client, prompt, new)))

            start = time.perf_counter()
            await asyncio.gather(*[work() for _ in range(clients)])
            return time.perf_counter() - start

    with server.awake():
        try:
            found = Answers(asyncio.run(main()))
        except openai.OpenAIError as error:
            raise InputError(f"{server.model} did not answer: {error}") from error
    for begun, text, moments in replies:  # counted when the clock has stopped
        found.add(text, count(text), begun, moments)
    return found


def one_by_one(policy: Any, prompts: Sequence[str], new: int, count: Count) -> Answers:
    """`Policy.generate`, prompt after prompt."""
    start = time.perf_counter()
    texts = [policy.generate([prompt], max_new_tokens=new)[0].text for prompt in prompts]
    found = Answers(time.perf_counter() - start)
    for text in texts:
        found.add(text, count(text), start, [])
    return found


@dataclass(frozen=True)
class Arm:
    """One way to answer a list of prompts, `clients` at once."""

    clients: int
    answer: Callable[[Sequence[str]], Answers]


def rendered(policy: Any, prompts: Sequence[str]) -> list[str]:
    """The texts from which the policy answers these prompts, each with the profile sensed for it."""
    from paretune.data.prompts import as_chat

    chats = [as_chat(prompt, "prompt") for prompt in prompts]
    return [policy.renderer.text(*each) for each in zip(chats, policy.sense(chats), strict=True)]


def arms_of(policy: Any, ours: Server, theirs: Server | None, new: int, count: Count) -> dict[str, Arm]:
    """Name -> arm."""

    def guided(clients: int) -> Arm:
        return Arm(clients, lambda prompts: drive(ours, chat(ours.model), prompts, new, clients, count))

    def texts(server: Server) -> Arm:
        ask = complete(server.model)
        return Arm(MANY, lambda prompts: drive(server, ask, rendered(policy, prompts), new, MANY, count))

    arms = {f"guided, {clients} clients": guided(clients) for clients in CLIENTS}
    arms["plain, 16 clients"] = texts(ours)
    arms["Policy.generate"] = Arm(1, lambda prompts: one_by_one(policy, prompts, new, count))
    if theirs is not None:
        arms["transformers serve, 16 clients"] = texts(theirs)
    return arms


def same_answer(policy: Any, ours: Server, theirs: Server, prompt: str, new: int) -> bool:
    """Do both servers go on from a text with the same words? If not, they do not run the same model."""
    text = rendered(policy, [prompt])
    told = [drive(each, complete(each.model), text, new, 1, len).texts[0].strip() for each in (ours, theirs)]
    return told[0] == told[1]


def measure(policy: Any, arms: dict[str, Arm], arguments: argparse.Namespace) -> dict[str, list[Answers]]:
    """Arm -> its answers, a round each, after as many requests as it has clients, which are not counted."""
    found: dict[str, list[Answers]] = {name: [] for name in arms}
    for name, arm in arms.items():
        warming = 1 if arguments.small else arm.clients
        arm.answer(questions(policy, warming, arguments.prompt, f"warm:{name}"))
    for turn in range(arguments.rounds):
        for name in list(arms) if turn % 2 == 0 else list(reversed(arms)):
            asked = questions(policy, arguments.requests, arguments.prompt, f"{turn}:{name}")
            answers = arms[name].answer(asked)
            if not answers.tokens:
                raise InputError(f"{name}: all answers are empty, so there is nothing to compare; try another model")
            found[name].append(answers)
    return found


def quantile(values: Sequence[float], share: float) -> float | None:
    """The least of the values that this share of them does not exceed, in seconds."""
    ranked = sorted(values)
    return round(ranked[math.ceil(share * len(ranked)) - 1], 4) if ranked else None


def figures(found: dict[str, list[Answers]]) -> dict[str, Any]:
    """The ratios, and what each arm took."""

    def ratio(one: str, other: str) -> float | None:
        if other not in found:
            return None
        rates = zip(found[one], found[other], strict=True)
        return round(statistics.median(mine.rate / theirs.rate for mine, theirs in rates), 3)

    many = f"guided, {MANY} clients"
    told: dict[str, Any] = {
        "throughput_ratio_16_sequential": ratio(many, "guided, 1 clients"),
        "throughput_ratio_16_generate": ratio(many, "Policy.generate"),
        "time_ratio_guided_plain": ratio("plain, 16 clients", many),
        "throughput_ratio_transformers_serve": ratio(many, "transformers serve, 16 clients"),
    }
    told["arms"] = {
        name: {
            "tokens_per_second": round(statistics.median(each.rate for each in rounds), 1),
            "tokens": sum(each.tokens for each in rounds),
            "first_token_p50": quantile([value for each in rounds for value in each.first], 0.5),
            "first_token_p95": quantile([value for each in rounds for value in each.first], 0.95),
            "per_token_p50": quantile([value for each in rounds for value in each.gaps], 0.5),
            "per_token_p95": quantile([value for each in rounds for value in each.gaps], 0.95),
        }
        for name, rounds in found.items()
    }
    return told


@contextlib.contextmanager
def transformers_serving(folder: Path, kind: str, threads: int, work: Path) -> Iterator[Server | None]:
    """`transformers serve` on the merged model, with continuous `batching` or `plain`; `None` where it cannot start."""
    from paretune.policy.export import export_policy

    with contextlib.ExitStack() as stack:
        server = None
        if kind != "none":
            merged = work / "merged"
            export_policy(folder, merged, to="merged")
            command = [str(Path(sys.executable).parent / "transformers"), "serve", str(merged), "--device", "cpu"]
            command += ["--continuous-batching"] if kind == "batching" else []
            try:
                server = stack.enter_context(serving(command, str(merged), threads, work / "theirs.log"))
            except (InputError, OSError) as error:
                print(f"`transformers serve` is left out: {error}", file=sys.stderr)
        yield server


def compare(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Start the servers, measure, end them."""
    import torch

    from paretune.policy import load_policy

    torch.set_num_threads(arguments.threads)
    folder = arguments.policy or work / "policy"
    if arguments.policy is None:
        fresh_policy(Path(arguments.model or demo_model()), folder, arguments.dtype)
    policy = load_policy(folder)

    def count(text: str) -> int:
        return len(policy.tokenizer(text, add_special_tokens=False)["input_ids"])

    here = str(Path(sys.executable).parent)
    ours_command = [f"{here}/paretune", "serve", str(folder), "--no-access-log"]
    with (
        serving(ours_command, folder.resolve().name, arguments.threads, work / "ours.log") as ours,
        transformers_serving(folder, arguments.theirs, arguments.threads, work) as theirs,
    ):
        same = None
        if theirs is not None:
            asked = questions(policy, 1, arguments.prompt, "same")[0]
            same = same_answer(policy, ours, theirs, asked, arguments.new)
        found = measure(policy, arms_of(policy, ours, theirs, arguments.new, count), arguments)
    settings = {
        "dtype": str(policy.causal.dtype).removeprefix("torch."),
        "threads": arguments.threads,
        "requests": arguments.requests,
        "prompt_tokens": arguments.prompt,
        "new_tokens": arguments.new,
        "rounds": arguments.rounds,
        "theirs": arguments.theirs,
        "theirs_same_answer": same,
    }
    return settings | figures(found)


def show(told: dict[str, Any]) -> None:
    """The ratios, and a table of the arms."""
    for name, value in told.items():
        if name != "arms":
            print(f"{name:36} {'-' if value is None else value}")
    print(f"\n{'':32} {'tokens/s':>9} {'first token p50, p95':>22} {'per token p50, p95':>20}")
    for name, arm in told["arms"].items():
        times = [arm[key] for key in ("first_token_p50", "first_token_p95", "per_token_p50", "per_token_p95")]
        shown = ["-" if value is None else f"{value:.3f}" for value in times]
        print(f"{name:32} {arm['tokens_per_second']:>9} {shown[0]:>13} {shown[1]:>8} {shown[2]:>11} {shown[3]:>8}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what serving costs")
    parser.add_argument("--policy", type=Path, help="a policy folder (default: the demo's model, nothing learnt)")
    parser.add_argument("--model", help="base model of the policy that is made (default: the demo's)")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt's text")
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--theirs", choices=["plain", "batching", "none"], default="plain", help="transformers serve")
    parser.add_argument("--small", action="store_true", help="hardly any warming up, for a tiny model")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in ("requests", "prompt", "new", "rounds", "threads"):
        check_whole(getattr(arguments, name), f"--{name}", least=1)
    # a server whose turn it is not is stopped, and would stay so for ever if this process just ended
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as work:
        told = compare(arguments, Path(work))
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        show(told)


if __name__ == "__main__":
    run(main)

"""Small policies, prompts, and a listener that collects what an engine tells."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paretune.policy import Policy, Renderer
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective, Scale
from paretune.server.engine import BatchEngine
from paretune.server.request import Ask, Begun, Ended, Event, Failed, Token
from paretune.training.config import TrainConfig
from paretune.training.module import add_adapter

PROMPTS = [
    "Hi",
    "Why is the sky blue, and why does it turn red when the sun goes down over the sea? Please explain it.",
    "Tell me a joke.",
    "Give me a list of three fruits: " + "apples, pears, " * 9,
    "What is the capital of France?",
    "I feel sad today.",
]


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one user message."""
    return [{"role": "user", "content": text}]


HEAD = HeadConfig(width=16, depth=1)


def make(model: Path, *, head: HeadConfig | None = HEAD) -> Policy:
    """A policy with a random head (`None`: without) and an adapter whose weights are far from zero."""
    names = ("brevity", "cheer", "rude_words")
    objectives = [Objective(name, f"column:{name}", scale=Scale("fixed"), scale_kind="fixed") for name in names]
    causal, tokenizer = load_backbone(str(model), dtype="float32")
    peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, each in peft.named_parameters():
            if "lora_B" in name:
                each.normal_(std=0.1)
    sensing = SensingHead(hidden_size(causal), len(objectives), head).eval() if head is not None else None
    return Policy(
        causal=peft.get_base_model(),
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, objectives),
        objectives=objectives,
        method="sga" if head is not None else "sft",
        base=str(model),
        head=sensing,
        peft=peft.eval(),
        metadata={"dtype": "float32", "adapter": True},
    )


@dataclass
class Heard:
    """What one request was told."""

    events: list[Event] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    n: int = 1
    ticket: Any = None

    def __call__(self, event: Event) -> None:
        """The listener."""
        self.events.append(event)
        if isinstance(event, Failed) or len(self.of(Ended)) == self.n:
            self.done.set()

    def of(self, kind: type) -> list[Any]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self) -> Heard:
        """Until it is over."""
        assert self.done.wait(30), "the engine did not end a request"
        return self

    @property
    def texts(self) -> list[str]:
        """Each answer's text, put together."""
        out = [""] * self.n
        for event in self.wait().events:
            if isinstance(event, (Token, Ended)):
                out[event.index] += event.text
        return out

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.texts[0]

    @property
    def begun(self) -> Begun:
        """What it was told first."""
        first = self.wait().events[0]
        assert isinstance(first, Begun), first
        return first

    @property
    def reasons(self) -> list[str]:
        """Why each answer ended, in order of the answers."""
        return [event.reason for event in sorted(self.wait().of(Ended), key=lambda event: event.index)]

    @property
    def error(self) -> Exception:
        """Why it failed, which is the last that is told."""
        last = self.wait().events[-1]
        assert isinstance(last, Failed), last
        return last.error


def send(engine: BatchEngine, ask: Ask) -> Heard:
    """Submit a request and collect what it is told."""
    heard = Heard(n=ask.n)
    heard.ticket = engine.submit(ask, heard)
    return heard

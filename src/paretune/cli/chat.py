"""`paretune chat`: talk with a policy in the terminal; answers come as they are written, below what was sensed.

A line is said to the policy, or is a command if it begins with a slash (`COMMANDS`). What is wrong is told on stderr,
and the chat goes on. Ctrl-C ends an answer, Ctrl-D the chat. From a pipe, lines are read without prompts.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretune.cli.options import Base, MaxNewTokens, Pins, PolicyFolder, Seed, TopP, Weights
from paretune.cli.output import complain, printable, profile_bars, say
from paretune.cli.progress import bars
from paretune.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from paretune.data.rows import Messages
    from paretune.policy import Policy
    from paretune.profile import Profile
    from paretune.server.request import Ask, Begun, Engine, Event

COMMANDS = {
    "pin": ("name=value ...", "fix objectives to values in [0, 1]"),
    "unpin": ("[name ...]", "release them; all if none is named"),
    "weights": ("name=w,... | off", "how much each objective counts, in place of what is sensed"),
    "sense": ("TEXT", "what the policy senses for a text as the next message, without an answer"),
    "profile": ("", "what was sensed for the last answer, and what was asked of it"),
    "system": ("[TEXT]", "a system message; none without a text"),
    "temperature": ("VALUE", "0 takes the likeliest token each time"),
    "retry": ("", "answer the last message again, with the next seed"),
    "clear": ("", "begin anew; pins and settings stay"),
    "save": ("FILE", "write the conversation as JSON"),
    "help": ("", "this list; a message that begins with a slash is written //..."),
    "quit": ("", "leave, as Ctrl-D does"),
}


def chat(
    policy: PolicyFolder,
    pin: Pins = None,
    weights: Weights = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message.")] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token each time.")] = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    base: Base = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="float32|bfloat16|float16", help="Precision. Default: the one of training."),
    ] = None,
) -> None:
    """Talk with a policy in the terminal.

    Before each answer stands what the policy senses for your message, with intervals, and what was asked of the answer.
    /pin name=value fixes an objective, /help lists the other commands. Ctrl-C ends an answer, Ctrl-D the chat.
    """
    from paretune.policy import load_policy
    from paretune.policy.engine import Sampling
    from paretune.policy.folder import read_objectives
    from paretune.policy.weights import check_weights, parse_weights
    from paretune.profile import parse_pins

    Sampling(max_new_tokens, temperature, top_p)
    names = [objective.name for objective in read_objectives(policy)]
    pins = parse_pins(pin or (), names)
    weighed = check_weights(parse_weights(weights), names) if weights is not None else None
    with bars()("load the policy"):
        loaded = load_policy(policy, base=base, dtype=dtype).fuse()
    check_asked(loaded, pins, weighed)
    from paretune.server.engine import BatchEngine, EngineLimits

    engine = BatchEngine(loaded, EngineLimits(max_batch=1))
    talk = Chat(loaded, engine, pins, weighed, max_new_tokens, temperature, top_p, seed)
    talk.system = system
    try:
        if sys.stdin.isatty():
            say(f"{policy.name}: {', '.join(names) or 'no objectives'}. /help lists the commands, Ctrl-D leaves.")
        for line in lines():
            if not _heard(talk, line):
                break
    finally:
        engine.close()


def check_asked(policy: Policy, pins: Profile, weights: Profile | None) -> None:
    """Raises `InputError` for pins or weights that the policy cannot be asked for."""
    from paretune.policy.requests import Requests

    condition = None if policy.has_head or weights is not None else "none"
    Requests(policy, 1, condition=condition, pins=pins, weights=weights).pinned(0)


def _heard(talk: Chat, line: str) -> bool:
    """As `Chat.hear`; a person's Ctrl-C ends what a line does, sensing say, and not the chat."""
    try:
        return talk.hear(line)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        complain("stopped", "note: ")
        return True


def lines() -> Iterator[str]:
    """The lines that a person types, or those of a pipe; one that is not text is told and left out."""
    if not sys.stdin.isatty():
        for number, raw in enumerate(sys.stdin.buffer, start=1):
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                complain(f"line {number} is not UTF-8, and is left out")
        return
    import readline  # noqa: F401  (gives `input` its history and editing)

    while True:
        try:
            yield input("> ")
        except EOFError:
            say()
            return
        except KeyboardInterrupt:  # nothing is being answered: an empty line, as in a shell
            say()
        except UnicodeDecodeError as error:
            complain(f"the line is not {error.encoding.upper()}, and is left out")


class Chat:
    """A conversation with a policy, and what its next answer is asked for."""

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        pins: Profile,
        weights: Profile | None,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> None:
        self.policy, self.engine = policy, engine
        self.pins, self.weights = pins, weights
        self.max_new_tokens, self.temperature, self.top_p, self.seed = max_new_tokens, temperature, top_p, seed
        self.system: str | None = None
        self.turns: list[dict[str, Any]] = []  # messages; an answer's with what was sensed and asked
        self._commands: dict[str, Callable[[str], None]] = {
            name: getattr(self, f"_{name}") for name in COMMANDS if name != "quit"
        }

    def hear(self, line: str) -> bool:
        """Answer a line or do what it commands; False if it ends the chat."""
        line = line.strip()
        try:
            if line.startswith("//") or (line and not line.startswith("/")):
                self._ask(line.removeprefix("/"))
            elif line:
                name, rest = (*line[1:].split(maxsplit=1), "", "")[:2]
                if name == "quit":
                    return False
                if name not in self._commands:
                    raise InputError(f"unknown command '/{name}'.{did_you_mean(name, COMMANDS)} /help lists them all")
                self._commands[name](rest)
        except InputError as error:
            complain(str(error))
        return True

    # --- answers --------------------------------------------------------------------------------------------------

    def _messages(self, text: str) -> Messages:
        """The conversation, with a text as its last message. Raises `InputError`."""
        from paretune.data.prompts import as_chat

        before = [{"role": "system", "content": self.system}] if self.system else []
        said = [{"role": turn["role"], "content": turn["content"]} for turn in self.turns]
        return as_chat([*before, *said, {"role": "user", "content": text}], "the message")

    def _ask(self, text: str) -> None:
        """Say a text and show the answer; what could not be answered is not kept."""
        from paretune.server.request import Ask

        ask = Ask(
            self._messages(text),
            pins=self.pins,
            sense=self.policy.has_head,
            weights=self.weights,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            fit=True,
        )
        answer, begun, reason = self._listen(ask)
        if begun is None or (reason == "cancelled" and not answer):
            return
        told = {
            "sensed": begun.sensed.profile if begun.sensed is not None else None,
            "interval": begun.sensed.interval if begun.sensed is not None else None,
            "used": begun.used,
            "weights": begun.weights,
            "pins": dict(self.pins),
        }
        self.turns.append({"role": "user", "content": text})
        self.turns.append({"role": "assistant", "content": answer, "finish_reason": reason, "paretune": told})

    def _listen(self, ask: Ask) -> tuple[str, Begun | None, str]:
        """Show what comes of a request; its answer, what began it and why it ended. Raises `InputError`."""
        from paretune.server.request import Begun, Ended, Failed, Token

        events: SimpleQueue[Event] = SimpleQueue()
        ticket = self.engine.submit(ask, events.put)
        answer, begun, reason = "", None, ""
        with _on_interrupt(ticket.cancel):
            while not reason:
                event = events.get()
                if isinstance(event, Failed):
                    if event.by_user:
                        raise event.error
                    raise InputError(f"the answer failed: {event.error}") from event.error
                if isinstance(event, Begun):
                    begun = event
                    self._show(event)
                elif isinstance(event, (Token, Ended)):
                    answer += event.text
                    typer.echo(printable(event.text), nl=False)
                    sys.stdout.flush()
                if isinstance(event, Ended):
                    reason = event.reason
        say()
        if reason != "stop":
            complain({"cancelled": "stopped", "length": "cut at the longest answer"}.get(reason, reason), "note: ")
        return answer, begun, reason

    def _show(self, begun: Begun) -> None:
        """What was sensed and, where it is something else, what is asked of the answer."""
        if begun.sensed is not None:
            _bars("senses", begun.sensed.profile, interval=begun.sensed.interval)
        if begun.used and (begun.sensed is None or begun.used != begun.sensed.profile):
            _bars("asked for", begun.used, self.pins)
        if begun.weights:
            _bars("weights", begun.weights)

    # --- commands -------------------------------------------------------------------------------------------------

    def _pin(self, rest: str) -> None:
        from paretune.profile import parse_pins

        if not rest:
            raise InputError("a pin is written /pin name=value, with a value in [0, 1]")
        pins = self.pins | parse_pins(rest.replace(",", " ").split(), self.policy.names)
        check_asked(self.policy, pins, self.weights)
        self.pins = pins
        self._say_pins()

    def _unpin(self, rest: str) -> None:
        names = rest.replace(",", " ").split() or list(self.pins)
        for name in names:
            if name not in self.pins:
                raise InputError(f"'{name}' is not pinned.{did_you_mean(name, self.pins)}")
        self.pins = {name: value for name, value in self.pins.items() if name not in names}
        self._say_pins()

    def _say_pins(self) -> None:
        _quiet("pinned: " + (", ".join(f"{name}={value:g}" for name, value in self.pins.items()) or "nothing"))

    def _weights(self, rest: str) -> None:
        from paretune.policy.weights import check_weights, parse_weights

        if rest == "off":
            self.weights = None
        elif rest:
            weights = check_weights(parse_weights(rest), self.policy.names)
            check_asked(self.policy, self.pins, weights)
            self.weights = weights
        said = ", ".join(f"{name}={value:.3g}" for name, value in (self.weights or {}).items())
        _quiet(f"weights: {said or 'none'}")

    def _sense(self, rest: str) -> None:
        if not rest:
            raise InputError("say what to sense: /sense TEXT")
        if not self.policy.has_head:
            raise InputError(f"a policy trained by '{self.policy.method}' has no sensing head, so it cannot sense")
        found = self.engine.sense([self._messages(rest)], self.pins)[0]
        _bars("senses", found.profile, self.pins, found.interval)

    def _profile(self, rest: str) -> None:
        if not self.turns:
            raise InputError("nothing was answered yet")
        told = self.turns[-1]["paretune"]
        for word, profile, pins in (
            ("senses", told["sensed"], None),
            ("asked for", told["used"], told["pins"]),
            ("weights", told["weights"], None),
        ):
            if profile:
                _bars(word, profile, pins, told["interval"] if word == "senses" else None)

    def _system(self, rest: str) -> None:
        self.system = rest or None
        _quiet(f"system message: {self.system or 'none'}")

    def _temperature(self, rest: str) -> None:
        from paretune.policy.engine import Sampling

        try:
            value = float(rest)
        except ValueError:
            raise InputError(f"a temperature is a number of 0 or more, found '{rest}'") from None
        self.temperature = Sampling(self.max_new_tokens, value, self.top_p).temperature
        _quiet(f"temperature: {value:g}")

    def _retry(self, rest: str) -> None:
        if not self.turns:
            raise InputError("there is no message to answer again")
        *self.turns, question, answer = self.turns
        kept, self.seed = len(self.turns), self.seed + 1
        try:
            self._ask(question["content"])
        finally:
            if len(self.turns) == kept:  # no new answer: the old one stays
                self.turns += [question, answer]

    def _clear(self, rest: str) -> None:
        self.turns = []
        _quiet("a new conversation")

    def _save(self, rest: str) -> None:
        from paretune.files import check_parent, write_json

        if not rest:
            raise InputError("say where: /save FILE")
        path = Path(rest)
        try:
            path = path.expanduser()
            if path.exists():
                raise InputError("exists already; choose another name", file=path)
            check_parent(path)
            write_json(path, {"system": self.system, "messages": self.turns})
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=path) from None
        except (ValueError, RuntimeError) as error:  # a zero byte in the name; ~somebody whom nobody knows
            raise InputError(f"cannot be written: {error}", file=path) from None
        _quiet(f"{path}: {len(self.turns)} messages")

    def _help(self, rest: str) -> None:
        width = max(len(f"/{name} {what}") for name, (what, _) in COMMANDS.items())
        for name, (what, help) in COMMANDS.items():
            say(f"{f'/{name} {what}':<{width}}  {help}")


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C does something in place of its usual interruption, which could come at any point of the block."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _bars(
    word: str,
    profile: Mapping[str, float],
    pins: Mapping[str, float] | None = None,
    interval: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    _quiet(f"{word}:")
    for line in profile_bars(profile, pins, interval=interval):
        _quiet(f"  {line}")


def _quiet(line: str) -> None:
    """A line that is no part of an answer: dimmed on a terminal."""
    typer.echo(typer.style(printable(line), dim=True))


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(chat)

"""`python:MODULE:FUNCTION`: a Python function with TRL's reward signature, or a rubric of verifiers, unchanged.

    def f(prompts, completions, **columns) -> list[float | None]

A prompt of one user message is given as TRL's plain type (prompt and completion are strings), a conversation as its
conversational type (a list of messages, and `[{"role": "assistant", "content": ...}]`). A function that knows one type
only says so in the spec: `python:MODULE:FUNCTION#chat` gets every row conversational, `#text` every row plain (the
prompt is then the last user message). The rows' columns come as keyword arguments, those the function names or, with
`**kwargs`, all. Coroutine functions are awaited. The current folder is searched for the module first.
Rubrics: see `python_rubric.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.awaiting import finish
from paretune.rewards.base import TERMINATED, Reward, RewardKind, check_scores, last_text
from paretune.rewards.python_rubric import RubricReward, function_names, is_rubric
from paretune.rewards.python_source import source_digest

Mode = Literal["auto", "chat", "text"]
MODES: tuple[Mode, ...] = ("chat", "text")
# what TRL's trainers pass besides columns, and what there is of it outside a trainer
_TRAINER_ARGUMENTS: dict[str, Any] = {
    "trainer_state": None,
    "log_extra": lambda *args: None,
    "log_metric": lambda *args: None,
}


class PythonReward:
    """Calls the function once for the plain rows and once for the conversational ones."""

    can_score_new = True

    def __init__(self, function: Callable[..., Any], what: str, mode: Mode = "auto") -> None:
        self.function, self.what, self.mode = function, what, mode

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The function's scores in order. Raises `InputError` for anything but one number or None a completion."""
        scores: list[float | None] = [None] * len(completions)
        for chat in (False, True):
            places = [at for at, prompt in enumerate(prompts) if self._is_chat(prompt) is chat]
            if not places:
                continue
            given = {name: [values[at] for at in places] for name, values in columns.items()}
            part = [prompts[at] for at in places], [completions[at] for at in places]
            for at, score in zip(places, self._call(*part, given, chat=chat), strict=True):
                scores[at] = score
        return scores

    def _is_chat(self, prompt: Messages) -> bool:
        if self.mode != "auto":
            return self.mode == "chat"
        return len(prompt) > 1

    def _call(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]], *, chat: bool
    ) -> list[float | None]:
        arguments: dict[str, Any] = dict(columns)
        arguments["prompts"] = [list(map(dict, prompt)) if chat else last_text(prompt) for prompt in prompts]
        arguments["completions"] = [[{"role": "assistant", "content": text}] if chat else text for text in completions]
        try:
            result = self.function(**self._accepted(arguments))
            if inspect.isawaitable(result):
                result = finish(result)
        except InputError:
            raise
        except Exception as error:
            kind = "conversational" if chat else "plain text"
            raise InputError(
                f"{self.what} raised {type(error).__name__}{_where(columns.get('id'))}: {error} (it was given {kind} "
                "rows; add #chat or #text to the spec if it wants the other kind)"
            ) from error
        return check_scores(result, len(completions), self.what, columns.get("id"))

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes; one that it needs and nobody has is told by name."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # a builtin without a signature
            return arguments
        known = _TRAINER_ARGUMENTS | arguments
        for parameter in parameters:
            needed = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
                parameter.POSITIONAL_ONLY,
            )
            if needed and (parameter.name not in known or parameter.kind is parameter.POSITIONAL_ONLY):
                names = ", ".join(sorted(set(arguments) - {"prompts", "completions"})) or "none"
                raise InputError(
                    f"{self.what} needs '{parameter.name}', which is no column of the rows (columns: {names})"
                )
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return known
        return {parameter.name: known[parameter.name] for parameter in parameters if parameter.name in known}


def _where(rows: Sequence[Any] | None) -> str:
    """Which rows a call was about, where they are known."""
    if not rows:
        return ""
    return f" on row '{rows[0]}'" if rows[0] == rows[-1] else f" on rows '{rows[0]}' to '{rows[-1]}'"


def _split(rest: str) -> tuple[str, str, str]:
    """Module, name, and what follows the #: a kind of rows, or a rubric's function. Only importing tells which."""
    where, _, part = rest.partition("#")
    module, colon, function = where.partition(":")
    if not (colon and module and function):
        raise InputError(f"a Python reward is written python:MODULE:FUNCTION, found 'python:{rest}'")
    if "#" in rest and not part:
        raise InputError(f"nothing follows the # in 'python:{rest}'; known: {', '.join(MODES)}, a rubric's function")
    return module, function, part


def _check(rest: str) -> None:
    _split(rest)


def load_function(module_name: str, function_name: str) -> Any:
    """Import a function or a rubric by name, the current folder first. Raises `InputError`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no result of ours
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        cause = "" if error.name == module_name else f" (it imports '{error.name}', which is not installed)"
        raise InputError(f"there is no Python module '{module_name}'{cause}; searched {here} first") from None
    except Exception as error:
        raise InputError(f"the Python module '{module_name}' raised {type(error).__name__}: {error}") from error
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        told = "ended the program when it was imported; put what it runs under if __name__ == '__main__':"
        raise InputError(f"the Python module '{module_name}' {told}") from error
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)  # for what the function itself imports later
    try:
        found = functools.reduce(getattr, function_name.split("."), module)
    except AttributeError:
        names = [name for name, item in vars(module).items() if _usable(item) and not name.startswith("_")]
        hint = did_you_mean(function_name, names) if names else " It has no function."
        raise InputError(f"the Python module '{module_name}' has no function '{function_name}'.{hint}") from None
    if not _usable(found):
        what = "a class; name an object of it" if inspect.isclass(found) else "no function"
        raise InputError(f"'{function_name}' in the Python module '{module_name}' is {what}")
    return found


def _usable(item: Any) -> bool:
    return is_rubric(item) or (callable(item) and not inspect.isclass(item))


def _build(rest: str, allow_remote_code: bool) -> Reward:
    module, name, part = _split(rest)
    found = load_function(module, name)
    if is_rubric(found):
        return RubricReward(found, f"the Python rubric '{module}:{name}'", part)
    if part and part not in MODES:
        raise InputError(f"unknown kind of rows '#{part}' of 'python:{module}:{name}'.{did_you_mean(part, MODES)}")
    mode: Mode = "chat" if part == "chat" else "text" if part == "text" else "auto"
    return PythonReward(found, f"the Python reward '{module}:{name}'", mode)


def _expand(rest: str) -> list[tuple[str, str]]:
    """(function, spec) of every function for `MODULE:RUBRIC#*`; the module is imported."""
    module, name, part = _split(rest)
    if part != "*":
        return [(part or name, rest)]
    found = load_function(module, name)
    if not is_rubric(found):
        raise InputError(f"'python:{rest}' stands for a rubric's functions, and '{name}' is no rubric")
    return [(each, f"{module}:{name}#{each}") for each in function_names(found)]


def _fingerprint(rest: str) -> str:
    """The hash of the module's source and of its own imports', found without importing it; "" where there is none."""
    try:
        return source_digest(_split(rest)[0])
    except OSError:
        return ""


KIND = RewardKind(
    prefix="python",
    listed=(
        ("python:MODULE:FUNCTION", "a Python function with TRL's reward signature (#chat, #text)"),
        ("python:MODULE:RUBRIC[#FUNCTION]", "a rubric of verifiers, or one of its functions (#* for all)"),
    ),
    build=_build,
    check=_check,
    expand=_expand,
    fingerprint=_fingerprint,
    shares=lambda rest: "",
)

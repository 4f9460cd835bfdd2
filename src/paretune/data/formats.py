"""From an object to a checked `Row`: our own row contract, TRL's data set types and HH-RLHF transcripts.

Other formats become such objects first (`adapters`).

    {"prompt": ..., "completions": [...]}      the row contract
    {"prompt": ...}                            TRL prompt-only
    {"prompt": ..., "completion": ...}         TRL prompt-completion
    {"prompt": ..., "chosen": ..., "rejected": ...}   TRL preference; without `prompt` the part both share is the prompt
    {"chosen": "\\n\\nHuman: ...", "rejected": ...}    HH-RLHF transcripts

`scores` beside one completion, and `chosen_scores` and `rejected_scores` (as `data pairs` writes them), are theirs.

A prompt is text or a conversation (a list of {"role", "content"}) that ends with the user; completions likewise are
text or a list of one assistant message. Every check raises `BadRow` with the field's path. Unknown keys are kept in
`extra`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from paretune.data.records import BadRow, show
from paretune.data.rows import Completion, Message, Messages, Row

ROLES = ("system", "user", "assistant")
LABELS = ("chosen", "rejected")
_ANSWER_KEYS = ("completions", "completion", "chosen", "rejected")
ROW_KEYS = ("id", "prompt", "wanted", "preferences", *_ANSWER_KEYS)
TURN = re.compile(r"(?:\A\n{0,2}|\n\n)(Human|Assistant):(?: |\Z)")
"""Where a turn of an HH-RLHF transcript begins."""
_HH_ROLES = {"Human": "user", "Assistant": "assistant"}


def parse_row(value: Any) -> Row:
    """A checked `Row` (its `id` is "" when none is given). Raises `BadRow`."""
    if not isinstance(value, dict):
        raise BadRow("a row must be a JSON object", found=show(value))
    check_values(value, "")
    answers = [key for key in _ANSWER_KEYS if value.get(key) is not None]
    own: tuple[str, ...] = ()
    if "completions" in answers and len(answers) > 1:
        raise BadRow("a row has either 'completions' or TRL's columns, not both", field=answers[1])
    if "chosen" in answers or "rejected" in answers:
        own = tuple(f"{label}_scores" for label in LABELS if isinstance(value.get(f"{label}_scores"), Mapping))
        prompt, completions = _preference(value)
    else:
        prompt = _prompt(value.get("prompt"), "prompt", missing="prompt" not in value)
        if "completion" in answers:
            own = ("scores",) if isinstance(value.get("scores"), Mapping) else ()
            scores = _scores(value["scores"], "scores") if own else {}
            completions = (Completion(answer_text(value["completion"], "completion"), scores),)
        else:
            completions = _completions(value.get("completions"))
    extra = {key: item for key, item in value.items() if key not in (*ROW_KEYS, *own)}
    preferences = _preferences(value.get("preferences"), len(completions))
    return Row(prompt, completions, _id(value.get("id")), _wanted(value.get("wanted")), extra, preferences)


def check_values(value: Any, path: str) -> None:
    """Refuse, anywhere in a row, what UTF-8 JSON cannot hold: NaN, infinity, lone surrogates, bytes."""
    try:  # in C, for every row; the look at each value is for the bad ones alone
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError):
        _name_bad_value(value, path)
    except RecursionError:
        raise BadRow("a row must not be nested hundreds of levels deep", field=path or None) from None


def _name_bad_value(value: Any, path: str) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise BadRow(
                "a text must not hold a lone surrogate (half a UTF-16 character)", field=path, found=show(value)
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(
                "a number must be finite; NaN and infinity are no JSON (write null)", field=path, found=repr(value)
            )
    elif isinstance(value, dict):
        for key, item in value.items():
            _name_bad_value(str(key), f"{path}.{ascii(key)[1:-1]}".lstrip("."))
            _name_bad_value(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _name_bad_value(item, f"{path}[{index}]")
    elif value is not None and not isinstance(value, (bool, int)):
        raise BadRow("a value must be JSON (text, number, list, object)", field=path, found=type(value).__name__)


def _id(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRow("an id must be text or a whole number", field="id", found=show(value))
    return str(value)


def _prompt(value: Any, field: str, *, missing: bool = False) -> Messages:
    if missing or value is None:
        raise BadRow(
            "there is no prompt ('prompt' as text or a list of messages, or 'chosen' and 'rejected')", field=field
        )
    if isinstance(value, str):
        if not value.strip():
            raise BadRow("the prompt is empty", field=field)
        return [{"role": "user", "content": value}]
    messages = _messages(value, field)
    if messages[-1]["role"] != "user":
        raise BadRow(
            "the prompt must end with a user message", field=field, found=f"role '{messages[-1]['role']}' last"
        )
    if not messages[-1]["content"].strip():
        raise BadRow("the prompt is empty", field=f"{field}[{len(messages) - 1}].content")
    return messages


def _messages(value: Any, field: str) -> Messages:
    if not isinstance(value, list):
        raise BadRow("must be text or a list of messages", field=field, found=show(value))
    if not value:
        raise BadRow("the list of messages is empty", field=field)
    return [_message(item, f"{field}[{index}]", first=index == 0) for index, item in enumerate(value)]


def _message(value: Any, field: str, *, first: bool) -> Message:
    if not isinstance(value, dict):
        raise BadRow("a message must be an object with 'role' and 'content'", field=field, found=show(value))
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        raise BadRow(f"a role must be one of {', '.join(ROLES)}", field=f"{field}.role", found=show(role))
    if role == "system" and not first:
        raise BadRow("a system message must be the first one", field=f"{field}.role")
    if not isinstance(content, str):
        raise BadRow("the content of a message must be text", field=f"{field}.content", found=show(content))
    for key, item in value.items():
        if key not in ("role", "content") and item is not None:
            raise BadRow("a message has only 'role' and 'content'", field=f"{field}.{key}", found=show(item))
    return {"role": role, "content": content}


def answer_text(value: Any, field: str) -> str:
    """A completion's text: a string, or TRL's list of one assistant message."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadRow("a completion must be text", field=field, found=show(value))
    messages = _messages(value, field)
    if len(messages) > 1:
        raise BadRow("a completion must be one assistant message", field=field, found=f"{len(messages)} messages")
    if messages[0]["role"] != "assistant":
        raise BadRow("a completion must be an assistant message", field=f"{field}[0].role", found=messages[0]["role"])
    return messages[0]["content"]


def _completions(value: Any) -> tuple[Completion, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRow("'completions' must be a list", field="completions", found=show(value))
    return tuple(_completion(item, f"completions[{index}]") for index, item in enumerate(value))


def _completion(value: Any, field: str) -> Completion:
    if isinstance(value, str):
        return Completion(value)
    if not isinstance(value, dict):
        raise BadRow("a completion must be text or an object with 'text'", field=field, found=show(value))
    text, label = value.get("text"), value.get("label")
    if not isinstance(text, str):
        found = show(text) if "text" in value else "none"
        raise BadRow("a completion must have a 'text' that is text", field=f"{field}.text", found=found)
    if label is not None and label not in LABELS:
        raise BadRow("a completion's label must be chosen or rejected", field=f"{field}.label", found=show(label))
    extra = {key: item for key, item in value.items() if key not in ("text", "scores", "label")}
    return Completion(text, _scores(value.get("scores"), f"{field}.scores"), label, extra)


def _scores(value: Any, field: str) -> dict[str, float | None]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRow("'scores' must be an object from objective to number", field=field, found=show(value))
    return {name: None if item is None else _number(item, f"{field}.{name}") for name, item in value.items()}


def _number(value: Any, field: str, cause: str = "a score must be a finite number or null") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRow(cause, field=field, found=show(value))
    try:
        return float(value)
    except OverflowError:
        raise BadRow(cause, field=field, found="a number too large for a float") from None


def _wanted(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadRow(
            "'wanted' must be an object from objective to a number in [0, 1]", field="wanted", found=show(value)
        )
    cause = "a wanted value must be a number in [0, 1]"
    out = {name: _number(item, f"wanted.{name}", cause) for name, item in value.items() if item is not None}
    for name, number in out.items():
        if not 0 <= number <= 1:
            raise BadRow(cause, field=f"wanted.{name}", found=repr(number))
    return out or None


def _preferences(value: Any, count: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """Objective -> (winner, loser) pairs of indices; one pair may stand without the outer list."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRow(
            "'preferences' must be an object from objective to [winner, loser] or a list of such pairs",
            field="preferences",
            found=show(value),
        )
    out = {}
    for name, item in value.items():
        single = isinstance(item, list) and len(item) == 2 and not any(isinstance(each, list) for each in item)
        pairs = [item] if single else item
        if pairs is not None and not isinstance(pairs, list):
            raise BadRow("a preference is [winner, loser] or a list of such pairs", field=f"preferences.{name}")
        checked = tuple(_indices(pair, count, f"preferences.{name}[{at}]") for at, pair in enumerate(pairs or ()))
        if checked:
            out[name] = checked
    return out


def _indices(pair: Any, count: int, field: str) -> tuple[int, int]:
    whole = isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair)
    if not whole or not all(0 <= each < count for each in pair) or pair[0] == pair[1]:
        cause = "a preference is [winner, loser], the indices of two different completions of the row"
        raise BadRow(cause, field=field, found=f"{show(pair)} of {count} completions")
    return pair[0], pair[1]


def _preference(value: dict[str, Any]) -> tuple[Messages, tuple[Completion, ...]]:
    """TRL's preference type, with or without an explicit prompt, and HH-RLHF transcripts."""
    chosen, rejected = (value.get(label) for label in LABELS)
    for label, side in zip(LABELS, (chosen, rejected), strict=True):
        if side is None:
            raise BadRow("a preference row needs both 'chosen' and 'rejected'", field=label)
        if not isinstance(side, (str, list)):
            raise BadRow("a completion must be text or a list of messages", field=label, found=show(side))
    if type(chosen) is not type(rejected):
        raise BadRow(
            "'chosen' and 'rejected' must be of the same type", field="rejected", found=type(rejected).__name__
        )
    if value.get("prompt") is not None:
        prompt = _prompt(value["prompt"], "prompt")
        texts = [_after_prompt(value[label], label, prompt) for label in LABELS]
    elif isinstance(chosen, str):
        assert isinstance(rejected, str)
        transcript = TURN.match(chosen) and TURN.match(rejected)
        prompt, texts = _transcripts(chosen, rejected) if transcript else _shared_text(chosen, rejected)
    else:
        prompt, texts = _shared_turns(*(_messages(value[label], label) for label in LABELS))
    scores = [value.get(f"{label}_scores") for label in LABELS]
    measured = [
        _scores(item, f"{label}_scores") if isinstance(item, Mapping) else {}
        for item, label in zip(scores, LABELS, strict=True)
    ]
    return prompt, tuple(
        Completion(text, found, label) for text, found, label in zip(texts, measured, LABELS, strict=True)
    )


def _after_prompt(value: Any, field: str, prompt: Messages) -> str:
    """A side of a row with an explicit prompt; some data sets repeat the prompt's messages in it."""
    if isinstance(value, list) and len(value) > 1:
        messages = _messages(value, field)
        if messages[: len(prompt)] == prompt:
            return answer_text(value[len(prompt) :], field)
    return answer_text(value, field)


def _shared_text(chosen: str, rejected: str) -> tuple[Messages, list[str]]:
    """TRL's implicit prompt in plain text: the words both sides begin with."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))))
    # back to the last word boundary, so that "the grey" and "the green" share "the", not "the gre"
    while same > 0 and not (chosen[same - 1 : same].isspace() or chosen[same : same + 1].isspace()):
        same -= 1
    prompt = chosen[:same].rstrip()
    if not prompt:
        raise BadRow("there is no prompt: 'chosen' and 'rejected' do not begin with the same words", field="prompt")
    return _prompt(prompt, "chosen"), [chosen[same:].lstrip(), rejected[same:].lstrip()]


def _shared_turns(chosen: Messages, rejected: Messages) -> tuple[Messages, list[str]]:
    """The common turns of two conversations, which must end with the user, and the one answer each goes on with."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))))
    same = min(same, len(chosen) - 1, len(rejected) - 1)  # both the same: the last turn is the answer
    if same <= 0:
        raise BadRow("there is no prompt: 'chosen' and 'rejected' do not begin with the same message", field="prompt")
    prompt = _prompt([dict(message) for message in chosen[:same]], "chosen")
    return prompt, [answer_text(side[same:], label) for side, label in zip((chosen, rejected), LABELS, strict=True)]


def parse_transcript(text: str, field: str = "chosen") -> Messages:
    """An HH-RLHF transcript as messages. Turns start only at a blank line and "Human: " or "Assistant: ".

    The words inside a turn stay what they are. Turns of the same speaker in a row (they occur in the published data)
    are one message.
    """
    parts = TURN.split(text)
    messages: Messages = []
    for speaker, said in zip(parts[1::2], parts[2::2], strict=True):
        role, said = _HH_ROLES[speaker], said.strip()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{said}".strip()
        else:
            messages.append({"role": role, "content": said})
    if parts[0].strip() or not messages:
        raise BadRow('a transcript must begin with "Human: "', field=field, found=show(text))
    return messages


def _transcripts(chosen: str, rejected: str) -> tuple[Messages, list[str]]:
    sides = [parse_transcript(side, label) for side, label in zip((chosen, rejected), LABELS, strict=True)]
    for messages, label in zip(sides, LABELS, strict=True):
        if messages[-1]["role"] != "assistant":
            raise BadRow("the transcript ends with the human; its answer is missing", field=label)
    return _shared_turns(*sides)

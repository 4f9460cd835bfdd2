"""The renderer: the one place where a prompt and a profile become token ids.

Training, inference, evaluation and export all use this object, and it is saved with the policy, so the text a policy
was trained on is the text it is given. A prompt is cut at the end of the last user message:

    prefix  = chat template up to and including the user's text        (the sensing head reads its last token)
    suffix  = the rendered profile + the rest of the template          (end of the turn, generation header)

Prefix and suffix are tokenised apart and joined as ids, so every completion and every profile of a prompt shares the
prefix token for token, and inference continues the prefix's KV cache with the suffix.

The chat template has its way with everything else: earlier turns, a system prompt, one that it injects where none is
given. A template that refuses a system prompt (Gemma's, early Mistral's) or silently drops it gets the system text at
the head of the first user message, a blank line between: what Gemma's documentation asks for and llama.cpp does, so
that one set of conversations serves every model. Only the template writes BOS; a tokenizer's own is never added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.profile import LEVELS, Objective, Profile, check_profile, level_of
from paretune.template import render_template

Style = Literal["scores", "levels", "instructions", "ric", "cpo", "weights"]
STYLES: tuple[Style, ...] = ("scores", "levels", "instructions", "ric", "cpo", "weights")
"""How a profile is written: SGA's numbers, words of a level, a phrase per level, the markers of RiC (z-scores) and of
CPO (levels 1 to 5), or what each objective weighs, in per cent, for policies conditioned on weights."""
MARKED: tuple[Style, ...] = ("ric", "cpo", "weights")
SNAPS = ("none", "paper")
PAPER_GRID = 4  # the paper snaps predictions to multiples of 1/4

FALLBACK_TEMPLATE = (
    "{{ bos_token if add_bos else '' }}{% for message in messages %}{{ message['role'] | capitalize }}:\n"
    "{{ message['content'] }}\n\n{% endfor %}{% if add_generation_prompt %}Assistant:\n{% endif %}"
)
"""For models without a chat template; it is saved with the policy's tokenizer like any other."""

_MARK = "\ue0f0\ue0f1\ue0f2"  # private-use characters: no template transforms them, no user types them
_TEMPLATE_OPTIONS = {
    "enable_thinking": False
}  # Qwen3 would open a thinking block; templates ignore what they don't use


@dataclass
class Renderer:
    """Turns (messages, profile) into (prefix ids, suffix ids), and completions into ids.

    `snap`: `paper` rounds *sensed* values to multiples of 1/4 unless there are exactly two objectives, as the paper's
    inference does; `none` leaves them. Profiles that are given (pins, conditions) are never snapped. `centre` and
    `spread`: mean and standard deviation of the training values, by which the style `ric` writes z-scores.
    """

    tokenizer: Any
    objectives: Sequence[Objective]
    style: Style = "scores"
    snap: str = "none"
    centre: Profile = field(default_factory=dict)
    spread: Profile = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InputError(f"unknown renderer style '{self.style}'.{did_you_mean(str(self.style), STYLES)}")
        if self.snap not in SNAPS:
            raise InputError(f"unknown snap '{self.snap}'.{did_you_mean(self.snap, SNAPS)}")
        if self.style == "ric":
            names = [each.name for each in self.objectives]
            self.centre = check_profile(self.centre, names, partial=False, what="centre")
            self.spread = check_profile(self.spread, names, partial=False, what="spread")
            if not all(self.spread.values()):
                raise InputError("spread: standard deviations must be above 0")
        elif self.centre or self.spread:
            raise InputError(f"centre and spread belong to the style ric, not to '{self.style}'")
        install_template(self.tokenizer)

    # --- text -----------------------------------------------------------------------------------------------------

    def profile_text(self, profile: Mapping[str, float] | None) -> str:
        """The text that carries a (partial) profile, begun by a newline; empty when there is nothing to say.

        Raises `InputError` for an unknown objective or a value that is no number in [0, 1]: it would be rendered as
        silently as any other.
        """
        if not profile:
            return ""
        profile = self._checked(profile, "profile")
        chosen = [objective for objective in self.objectives if objective.name in profile]
        if self.style == "scores":
            items = " and ".join(f"<{each.name}_score:{profile[each.name]:.2f}>" for each in chosen)
            return f"\nYour response must satisfy the following scores: {items}"
        if self.style == "levels":
            return "\nRequested: " + ", ".join(f"{each.name} {LEVELS[level_of(profile[each.name])]}" for each in chosen)
        if self.style in MARKED:
            return "\n" + self._marked(profile, chosen)
        phrases = [phrase(each, level_of(profile[each.name])) for each in chosen]
        said = " ".join(text for text in phrases if text)
        return f"\n{said}" if said else ""

    def _marked(self, profile: Profile, chosen: Sequence[Objective]) -> str:
        """The text of the styles of `MARKED`; `weights` makes shares of whatever it is given."""
        names = [each.name for each in chosen]
        if self.style == "cpo":
            return " ".join(f"<{name}:{1 + level_of(profile[name])}>" for name in names)
        if self.style == "weights":
            total = sum(profile.values())
            shares = {name: profile[name] / total if total > 0 else 1 / len(names) for name in names}
            return "What counts: " + ", ".join(f"{name} {100 * shares[name]:.0f}%" for name in names)
        place = {each.name: number for number, each in enumerate(self.objectives, start=1)}
        z = {name: (profile[name] - self.centre[name]) / self.spread[name] for name in names}
        # + 0.0, for no score is "-0.0"
        return " ".join(f"<rm{place[name]}_score> {round(z[name], 1) + 0.0:.1f}" for name in names)

    def snapped(self, sensed: Profile) -> Profile:
        """What becomes of a sensed profile before it is rendered (see `snap`)."""
        sensed = self._checked(sensed, "sensed profile")
        if self.snap == "none" or len(self.objectives) == 2:
            return sensed
        return {name: round(value * PAPER_GRID) / PAPER_GRID for name, value in sensed.items()}

    def _checked(self, profile: Mapping[str, float], what: str) -> Profile:
        return check_profile(profile, [each.name for each in self.objectives], partial=True, what=what)

    def echoes(self, text: str) -> bool:
        """Does an answer leak the rendered profile?"""
        low = text.lower()
        if re.search(r"<\w+_score[:>]", low) or "must satisfy the following scores" in low:
            return True
        if self.style == "levels":
            return "requested:" in low or any(
                f"{objective.name.lower()} {level}" in low for objective in self.objectives for level in LEVELS
            )
        if self.style == "instructions":
            said = (phrase(objective, i) for objective in self.objectives for i in range(len(LEVELS)))
            return any(text and text.lower().rstrip(".") in low for text in said)
        mark = {"cpo": r"<{}:\d", "weights": r"\b{} \d+%"}.get(self.style)
        return mark is not None and any(
            re.search(mark.format(re.escape(each.name.lower())), low) for each in self.objectives
        )

    # --- ids ------------------------------------------------------------------------------------------------------

    def _parts(self, messages: Messages) -> tuple[str, str]:
        """The template's text before and after the end of the last user message."""
        if not messages or messages[-1]["role"] != "user":
            raise InputError("a prompt must end with a user message")
        messages = self._with_system(messages)
        last = messages[-1]["content"]
        # where the template strips white space, the mark must not keep it from doing so
        marked = {**messages[-1], "content": (last.rstrip() if self._trims else last) + _MARK}
        before, mark, after = self._template([*messages[:-1], marked], generation=True).partition(_MARK)
        if not mark or _MARK in after:
            raise InputError("the chat template does not show the last user message exactly once")
        return before, after

    @cached_property
    def _trims(self) -> bool:
        """Does the template strip a message's trailing white space?"""
        text = f"a{_MARK} "
        return text not in self._template([{"role": "user", "content": text}], generation=True)

    @cached_property
    def _trims_start(self) -> bool:
        """Does the template strip a message's leading white space?"""
        text = f"  {_MARK}a"
        return text not in self._template([{"role": "user", "content": text}], generation=True)

    def _with_system(self, messages: Messages) -> Messages:
        """The conversation; leading system text that the template has no place for heads the first user message."""
        turns = list(messages)
        said = []
        while turns[0]["role"] == "system":
            said.append(turns.pop(0)["content"])
        if not said or self._takes_system:
            return messages
        first = next(i for i, turn in enumerate(turns) if turn["role"] == "user")
        text = "\n\n".join([*filter(str.strip, said), turns[first]["content"]])
        turns[first] = {**turns[first], "content": text}
        return turns

    @cached_property
    def _takes_system(self) -> bool:
        """Does the template show a system message? Some raise at one, some leave it out without a word."""
        probe = [{"role": "system", "content": _MARK}, {"role": "user", "content": "a"}]
        try:
            return _MARK in self._template(probe, generation=True)
        except InputError:
            return False

    def _template(self, messages: Messages, *, generation: bool) -> str:
        adds_bos = _adds_bos(self.tokenizer)
        try:
            return render_template(
                self.tokenizer, messages, add_generation_prompt=generation, add_bos=adds_bos, **_TEMPLATE_OPTIONS
            )
        except Exception as error:  # a template raises whatever it likes: jinja errors, its own raise_exception
            raise InputError(f"the chat template cannot render this conversation: {error!s:.300}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def _adds_space(self) -> bool:
        """Does the tokenizer put a space before every text, as SentencePiece models of Llama 2's kind do?"""
        return self._encode("a\n") != [*self._encode("a"), *self._encode("\n")]

    def _encode_tail(self, text: str) -> list[int]:
        """Ids of a text that continues another: without the space that would open a text of its own."""
        if self._adds_space:
            lead = self._encode("a")
            ids = self._encode(f"a{text}")
            if ids[: len(lead)] == lead:
                return ids[len(lead) :]
        return self._encode(text)

    def prefix(self, messages: Messages) -> list[int]:
        """Token ids up to the end of the last user message: what the sensing head reads."""
        ids = self._encode(self._parts(messages)[0])
        if not ids:
            raise InputError("the prompt is empty: this chat template writes nothing before the user's text")
        return ids

    def user_tokens(self, messages: Messages) -> int:
        """How many of the prefix's last tokens are the last user message's text, at least 1.

        The text is tokenised apart, so the count may be off by a token where the template's text before it merges
        with its first word.
        """
        text = messages[-1]["content"]
        text = text.rstrip() if self._trims else text
        text = text.lstrip() if self._trims_start else text
        return min(max(len(self._encode_tail(text)), 1), len(self.prefix(messages)))

    def suffix(self, messages: Messages, profile: Mapping[str, float] | None) -> list[int]:
        """Token ids of the rendered profile and the rest of the template; no or an empty profile renders nothing."""
        return self._encode_tail(self.profile_text(profile) + self._parts(messages)[1])

    def text(self, messages: Messages, profile: Mapping[str, float] | None = None) -> str:
        """Prefix and suffix as text, up to where the answer begins."""
        before, after = self._parts(messages)
        return before + self.profile_text(profile) + after

    def completion(self, text: str, *, finished: bool = True) -> list[int]:
        """Token ids of an answer and the token that ends the turn (left out when the answer was cut off)."""
        ids = self._encode(text)
        return [*ids, self.end_of_turn] if finished or not ids else ids

    @cached_property
    def end_of_turn(self) -> int:
        """The id that ends an assistant turn: what the template puts after the answer, else the tokenizer's EOS."""
        turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"b{_MARK}"}]
        try:
            after = self._template(turn, generation=False).partition(_MARK)[2]
        except InputError:
            after = ""
        ids = self._encode(after.lstrip()) if after.strip() else []
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        if ids and ids[0] in special:
            return ids[0]
        if self.tokenizer.eos_token_id is None:
            raise InputError("the tokenizer has no end-of-sequence token, so an answer could never end")
        return int(self.tokenizer.eos_token_id)

    def stop_ids(self, generation_eos: int | Sequence[int] | None) -> set[int]:
        """All ids at which generation stops."""
        ids = {self.end_of_turn}
        if self.tokenizer.eos_token_id is not None:
            ids.add(int(self.tokenizer.eos_token_id))
        if generation_eos is not None:
            ids |= {generation_eos} if isinstance(generation_eos, int) else set(generation_eos)
        return ids

    def to_dict(self) -> dict[str, Any]:
        """JSON form; objectives are saved beside it, the tokenizer in its own files."""
        scales = {"centre": self.centre, "spread": self.spread} if self.style == "ric" else {}
        return {"style": self.style, "snap": self.snap, **scales}


def phrase(objective: Objective, level: int) -> str:
    """What the style `instructions` says for a level: the objective's own phrase, else a generic sentence."""
    if objective.phrases:
        return objective.phrases[level]
    return f"The {objective.name.replace('_', ' ')} of the answer must be {LEVELS[level]}."


def _adds_bos(tokenizer: Any) -> bool:
    """Does the tokenizer itself begin every text with its BOS?"""
    if tokenizer.bos_token_id is None:
        return False
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id


def install_template(tokenizer: Any) -> None:
    """Give a tokenizer without a chat template the plain one, so that the saved policy carries it."""
    if not tokenizer.chat_template:
        tokenizer.chat_template = FALLBACK_TEMPLATE
    if tokenizer.pad_token_id is None:
        if not (tokenizer.eos_token or tokenizer.unk_token):
            raise InputError("the tokenizer has no padding, end-of-sequence or unknown token; set its pad_token")
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token

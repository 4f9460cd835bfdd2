"""What a reward model reads: prompt and answer as the token ids of one input.

Input that is too long loses the beginning of its prompt first; only an answer that fills the input alone is cut. System
text that a format has no place for heads the first user message, a blank line between, as the policy's renderer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.rewards.encoder import Encoded
from paretune.template import render_template

INPUTS = ("chat", "pair", "hh", "beaver", "answer")
_MARK = "\ue0f0\ue0f1"  # private-use characters: no template transforms them


class Inputs:
    """Encodes prompts and answers as `kind` says, at most `limit` tokens each."""

    def __init__(self, tokenizer: Any, kind: str, limit: int, location: str) -> None:
        self.tokenizer, self.kind, self.limit, self.location = tokenizer, kind, limit, location
        if kind == "chat" and not getattr(tokenizer, "chat_template", None):
            raise InputError(f"the tokenizer of '{location}' has no chat template; use ?input=pair")

    def encode(self, prompts: Sequence[Messages], texts: Sequence[str]) -> list[Encoded]:
        """Token ids of each answer to its prompt, without padding.

        Raises `InputError` for a conversation that the chat template refuses.
        """
        if self.kind == "chat":
            rendered = [self._conversation(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
            # the template has written the special tokens; adding them again would double the first
            return [self._end_of(item) for item in self._tokens(rendered, add_special_tokens=False)]
        if self.kind == "answer":
            self.tokenizer.truncation_side = "right"
            return self._tokens(list(texts), truncation=True, max_length=self.limit)
        if self.kind == "beaver":
            end = str(self.tokenizer.eos_token or "")
            written = [beaver_transcript(prompt, end) + text for prompt, text in zip(prompts, texts, strict=True)]
            return [self._end_of(item) for item in self._tokens(written)]
        first = [hh_transcript(prompt) if self.kind == "hh" else plain_transcript(prompt) for prompt in prompts]
        whole = self._tokens(first, list(texts))
        return [
            item if len(item["input_ids"]) <= self.limit else self._cut_pair(first[at], texts[at])
            for at, item in enumerate(whole)
        ]

    def _tokens(self, *texts: list[str], **options: Any) -> list[Encoded]:
        """One call for all is several times faster than one each."""
        if not texts[0]:
            return []
        found = self.tokenizer(*texts, verbose=False, **options)
        return [{name: list(values[at]) for name, values in found.items()} for at in range(len(texts[0]))]

    def _cut_pair(self, first: str, second: str) -> Encoded:
        answer = len(self._tokens([second], add_special_tokens=False)[0]["input_ids"])
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        fits = answer + special < self.limit
        self.tokenizer.truncation_side = "left" if fits else "right"
        strategy = "only_first" if fits else "longest_first"
        return self._tokens([first], [second], truncation=strategy, max_length=self.limit)[0]

    def _end_of(self, encoded: dict[str, list[int]]) -> Encoded:
        """The end of a conversation, where the answer stands; its first token stays when that begins every text."""
        ids = encoded["input_ids"]
        over = len(ids) - self.limit
        if over <= 0:
            return encoded
        kept = int(ids[0] == self.tokenizer.bos_token_id and self.limit > 1)
        return {name: values[:kept] + values[over + kept :] for name, values in encoded.items()}

    def _conversation(self, prompt: Messages, text: str) -> str:
        return self._render([*self._with_system(prompt), {"role": "assistant", "content": text}])

    def _render(self, messages: Messages) -> str:
        try:
            return render_template(self.tokenizer, messages, add_generation_prompt=False)
        except Exception as error:  # a template refuses roles or orders by raising its own error
            raise InputError(f"the chat template of '{self.location}' refuses a prompt: {error}") from error

    def _with_system(self, prompt: Messages) -> Messages:
        return prompt if prompt[0]["role"] != "system" or self._takes_system else fold_system(prompt)

    @cached_property
    def _takes_system(self) -> bool:
        """Does the template show a system message? Some raise at one, some leave it out without a word."""
        probe = [{"role": "system", "content": _MARK}, *({"role": role, "content": "a"} for role in _TURNS)]
        try:
            return _MARK in self._render(probe)
        except InputError:
            return False


_TURNS = ("user", "assistant")


def fold_system(prompt: Messages) -> Messages:
    """The conversation with its leading system text at the head of the first user message."""
    turns = list(prompt)
    said = []
    while turns and turns[0]["role"] == "system":
        said.append(turns.pop(0)["content"])
    first = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), None)
    if not said or first is None:
        return prompt
    text = "\n\n".join([*filter(str.strip, said), turns[first]["content"]])
    turns[first] = {**turns[first], "content": text}
    return turns


def plain_transcript(prompt: Messages) -> str:
    """A single message as it is, a conversation as "User: ..." and "Assistant: ..." paragraphs."""
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in prompt)


def hh_transcript(prompt: Messages) -> str:
    """A prompt as in Anthropic's HH-RLHF data, up to the answer."""
    speakers = {"user": "Human", "assistant": "Assistant", "system": "Human"}
    turns = "".join(f"\n\n{speakers[message['role']]}: {message['content']}" for message in fold_system(prompt))
    return f"{turns}\n\nAssistant:"


def beaver_transcript(prompt: Sequence[dict[str, str]], end: str) -> str:
    """A prompt as in safe-rlhf's `format_prompt`, up to the answer; `end` is the tokenizer's end-of-sequence token."""
    turns = fold_system(list(prompt))
    said = "".join(
        f"{turn['content']}{end}" if turn["role"] == "assistant" else f"USER: {turn['content']} ASSISTANT:"
        for turn in turns
    )
    return f"BEGINNING OF CONVERSATION: {said}"

"""Tokens to text while they come: whole characters only, and nothing that may begin a stop text.

What is told of an answer, put together, is the decoding of all its tokens (special ones skipped) up to the first stop
text: not stripped, and without the spaces that some old tokenizers take back when punctuation follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

REPLACEMENT = "\ufffd"  # what decoding makes of an unfinished character
WINDOW = 16  # tokens before the newest ones that are decoded with them, for their context
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Words:
    """What a tokenizer's tokens are made of."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
        self.byte_level = '"ByteLevel"' in decoder
        self.byte_fallback = '"ByteFallback"' in decoder
        self.bytes_of = lru_cache(maxsize=1 << 16)(self._bytes_of)

    def decode(self, ids: Sequence[int]) -> str:
        """As `Policy.generate` decodes an answer."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def is_byte(self, token: int) -> bool:
        """Is a token one byte of a character that has no token? A run of them is decoded as a whole."""
        return self.byte_fallback and _BYTE.fullmatch(self.tokenizer.convert_ids_to_tokens(token) or "") is not None

    def _bytes_of(self, token: int) -> bytes:
        """The token's bytes; a special token's are those of its name."""
        text = self.tokenizer.convert_ids_to_tokens(token)
        if text is None:  # rows of the embedding beyond the vocabulary
            return b""
        if token in self.tokenizer.added_tokens_decoder:
            return str(text).encode("utf-8", "replace")
        if self.byte_level:
            known = byte_alphabet()
            return b"".join(bytes([known[c]]) if c in known else c.encode("utf-8", "replace") for c in text)
        if self.byte_fallback and (found := _BYTE.fullmatch(text)):
            return bytes([int(found[1], 16)])
        return str(text).replace("\u2581", " ").encode("utf-8", "replace")


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in the vocabulary of a byte-level BPE (that of GPT-2).

    A byte that prints in Latin-1 stands for itself; the others are numbered from U+0100.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Shown:
    """The text of one answer, as much of it as can be told."""

    def __init__(self, words: Words, stops: Sequence[str] = ()) -> None:
        self.words = words
        self.stops = [stop for stop in stops if stop]
        self.stopped = False
        self._ids: list[int] = []
        self._start = 0  # tokens from here on are decoded again with each new one
        self._taken = 0  # characters of their text that are known
        self._held = ""  # known and not told

    def add(self, token: int) -> str:
        """Take one token; gives the text that can be told now. `stopped` says whether a stop text came."""
        self._ids.append(token)
        if not self.words.is_byte(token):
            self._take(final=False)
        return self._told(final=False)

    def finish(self) -> str:
        """The answer is over: the rest of its text."""
        self._take(final=True)
        return self._told(final=True)

    def _take(self, *, final: bool) -> None:
        """Decode, and keep but the last character if it is unfinished: bytes to come do not change those before it."""
        whole = self._decoded(self._start, final=final)
        self._held += whole[self._taken :]
        self._taken = len(whole)
        if len(self._ids) - self._start > 2 * WINDOW and (start := self._cut()) > self._start:
            self._start, self._taken = start, len(self._decoded(start, final=final))

    def _decoded(self, start: int, *, final: bool) -> str:
        whole = self.words.decode(self._ids[start:])
        return whole if final else whole.removesuffix(REPLACEMENT)

    def _cut(self) -> int:
        """Where to decode from next: where no character and no run of byte tokens is cut in two."""
        whole = self.words.decode(self._ids[self._start :])
        for at in range(len(self._ids) - WINDOW, self._start, -1):
            if self.words.is_byte(self._ids[at]):
                continue
            before, after = self.words.decode(self._ids[self._start : at]), self.words.decode(self._ids[at:])
            # bytes that what follows did not make a character never will be one: without this, a model that repeats
            # one such byte would have its whole answer decoded again, many times a token
            if not before.endswith(REPLACEMENT) or (after and before + after == whole):
                return at
        return self._start

    def _told(self, *, final: bool) -> str:
        """Take what can be told out of what is held."""
        found = min((at for stop in self.stops if (at := self._held.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            text, self._held, self.stops = self._held[:found], "", []
            return text
        keep = 0 if final else max((_overlap(self._held, stop) for stop in self.stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop text."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0

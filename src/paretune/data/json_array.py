"""A JSON file that is one array of rows, read as a stream: memory holds one row and a piece of the file at a time."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paretune.data.records import Record
from paretune.errors import InputError
from paretune.unpack import LINE

PIECE = 1 << 16
"""Bytes read at first; twice as many each time that a row does not end in them."""
_TAIL = 12
"""An error so near the end of what was read (a cut literal, number or escape) may be no error at all."""
_SPACE = " \t\r\n"


def array_records(path: Path, file: BinaryIO) -> Iterator[Record]:
    """The array's entries; a record's line is the entry's number. Raises `InputError` where the file is broken."""
    pieces = _Pieces(path, file)
    pieces.expect("[")
    if pieces.take("]"):
        pieces.end()
        return
    number = 0
    while True:
        number += 1
        pieces.entry = number
        yield Record(str(path), number, pieces.value())
        if pieces.take("]"):
            pieces.end()
            return
        pieces.expect(",")


class _Pieces:
    """The file's text from where it has been read to, as far as it is in memory."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at, self._lines, self._over = "", 0, 1, False
        self.entry = 0

    def _more(self, size: int = PIECE) -> None:
        piece = self._file.read(size)
        self._over = not piece
        try:
            rest = self._decoder.decode(piece, final=self._over)
        except UnicodeDecodeError as error:
            raise self._broken(f"is not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None
        self._lines += self._text.count("\n", 0, self._at)
        self._text, self._at = self._text[self._at :] + rest, 0

    def _next(self) -> str:
        """The next character that is no space, or "" at the file's end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if self._over:
                return ""
            self._more()

    def take(self, mark: str) -> bool:
        """Step over `mark` if it comes next."""
        here = self._next() == mark
        self._at += here
        return here

    def expect(self, mark: str) -> None:
        """Step over `mark`, which must come next."""
        if not self.take(mark):
            found = self._next()
            raise self._broken(f"needs a '{mark}', found {found!r}" if found else "the file breaks off")

    def end(self) -> None:
        """Nothing may follow."""
        if self._next():
            raise self._broken("text follows after the array's end")

    def value(self) -> Any:
        """The value that comes next, reading as much as it needs."""
        self._next()
        size = PIECE
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._over:  # a number at the very end may go on
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _TAIL
                if self._over or not cut:
                    raise self._broken("the file breaks off" if cut else f"is no JSON: {error.msg}") from None
            except (ValueError, RecursionError) as error:
                raise self._broken(f"cannot be read: {error}") from None
            if len(self._text) - self._at > LINE:
                raise self._broken(f"it is longer than {LINE >> 20} MiB")
            self._more(size)
            size *= 2

    def _broken(self, cause: str) -> InputError:
        line = self._lines + self._text.count("\n", 0, self._at)
        where = f"in entry {self.entry}" if self.entry else "at its beginning"
        return InputError(f"is a JSON array that is broken {where}: {cause}", file=self._path, line=line)

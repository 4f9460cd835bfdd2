"""Packed files, unpacked as a stream within bounds: a gzip file of a megabyte can hold a gigabyte of nothing."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paretune.errors import InputError

RATIO = 200
"""Bytes that one packed byte may become. Text becomes 3 to 10, very repetitive rows 50; gzip's limit is 1032."""
FREE = 64 << 20
"""Bytes that are unpacked before the ratio is looked at: so much harms nobody."""
LINE = 64 << 20
"""Bytes of one line, and of one entry of a JSON array, packed or not."""


class _Unpacked(io.RawIOBase):
    """What a gzip file unpacks to; `InputError` where that is out of proportion."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw, self._file, self._given = path, raw, gzip.GzipFile(fileobj=raw), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(len(buffer))
        buffer[: len(data)] = data
        self._given += len(data)
        if self._given > FREE and self._given > RATIO * self._raw.tell():
            raise InputError(
                f"unpacks to more than {RATIO} times its size, which rows do not; if it is what you want, unpack it "
                "yourself (gunzip)",
                file=self._path,
            )
        return len(data)


def unpacked(path: Path, raw: BinaryIO) -> Any:
    """The file's content as a buffered stream; `raw` itself if it is not packed, which its first bytes tell."""
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return io.BufferedReader(_Unpacked(path, raw), 1 << 16) if packed else raw


def bounded_lines(path: Path, lines: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream, each with its end; `InputError` for one of more than `LINE` bytes."""
    number = 0
    while line := lines.readline(LINE + 1):
        number += 1
        if len(line) > LINE:
            raise InputError(f"has a line of more than {LINE >> 20} MiB; no row is so long", file=path, line=number)
        yield line

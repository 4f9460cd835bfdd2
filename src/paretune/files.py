"""Files appear whole or not at all: atomic writes of text, JSON, JSON Lines and folders.

A file is written beside its target, flushed to disk and renamed over it. A folder is built as a hidden sibling and
renamed when it is complete. JSON never holds NaN or infinity.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from paretune.errors import InputError


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_parent(path: Path | str) -> Path:
    """Where a file or folder can be made: the path with symbolic links followed. `InputError` when it cannot be."""
    target = Path(os.path.realpath(path))
    above = target.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise InputError(f"cannot be written: {above} is not a folder", file=path)
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written: {above} is read-only", file=path)
    return target


@contextmanager
def atomic_file(path: Path | str) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces `path` when the block ends well and leaves nothing when it does not."""
    path = check_parent(path)
    if path.is_dir():
        raise InputError("is a folder, a file name is needed", file=path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        _sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path | str, value: Any) -> None:
    """Write indented JSON; NaN and infinity raise `ValueError` (they are not JSON)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def dump_line(value: Any) -> str:
    """One JSON Lines record, without the newline."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_jsonl(path: Path | str, values: Iterable[Any]) -> int:
    """Write JSON Lines (gzip when the name ends in .gz), whole or not at all; returns the number of rows."""
    count = 0
    with atomic_file(path) as raw:
        # mtime 0 and no name: the same rows give the same bytes
        file: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") if str(path).endswith(".gz") else raw
        for value in values:
            file.write((dump_line(value) + "\n").encode("utf-8"))
            count += 1
        if file is not raw:
            file.close()
    return count


def move_file(source: Path, target: Path | str) -> None:
    """Rename a finished file over `target`, on the same file system; durable when this returns."""
    target = check_parent(target)
    os.replace(source, target)
    _sync_folder(target.parent)


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


JSON_SIZE = 256 << 20
"""Bytes of a JSON file that is read in one piece. Tokenizers of large vocabularies have some 40 million."""
JSON_DEPTH = 100
"""Lists and objects inside each other; no file of ours, nor of a model, comes near."""


def read_json(path: Path | str, *, unique: bool = False, limit: int = JSON_SIZE) -> Any:
    """Read a JSON file of at most `limit` bytes and `JSON_DEPTH` levels; with `unique` an object names no key twice.

    A missing or broken one is an `InputError` that says where.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None
    if len(raw) > limit:
        raise InputError(f"is larger than {limit >> 20} MiB, the most that is read of such a file", file=path)
    return parse_json(raw, path, unique=unique)


def parse_json(raw: bytes, path: Path | str, *, unique: bool = False) -> Any:
    """The value of a JSON text, as `read_json` says; `path` is the file that errors name."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys if unique else None)
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text ({error})", file=path) from None
    except InputError as error:
        raise InputError(error.message, file=path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", file=path, line=error.lineno) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise InputError(f"is JSON that cannot be read: {error}", file=path) from None
    check_depth(value, path)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key named twice one reader takes the first value and another the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"names the key {twice!r:.100} twice in one object")
    return found


def check_depth(value: Any, path: Path | str, limit: int = JSON_DEPTH) -> None:
    """`InputError` where lists and objects lie more than `limit` deep inside each other."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit + 1):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise InputError(f"is JSON of more than {limit} levels inside each other", file=path)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` inside the block: one process at a time, and a dead one holds nothing.

    The kernel drops the lock with the process (`flock`), so a file that a killed run left behind locks nobody out. Its
    text is the holder's process number, which the error of the one that comes second names. Raises `InputError` when
    `what` ("training into this folder", say) is going on already, in another process or in this one.
    """
    path = check_parent(path)
    new = [folder for folder in path.parents if not folder.exists()]
    handle = _lock(path, what)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            # not if the folder was renamed meanwhile: then the name is another's
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                path.unlink()  # while it is held: whoever waits for the name makes a new file
        os.close(handle)
        with suppress(OSError):  # folders made for the lock alone go with it
            for folder in new:
                folder.rmdir()


@contextmanager
def writing(target: Path, what: str) -> Iterator[None]:
    """`locked` for the one who makes the file or folder `target`; what killed ones left half-written is removed."""
    with locked(target.with_name(f".{target.name}.lock"), what):
        _clear(target)
        yield


def _clear(target: Path) -> None:
    """Remove unfinished siblings of `target`. One that was being replaced comes back, if nothing took its place."""
    name = glob.escape(target.name)
    for half in target.parent.glob(f".{name}.{'[a-z0-9_]' * 8}.part"):
        if half.is_dir():
            shutil.rmtree(half, ignore_errors=True)
        else:
            half.unlink(missing_ok=True)
    for old in left_by_ended(target, "old"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(old, target)


def left_by_ended(target: Path, ending: str) -> list[Path]:
    """The siblings `.NAME.PROCESS.ending` of `target` whose process runs no more."""
    found = []
    for each in target.parent.glob(f".{glob.escape(target.name)}.*.{ending}"):
        process = each.name.removeprefix(f".{target.name}.").removesuffix(f".{ending}")
        if process.isdecimal() and not alive(int(process)):  # one with a dot in it is of another target, `NAME.more`
            found.append(each)
    return found


def _lock(path: Path, what: str) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the one before took its folder along, just now
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(f"cannot be locked: {error.strerror}", file=path) from error
            by = f"process {holder}" if holder.isdigit() else "another process"
            raise InputError(
                f"{what} is going on already, in {by}; wait for it, or choose another output", file=path
            ) from None
        try:
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # the one before let go of it, and of its name, between our two steps: again


def holder(path: Path) -> int | None:
    """The process that holds the lock file `path` (see `locked`); None where no living one of this machine does."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) < 10 and alive(int(text)) else None


def alive(process: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        )
    except (OSError, IndexError):  # another system than Linux
        return True
    return state != "Z"  # killed, and not yet collected by its parent


def cache_folder() -> Path:
    """What can be made again is kept in $PARETUNE_CACHE, else $XDG_CACHE_HOME/paretune, else ~/.cache/paretune."""
    if os.environ.get("PARETUNE_CACHE"):
        return Path(os.environ["PARETUNE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paretune"


def read_described(path: Path | str, version_read: int) -> dict[str, Any]:
    """A JSON object that says its `format`; `InputError` for another one than this version of paretune reads."""
    data = read_json(path, unique=True)
    if not isinstance(data, dict):
        raise InputError("must be a JSON object", file=path)
    if data.get("format") != version_read:
        raise InputError(
            f"has format {data.get('format')!r}, this version of paretune reads format {version_read}",
            file=path,
            field="format",
        )
    return data


def installed_version(package: str) -> str:
    """The version of an installed package, as files say it; "unknown" where it is run without being installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


OURS = ".paretune"
"""Marker file of a folder that paretune wrote: only such a folder may be replaced."""


def check_target_folder(path: Path | str, *, overwrite: bool) -> Path:
    """Refuse an output folder that exists: another's always, ours unless `overwrite`."""
    given, path = path, check_parent(path)
    if path.is_file():
        raise InputError("is a file; an output folder is needed", file=given)
    if path.is_dir() and any(path.iterdir()):
        if not (path / OURS).exists():
            raise InputError("exists and was not written by paretune; choose another folder", file=path)
        if not overwrite:
            raise InputError("exists already; pass --overwrite to replace it", file=path)
    return path


@contextmanager
def atomic_folder(path: Path | str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a sibling folder that becomes `path` when the block ends well, else vanishes."""
    path = check_target_folder(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield work
        (work / OURS).write_text("written by paretune\n")
        os.chmod(work, 0o777 & ~_umask())
        for item in sorted(work.rglob("*")):
            if item.is_file():
                os.chmod(item, 0o666 & ~_umask())  # safetensors writes files that nobody else may read
                with item.open("rb") as file:
                    os.fsync(file.fileno())
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            os.replace(path, old)
        os.replace(work, path)
        _sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise

"""What a Python reward's scores depend on, as far as it can be read: its module's source and those that it imports.

Followed are imports that are written as such, into modules that lie in no library folder (the user's own, in the
current folder or on the path) or in the package of the reward itself. Nothing is imported. Files that a module reads
and installed libraries are not looked at.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")


def source_digest(module: str) -> str:
    """A hash of the module's source and of its own imports' sources; "" where there is no source to be found."""
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in _LIBRARIES]
    found: dict[str, bytes] = {}
    waiting = [*_parents(module), module]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _locate(name)
        if path is None:
            continue
        own = name.partition(".")[0] == module.partition(".")[0]
        if not own and any(path.is_relative_to(folder) for folder in libraries):
            continue
        found[name] = path.read_bytes()
        waiting += _imports(found[name], name if path.name == "__init__.py" else name.rpartition(".")[0])
    if module not in found:
        return _compiled(module)
    told = [(name, hashlib.sha256(source).hexdigest()) for name, source in sorted(found.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _parents(name: str) -> list[str]:
    """The packages whose `__init__` runs before a module: `a` and `a.b` of `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _locate(name: str) -> Path | None:
    """The source file of a module, looked for as a reward's module is: in the current folder, then on the path."""
    place = name.replace(".", "/")
    for root in [Path.cwd(), *map(Path, filter(None, sys.path))]:
        for path in (root / place / "__init__.py", root / f"{place}.py"):
            if path.is_file():
                return path.resolve()
    return None


def _imports(source: bytes, package: str) -> Iterator[str]:
    """The modules that a source may import; `package` is what its relative imports are relative to."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):  # it is told when the module is imported
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in filter(None, names):
            yield name
            yield from _parents(name)


def _compiled(module: str) -> str:
    """The hash of a module that is no source file (an extension, one of a finder's own)."""
    try:
        spec = None if "." in module else importlib.util.find_spec(module)
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest() if spec and spec.origin else ""
    except (OSError, ValueError, ImportError):
        return ""

"""YAML as data, within bounds: a few lines of aliases (`&a`, `*a`) can stand for more than any memory holds."""

from __future__ import annotations

from typing import Any

from paretune.errors import InputError

SIZE = 1 << 18
"""Characters of a text; the parser takes some seconds for so many."""
VALUES = 20_000
"""Values that a text may stand for, each alias counted as all that it repeats."""
DEPTH = 50
"""Lists and mappings inside each other."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, read by the safe loader: plain data only.

    Raises `InputError` (its message begins with "is", its `line` may be known) for what is no YAML, or larger or
    deeper than the bounds.
    """
    import yaml

    if len(text) > SIZE:
        raise InputError(f"is a text of {len(text)} characters, at most {SIZE} are read as YAML")
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count(node, {}, DEPTH)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = mark.line + 1 if mark is not None else None
        raise InputError(f"is not YAML: {' '.join(str(problem).split())}", line=line) from None
    except InputError:  # a bound; it is a ValueError, too
        raise
    # a date that is none, a number that a tag promises, lists in lists in lists
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"is YAML that cannot be read: {error}") from None


def _count(node: Any, known: dict[int, int], depth: int) -> int:
    """How many values a node stands for. `known` are those of nodes seen before, 0 while they are being counted."""
    if id(node) in known:
        found = known[id(node)]
        if not found:
            raise InputError("is YAML with a value that holds itself")
        return found
    if depth < 0:
        raise InputError(f"is YAML of more than {DEPTH} levels inside each other")
    known[id(node)] = 0
    parts = node.value if not isinstance(node.value, str) else []
    inner = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
    total = 1 + sum(_count(each, known, depth - 1) for each in inner)
    if total > VALUES:
        raise InputError(f"is YAML that stands for more than {VALUES} values")
    known[id(node)] = total
    return total

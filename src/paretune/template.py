"""Chat templates: programs from a stranger's folder, rendered in a sandbox that bounds what they may take.

A template runs in jinja's immutable sandbox, set up as transformers sets it up, so it writes what `apply_chat_template`
writes. Beyond that sandbox, which keeps a template from files and Python's internals but not from time and memory:

    time     the processor time of the rendering thread, looked at on every line of the compiled template. (No signal
             and no process: a server renders in threads.)
    size     every text, list and product is bounded before it is made, and so is the output as it grows

A loop without an end and a text that doubles in every round both end as `TemplateError`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from types import FrameType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 2.0
"""Processor time that one rendering may take; a usual one takes a thousandth of it."""
SIZE = 16_000_000
"""Characters that one value may hold, and characters of the output: beyond any model's context."""
ENTRIES = 300_000
"""Entries that one list may hold, those of its lists included; `range` itself gives 100,000 at most."""
SOURCE = 1_000_000
"""Characters of a template's source; the longest published ones have some ten thousand."""
_INDENT = 16
_REFUSED = ("batch", "center", "format", "pprint", "slice", "sum", "urlize", "wordwrap", "xmlattr")
"""Filters that make much of little by a number or a pattern; no chat template needs them."""
_WIDENING = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill")
"""The methods of texts that do so."""


def render_template(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """What the tokenizer's chat template writes for a conversation. `options` are variables of the template.

    Raises whatever the template raises; `TemplateError` where it takes too long or too much.
    """
    template = _compiled(tokenizer.get_chat_template())
    variables = {**tokenizer.special_tokens_map, "tools": None, "documents": None, **options}
    with _limited_time():
        return str(template.render(messages=[dict(each) for each in messages], **variables))


@lru_cache(maxsize=32)
def _compiled(source: str) -> Any:
    if len(source) > SOURCE:
        raise TemplateError(f"its source has {len(source)} characters, at most {SOURCE} are read")
    return _environment().from_string(source)


def _bounded(*values: Any) -> None:
    """Raise unless the values, with all that they hold, have at most `SIZE` characters and `ENTRIES` entries."""
    size, entries, rest = 0, 0, list(values)
    while rest:
        each = rest.pop()
        entries += 1
        if isinstance(each, (str, bytes)):
            size += len(each)
        elif isinstance(each, (list, tuple, dict)):
            if entries + len(rest) + len(each) > ENTRIES:
                raise TemplateError(f"it makes a list of more than {ENTRIES} entries")
            rest += each
            if isinstance(each, dict):
                rest += each.values()
        if size > SIZE:
            raise TemplateError(f"it makes a text of more than {SIZE} characters")
        if entries > ENTRIES:
            raise TemplateError(f"it makes a list of more than {ENTRIES} entries")


def _checked(value: Any) -> Any:
    _bounded(value)
    return value


def _concat(parts: Iterable[Any]) -> str:
    """The parts joined, taken no further than to `SIZE`: what jinja joins outputs and captured blocks by."""
    out, total = [], 0
    for part in parts:
        _bounded(part)
        text = str(part)
        total += len(text)
        if total > SIZE:
            raise TemplateError(f"it writes more than {SIZE} characters")
        out.append(text)
    return "".join(out)


class _Bounded(NodeTransformer):
    """`a ~ b` and list literals go through filters that look at sizes; jinja has no hook for either."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "paretune_concat", node.lineno)

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filtered(node, "paretune_checked", node.lineno)

    visit_List = visit_Tuple = visit_Dict = _literal


def _filtered(node: Any, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The immutable sandbox with bounds on sizes."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    concat = staticmethod(_concat)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounded().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator's result, if it can be small."""
        if operator == "%" and not isinstance(left, (int, float)):
            raise TemplateError("formatting by % is not allowed")
        if operator == "**" and not (_small(left, 1 << 16) and _small(right, 64)):
            raise TemplateError("it makes a number that is too large")
        if operator == "*":
            whole = [each for each in (left, right) if isinstance(each, int)]
            sized = [each for each in (left, right) if isinstance(each, (str, bytes, list, tuple))]
            if not all(abs(each) < 1 << 63 for each in whole):
                raise TemplateError("it makes a number that is too large")
            limit = SIZE if sized and isinstance(sized[0], (str, bytes)) else ENTRIES
            if sized and whole and len(sized[0]) * whole[0] > limit:
                raise TemplateError(f"it makes a text or list of more than {limit} characters or entries")
        if operator == "+":
            _bounded(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *arguments: Any, **named: Any) -> Any:
        """A call of a method, macro or global, its arguments and the method's text bounded."""
        # the sandbox wraps the formatting methods of texts
        owner, name = getattr(getattr(obj, "__wrapped__", obj), "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, (str, bytes)):
            _bounded(owner)
            if name in _WIDENING:
                raise TemplateError(f"the method '{name}' of a text is not allowed")
            if name == "replace" and len(arguments) > 1:
                _check_replace(owner, *arguments)
            if name == "join" and arguments:
                return _concat(_between(owner, arguments[0]))
        _bounded(*arguments, *named.values())
        # the sandbox's parameter names begin with underscores, so that a template may name its own anything
        return super().call(context, obj, *arguments, **named)


def _small(value: Any, limit: int) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= limit


def _check_replace(text: Any, old: Any, new: Any, *_: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    if len(text) + text.count(old) * len(new) > SIZE:
        raise TemplateError(f"it makes a text of more than {SIZE} characters")


def _between(mark: Any, parts: Iterable[Any]) -> Iterator[Any]:
    for number, part in enumerate(parts):
        if number:
            yield mark
        yield part


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are bounded; jinja's marks on it (`pass_context` and others) stay."""

    @wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        if name in _REFUSED:
            raise TemplateError(f"the filter '{name}' is not allowed")
        _bounded(*arguments, *named.values())
        for each in (*arguments, *named.values()):
            if name in ("indent", "tojson") and isinstance(each, int) and each > _INDENT:
                raise TemplateError(f"an indentation of more than {_INDENT} is not allowed")
        if name in ("replace", "join"):
            _check_growth(name, [*arguments[1:], *named.values()])  # the first is jinja's context
        return function(*arguments, **named)

    return run


def _check_growth(name: str, values: list[Any]) -> None:
    if name == "replace" and len(values) > 2:
        _check_replace(*values)
    if name == "join" and len(values) > 1:
        count = len(values[0]) if hasattr(values[0], "__len__") else ENTRIES
        if count * len(str(values[1])) > SIZE:
            raise TemplateError(f"it makes a text of more than {SIZE} characters")


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    """transformers' filters, globals and extensions in our sandbox: templates are written for those."""
    from transformers.utils.chat_template_utils import _cached_compile_jinja_template

    theirs = _cached_compile_jinja_template("{# as transformers compiles one #}").environment
    ours = _Environment(
        trim_blocks=theirs.trim_blocks,
        lstrip_blocks=theirs.lstrip_blocks,
        extensions=[type(each) for each in theirs.extensions.values()],
        finalize=_checked,
    )
    ours.globals.update({name: each for name, each in theirs.globals.items() if name != "lipsum"})
    ours.globals.pop("lipsum", None)  # text by the number
    ours.filters = {name: _guarded(name, each) for name, each in theirs.filters.items()}
    ours.filters |= {"paretune_concat": _concat, "paretune_checked": _checked}
    return ours


@contextmanager
def _limited_time() -> Iterator[None]:
    """Stop this thread's template code after `SECONDS`, by a trace that only template code feels."""
    end, before = time.thread_time() + SECONDS, sys.gettrace()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise TemplateError(f"it took more than {SECONDS:g} seconds")
        return line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line(frame, event, argument) if frame.f_code.co_filename == "<template>" else None

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)

"""The registry of methods. A method registers itself by one explicit call in its package."""

from __future__ import annotations

from paretune.errors import InputError, did_you_mean
from paretune.methods.base import Method

METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Make a method known by its name."""
    if method.name in METHODS:
        raise ValueError(f"a method called '{method.name}' is registered already")
    METHODS[method.name] = method
    return method


def get_method(name: str) -> Method:
    """The method of that name, or an `InputError` that offers the nearest."""
    if name not in METHODS:
        raise InputError(f"unknown method '{name}'.{did_you_mean(name, METHODS)}")
    return METHODS[name]

"""Checks names of resources that must be this broker's id."""

from __future__ import annotations

import re

from cluster.broker.context import Context
from cluster.errors import InvalidRequest

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,10})")
"""A Java int, with any number of leading zeros."""


def require_own_id(
    context: Context, name: str, kind: str = "Node", otherwise: str = "expected {own}, but received {name}"
) -> None:
    """Refuses a name that is not this broker's id. `otherwise` is the caller's text for another id."""
    number = _int(name)
    if number is None:
        raise InvalidRequest(f"{kind} id must be an integer, but it is: {name}")
    if number != context.broker_id:
        raise InvalidRequest(f"Unexpected broker id, {otherwise.format(own=context.broker_id, name=name)}")


def _int(text: str) -> int | None:
    """The result of Java's `Integer.parseInt`; None for its exception."""
    found = _INTEGER.fullmatch(text)
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(2**31) <= number < 2**31 else None

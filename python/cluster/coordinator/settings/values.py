"""The values of a `zoo.cfg`, read one by one under ZooKeeper's names.

Owns the syntax of numbers and booleans, and the set of names that were read. A name may have the prefix
``zookeeper.`` of ZooKeeper's system properties. Pure.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import CoordinatorError

T = TypeVar("T")

INT_MIN = -(2**31)
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
PREFIX = "zookeeper."
HIDDEN = "*****"
"""Shown instead of a secret value."""
_DECIMAL = re.compile(r"([+-]?)0*([0-9]{1,19})")
_NUMBER = re.compile(r"([+-]?)(0[xX]|#|0(?=.)|)0*([0-9a-fA-F]{1,22})")
"""A sign, the prefix of the radix, and digits: 64 bits have at most 22, in octal."""
_RADIX = {"": 10, "0": 8}
_SECRET = re.compile(r"(password|superDigest)$", re.IGNORECASE)


class Values:
    """Names and texts. ``used`` has the names that were read."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.texts = {name.removeprefix(PREFIX).strip(): text.strip() for name, text in properties.items()}
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def text(self, name: str) -> str:
        """Returns the text, an empty one if the name is not set."""
        self.used.add(name)
        return self.texts.get(name, "")

    def beginning(self, prefix: str) -> dict[str, str]:
        """Returns the settings whose names begin with a prefix."""
        found = {name: text for name, text in self.texts.items() if name.startswith(prefix)}
        self.used.update(found)
        return found

    def number(self, name: str, default: int, least: int = 0, most: int = INT_MAX) -> int:
        """Returns a whole number in decimal (Java's ``parseInt``).

        Raises CoordinatorError if it is not one within the bounds.
        """
        return self._within(name, default, least, most, _decimal)

    def system_number(self, name: str, default: int, least: int = 0, most: int = INT_MAX) -> int:
        """As :meth:`number`, for a system property (``Integer.getInteger``):

        ``0x`` or ``#`` means hexadecimal, ``0`` octal.
        """
        return self._within(name, default, least, most, _decoded)

    def _within(
        self, name: str, default: int, least: int, most: int, parse: Callable[[str], int | None]
    ) -> int:
        def within(text: str) -> int:
            value = parse(text)
            if value is None or not least <= value <= most:
                raise ValueError(f"a whole number from {least} to {most}")
            return value

        return self.read(name, default, within)

    def boolean(self, name: str, default: bool) -> bool:
        """Returns true or false, in any case. Raises CoordinatorError for another text."""

        def either(text: str) -> bool:
            if text.lower() not in ("true", "false"):
                raise ValueError("true or false")
            return text.lower() == "true"

        return self.read(name, default, either)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Returns one of the choices, in any case. Raises CoordinatorError for another text."""

        def one(text: str) -> str:
            for each in choices:
                if each.lower() == text.lower():
                    return each
            raise ValueError(f"one of {', '.join(choices)}")

        return self.read(name, default, one)

    def read(self, name: str, default: T, read: Callable[[str], T]) -> T:
        """Returns the result of ``read``. Its ValueError says what the text has to be."""
        text = self.text(name)
        if name not in self.texts:
            return default
        try:
            return read(text)
        except ValueError as error:
            raise CoordinatorError(f"{name} is {text!r}, and has to be {error}") from None


def _decimal(text: str) -> int | None:
    found = _DECIMAL.fullmatch(text)
    return int(found[1] + found[2]) if found is not None else None


def _decoded(text: str) -> int | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, prefix, digits = found.groups()
    with contextlib.suppress(ValueError):  # digits of another radix
        return int(sign + digits, _RADIX.get(prefix, 16))
    return None


def is_secret(name: str) -> bool:
    """Whether the setting of this name is secret."""
    return _SECRET.search(name) is not None

"""Java's `.properties` format: `server.properties`, `zoo.cfg` and client files (java.util.Properties.load).

Java reads a file's bytes as ISO-8859-1. Here a file that is valid UTF-8 is read as UTF-8, because editors
write UTF-8. Any other file is read as in Java. The two differ only in characters beyond ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LINE_BREAK = re.compile(r"(\r\n|\r|\n)")
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?:\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SHOWN = 6
"""Characters of a malformed escape that an error shows."""


class PropertiesError(ValueError):
    """Text that Java refuses; the error says where and why."""


class PropertiesLine(NamedTuple):
    """A line with its continuation lines and line breaks. A blank line and a comment have no key."""

    text: str
    key: str | None = None
    value: str = ""


def parse_properties(text: str, lenient: bool = False) -> dict[str, str]:
    """Parses properties text into a mapping. The last of a repeated key counts.

    Comments begin with `#` or `!`. A backslash at the end of a line joins the next line. Escapes are `\\u`
    with four hexadecimal digits, `\\t`, `\\n`, `\\r`, `\\f`, and a backslash before any other character. A
    `\\u` without four hexadecimal digits raises PropertiesError; with `lenient` it is a `u`.
    """
    return {line.key: line.value for line in properties_lines(text, lenient) if line.key is not None}


def read_properties(path: Path) -> dict[str, str]:
    """A file's properties. Raises OSError, or PropertiesError for text that Java refuses."""
    return parse_properties(decode_properties(path.read_bytes()))


def decode_properties(data: bytes) -> str:
    """A file's text: UTF-8 if it is valid, else ISO-8859-1."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def properties_lines(text: str, lenient: bool = False) -> Iterator[PropertiesLine]:
    """All lines, in order; their texts together are `text`. Raises PropertiesError as `parse_properties`."""
    parts = _LINE_BREAK.split(text)
    raw: list[str] = []
    pending: list[str] = []
    first = 1
    for number, (line, line_break) in enumerate(zip(parts[::2], [*parts[1::2], ""], strict=True), 1):
        raw.append(line + line_break)
        line = line.lstrip(" \t\f")
        if not pending:
            first = number
            if not line or line[0] in "#!":
                yield PropertiesLine(raw.pop())
                continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pending.append(line[:-1] if goes_on else line)
        if goes_on and line_break:
            continue
        whole = "".join(pending)
        if not whole and (goes_on or not lenient):
            yield PropertiesLine("".join(raw))  # only backslashes
        else:
            yield _line("".join(raw), whole, first, lenient)
        raw.clear()
        pending.clear()


def _line(text: str, line: str, number: int, lenient: bool) -> PropertiesLine:
    separator = _SEPARATOR.search(line)
    if separator is None:
        key, value = line, ""
    else:
        # Backslashes matched before the separator belong to the key.
        kept = separator.group().rstrip("=: \t\f")
        slashes = len(kept) - len(kept.lstrip("\\")) if kept else 0
        key, value = line[: separator.start() + slashes], line[separator.end() :]
    if lenient:
        return PropertiesLine(text, _unescape(key), _unescape(value))
    for part in (key, value):
        for found in _ESCAPE.finditer(part):
            if found[2] == "u":
                shown = part[found.start() :][:_SHOWN]
                raise PropertiesError(
                    f"line {number}: {shown} of {key} is not a character: \\u needs four hexadecimal digits, "
                    "as in \\u00e9; a backslash is written \\\\"
                )
    return PropertiesLine(text, _joined(_unescape(key)), _joined(_unescape(value)))


def escape(value: str) -> str:
    """A value as it is written, so that reading gives it back."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{escaped}" if escaped.startswith((" ", "\f")) else escaped


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code, character = match.groups()
        return chr(int(code, 16)) if code else _CONTROLS.get(character, character)

    return _ESCAPE.sub(replace, text)


def _joined(text: str) -> str:
    """Joins surrogate pairs, which Java uses for characters beyond 16 bits."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")

"""Java's `.properties` text, as `server.properties`, `zoo.cfg` and client files are written (java.util.Properties.load)."""

from __future__ import annotations

import re

_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?:\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parses properties text into a mapping; the last of a repeated key wins.

    Comments begin with `#` or `!`; a backslash at the end of a line joins the next one; `\\uXXXX`, `\\t`, `\\n`,
    `\\r`, `\\f` and a backslash before any other character are escapes.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        separator = _SEPARATOR.search(line)
        if separator is None:
            key, value = line, ""
        else:
            # Backslashes matched before the separator belong to the key.
            kept = separator.group().rstrip("=: \t\f")
            slashes = len(kept) - len(kept.lstrip("\\")) if kept else 0
            key, value = line[: separator.start() + slashes], line[separator.end() :]
        found[_unescape(key)] = _unescape(value)
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            pending.append(line[:-1])
            continue
        lines.append("".join((*pending, line)))
        pending.clear()
    if any(pending):
        lines.append("".join(pending))
    return lines


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code, character = match.groups()
        return chr(int(code, 16)) if code else _CONTROLS.get(character, character)

    return _ESCAPE.sub(replace, text)

"""JSON as Jackson indents it, which ZooKeeper's admin server uses. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from .exposition import java_double


def indented(value: object, depth: int = 0) -> str:
    """Writes each field of an object on a line of its own, and a list on one line. Raises TypeError."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = "  " * (depth + 1)
        fields = (
            f"{inner}{json.dumps(str(name), ensure_ascii=False)} : {indented(each, depth + 1)}"
            for name, each in value.items()
        )
        return "{\n" + ",\n".join(fields) + "\n" + "  " * depth + "}"
    if isinstance(value, Sequence):
        return "[ " + ", ".join(indented(each, depth) for each in value) + " ]" if value else "[ ]"
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")

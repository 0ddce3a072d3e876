"""`log.format`: the format of log records, text or (`json`) one JSON object a line.

The keys of JSON are `time` (UTC, RFC 3339, milliseconds), `level`, `logger`, `message`, `exception` with a
traceback, and the keys of `extra`; the data plane's records have `connection`, `client_id`, `topic` and
others.

Names of groups, topics and clients come from clients. So control characters in a message are escaped, and a
long message is cut in the middle, as in the data plane's log. A traceback keeps its lines; as text they are
indented, so none looks like a record. Uses only the standard library's `logging`.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; the others come from `extra`."""

_BREAKS_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, Unicode's line separators and direction overrides, and surrogates."""

_CUT = " ... (cut) ... "

_LINE_MAX = 4096 + len(_CUT)
"""Characters of a message or a field. A line that the data plane has cut is not cut again."""

_TRACEBACK_MAX = 65_536
"""Characters of a traceback; a usual one has a few thousand."""

_INDENTATION = "    "


def formatter(log_format: str | None) -> logging.Formatter:
    """The formatter for a value of `log.format`."""
    return JsonFormatter() if log_format == "json" else TextFormatter(_TEXT)


class TextFormatter(logging.Formatter):
    """Formats a record as one line, and the lines of its traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """The traceback, indented."""
        return _lines(super().formatException(ei), _INDENTATION)

    def formatStack(self, stack_info: str) -> str:
        """The stack, indented."""
        return _lines(super().formatStack(stack_info), _INDENTATION)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[name] = value if isinstance(value, int | float | None) else one_line(str(value))
        if record.exc_info:
            line["exception"] = _lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def one_line(text: str) -> str:
    """The text with control characters escaped, and with its middle cut if it is too long.

    The end is kept, because a message often ends with the reason.
    """
    return _shortened(_BREAKS_LINE.sub(_escaped, text), _LINE_MAX)


def _lines(text: str, indentation: str = "") -> str:
    """`one_line` for each line of a text. Of a long text it drops lines in the middle."""
    lines = "\n".join(indentation + one_line(line) for line in text.split("\n"))
    if len(lines) <= _TRACEBACK_MAX:
        return lines
    last = _TRACEBACK_MAX // 4
    first, _, _ = lines[: _TRACEBACK_MAX - last].rpartition("\n")
    _, _, rest = lines[-last:].partition("\n")
    return f"{first}\n{indentation}{_CUT.strip()}\n{rest}"


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - len(_CUT)
    return text[: kept - kept // 4] + _CUT + text[-(kept // 4) :]


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

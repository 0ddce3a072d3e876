"""`log.format`: how a record of `logging` is written, as text or (`json`) as one JSON object a line, for machines that read logs.

JSON's keys: `time` (UTC, RFC 3339, milliseconds), `level`, `logger`, `message`; `exception` with the traceback of one; and what
the line was given as `extra`, which for those of the data plane is `connection`, `client_id`, `topic` and the like.

Names of groups, topics and clients are what somebody sent. So a message is one line whatever is in it, and not a long one, as in
the data plane's log (`lines.rs`). A traceback keeps its lines; as text they are indented, and none looks like a record of its
own. `logging` of the standard library and nothing else.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; anything else was given as `extra`."""

_BREAKS_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, Unicode's separators of lines and overrides of direction, and what is half a character."""

_CUT = " ... (cut) ... "

_LINE_MAX = 4096 + len(_CUT)
"""Of a message's or a field's characters. A line that the data plane has cut is not cut again."""

_TRACEBACK_MAX = 65_536
"""Of a traceback's characters, which are a few thousand where nobody's text is in it."""

_INDENTATION = "    "


def formatter(log_format: str | None) -> logging.Formatter:
    """The one that `log.format` names."""
    return JsonFormatter() if log_format == "json" else TextFormatter(_TEXT)


class TextFormatter(logging.Formatter):
    """Formats a record as one line, and the lines of its traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
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
        """The line, without its end."""
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
    """The text without what ends a line or moves a terminal's cursor, and without its middle where it gets too long: what
    is said of somebody's text often stands behind it.
    """
    return _shortened(_BREAKS_LINE.sub(_escaped, text), _LINE_MAX)


def _lines(text: str, indentation: str = "") -> str:
    """The same for a text of several lines, which it keeps, but for those in the middle of a long one."""
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

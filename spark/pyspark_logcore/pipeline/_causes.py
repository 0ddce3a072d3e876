"""What went wrong, in one line: the cause at the bottom of an exception of Spark's."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
# The line of a Python traceback that names the exception. Spark passes tracebacks on as text.
_RAISED = re.compile(r"^(?:\w+\.)*[A-Z]\w*: (\S.*)$", re.M)
_CAUSED = re.compile(r"^Caused by: (.*)$", re.M)
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w.$]*: ")


def reason(error: BaseException) -> str:
    """The root cause, without its stack and without the exception's class."""
    return in_text(str(error)) or type(error).__name__


def in_text(text: str) -> str:
    """The root cause that a message with stacks in it names, as one line; "" if there is none."""
    if _TRACEBACK in text:
        raised = _RAISED.search(text, text.rindex(_TRACEBACK))
        if raised:
            return raised[1].strip()
    caused = _CAUSED.findall(text)
    lines = [line.strip() for line in caused[-1:] or text.splitlines() if line.strip()]
    return _CLASS.sub("", lines[0]) if lines else ""

"""The levels of Python's loggers under log4j's names, for resources of the kind BROKER_LOGGER (KIP-412).

Owns the table of level names and the checks of an alteration. The levels are the process's and end with it.
Any thread. Source: kafka.server.logger.RuntimeLoggerManager, kafka.utils.Log4jController.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cluster.broker.dynamic.alteration import Change, Op
from cluster.errors import InvalidConfig, InvalidRequest

log = logging.getLogger(__name__)

ROOT = "root"
TRACE = 5
"""Python has no level of that name; this one passes everything."""

_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}


def levels() -> dict[str, str]:
    """Every logger with its own or inherited level."""
    names = [
        name
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger)
    ]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in (ROOT, *names)}


def _level_name(level: int) -> str:
    """The name of a level. A level between two names has the lower one's name: it passes the same records."""
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def alter(changes: Sequence[Change], validate_only: bool = False) -> None:
    """Sets or removes the levels of loggers. If one change is refused, none is made."""
    known = levels()
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for change in changes:
        level = _LEVELS[change.value or ""] if change.op == Op.SET else logging.NOTSET
        _logger(change.name).setLevel(level)
        log.warning("the level of logger %s is now %s", change.name, levels()[change.name])


def _check(change: Change, known: dict[str, str]) -> None:
    if change.op in (Op.APPEND, Op.SUBTRACT):
        raise InvalidRequest(f"{Op(change.op).name} operation is not allowed for the BROKER_LOGGER resource")
    if change.op not in (Op.SET, Op.DELETE):
        raise InvalidRequest(
            f"Unknown operation type {change.op} is not allowed for the BROKER_LOGGER resource"
        )
    if change.name not in known:
        raise InvalidConfig(f"Logger {change.name} does not exist!")
    if change.op == Op.DELETE and change.name == ROOT:
        raise InvalidRequest("Removing the log level of the root logger is not allowed")
    if change.op == Op.SET and change.value not in _LEVELS:
        raise InvalidConfig(
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log "
            "level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}"
        )

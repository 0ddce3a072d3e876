"""What the commands share: a parser whose errors are one line, `key=value` options, and files of properties."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn


class CommandError(Exception):
    """Ends a command with one line on standard error and an exit status (1 failed, 2 wrong arguments)."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """argparse with Kafka's manners: no abbreviations, and a wrong flag is one clear line."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"logcore {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (--help lists the options)", status=2)


def pairs(values: Iterable[str], flag: str) -> dict[str, str]:
    """Turns repeated `key=value` arguments of `flag` into a mapping; the last of a repeated key wins."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key.strip():
            raise CommandError(f"{flag} takes key=value, not {value!r}", status=2)
        found[key.strip()] = rest.strip()
    return found


def properties_file(path: str | None, flag: str) -> dict[str, str]:
    """Reads a Java properties file of client settings; an unreadable one is a one-line error."""
    if path is None:
        return {}
    from cluster.properties import parse_properties

    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{flag}: cannot read {path}: {error}") from None


def client_config(bootstrap: str, *layers: dict[str, str]) -> dict[str, str | int | float | bool]:
    """Merges client settings (later layers win) over the bootstrap address."""
    config: dict[str, str | int | float | bool] = {}
    for layer in layers:
        config.update(layer)
    config["bootstrap.servers"] = bootstrap
    return config

"""The options that say where a read begins and ends: at an offset, at a time, or at an end of the log, for
all partitions or for each one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# They stand for the ends of a log in Spark's JSON and in ListOffsets.
LATEST = -1
EARLIEST = -2


class Kind(Enum):
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True)
class Limit:
    """The start or the end of a read. It is `everywhere` for all partitions, or else `each` names every
    partition.

    The numbers are offsets (also EARLIEST and LATEST) or milliseconds since 1970 UTC, depending on `kind`.
    `option` is the name of the user's option, for error messages.
    """

    option: str
    kind: Kind
    everywhere: int | None = None
    each: Mapping[tuple[str, int], int] | None = None

    def of(self, topic: str, partition: int) -> int:
        """The number of one partition."""
        if self.everywhere is not None:
            return self.everywhere
        assert self.each is not None
        return self.each[topic, partition]

    def check_covers(self, partitions: list[tuple[str, int]]) -> None:
        """Raises ValueError if `each` does not name exactly these partitions, as Spark demands."""
        if self.each is None:
            return
        missing = [f"{topic}-{number}" for topic, number in partitions if (topic, number) not in self.each]
        extra = [f"{topic}-{number}" for topic, number in self.each if (topic, number) not in set(partitions)]
        if missing:
            hint = "; use -2 for earliest, -1 for latest" if self.kind is Kind.OFFSET else ""
            raise ValueError(
                f"option {self.option!r} must name every partition; missing: {', '.join(missing)}{hint}"
            )
        if extra:
            raise ValueError(f"option {self.option!r} names partitions that are not read: {', '.join(extra)}")


def parse_starting(options: Mapping[str, str], *, stream: bool) -> Limit:
    """The start of a read, by default the earliest offset, and the latest one for a stream. The options'
    names are in lower case.
    """
    return _parse(options, "starting", LATEST if stream else EARLIEST, refused=None if stream else LATEST)


def parse_ending(options: Mapping[str, str]) -> Limit:
    """The end of a batch read (exclusive), by default the latest offset. The options' names are in lower
    case.
    """
    return _parse(options, "ending", LATEST, refused=EARLIEST)


def refuse_ending(options: Mapping[str, str]) -> None:
    """Raises ValueError if an option ends the read: a stream has no end."""
    for option in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
        if option.lower() in options:
            raise ValueError(f"option {option!r} cannot be set for a stream, which has no end")


def _parse(options: Mapping[str, str], prefix: str, default: int, refused: int | None) -> Limit:
    # Of several options the first counts. The order is Spark's: one timestamp, timestamps, offsets.
    option = f"{prefix}Timestamp"
    if (text := options.get(option.lower())) is not None:
        return Limit(option, Kind.TIMESTAMP, everywhere=_timestamp(option, text))
    option = f"{prefix}OffsetsByTimestamp"
    if (text := options.get(option.lower())) is not None:
        each = _parse_json(option, text)
        for number in each.values():
            _timestamp(option, str(number))
        return Limit(option, Kind.TIMESTAMP, each=each)
    option = f"{prefix}Offsets"
    text = options.get(option.lower())
    if text is None:
        return Limit(option, Kind.OFFSET, everywhere=default)
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if named is not None:
        _refuse(option, named, refused)
        return Limit(option, Kind.OFFSET, everywhere=named)
    each = _parse_json(option, text)
    for number in each.values():
        _refuse(option, number, refused)
        if number < EARLIEST:
            raise ValueError(f"option {option!r}: {number} is not an offset")
    return Limit(option, Kind.OFFSET, each=each)


def _refuse(option: str, number: int, refused: int | None) -> None:
    if number == refused:
        name = "latest" if refused == LATEST else "earliest"
        raise ValueError(f"option {option!r} cannot be {name} ({refused}) in a batch read")


def _timestamp(option: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"option {option!r} must be milliseconds since 1970 UTC, not {text!r}")
    return int(text)


def _parse_json(option: str, text: str) -> dict[tuple[str, int], int]:
    problem = f'option {option!r} must be JSON like {{"topic":{{"0":23}}}}, not {text!r}'
    if not option.endswith("Timestamp"):
        problem = f"{problem} (or earliest or latest)"
    try:
        topics = json.loads(text)
    except ValueError:
        raise ValueError(problem) from None
    if not isinstance(topics, dict) or not topics:
        raise ValueError(problem)
    each: dict[tuple[str, int], int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise ValueError(problem)
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int:
                raise ValueError(problem)
            each[topic, int(partition)] = number
    return each

"""Kafka's version names, the values of settings such as `inter.broker.protocol.version`.

Source: `MetadataVersion` of Kafka 3.9.1. Pure; any thread.
"""

from __future__ import annotations

_REVISIONS = {
    "0.10.0": 2,
    "0.10.1": 3,
    "0.10.2": 1,
    "0.11.0": 3,
    "1.0": 1,
    "1.1": 1,
    "2.0": 2,
    "2.1": 3,
    "2.2": 2,
    "2.3": 2,
    "2.4": 2,
    "2.5": 1,
    "2.6": 1,
    "2.7": 3,
    "2.8": 2,
    "3.0": 2,
    "3.1": 1,
    "3.2": 1,
    "3.3": 4,
    "3.4": 1,
    "3.5": 3,
    "3.6": 3,
    "3.7": 5,
    "3.8": 1,
    "3.9": 1,
}
"""The number of revisions before a release: 3.0-IV0, 3.0-IV1."""

_WITHOUT_REVISIONS = ("0.8.0", "0.8.1", "0.8.2", "0.9.0")
_UNRELEASED = ("4.0-IV0", "4.0-IV1")

_NAMES = frozenset(
    [
        *_REVISIONS,
        *_WITHOUT_REVISIONS,
        *_UNRELEASED,
        *(f"{version}-IV{number}" for version, count in _REVISIONS.items() for number in range(count)),
    ]
)


def is_kafka_version(text: str) -> bool:
    """Kafka knows the version. Like Kafka it ignores the text after the first numbers, as in 2.8.1."""
    numbers = 3 if text.startswith("0.") else 2
    words = text.rstrip(".").split(".")
    return (".".join(words[:numbers]) if len(words) > numbers else text) in _NAMES

"""Writes tests/golden/messages: each schema and version of the table, as Apache's own classes write it.

usage: python -m tests.protocol.golden     (needs a JDK and `make peers`)

A line has the kind, the API key or name, the version, the bytes in hexadecimal and Apache's JSON, with spaces
between. Each release has a file; a later release's file has only the versions that earlier ones lack.
rust/crates/protocol/tests/apache.rs reads them without Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.protocol.apache import PEERS, Apache, Sample, Subject, apache
from tests.protocol.messages import Schema, schemas

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "messages"
SEED = 1
CHOICE = 6
LONGEST_TEXT = 12
LONGEST_BODY = 250


def longest(samples: list[Sample]) -> Sample:
    """The longest sample that is short enough for a golden file."""
    short = [sample for sample in samples if len(sample.body) <= LONGEST_BODY]
    if short:
        return max(short, key=lambda sample: len(sample.body))
    return min(samples, key=lambda sample: len(sample.body))


def lines(peer: Apache, schema: Schema, done: set[int]) -> Iterator[str]:
    """A line for each version that has none yet."""
    about = Subject(schema.kind, -1 if schema.key is None else schema.key, schema.name)
    known = peer.known(about)
    # An API that was renamed is written by a release that has our name for it.
    renamed = schema.name not in known.name
    if not known.can_make or renamed or (schema.kind == "data" and peer.peer != PEERS[0]):
        return
    for version in schema.versions:
        if version in known.versions and version not in done:
            done.add(version)
            sample = longest(peer.random(about, version, SEED, CHOICE, LONGEST_TEXT))
            name = schema.name if schema.key is None else schema.key
            yield f"{schema.kind} {name} {version} {sample.body.hex() or '-'} {sample.json}\n"


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    done: dict[tuple[str, str], set[int]] = {}
    for name in PEERS:
        with apache(name) as peer, (GOLDEN / f"{name}.txt").open("w") as file:
            for schema in schemas():
                file.writelines(lines(peer, schema, done.setdefault((schema.kind, schema.name), set())))


if __name__ == "__main__":
    main()

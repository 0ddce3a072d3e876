"""Writes tests/golden/messages: a message of each version of everything in the table, as Apache's own classes write it.

usage: python -m tests.protocol.golden     (needs a JDK and `make peers`)

A line is: kind, API key or name, version, the bytes in hexadecimal, and Apache's JSON of it, with spaces between. A file is
what one release wrote; a later release's has only the versions which the earlier ones lack. rust/crates/protocol/tests/apache.rs
reads them, without Java.
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


def telling(samples: list[Sample]) -> Sample:
    """The longest one that is not too long for a golden file."""
    short = [sample for sample in samples if len(sample.body) <= LONGEST_BODY]
    if short:
        return max(short, key=lambda sample: len(sample.body))
    return min(samples, key=lambda sample: len(sample.body))


def lines(peer: Apache, schema: Schema, done: set[int]) -> Iterator[str]:
    """One line for each version that is not yet done."""
    about = Subject(schema.kind, -1 if schema.key is None else schema.key, schema.name)
    known = peer.known(about)
    # An API that was given another name since is written by a release that knows it by ours.
    renamed = schema.name not in known.name
    if not known.can_make or renamed or (schema.kind == "data" and peer.peer != PEERS[0]):
        return
    for version in schema.versions:
        if version in known.versions and version not in done:
            done.add(version)
            sample = telling(peer.random(about, version, SEED, CHOICE, LONGEST_TEXT))
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

"""The list of error codes. If one failed, a client would get another error than Kafka's, or retry in vain."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.errors import (
    NONE,
    InvalidRequest,
    RetriableError,
    UnknownServerError,
    UnknownTopicOrPartition,
    all_errors,
    for_code,
)
from logcore import _native
from tests.compat.conftest import peer_jars
from tests.protocol.apache import PEERS

SOURCE = Path(__file__).with_name("ErrorCodes.java")


@pytest.mark.compat
@pytest.mark.parametrize("peer", PEERS)
def test_the_list_is_apaches(peer: str) -> None:
    """If this failed, our clients and Apache's would disagree on a code, or on whether to retry it."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{peer_jars(peer, 'javac')}/*", str(SOURCE)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    theirs = [tuple(line.split()) for line in printed.splitlines()]
    ours = [(str(code), name, retry) for code, name, retry, _ in _native.kafka_errors()]
    # Each release appends to the list of the one before.
    assert ours[: len(theirs)] == theirs
    if peer == PEERS[-1]:
        assert len(ours) == len(theirs)


def test_every_code_has_a_class() -> None:
    """If this failed, clients would raise UnknownServerError for a code that Kafka has, or never retry it."""
    listed = [row for row in _native.kafka_errors() if row[0] != NONE]
    classes = [(error.code, error.name, error.message) for error in all_errors()]
    assert classes == [(code, name, message) for code, name, _, message in listed]
    for error, (_, _, retry, _) in zip(all_errors(), listed, strict=True):
        assert error.retriable == issubclass(error, RetriableError) == (retry != "never"), error.name
    assert UnknownTopicOrPartition.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_every_error_has_a_text() -> None:
    """If this failed, a person would read an empty error."""
    for error in all_errors():
        assert error.message.endswith(".")
        assert str(error()) == error.message == error.__doc__
        assert str(error("more")) == "more"


def test_unknown_codes() -> None:
    """If this failed, a code of a later Kafka would be an exception of its own kind."""
    assert for_code(9999) is UnknownServerError
    with pytest.raises(ValueError, match="no error"):
        for_code(NONE)


def test_a_detail_fits_in_a_response() -> None:
    """If this failed, one long name would cost a request all its responses."""
    text = str(InvalidRequest("\U0001f980" * 20_000))
    assert len(text) > 8_000
    assert len(text.encode()) <= 32_767
    assert text.endswith("(cut)")

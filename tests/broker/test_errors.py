"""The table of errors. If one failed, a client would be told of another error than Kafka's, or try in vain."""

from __future__ import annotations

import pytest

from cluster.errors import (
    InvalidRequest,
    RetriableError,
    UnknownServerError,
    UnknownTopicOrPartition,
    all_errors,
    for_code,
)


def test_codes_are_complete_and_named_as_kafka_names_them() -> None:
    assert [error.code for error in all_errors()] == [-1, *range(1, 128)]
    assert UnknownTopicOrPartition.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert for_code(17).name == "INVALID_TOPIC_EXCEPTION"
    assert for_code(35).name == "UNSUPPORTED_VERSION"
    assert len({error.name for error in all_errors()}) == 128


def test_every_error_says_something() -> None:
    for error in all_errors():
        assert error.message.endswith(".")
        assert str(error()) == error.message
        assert str(error("more")) == "more"


def test_who_may_try_again() -> None:
    assert for_code(3).retriable
    assert issubclass(for_code(6), RetriableError)
    assert not for_code(10).retriable


def test_unknown_codes() -> None:
    assert for_code(9999) is UnknownServerError
    with pytest.raises(ValueError, match="no error"):
        for_code(0)


def test_what_is_said_fits_in_an_answer() -> None:
    """If this failed, one long name would cost a request all its answers."""
    said = str(InvalidRequest("\U0001f980" * 20_000))
    assert len(said) > 8_000
    assert len(said.encode()) <= 32_767
    assert said.endswith("(cut)")

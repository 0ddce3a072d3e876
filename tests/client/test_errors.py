"""If these fail, scripts that compare error codes or names with confluent-kafka's take the wrong branch."""

from __future__ import annotations

import pickle
from typing import get_type_hints

import confluent_kafka

from cluster import KafkaError, KafkaException
from cluster.client._errors import _TABLE


def test_every_code_has_the_name_that_confluent_kafka_gives_it() -> None:
    theirs = confluent_kafka.KafkaError
    names = {
        getattr(theirs, name): name
        for name in dir(theirs)
        if not name.startswith("__") and isinstance(getattr(theirs, name), int)
    }
    for code, (name, _, _) in _TABLE.items():
        if code in names:
            assert name == names[code]
            assert getattr(KafkaError, name) == code
    missing = {code for code in names if code not in _TABLE}
    # Codes above Kafka 3.9's last.
    assert all(code > 127 for code in missing)


def test_type_checkers_know_every_code() -> None:
    """If this failed, mypy would refuse a script that uses an existing code."""
    assert {name for name, _, _ in _TABLE.values()} <= get_type_hints(KafkaError).keys()


def test_an_error_compares_with_codes_and_with_errors() -> None:
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert error == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert error == KafkaError(3, "another reason")
    assert error != KafkaError._PARTITION_EOF
    assert hash(error) == hash(3)
    assert error.retriable()
    assert not error.fatal()


def test_it_prints_as_confluent_kafkas_does() -> None:
    error = KafkaError(KafkaError._PARTITION_EOF, "the end")
    assert str(error) == 'KafkaError{code=_PARTITION_EOF,val=-191,str="the end"}'
    assert (error.code(), error.name(), error.str()) == (-191, "_PARTITION_EOF", "the end")
    assert str(KafkaException(error)) == str(error)
    assert KafkaError(29999).name() == "ERR_29999?"


def test_it_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(KafkaException(KafkaError(-195, "gone", True))))
    assert (error.error.code(), error.error.str(), error.error.fatal()) == (-195, "gone", True)

"""What `logcore` returns is data: it can be compared, hashed, copied, pickled and printed. Handles
cannot be pickled.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pytest

import logcore
import logcore.columns
import logcore.quorum
from logcore import _native, _tools

SEGMENT = Path("/logs/flights-0/00000000000000000000.log")
FINDING = logcore.Finding(
    "damage", "torn-tail", SEGMENT, 140, 2, "40 bytes are no whole batch", "repair cuts them"
)
ACTION = logcore.RepairAction("cut", SEGMENT, "a torn tail", 140, 2, 40, 0)

VALUES: dict[type, Any] = {
    logcore.AbortedTransaction: logcore.AbortedTransaction(1, 2, 3),
    logcore.CleanerStats: logcore.CleanerStats(0, 3, 100, 50, 3, 2, 1, 1, timedelta(milliseconds=5)),
    logcore.Finding: FINDING,
    logcore.Record: logcore.Record(b"landed", b"UA1", [("from", b"EWR")], 5, 7),
    logcore.RepairAction: ACTION,
    logcore.Repaired: logcore.Repaired((ACTION,), (), True, Path("/logs.repair-1"), (FINDING,)),
    logcore.quorum.QuorumServer: logcore.quorum.QuorumServer(1, "a", 2888, 3888),
    _tools.Verified: _tools.Verified((FINDING,), 1, 1, 5, 50, 4096),
}
"""Of each class whose objects are data, one object."""

HANDLES = {
    logcore.Appender,
    logcore.Log,
    logcore.LogDirectory,
    logcore.columns.PartitionScan,
    logcore.columns.TypedDecoder,
}
"""The public classes whose objects stand for open files, running threads or a decoder's memory."""

INTERNAL = {
    # What the broker, the coordinator and the clients are built on. None of it is public.
    _native.Appender,
    _native.ConsumerCore,
    _native.ListenerTls,
    _native.LoadProgress,
    _native.Log,
    _native.LogDir,
    _native.Measurements,
    _native.MemberFiles,
    # cluster.Message; tests/client has its test.
    _native.Message,
    _native.Network,
    _native.ProducerCore,
    _native.Quorum,
    _native.Request,
    _native.SegmentBatch,
    _native.SegmentReader,
    _native.Server,
    _native.SnapshotSink,
    _native.SnapshotSource,
    _native.TransactionCore,
    _native.Watch,
}


def classes(module: ModuleType) -> Iterator[type]:
    names = getattr(module, "__all__", dir(module))
    found = (getattr(module, name) for name in names)
    return (each for each in found if inspect.isclass(each))


# Broken if it failed: a new class could be returned to users that they cannot send to another process, and
# nothing would say so.
def test_every_class_is_covered() -> None:
    errors = set()
    for module in (logcore, logcore.columns, logcore.quorum, _native):
        found = set(classes(module))
        errors |= {each for each in found if issubclass(each, Exception)}
        assert found - errors - HANDLES - INTERNAL <= VALUES.keys(), module.__name__


@pytest.mark.parametrize("value", VALUES.values(), ids=lambda value: type(value).__name__)
class TestValues:
    # Broken if it failed: a worker process could not return what it found.
    def test_copies_and_pickles_are_equal(self, value: Any) -> None:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(value, protocol)) == value
        for other in (copy.copy(value), copy.deepcopy(value)):
            assert type(other) is type(value)
            assert other == value
            assert hash(other) == hash(value)

    # Broken if it failed: two different findings would be one in a set, or a comparison with another type
    # would raise.
    def test_a_different_value_differs(self, value: Any) -> None:
        assert value != "something else"
        assert (value == "something else") is False
        for name, other in different(value):
            assert other != value, name
            assert len({value, other}) == 2, name

    # Broken if it failed: a log line or a failed assertion would show an address instead of the content.
    def test_its_repr_has_every_field(self, value: Any) -> None:
        text = repr(value)
        assert text.startswith(f"{type(value).__name__}(")
        assert [name for name in fields(value) if f"{name}=" not in text] == []

    # Broken if it failed: a value in a set or a dict could be changed, and not be found again.
    def test_it_does_not_change(self, value: Any) -> None:
        for name in fields(value):
            with pytest.raises(AttributeError):
                setattr(value, name, None)


def fields(value: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "_fields", None) or value.__match_args__


def different(value: Any) -> Iterator[tuple[str, Any]]:
    """Each field's name, and the value with another content of that field."""
    for name in fields(value):
        new = another(getattr(value, name))
        if isinstance(value, logcore.Record):
            parts = {each: getattr(value, each) for each in fields(value)}
            yield name, logcore.Record(**{**parts, name: new})
        elif isinstance(value, tuple):
            yield name, value._replace(**{name: new})  # type: ignore[attr-defined]
        else:
            yield name, dataclasses.replace(value, **{name: new})


def another(old: Any) -> Any:
    match old:
        case bool():
            return not old
        case int():
            return old + 1
        case str():
            return old + "x"
        case tuple():
            return () if old else (ACTION,)
        case _:
            return None


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        log = stack.enter_context(logcore.open(tmp_path / "flights-0"))
        log.append(b"landed")
        scan = log.scan()
        appender = stack.enter_context(logcore.Appender(log))
        directory = stack.enter_context(logcore.open_dir(tmp_path / "logs"))
        directory.create("flights")
        decoder = logcore.columns.TypedDecoder.json(pyarrow.schema([("flight", pyarrow.int32())]))
        yield [log, scan, appender, directory, decoder]


# Broken if it failed: a pickled log would open in another process without its lock, or an unhelpful error
# would be raised.
def test_handles_refuse_to_be_pickled(handles: list[Any]) -> None:
    assert {type(each) for each in handles} == HANDLES
    for each in handles:
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(each)
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.deepcopy(each)


# Broken if it failed: a directory would not equal itself, could not be in a set, or a comparison would open
# every log.
def test_handles_equal_only_themselves(handles: list[Any], tmp_path: Path) -> None:
    for each in handles:
        assert each == each
        assert {each: True}[each]
    with (
        logcore.open_dir(tmp_path / "logs", readonly=True) as one,
        logcore.open_dir(one.path, readonly=True) as two,
    ):
        assert one != two
        assert one != {}


# Broken if it failed: an error in a worker process would lose its code on the way, or not arrive at all.
@pytest.mark.parametrize("name", [name for name in logcore.__all__ if name.endswith("Error")])
def test_errors_keep_their_code(name: str) -> None:
    error = getattr(logcore, name)("there is no log at /logs")
    assert error.code == -1
    error.code = 56
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert (str(other), other.code) == ("there is no log at /logs", 56)


# Broken if it failed: another process could not distinguish a full disk from a missing permission.
def test_an_io_error_keeps_its_number() -> None:
    with pytest.raises(logcore.LogIOError) as raised:
        logcore.open("/proc/no-directory-can-be-made-here")
    assert raised.value.errno is not None
    assert pickle.loads(pickle.dumps(raised.value)).errno == raised.value.errno

"""The wire encoding.

If these fail, a client's bytes are misread, or hostile bytes harm more than their connection.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.coordinator.durability.snapshot import decode as decode_snapshot
from cluster.coordinator.errors import JuteError
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Stat, Writer
from cluster.coordinator.protocol.requests import (
    Check,
    ConnectRequest,
    Create,
    Delete,
    Multi,
    Op,
    SetData,
    SetWatches,
    decode_connect,
    decode_read,
    decode_write,
)
from cluster.coordinator.state.machine import decode_command


def test_connect_with_and_without_the_read_only_flag() -> None:
    body = struct.pack(">iqiqi", 0, 7, 9000, 0x1234, 2) + b"pw"
    assert decode_connect(body) == ConnectRequest(7, 9000, 0x1234, b"pw", False)
    assert decode_connect(body + b"\1") == ConnectRequest(7, 9000, 0x1234, b"pw", True)


def test_a_multi_is_decoded_in_order() -> None:
    writer = Writer()
    writer.i32(Op.CREATE).boolean(False).i32(-1).string("/a").buffer(b"x").acls(
        [Acl(31, Id("world", "anyone"))]
    ).i32(3)
    writer.i32(Op.SET_DATA).boolean(False).i32(-1).string("/a").buffer(None).i32(4)
    writer.i32(Op.CHECK).boolean(False).i32(-1).string("/a").i32(5)
    writer.i32(Op.DELETE).boolean(False).i32(-1).string("/a").i32(6)
    writer.i32(-1).boolean(True).i32(-1)
    assert decode_write(Op.MULTI, Reader(writer.finish())) == Multi(
        [
            Create("/a", b"x", [Acl(31, Id("world", "anyone"))], 3),
            SetData("/a", None, 4),
            Check("/a", 5),
            Delete("/a", 6),
        ]
    )


def test_set_watches_of_both_versions_is_decoded() -> None:
    writer = Writer().i64(5).strings(["/d"]).strings(["/e"]).strings(["/c"])
    assert decode_read(Op.SET_WATCHES, Reader(writer.finish())) == SetWatches(
        5, ["/d"], ["/e"], ["/c"], [], []
    )
    writer.strings(["/p"]).strings(["/r"])
    expected = SetWatches(5, ["/d"], ["/e"], ["/c"], ["/p"], ["/r"])
    assert decode_read(Op.SET_WATCHES2, Reader(writer.finish())) == expected


def test_stat_is_68_bytes_in_the_documented_order() -> None:
    raw = Writer().stat(Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)).finish()
    assert len(raw) == 68
    assert struct.unpack(">qqqqiiiqiiq", raw) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


@pytest.mark.parametrize("length", [-2, -(2**31), 5, 2**31 - 1])
def test_a_length_above_the_remaining_bytes_is_refused(length: int) -> None:
    with pytest.raises(JuteError):
        Reader(struct.pack(">i", length) + b"abcd").buffer()


@pytest.mark.parametrize("count", [2, 2**31 - 1])
def test_a_count_above_the_remaining_bytes_is_refused(count: int) -> None:
    with pytest.raises(JuteError):
        Reader(struct.pack(">i", count) + b"\0\0\0\0").strings()


def test_null_negative_counts_and_invalid_utf8_are_read_as_in_java() -> None:
    assert Reader(b"\xff\xff\xff\xff").string() is None
    assert Reader(b"\xff\xff\xff\xff").strings() is None
    assert Reader(b"\xff\xff\xff\xf9").strings() == []
    assert Reader(b"\0\0\0\1\xff").string() == "\ufffd"


def test_text_is_written_as_javas_chars() -> None:
    assert Writer().string("ä\U0001f600").finish() == bytes.fromhex("00000008 c3a4 eda0bd edb880")
    assert Writer().string(None).finish() == b"\xff\xff\xff\xff"


# If this failed, the most common ACL, which has a shortcut, would be misread, or the bytes after it.
@pytest.mark.parametrize(
    "acls",
    [
        [],
        [Acl(31, Id("world", "anyone"))],
        [Acl(30, Id("world", "anyone"))],
        [Acl(31, Id("world", "anyone"))] * 2,
        [Acl(31, Id("world", "anyon")), Acl(1, Id("ip", "10.0.0.1"))],
    ],
)
def test_acls_read_as_they_were_written(acls: list[Acl]) -> None:
    reader = Reader(Writer().i32(7).acls(acls).i32(8).finish())
    assert (reader.i32(), reader.acls(), reader.i32(), reader.remaining) == (7, acls, 8, 0)


def test_identities_read_as_they_were_written() -> None:
    identities = Id("ip", "127.0.0.1"), Id("digest", "ä:x"), Id("", "")
    for _ in range(2):  # the second time they are cached
        reader = Reader(Writer().i32(7).ids(identities).i32(8).finish())
        assert (reader.i32(), reader.identities(), reader.i32(), reader.remaining) == (7, identities, 8, 0)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">iii", 1, 2**31 - 1, 0),
        struct.pack(">iii", 1, -2, 0),
        struct.pack(">iii", 2, 0, 0),
        struct.pack(">ii", 1, 0),
    ],
)
def test_malformed_identities_are_refused(data: bytes) -> None:
    with pytest.raises(JuteError):
        Reader(data).identities()


@settings(deadline=None)
@given(st.sampled_from([*Op, 77]), st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_jute_error(op: int, body: bytes) -> None:
    for decode in (decode_write, decode_read):
        try:
            request = decode(op, Reader(body))
        except JuteError:
            continue
        assert isinstance(request, tuple)
        assert op != 77


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_give_a_jute_error(body: bytes) -> None:
    for decode in (decode_connect, decode_command, decode_snapshot):
        try:
            decode(body)
        except JuteError:
            continue

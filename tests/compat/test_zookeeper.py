"""The same requests to Apache ZooKeeper 3.9 and to our coordinator: replies, stats, transaction ids and
events must match.

If these fail, a program made for ZooKeeper gets another answer from our coordinator.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from cluster.coordinator import Settings
from cluster.coordinator.protocol.jute import Acl, Id, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import Rules, digest_identity
from tests.compat.zookeeper_peer import TICK_MS, Reply, Request, Side, apache_zookeeper, our_coordinator

OPEN = [Acl(31, Id("world", "anyone"))]
ANN, BOB, SUPER = b"ann:secret", b"bob:secret", b"super:secret"
NEVER_MS = 10**9
"""The interval of the container check: never, because each server would check at another time."""
CLIENTS = 3
MALFORMED = (Op.GET_DATA, Op.CREATE, Op.MULTI, Op.SET_WATCHES)
MALFORMED_TO_ENSEMBLES = (Op.GET_DATA, Op.MULTI, Op.SET_WATCHES)
"""After a malformed write other than a multi, an Apache ensemble commits nothing any more.

PrepRequestProcessor proposes the error with a zxid that it has already used.
"""
HISTORIES = 6
REQUESTS = 250


class Pair(NamedTuple):
    """Hosts and ports of the servers."""

    theirs: list[tuple[str, int]]
    ours: list[tuple[str, int]]
    extended: bool
    counts_reconnects: bool = False
    """Whether ``ours`` does (:class:`.Side`)."""


@pytest.fixture(scope="module", params=["defaults", "extended"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers, with ZooKeeper's defaults or with extended types and enforced quotas."""
    directory = tmp_path_factory.mktemp(f"zookeeper-{request.param}")
    extended = request.param == "extended"
    super_digest = digest_identity(SUPER).id
    properties = {
        "zookeeper.DigestAuthenticationProvider.superDigest": super_digest,
        "znode.container.checkIntervalMs": str(NEVER_MS),
    }
    if extended:
        properties |= {"zookeeper.extendedTypesEnabled": "true", "zookeeper.enforceQuota": "true"}
    settings = Settings(
        tick_time_ms=TICK_MS,
        max_client_connections=0,
        super_digest=super_digest,
        container_check_interval_ms=NEVER_MS,
        rules=Rules.EXTENDED_TYPES | Rules.ENFORCE_QUOTA if extended else Rules.NONE,
    )
    with (
        apache_zookeeper(directory, {}, properties) as theirs,
        our_coordinator(directory, settings) as ours,
    ):
        yield Pair([("127.0.0.1", theirs)], [("127.0.0.1", ours)], extended)


class Sides:
    """Both servers with the same clients. :meth:`same` sends to both and compares the answers."""

    def __init__(self, pair: Pair, clients: int) -> None:
        self._theirs = Side(pair.theirs, clients, lingers=len(pair.theirs) > 1)
        self._ours = Side(pair.ours, clients, counts_reconnects=pair.counts_reconnects)
        self.sent: list[str] = []

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()

    def same(self, client: int, *requests: Request, ends: bool = False) -> list[list[object]]:
        """What each client received, ``client`` first. ``ends``: the request ends the connection."""
        for request in requests:
            name = Op(request.op).name if request.op in list(Op) else request.op
            self.sent.append(f"client {client}: {name} {request.body!r}")
        return self._compared(self._theirs.do(client, requests, ends), self._ours.do(client, requests, ends))

    def come_back(
        self, client: int, requests: Callable[[Callable[[int], int]], Sequence[Request]]
    ) -> list[list[object]]:
        """Like :meth:`same`, on a new connection of the client's session (:meth:`Side.come_back`)."""
        self.sent.append(f"client {client} reconnects: {requests(lambda ago: -ago)}")
        return self._compared(
            self._theirs.come_back(client, requests), self._ours.come_back(client, requests)
        )

    def _compared(
        self, expected: list[list[Reply | str]], got: list[list[Reply | str]]
    ) -> list[list[object]]:
        for number, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
            assert ours == theirs, "\n".join(
                [
                    "the answers differ",
                    f"connection {number}",
                    f"theirs: {theirs}",
                    f"ours:   {ours}",
                    *self.sent[-12:],
                ]
            )
        return [list(each) for each in got]


@pytest.fixture
def sides(pair: Pair) -> Iterator[Sides]:
    both = Sides(pair, 2)
    yield both
    both.close()


# ---- requests ----


def create(
    path: str | None,
    data: bytes | None = b"",
    acl: list[Acl] | None = None,
    flags: int = 0,
    op: Op = Op.CREATE,
    ttl_ms: int = -1,
    null_acl: bool = False,
) -> Request:
    writer = Writer().string(path).buffer(data)
    if null_acl:
        writer.i32(-1)
    else:
        writer.acls(OPEN if acl is None else acl)
    writer.i32(flags)
    if op is Op.CREATE_TTL:
        writer.i64(ttl_ms)
    return Request(op, writer.finish())


def delete(path: str | None, version: int = -1) -> Request:
    return Request(Op.DELETE, Writer().string(path).i32(version).finish())


def set_data(path: str | None, data: bytes | None, version: int = -1) -> Request:
    return Request(Op.SET_DATA, Writer().string(path).buffer(data).i32(version).finish())


def set_acl(path: str | None, acl: list[Acl], version: int = -1) -> Request:
    return Request(Op.SET_ACL, Writer().string(path).acls(acl).i32(version).finish())


def check(path: str | None, version: int = -1) -> Request:
    return Request(Op.CHECK, Writer().string(path).i32(version).finish())


def read(op: Op, path: str | None, watch: bool = False) -> Request:
    writer = Writer().string(path)
    if op in (Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2):
        writer.boolean(watch)
    return Request(op, writer.finish())


def multi(*requests: Request, op: Op = Op.MULTI) -> Request:
    writer = Writer()
    for request in requests:
        writer.i32(request.op).boolean(False).i32(-1)
        writer.out += request.body
    writer.i32(-1).boolean(True).i32(-1)
    return Request(op, writer.finish())


def auth(scheme: str, credentials: bytes | None) -> Request:
    return Request(Op.AUTH, Writer().i32(0).string(scheme).buffer(credentials).finish())


def watches(op: Op, path: str | None, number: int) -> Request:
    return Request(op, Writer().string(path).i32(number).finish())


def set_watches(zxid: int, *lists: list[str], op: Op = Op.SET_WATCHES2) -> Request:
    writer = Writer().i64(zxid)
    for paths in lists:
        writer.strings(paths)
    return Request(op, writer.finish())


# ---- single requests ----


CASES: dict[str, Callable[[str], list[Request]]] = {
    "paths of creates": lambda root: [
        create(path)
        for path in (
            f"{root}/a/b", f"{root}//a", f"{root}/a/", f"{root}/../a", f"{root}/.", "a", "a/b", "", "/", None,
            f"{root}/\0", f"{root}/\x1f", f"{root}/\U0001f600", f"{root}/\ufffd", f"{root}/ä", "/zookeeper",
            "/zookeeper/config/a", "/zookeeper/a",
        )
    ],
    "ACLs before parents before paths": lambda root: [
        create(f"{root}/no//where", acl=[Acl(31, Id("none", ""))]),
        create(f"{root}//x", acl=[]),
        create(f"{root}/no//where"),
        create(f"{root}/no/where", null_acl=True),
    ],
    "flags": lambda root: [
        create(f"{root}/f{number}{flags}", flags=flags, op=op)
        for number, op in enumerate((Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER))
        for flags in range(-1, 8)
    ],
    "TTLs": lambda root: [
        create(f"{root}/t{flags}{ttl}", flags=flags, op=Op.CREATE_TTL, ttl_ms=ttl)
        for flags in (5, 6, 7)
        for ttl in (-1, 0, 1, 1000, (1 << 40) - 1, 1 << 40)
    ],
    "stats of each kind": lambda root: [
        create(f"{root}/c", op=Op.CREATE_CONTAINER, flags=4),
        create(f"{root}/t", op=Op.CREATE_TTL, flags=5, ttl_ms=60_000),
        create(f"{root}/e", flags=1),
        *(create(f"{root}/{name}/x") for name in "cte"),
        *(read(Op.EXISTS, f"{root}/{name}") for name in "cte"),
        Request(Op.DELETE_CONTAINER, Writer().string(f"{root}/e").finish()),
        Request(Op.DELETE_CONTAINER, Writer().string(f"{root}/c").finish()),
        delete(f"{root}/c/x"),
        Request(Op.DELETE_CONTAINER, Writer().string(f"{root}/c").finish()),
        Request(Op.DELETE_CONTAINER, Writer().string(f"{root}/none").finish()),
        Request(Op.DELETE_CONTAINER, Writer().string("/zookeeper").finish()),
    ],
    "deletes": lambda root: [
        delete(path)
        for path in (
            f"{root}/none", f"{root}/no/where", "none", "", "/", "/zookeeper", None, f"{root}/", f"{root}/\0",
        )
    ],
    "sets": lambda root: [
        *(
            set_data(path, b"x")
            for path in (f"{root}/none", f"{root}/", "none", "", None, "/zookeeper/config", "/")
        ),
        set_data(root, None), set_data(root, b"", 7), set_data(root, b"abc", 1), read(Op.GET_DATA, root),
        *(set_acl(path, OPEN) for path in (f"{root}/none", f"{root}/", "", None, "/zookeeper/config")),
        set_acl(root, OPEN, 5), set_acl(root, OPEN, 0), set_acl(root, [], 0), set_acl(root, [*OPEN, *OPEN]),
        read(Op.GET_ACL, root), read(Op.GET_ACL, "/zookeeper/config"), read(Op.GET_DATA, "/zookeeper/config"),
    ],
    "reads of missing nodes": lambda root: [
        read(op, path)
        for op in (
            Op.EXISTS, Op.GET_DATA, Op.GET_ACL, Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.GET_ALL_CHILDREN_NUMBER,
            Op.SYNC,
        )
        for path in (f"{root}/none", f"{root}/", "none", None, f"{root}/\0", "//")
    ],
    "the root has two names": lambda _root: [
        read(op, "") for op in (Op.EXISTS, Op.GET_DATA, Op.GET_ACL, Op.GET_CHILDREN, Op.GET_CHILDREN2)
    ],
    "a check outside a multi": lambda root: [check(root)],
    "unknown operations": lambda _root: [
        Request(number, b"\0" * 8) for number in (0, 10, 23, 99, 108, -1, -2, 1000)
    ],
    "malformed": lambda _root: [
        Request(op, body)
        for op in (
            Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL, Op.DELETE, Op.SET_DATA, Op.SET_ACL,
            Op.MULTI, Op.MULTI_READ, Op.EXISTS, Op.GET_DATA, Op.GET_ACL, Op.GET_CHILDREN, Op.SYNC,
            Op.SET_WATCHES, Op.ADD_WATCH, Op.CHECK_WATCHES, Op.GET_EPHEMERALS, Op.DELETE_CONTAINER,
            Op.GET_ALL_CHILDREN_NUMBER,
        )
        for body in (b"", b"\0\0\0\x05/a", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe")
    ],
    "bytes after the body": lambda root: [Request(Op.EXISTS, read(Op.EXISTS, root).body + b"and more")],
    "multis": lambda root: [
        multi(),
        multi(create(f"{root}/m"), set_data(f"{root}/m", b"1"), check(f"{root}/m", 1), delete(f"{root}/m")),
        multi(create(f"{root}/m"), check(f"{root}/m", 5), create(f"{root}/n")),
        multi(
            create(f"{root}/s-", flags=2), create(f"{root}/s-", flags=2, op=Op.CREATE2),
            check(f"{root}/none"),
        ),
        create(f"{root}/s-", flags=2),
        multi(create(f"{root}/k", flags=4), create(f"{root}/l", flags=0, op=Op.CREATE_CONTAINER)),
        read(Op.EXISTS, f"{root}/k"),
        multi(create(f"{root}/u", flags=5)),
        multi(create(f"{root}/u", flags=7)),
        multi(create(f"{root}/u", flags=99, op=Op.CREATE_TTL)),
        multi(create(f"{root}/u", flags=0, op=Op.CREATE_TTL)),
        multi(create(f"{root}/v", flags=5, op=Op.CREATE_TTL, ttl_ms=5)),
        multi(create(f"{root}/w", null_acl=True)),
        multi(create(None)),
        multi(delete(None), create(f"{root}/w")),
        multi(set_data(None, b"")),
        multi(set_acl(root, OPEN)),
        multi(read(Op.GET_DATA, root)),
        multi(multi(), op=Op.MULTI),
        create(f"{root}/w"),
    ],
    "multiple reads": lambda root: [
        multi(op=Op.MULTI_READ),
        multi(
            read(Op.GET_DATA, root, True), read(Op.GET_CHILDREN, f"{root}/none"),
            read(Op.GET_CHILDREN, root, True), op=Op.MULTI_READ,
        ),
        multi(read(Op.EXISTS, root), op=Op.MULTI_READ),
        multi(read(Op.GET_DATA, None), op=Op.MULTI_READ),
        multi(create(f"{root}/x"), op=Op.MULTI_READ),
        create(f"{root}/x"),
    ],
    "watches are found and removed by kind": lambda root: [
        *(watches(Op.ADD_WATCH, path, mode) for path in (root, "none", None, "") for mode in (0, 1, 2, -1)),
        read(Op.GET_DATA, root, True), read(Op.GET_CHILDREN, root, True),
        *(
            watches(op, path, kind)
            for kind in range(7)
            for op in (Op.CHECK_WATCHES, Op.REMOVE_WATCHES, Op.CHECK_WATCHES)
            for path in (root, "none", None)
        ),
        create(f"{root}/x"), set_data(root, b"1"),
    ],
    "watches of every kind": lambda root: [
        watches(Op.ADD_WATCH, root, 0), watches(Op.ADD_WATCH, root, 1),
        read(Op.EXISTS, f"{root}/x", True), read(Op.GET_CHILDREN, root, True),
        create(f"{root}/x"), create(f"{root}/x/y"), set_data(f"{root}/x", b"1"), set_data(root, b"1"),
        delete(f"{root}/x/y"), delete(f"{root}/x"),
        multi(create(f"{root}/p"), create(f"{root}/p/q"), set_data(f"{root}/p", b""), delete(f"{root}/p/q")),
    ],
    "watches set again": lambda root: [
        create(f"{root}/x"),
        set_watches(
            0, [root, f"{root}/none"], [root, f"{root}/later"], [root, f"{root}/none"], [root], [root],
        ),
        set_watches(1 << 50, [root], [f"{root}/later"], [root], op=Op.SET_WATCHES),
        create(f"{root}/later"),
        set_data(root, b"1"),
        Request(Op.SET_WATCHES, Writer().i64(0).strings([f"{root}/none"]).i32(-1).i32(-1).finish()),
        Request(Op.SET_WATCHES, Writer().i64(0).i32(1).string(None).i32(0).i32(0).finish()),
        Request(
            Op.SET_WATCHES,
            Writer().i64(0).i32(3).string(root).string(None).string(root).i32(0).i32(0).finish(),
        ),
    ],
    "who": lambda root: [
        Request(Op.WHO_AM_I),
        auth("digest", ANN), auth("digest", b"nobody"), auth("digest", b""), auth("ip", b""),
        Request(Op.WHO_AM_I),
        create(f"{root}/mine", acl=[Acl(31, Id("auth", ""))]),
        read(Op.GET_ACL, f"{root}/mine"),
        *(
            create(f"{root}/acl{number}", acl=[Acl(1, entry)])
            for number, entry in enumerate(
                Id(scheme, text)
                for scheme, texts in {
                    "digest": ("", "x", "a:", ":b", "a:b", "a:b:", "a:b:c"),
                    "ip": (
                        "", "1.2.3.4", "1.2.3.4/8", "1.2.3.4/33", "010.0.0.1", "1.2.3", "1.2.3.256",
                        "1.2.3.4/255.0.0.0", "::1", "::1/64", "1::2::3", "1:2:3:4:5:6:7:8", "::1.2.3.4",
                        "fe80::1%lo",
                    ),
                    "world": ("anyone", "me"),
                    "sasl": ("me",), "x509": ("CN=me",), "super": ("",), "none": ("",), "": ("",),
                }.items()
                for text in texts
            )
        ),
        create(f"{root}/bits", acl=[Acl(bits, Id("world", "anyone")) for bits in (0, 32, -1)]),
        read(Op.GET_ACL, f"{root}/bits"),
    ],
    "invalid credentials": lambda _root: [
        auth("none", b""), auth("digest", None), auth("world", b""), auth("super", b"x"),
    ],
    "SASL without a login": lambda _root: [
        Request(Op.SASL, Writer().buffer(b"token").finish()),
        Request(Op.SASL, Writer().buffer(None).finish()),
    ],
    "super": lambda root: [
        create(f"{root}/closed", acl=[Acl(1, Id("digest", "a:b"))]),
        read(Op.GET_DATA, f"{root}/closed"), read(Op.GET_ACL, f"{root}/closed"),
        set_acl(f"{root}/closed", OPEN),
        auth("digest", SUPER), Request(Op.WHO_AM_I),
        read(Op.GET_DATA, f"{root}/closed"), set_acl(f"{root}/closed", OPEN),
        set_data("/zookeeper/config", b""),
    ],
    "ephemerals by prefix": lambda root: [
        create(f"{root}/e1", flags=1), create(f"{root}/e-", flags=3),
        *(
            Request(Op.GET_EPHEMERALS, Writer().string(prefix).finish())
            for prefix in (f"{root}/", f"{root}/e1", f" {root}", "none", f"{root}/e-")
        ),
    ],
    "members": lambda _root: [
        Request(Op.RECONFIG, Writer().string(None).string(None).string("server.1=a:1:2").i64(-1).finish()),
        Request(Op.RECONFIG, b""),
    ],
    "quotas are counted": lambda root: [
        create(f"/zookeeper/quota{root}"),
        create(
            f"/zookeeper/quota{root}/zookeeper_limits",
            b"count=5,bytes=-1=;byteHardLimit=20;countHardLimit=3",
        ),
        create(f"{root}/before", b"12345"),
        create(f"/zookeeper/quota{root}/zookeeper_stats", b"count=0,bytes=0"),
        read(Op.GET_DATA, f"/zookeeper/quota{root}/zookeeper_stats"),
        create(f"{root}/a", b"123"), set_data(f"{root}/a", b"1234567"), set_data(f"{root}/a", b"1" * 100),
        create(f"{root}/b"), create(f"{root}/c", b"x" * 50),
        multi(create(f"{root}/d"), create(f"{root}/e"), set_data(f"{root}/a", b"")),
        multi(create(f"{root}/f"), check(f"{root}/none")),
        read(Op.GET_DATA, f"/zookeeper/quota{root}/zookeeper_stats"),
        delete(f"{root}/a"),
        read(Op.GET_DATA, f"/zookeeper/quota{root}/zookeeper_stats"),
        delete(f"/zookeeper/quota{root}/zookeeper_limits"),
        create(f"{root}/g", b"x" * 50),
        read(Op.GET_DATA, f"/zookeeper/quota{root}/zookeeper_stats"),
    ],
    "quotas without counters": lambda root: [
        create(f"/zookeeper/quota{root}"),
        create(
            f"/zookeeper/quota{root}/zookeeper_limits",
            b"count=1,bytes=2=;byteHardLimit=20;countHardLimit=2",
        ),
        set_data(root, b"x" * 50), *(create(f"{root}/{name}", b"x" * 30) for name in "abc"),
        create(f"/zookeeper/quota{root}/zookeeper_stats", b""),
        read(Op.GET_DATA, f"/zookeeper/quota{root}/zookeeper_stats"), create(f"{root}/d"),
        set_data(f"{root}/a", b""), set_data(f"{root}/a", b"x"),
        delete(f"/zookeeper/quota{root}/zookeeper_stats"),
        set_data(
            f"/zookeeper/quota{root}/zookeeper_limits",
            b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2",
        ),
        create(f"{root}/e"),
    ],
}  # fmt: skip


ENDS = ("a check outside a multi", "unknown operations", "invalid credentials")
"""After these ZooKeeper closes the connection, before or after it reads the next request."""


@pytest.mark.parametrize("case", CASES)
def test_single_requests_get_zookeepers_answers(sides: Sides, case: str) -> None:
    root = "/" + case.replace(" ", "-")
    sides.same(0, create(root))
    for request in CASES[case](root):
        sides.same(0, request, ends=case in ENDS)


def test_credentials_apply_to_later_requests(sides: Sides) -> None:
    sides.same(0, create("/order"))
    mine = [Acl(31, Id("auth", ""))]
    sides.same(0, create("/order/before", acl=mine))
    # One packet: the server reads the second request before it answers the first. The answers may come in
    # another order.
    requests = [set_data("/order", b"x"), auth("digest", ANN), create("/order/after", acl=mine)]
    for side in (sides._theirs, sides._ours):
        heard, _other = side.do(0, requests)
        assert sorted(reply.error for reply in heard if not isinstance(reply, str)) == [0, 0, 0]


def test_a_watch_without_read_permission_is_removed_without_an_event(sides: Sides) -> None:
    closed = [Acl(31, Id("auth", ""))]
    sides.same(0, auth("digest", ANN))
    sides.same(0, create("/hidden"))
    sides.same(1, read(Op.EXISTS, "/hidden/a", True))
    sides.same(1, watches(Op.ADD_WATCH, "/hidden", 1))
    heard = sides.same(0, create("/hidden/a", acl=closed))
    assert heard[1] == []
    sides.same(0, set_acl("/hidden/a", OPEN))
    heard = sides.same(0, set_data("/hidden/a", b"1"))
    assert len(heard[1]) == 1, "only the recursive watch is left"


# ---- long random histories ----


class History:
    """A seed's random requests, below its own root. ``malformed``: operations that may get a bad body."""

    def __init__(self, seed: int, extended: bool, malformed: Sequence[Op]) -> None:
        self._chance = random.Random(seed)
        self._malformed = malformed
        self.root = f"/h{seed}"
        self._extended = extended

    def request(self) -> Request:
        chance = self._chance
        path = self._path()
        version = chance.choice([-1, -1, -1, 0, 1, 2])
        kind = chance.randrange(104)
        if kind >= 100:
            return self._quota()
        if kind < 24:
            return self._create(path)
        if kind < 34:
            return delete(path, version)
        if kind < 46:
            return set_data(path, self._data(), version)
        if kind < 50:
            return set_acl(path, self._acl(), version)
        if kind < 60:
            requests = [self._in_multi() for _ in range(chance.randrange(6))]
            return multi(*requests)
        if kind < 80:
            ops = (
                Op.EXISTS,
                Op.GET_DATA,
                Op.GET_CHILDREN,
                Op.GET_CHILDREN2,
                Op.GET_ACL,
                Op.GET_ALL_CHILDREN_NUMBER,
            )
            return read(chance.choice(ops), path, chance.random() < 0.6)
        if kind < 84:
            reads = [
                read(chance.choice([Op.GET_DATA, Op.GET_CHILDREN]), self._path(), True)
                for _ in range(chance.randrange(4))
            ]
            return multi(*reads, op=Op.MULTI_READ)
        if kind < 88:
            return watches(Op.ADD_WATCH, path, chance.choice([0, 1]))
        if kind < 92:
            return watches(chance.choice([Op.CHECK_WATCHES, Op.REMOVE_WATCHES]), path, chance.randrange(1, 6))
        if kind < 94:
            return auth("digest", chance.choice([ANN, BOB]))
        if kind < 95:
            return Request(Op.CLOSE_SESSION)
        if kind < 97:
            return read(Op.SYNC, path)
        if kind < 98:
            return Request(Op.WHO_AM_I)
        if kind < 99:
            return Request(Op.GET_EPHEMERALS, Writer().string(self.root).finish())
        return Request(chance.choice(self._malformed), chance.randbytes(chance.randrange(12)))

    def comes_back(self) -> Callable[[Callable[[int], int]], Sequence[Request]]:
        """The requests of a client that reconnects: it sets watches for what it missed.

        Apache also sends events of nodes that the client may not read. So a client that sets watches from an
        earlier transaction is the super user here.
        """
        chance = self._chance
        lists = [[self._there() for _ in range(chance.randrange(4))] for _ in range(chance.choice([3, 5]))]
        is_super = chance.random() < 0.5
        if not is_super:
            lists[1] = []
        ago = chance.randrange(6) if is_super else 0
        op = Op.SET_WATCHES if len(lists) == 3 else Op.SET_WATCHES2
        names = [auth("digest", SUPER)] if is_super else []
        return lambda before: [*names, read(Op.SYNC, "/"), set_watches(before(ago), *lists, op=op)]

    def _quota(self) -> Request:
        chance = self._chance
        path = f"/zookeeper/quota{self.root}{chance.choice(['', '/a'])}"
        name = chance.choice(["", "/zookeeper_limits", "/zookeeper_limits", "/zookeeper_stats"])
        data = chance.choice(
            [
                b"count=4,bytes=-1",
                b"count=-1,bytes=60",
                b"count=9,bytes=90=;byteHardLimit=60;countHardLimit=6",
            ]
        )
        if name == "/zookeeper_stats":
            data = b"count=0,bytes=0"
        return chance.choice(
            [
                create(path + name, data),
                create(path + name, data),
                set_data(path + name, data),
                read(Op.GET_DATA, path + name, False),
                delete(path + name, -1),
            ]
        )

    def _there(self) -> str:
        depth = self._chance.choice([0, 1, 1, 2])
        return self.root + "".join(f"/{self._chance.choice('abc')}" for _ in range(depth))

    def _path(self) -> str | None:
        chance = self._chance
        if chance.random() < 0.02:
            return chance.choice(
                [
                    None,
                    "",
                    "/",
                    f"{self.root}/",
                    f"{self.root}//a",
                    "relative",
                    f"{self.root}/.",
                    "/zookeeper",
                ]
            )
        depth = chance.choice([0, 1, 1, 1, 2, 2, 3])
        return self.root + "".join(f"/{chance.choice('abc')}" for _ in range(depth))

    def _data(self) -> bytes | None:
        return self._chance.choice([None, b"", self._chance.randbytes(self._chance.randrange(20))])

    def _acl(self) -> list[Acl]:
        chance = self._chance
        entries = [
            OPEN[0], OPEN[0], OPEN[0], OPEN[0], Acl(chance.randrange(32), Id("world", "anyone")),
            Acl(31, Id("auth", "")), Acl(31, digest_identity(ANN)), Acl(1, digest_identity(BOB)),
            Acl(15, Id("ip", "127.0.0.0/8")), Acl(31, Id("digest", "x")),
        ]  # fmt: skip
        return [chance.choice(entries) for _ in range(chance.choice([1, 1, 1, 2, 3]))]

    def _create(self, path: str | None, in_multi: bool = False) -> Request:
        chance = self._chance
        op = chance.choice([Op.CREATE, Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL])
        flags = chance.choice([5, 6]) if op is Op.CREATE_TTL else chance.choice([0, 0, 0, 1, 2, 3, 4])
        if op is Op.CREATE_CONTAINER and in_multi:
            # An ephemeral container in a multi is a listed departure.
            flags &= ~1
        return create(path, self._data(), self._acl(), flags, op, chance.choice([0, 3_600_000]))

    def _in_multi(self) -> Request:
        path, version = self._path(), self._chance.choice([-1, -1, 0, 1])
        return self._chance.choice(
            [
                self._create(path, in_multi=True),
                delete(path, version),
                set_data(path, self._data(), version),
                check(path, version),
            ]
        )


def play(pair: Pair, seed: int) -> None:
    history = History(seed, pair.extended, MALFORMED if len(pair.theirs) == 1 else MALFORMED_TO_ENSEMBLES)
    sides = Sides(pair, CLIENTS)
    try:
        sides.same(0, create(history.root))
        for _ in range(REQUESTS):
            client = history._chance.randrange(CLIENTS)
            if history._chance.random() < 0.03:
                sides.come_back(client, history.comes_back())
            else:
                sides.same(client, history.request())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
    except TimeoutError:
        sent = "\n".join(sides.sent[-12:])
        raise AssertionError(f"seed {seed}: the last of these was not answered\n{sent}") from None
    finally:
        sides.close()


@pytest.mark.timeout(400)
def test_long_histories_are_the_same(pair: Pair) -> None:
    play_all(pair, HISTORIES)


def play_all(pair: Pair, histories: int) -> None:
    """Plays the first histories, or new ones for as long as `make fuzz` asks."""
    minutes = float(os.environ.get("LOGCORE_FUZZ_MINUTES", "0"))
    if minutes == 0:
        for seed in range(histories):
            play(pair, seed)
        return
    end = time.monotonic() + minutes * 60
    seed = time.time_ns() // 1000
    while time.monotonic() < end:
        play(pair, seed)
        seed += 1

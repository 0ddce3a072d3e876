"""Changes of the members with reconfig.

If these fail, a change has another error code than ZooKeeper's, is done twice, or is lost with a leader. Or
it overtakes its client's other requests, or the configuration files have other members.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    NewConfigNoQuorumError,
    NoAuthError,
    ReconfigDisabledError,
)
from kazoo.security import make_acl

from cluster.coordinator import CoordinatorServer
from cluster.coordinator.ensemble.agreed import Agreed, Proposed, Reconfiguration
from cluster.coordinator.ensemble.files import ConfigurationFiles, dynamic_version, write_configuration
from cluster.coordinator.ensemble.quorum import QuorumError
from cluster.coordinator.ensemble.reconfiguration import reconfigured
from cluster.coordinator.ensemble.snapshot import read, walk
from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.protocol.replies import Begun, Failed, Reconfigured
from cluster.coordinator.protocol.requests import (
    EndReconfig,
    Op,
    Reconfig,
    encode_end_reconfig,
    encode_reconfig,
)
from cluster.coordinator.state.acl import Rules
from cluster.coordinator.state.members import Member, members_text
from cluster.coordinator.state.tree import CONFIG
from cluster.properties import parse_properties, read_properties
from tests.coordinator.support import WAIT_SECONDS, LoopThread, RawClient
from tests.coordinator.test_server import Events
from tests.ports import free_port

from .conftest import SETTINGS, Ensemble, StartEnsemble
from .fake_quorum import FakeQuorum
from .states import fingerprint

MEMBERS = tuple(Member(number, "host", 1000 + number, 2000 + number, "", False) for number in (1, 2, 3))
FOUR = Member(4, "host", 1004, 2004, "0.0.0.0:3004", False)
FOUR_TEXT = "server.4=host:1004:2004;3004"


def request(
    joining: str | None = None, leaving: str | None = None, members: str | None = None, version: int = -1
) -> Reconfig:
    return Reconfig(joining, leaving, members, version)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (request(FOUR_TEXT), (*MEMBERS, FOUR)),
        (request("4=host:1004:2004:participant;0.0.0.0:3004"), (*MEMBERS, FOUR)),
        (request(leaving="3"), MEMBERS[:2]),
        (
            request("4=127.0.0.1:1:2;3,5=127.0.0.1:1:2;3"),
            (
                *MEMBERS,
                Member(4, "127.0.0.1", 1, 2, "0.0.0.0:3", False),
                Member(5, "127.0.0.1", 1, 2, "0.0.0.0:3", False),
            ),
        ),
        (request(leaving="3,9"), MEMBERS[:2]),
        (request(FOUR_TEXT, "1, 2"), (MEMBERS[2], FOUR)),
        (
            request("server.3=host:1003:2003:observer;1", "3"),
            (*MEMBERS[:2], Member(3, "host", 1003, 2003, "0.0.0.0:1", True)),
        ),
        (request("server.3=other:1:2;3"), (*MEMBERS[:2], Member(3, "other", 1, 2, "0.0.0.0:3", False))),
        (
            request(members="server.1=a:1:2,server.2=b:1:2,version=7"),
            (Member(1, "a", 1, 2, "", False), Member(2, "b", 1, 2, "", False)),
        ),
        (
            request(FOUR_TEXT, members="server.1=a:1:2\nserver.2=b:1:2"),
            (Member(1, "a", 1, 2, "", False), Member(2, "b", 1, 2, "", False)),
        ),
        (request(), MEMBERS),
    ],
)
def test_a_request_gives_the_new_members(change: Reconfig, expected: tuple[Member, ...]) -> None:
    assert reconfigured(MEMBERS, change, Rules.NONE) == expected


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (request("4"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004:2004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004;3004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004:2004=5;3004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004:2004:leader;3004"), Code.BAD_ARGUMENTS),
        (request(f"server.4={'h' * 256}:1004:2004;3004"), Code.BAD_ARGUMENTS),
        (request(f"server.4=host:1004:2004;{'h' * 256}:3004"), Code.BAD_ARGUMENTS),
        (request("server.4=ho\\\\st:1004:2004;3004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1003:2004;3004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004:1003;3004"), Code.BAD_ARGUMENTS),
        (request("server.4=host:1004:2004;host:1003"), Code.BAD_ARGUMENTS),
        (request("server.x=host:1004:2004;3004"), Code.MARSHALLING_ERROR),
        (request("server.4=host:1004:70000;3004"), Code.MARSHALLING_ERROR),
        (request(leaving="x"), Code.MARSHALLING_ERROR),
        (request(leaving="2,3"), Code.BAD_ARGUMENTS),
        (request(leaving="1,2,3"), Code.BAD_ARGUMENTS),
        (request(members="server.1=a"), Code.BAD_ARGUMENTS),
        (request(members="clientPort=1"), Code.BAD_ARGUMENTS),
        (request(members="group.1=1:2"), Code.BAD_ARGUMENTS),
        (request(members="server.x=a:1:2"), Code.MARSHALLING_ERROR),
        (request(members="server.1=a:1:2:observer"), Code.MARSHALLING_ERROR),
        (request(members="server.1=a:1:2,server.2=b:1:2:observer"), Code.MARSHALLING_ERROR),
        (request(members="server.1=a:1:2"), Code.BAD_ARGUMENTS),
        (request(members=""), Code.BAD_ARGUMENTS),
    ],
)
def test_malformed_requests_have_zookeepers_codes(change: Reconfig, code: Code) -> None:
    with pytest.raises(ZooKeeperError) as caught:
        reconfigured(MEMBERS, change, Rules.NONE)
    assert caught.value.code is code


def test_one_participant_is_enough_where_standalone_is_disabled() -> None:
    assert reconfigured(MEMBERS, request(leaving="2,3"), Rules.ONE_VOTER) == MEMBERS[:1]
    with pytest.raises(ZooKeeperError):
        reconfigured(MEMBERS, request(leaving="1,2,3"), Rules.ONE_VOTER)


# ---- the agreed commands ----


def proposed(
    change: Reconfig | EndReconfig, rules: Rules = Rules.SKIP_ACL, session: int = 0, term: int = 0
) -> bytes:
    if isinstance(change, EndReconfig):
        op, body = Op.END_RECONFIG, encode_end_reconfig(change)
    else:
        op = Op.RECONFIG
        body = encode_reconfig(change)
    return Proposed(session, 1, term, op, rules, (), change, body).encode()


@pytest.fixture
def agreed() -> Agreed:
    from .test_agreed import born

    agreed = Agreed()
    agreed.begin(0, 0, 0)
    agreed.apply_members(MEMBERS)
    agreed.begin(1, 1, 1000)
    agreed.apply(born(1))
    return agreed


def session_of(agreed: Agreed) -> int:
    return next(iter(agreed.attachments))


def test_a_change_begins_with_its_command_and_ends_with_the_members_entry(agreed: Agreed) -> None:
    session = session_of(agreed)
    begun = agreed.apply(proposed(request(FOUR_TEXT), session=session))
    assert begun.outcome == (Begun(), [], 0, None)
    assert agreed.reconfiguration == Reconfiguration(begun.command.zxid, (*MEMBERS, FOUR), True)
    busy = agreed.apply(proposed(request(leaving="x"), session=session))
    assert busy.outcome.result == Failed(Code.RECONFIG_IN_PROGRESS)
    copy = read(b"".join(walk(agreed)))
    assert copy.reconfiguration == agreed.reconfiguration
    for each in (agreed, copy):
        each.begin(2, 1, 0)
        done = each.apply_members([FOUR, *MEMBERS])
        assert done is not None
        assert done.ends_reconfig
        assert each.reconfiguration is None
        text = members_text((*MEMBERS, FOUR))
        result = done.outcome.result
        assert isinstance(result, Reconfigured)
        assert result.data == f"{text}version={done.command.zxid:x}".encode()
        assert (result.stat.mzxid, result.stat.version) == (done.command.zxid, -1)
        assert each.version == done.command.zxid > begun.command.zxid
        assert [change.path for change in done.outcome.changes] == [CONFIG]
    assert fingerprint(agreed) == fingerprint(copy)
    late = agreed.apply(proposed(request(version=1), session=session))
    assert late.outcome.result == Failed(Code.BAD_VERSION)


def test_a_leaders_refusal_ends_only_its_own_change(agreed: Agreed) -> None:
    begun = agreed.apply(proposed(request(FOUR_TEXT), session=session_of(agreed)))
    refused = EndReconfig(begun.command.zxid, Code.NEW_CONFIG_NO_QUORUM)
    for other, term in ((EndReconfig(7, Code.NO_AUTH), 1), (refused, 2)):
        void = agreed.apply(proposed(other, term=term))
        assert not void.ends_reconfig
        assert agreed.reconfiguration is not None
    ended = agreed.apply(proposed(refused, term=1))
    assert (ended.outcome.result, ended.ends_reconfig) == (Failed(Code.NEW_CONFIG_NO_QUORUM), True)
    assert agreed.reconfiguration is None
    assert not agreed.apply(proposed(refused, term=1)).ends_reconfig


def test_the_permission_is_checked_last(agreed: Agreed) -> None:
    session = session_of(agreed)
    wrong = agreed.apply(proposed(request(leaving="x"), Rules.NONE, session))
    assert wrong.outcome.result == Failed(Code.MARSHALLING_ERROR)
    same = agreed.apply(proposed(request(leaving="9"), Rules.NONE, session))
    assert same.outcome.result == Failed(Code.NO_AUTH)
    agreed.apply(proposed(request(FOUR_TEXT), Rules.NONE, session))
    assert agreed.reconfiguration is not None
    assert not agreed.reconfiguration.is_allowed


def test_a_change_without_effect_gives_the_configuration_a_new_version(agreed: Agreed) -> None:
    same = agreed.apply(proposed(request(leaving="9"), session=session_of(agreed)))
    assert isinstance(same.outcome.result, Reconfigured)
    assert agreed.version == same.command.zxid
    assert agreed.members == MEMBERS


def test_an_expired_sessions_change_is_refused(agreed: Agreed) -> None:
    gone = agreed.apply(proposed(request(FOUR_TEXT), session=77))
    assert gone.outcome.result == Failed(Code.SESSION_EXPIRED)
    assert agreed.reconfiguration is None


def test_data_written_into_the_node_does_not_change_the_configuration(agreed: Agreed) -> None:
    agreed.machine.tree.put_configuration(b"garbage", 5, 1, 1)
    begun = agreed.apply(proposed(request(FOUR_TEXT), session=session_of(agreed)))
    assert begun.outcome.result == Begun()
    assert agreed.configuration.startswith(b"server.1=")


# ---- files ----


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "zoo.cfg"
    path.write_text(
        "# a comment\ndataDir=C:\\\\data\nclientPort=2181\npeerType=participant\n"
        "server.1=host:1001:2001\nserver.2=host:1002:2002\n"
    )
    return path


def test_the_files_follow_the_configuration(config: Path) -> None:
    before = config.read_text()
    write_configuration(config, 1, MEMBERS, 0)
    dynamic = Path(f"{config}.dynamic.0")
    assert dynamic.read_text() == members_text(MEMBERS)
    assert Path(f"{config}.bak").read_text() == before
    expected = {"dataDir": "C:\\data", "clientPort": "2181", "dynamicConfigFile": str(dynamic)}
    assert parse_properties(config.read_text()) == expected
    # The server's line has its client address, so the static file must not have it.
    own = MEMBERS[0]._replace(client="0.0.0.0:2181")
    write_configuration(config, 1, (own, *MEMBERS[1:], FOUR), 0x100000007)
    dynamic = Path(f"{config}.dynamic.100000007")
    assert dynamic.read_text() == members_text((own, *MEMBERS[1:], FOUR))
    expected = {"dataDir": "C:\\data", "dynamicConfigFile": str(dynamic)}
    assert parse_properties(config.read_text()) == expected
    assert dynamic_version(str(dynamic)) == 0x100000007
    # An older version changes nothing, and older files are kept.
    write_configuration(config, 1, MEMBERS, 0x100000001)
    assert parse_properties(config.read_text()) == expected
    assert Path(f"{config}.dynamic.0").exists()
    assert not list(config.parent.glob("*.tmp"))
    assert Path(f"{config}.bak").read_text() == before


def test_a_file_in_another_encoding_keeps_its_bytes(config: Path) -> None:
    """If this failed, a reconfig would make the file unreadable, or change its meaning for ZooKeeper."""
    text = (
        "# café\r\ndataDir=/caf\xe9\nserver.1=host:\\\n 1001:2001\nx=\\\n y\nserver.2=host:1002:2002\nz=a\\"
    )
    before = text.encode("iso-8859-1")
    config.write_bytes(before)
    write_configuration(config, 1, MEMBERS, 0)
    kept = b"# caf\xe9\r\ndataDir=/caf\xe9\nx=\\\n y\nz=a\\\n\n"
    assert config.read_bytes() == kept + f"dynamicConfigFile={config}.dynamic.0\n".encode()
    assert Path(f"{config}.bak").read_bytes() == before
    write_configuration(config, 1, (*MEMBERS, FOUR), 1)
    assert config.read_bytes() == kept + f"dynamicConfigFile={config}.dynamic.1\n".encode()


@pytest.mark.parametrize(
    "comment", [b"", "# ü\n".encode(), b"# \xfc\n"], ids=["ASCII", "UTF-8", "ISO-8859-1"]
)
@pytest.mark.parametrize("name", ["café", "a\\b", "a\fb", "😀", "\udce9"])
def test_a_dynamic_file_anywhere_is_found_again(tmp_path: Path, name: str, comment: bytes) -> None:
    directory = tmp_path / name
    directory.mkdir()
    config = directory / "zoo.cfg"
    config.write_bytes(comment + b"dataDir=/data")
    write_configuration(config, 1, MEMBERS, 0)
    written = config.read_bytes()
    assert written.startswith(comment + b"dataDir=/data\n")
    assert Path(read_properties(config)["dynamicConfigFile"]).exists()
    write_configuration(config, 1, MEMBERS, 0)
    assert config.read_bytes() == written


def test_files_of_a_server_that_was_never_a_member_are_kept(config: Path) -> None:
    before = config.read_text()

    async def follow(server: int, *versions: tuple[Member, ...]) -> None:
        files = ConfigurationFiles(config, server)
        for version, members in enumerate(versions):
            files.follow(members, version)
        await files.wait()

    asyncio.run(follow(4, MEMBERS))
    assert config.read_text() == before
    asyncio.run(follow(4, MEMBERS, (*MEMBERS, FOUR), MEMBERS))
    assert parse_properties(config.read_text())["dynamicConfigFile"].endswith(".dynamic.2")


def test_files_that_cannot_be_written_give_a_warning(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    config.unlink()

    async def follow() -> None:
        files = ConfigurationFiles(config, 1)
        files.follow(MEMBERS, 1)
        await files.wait()

    asyncio.run(follow())
    assert "could not be updated with the ensemble's members" in caplog.text


# ---- servers ----


def test_the_client_port_follows_the_configuration(loop_thread: LoopThread, tmp_path: Path) -> None:
    server = CoordinatorServer(tmp_path, port=free_port())
    port = loop_thread.run(server.start())
    before = RawClient(port)
    before.connect()
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        other = int(taken.getsockname()[1])
        # The server takes the port as soon as it is free.
        loop_thread.call(lambda: server.listen_at("127.0.0.1", other))
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            client = RawClient(other)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end, "the server does not listen on its new port"
            assert before.request(-2, Op.PING)[0] == -2, "an open connection was closed"
    assert client.connect()[1] != 0
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)
    client.close()
    before.close()
    loop_thread.run(server.stop())


RECONFIGURABLE = replace(SETTINGS, reconfig_enabled=True, rules=Rules.SKIP_ACL)


def spec(number: int, role: str = "participant") -> str:
    return f"server.{number}=127.0.0.1:{2000 + number}:{3000 + number}:{role};{4000 + number}"


def listed(data: bytes) -> list[int]:
    return [int(line.split("=")[0].split(".")[1]) for line in data.decode().splitlines()[:-1]]


@pytest.fixture
def changing(start_ensemble: StartEnsemble) -> Ensemble:
    ensemble = start_ensemble(RECONFIGURABLE, (1, 2, 3, 4, 5))
    ensemble.wait_until_serving(1, 2, 3)
    return ensemble


@pytest.fixture
def client(changing: Ensemble) -> Any:
    client = KazooClient(hosts=f"127.0.0.1:{changing.ports[1]}", timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    yield client
    client.stop()
    client.close()


def test_members_are_added_and_removed_and_watches_fire(
    changing: Ensemble, client: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()
    client.get(CONFIG, watch=events)
    data, stat = client.reconfig(f"{spec(4)},{spec(5, 'observer')}", None, None)
    assert listed(data) == [1, 2, 3, 4, 5]
    assert client.get(CONFIG) == (data, stat)
    assert data.decode().endswith(f"\nversion={stat.mzxid:x}")
    assert events.next() == ("CHANGED", CONFIG)
    changing.wait_until_serving(4, 5)
    changing.wait(lambda: changing.servers[5].replication.mode == "observer")
    changing.wait(lambda: changing.replication(2).gauges()["quorum_size"] == 4)
    assert "4 servers vote: that survives no more losses than 3 servers; run an odd number" in caplog.text
    data, _stat = client.reconfig(None, "2,4", None, from_config=stat.mzxid)
    assert listed(data) == [1, 3, 5]
    with pytest.raises(BadVersionError):
        client.reconfig(None, "5", None, from_config=stat.mzxid)
    data, _stat = client.reconfig(None, None, ",".join(map(spec, (1, 2, 3))))
    assert listed(data) == [1, 2, 3]


def test_impossible_changes_are_refused(changing: Ensemble, client: KazooClient) -> None:
    with pytest.raises(BadArgumentsError):
        client.reconfig("server.4=a:1:2", None, None)
    with pytest.raises(NewConfigNoQuorumError):
        client.reconfig(None, None, ",".join(map(spec, (1, 7, 8))))
    assert listed(client.get(CONFIG)[0]) == [1, 2, 3]
    assert listed(client.reconfig(spec(7), None, None)[0]) == [1, 2, 3, 7]


def test_a_missing_permission_is_reported_last(start_ensemble: StartEnsemble) -> None:
    ensemble = start_ensemble(
        replace(RECONFIGURABLE, rules=Rules.NONE, super_digest="super:D/InIHSb7yEEbrWz8b9l71RjZJU=")
    )
    ensemble.wait_until_serving()
    client = KazooClient(hosts=ensemble.hosts, timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    try:
        with pytest.raises(NewConfigNoQuorumError):
            client.reconfig(None, None, ",".join(map(spec, (1, 7, 8))))
        with pytest.raises(NoAuthError):
            client.reconfig(None, "3", None)
        client.add_auth("digest", "super:test")
        client.set_acls(CONFIG, [make_acl("world", "anyone", read=True, write=True)])
        client.stop()
        client.start(timeout=WAIT_SECONDS)
        assert listed(client.reconfig(None, "3", None)[0]) == [1, 2]
    finally:
        client.stop()
        client.close()


def test_a_change_that_the_quorum_refuses_stops_no_server(
    changing: Ensemble, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_quorum: FakeQuorum, _servers: object) -> bool:
        raise QuorumError("a host is too long")

    with monkeypatch.context() as patched:
        patched.setattr(FakeQuorum, "has_quorum", refuse)
        with pytest.raises(BadArgumentsError):
            client.reconfig(spec(4), None, None)
    assert listed(client.reconfig(spec(4), None, None)[0]) == [1, 2, 3, 4]


def test_reconfig_is_disabled_by_default(start_ensemble: StartEnsemble) -> None:
    ensemble = start_ensemble()
    ensemble.wait_until_serving()
    client = KazooClient(hosts=ensemble.hosts, timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    try:
        with pytest.raises(ReconfigDisabledError):
            client.reconfig(None, "3", None)
    finally:
        client.stop()
        client.close()


def test_a_reconfig_keeps_the_order_of_its_clients_requests(changing: Ensemble, client: KazooClient) -> None:
    client.create("/n", b"")
    for round in range(5):
        pending = [client.set_async("/n", b"before"), client.reconfig_async(spec(4), None, None, -1)]
        pending += [
            client.set_async("/n", b"behind"),
            client.get_async("/n"),
            client.reconfig_async(None, "4", None, -1),
        ]
        before, added, behind, seen, removed = (each.get(timeout=WAIT_SECONDS) for each in pending)
        assert before.mzxid < added[1].mzxid < behind.mzxid < removed[1].mzxid, f"round {round}"
        assert seen == (b"behind", behind)


@pytest.mark.parametrize("number", [1, 2])
def test_the_loss_of_a_leader_only_delays_a_change(
    changing: Ensemble, client: KazooClient, number: int
) -> None:
    """The next leader continues the change, and it is done once."""
    log = changing.log

    def begin() -> None:
        slow = log.delays.proposal
        log.delays.proposal = (0.05, 0.1)
        log.later(1.0, setattr, log.delays, "proposal", slow)

    changing.call(begin)
    change = client.reconfig_async(spec(4), None, None, -1)
    changing.wait(lambda: any(changing.replication(each).agreed.reconfiguration for each in (1, 2, 3)))
    for _ in range(number):
        changing.call(log.depose)
    data, _stat = change.get(timeout=WAIT_SECONDS)
    assert listed(data) == [1, 2, 3, 4]
    changing.wait(
        lambda: all(changing.replication(each).agreed.index == len(log.log) - 1 for each in (1, 2, 3, 4))
    )
    versions = {
        changing.call(lambda each=each: changing.replication(each).agreed.version) for each in (1, 2, 3, 4)
    }
    assert len(versions) == 1
    assert sum(entry.members is not None for entry in log.log) == 2


def test_a_change_is_done_without_its_client(changing: Ensemble, client: KazooClient) -> None:
    change = client.reconfig_async(spec(4), None, None, -1)
    changing.wait(
        lambda: any(changing.replication(each).agreed.reconfiguration for each in (1, 2, 3)) or change.ready()
    )
    changing.call(lambda: [connection.abort() for connection in changing.servers[1].everybody()])
    changing.wait(lambda: all(len(changing.replication(each).agreed.members) == 4 for each in (1, 2, 3)))
    assert listed(client.retry(client.reconfig, None, "4", None)[0]) == [1, 2, 3]


def test_a_removed_leader_becomes_a_follower_and_serves(changing: Ensemble) -> None:
    leader = changing.call(lambda: changing.log.leader)
    client = KazooClient(hosts=f"127.0.0.1:{changing.ports[leader]}", timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    try:
        data, _stat = client.reconfig(None, str(leader), None)
        assert leader not in listed(data)
        client.create("/still", b"")
        changing.wait(lambda: changing.servers[leader].replication.mode == "follower")
    finally:
        client.stop()
        client.close()

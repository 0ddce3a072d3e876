"""Four-letter words and the admin server's commands on members of Apache ZooKeeper's ensemble and of ours.

If this fails, monitoring made for a ZooKeeper ensemble reads wrong values from ours, or misses elections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.coordinator.protocol.jute import Acl, Id, Writer
from cluster.coordinator.protocol.requests import Op
from tests.compat.conftest import peer_jars
from tests.compat.test_zookeeper_ports import PEER, UNMEASURED, ask, shape
from tests.compat.zookeeper_peer import comparable
from tests.coordinator.support import WAIT_SECONDS, RawClient
from tests.faults.network import Network
from tests.ports import free_port

from .members import APACHE, OURS, START_SECONDS, Ensemble, Maker, Member

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

ROLES = ("leader", "follower", "observer")
COMMANDS = (
    "connections", "dirs", "dump", "is_read_only", "leader", "server_stats", "stats", "voting_view",
    "watch_summary", "watches", "watches_by_path", "zabstate",
)  # fmt: skip
WORDS = ("srvr", "stat", "dump", "conf", "wchs", "isro")
ALL_WORDS = (*WORDS, "ruok", "mntr", "cons", "crst", "envi", "wchc", "wchp", "dirs", "srst")
COUNTED = (
    "election_time", "unavailable_time", "leader_unavailable_time", "follower_sync_time",
    "observer_sync_time",
)  # fmt: skip
MEASURED = (
    "proposal_count", "learner_proposal_received_count", "learner_commit_received_count", "cnt_fsynctime",
    "cnt_sync_processor_batch_size", "cnt_quorum_ack_latency", "cnt_commit_propagation_latency",
    "cnt_propagation_latency", "cnt_proposal_latency", "cnt_proposal_ack_creation_latency",
)  # fmt: skip


def _with_admin_server(config: Path) -> list[str]:
    jars = ["-cp", f"{peer_jars(PEER)}/*"]
    jvm = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *jars]
    return [*jvm, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]


@contextlib.contextmanager
def _servers(maker: Maker, directory: Path) -> Iterator[tuple[Ensemble, dict[Member, int]]]:
    """Three voters and an observer, and the ports of their admin servers."""
    made = Ensemble(maker, directory, 4, {}, Network(), observers=1)
    ports = {member: free_port() for member in made.members}
    for member, port in ports.items():
        file = member.directory / "zoo.cfg"
        settings = file.read_text().replace("admin.enableServer=false", "admin.serverAddress=127.0.0.1")
        file.write_text(f"{settings}admin.serverPort={port}\n")
    try:
        made.start()
        yield made, ports
    finally:
        made.stop()


def _answers(maker: Maker, directory: Path) -> dict[str, Any]:
    """For each role, the answers of a member whose client has an ephemeral node and a watch."""
    found: dict[str, Any] = {}
    with _servers(maker, directory) as (servers, ports):
        for role in ROLES:
            member = servers.member_as(role)
            client = RawClient(member.addresses.clients)
            client.connect()
            body = Writer().string(f"/{role}").buffer(b"").acls([Acl(31, Id("world", "anyone"))]).i32(1)
            assert client.request(1, Op.CREATE, body.finish())[2] == 0
            client.request(2, Op.EXISTS, Writer().string("/none").boolean(True).finish())
            for word in WORDS:
                found[f"{role} {word}"] = comparable(member.word(word, WAIT_SECONDS))
            for name in COMMANDS:
                found[f"{role} {name}"] = shape(json.loads(ask(ports[member], f"/commands/{name}")[1]))
            values = json.loads(ask(ports[member], "/commands/monitor")[1])
            found[f"{role} monitor"] = values
            client.request(3, Op.CLOSE_SESSION)
            client.close()
    return found


def test_each_role_answers_as_zookeepers(tmp_path: Path) -> None:
    theirs = _answers(dataclasses.replace(APACHE, command=_with_admin_server), tmp_path)
    ours = _answers(OURS, tmp_path)
    for role in ROLES:
        for name in (*WORDS, *COMMANDS):
            assert ours[f"{role} {name}"] == theirs[f"{role} {name}"], f"{role} {name}"
        monitored, expected = ours[f"{role} monitor"], theirs[f"{role} monitor"]
        left_out = {
            re.sub("^(avg|min|max|cnt|sum|p50|p95|p99|p999)_", "", name)
            for name in expected.keys() - monitored.keys()
        }
        assert {name for name in left_out if "learner_handler_qp" not in name} - UNMEASURED == set()
        assert monitored.keys() - expected.keys() == set()
        for name in COUNTED:
            assert monitored[f"cnt_{name}"] == expected[f"cnt_{name}"], f"{role} {name}"
        for name in MEASURED:
            assert (monitored[name] > 0) == (expected[name] > 0), f"{role} {name}"


def _answers_alone(maker: Maker, directory: Path) -> dict[str, Any]:
    """The answers of a member whose other members were all killed."""
    found: dict[str, Any] = {}
    with _servers(maker, directory) as (servers, ports):
        member, *others = servers.members
        for other in others:
            other.kill()
        end = time.monotonic() + START_SECONDS
        while "not currently serving" not in member.word("srvr"):
            assert time.monotonic() < end, member.output()
            assert not member.ends_within(0.05), member.output()
        for word in (*ALL_WORDS, "what"):
            found[word] = member.word(word, WAIT_SECONDS)
        found["envi"] = found["envi"].split("\n")[0]
        for name in COMMANDS:
            answer = json.loads(ask(ports[member], f"/commands/{name}")[1])
            found[f"/{name}"] = answer["error"], shape(answer)
    return found


def test_a_member_without_a_majority_answers_as_zookeepers(tmp_path: Path) -> None:
    theirs = _answers_alone(dataclasses.replace(APACHE, command=_with_admin_server), tmp_path)
    assert _answers_alone(OURS, tmp_path) == theirs


def test_an_election_is_counted(tmp_path: Path) -> None:
    """The alert of ZooKeeper's monitoring guide fires when this number grows."""
    with _servers(OURS, tmp_path) as (servers, ports):
        before = {
            member: json.loads(ask(port, "/commands/monitor")[1])["cnt_election_time"]
            for member, port in ports.items()
        }
        killed = servers.leader()
        killed.kill()
        others = [member for member in servers.members if member is not killed]
        servers.wait_until_serving(others)
        servers.leader()
        for member in others:
            after = json.loads(ask(ports[member], "/commands/monitor")[1])["cnt_election_time"]
            is_observer = member is servers.members[-1]
            assert after == before[member] if is_observer else after > before[member], member.number

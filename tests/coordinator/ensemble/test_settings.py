"""zoo.cfg of an ensemble.

If these fail, servers do not find each other, or a mistake in the file is not reported.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.coordinator import CoordinatorError, CoordinatorServer, parse_configuration, replication_of
from cluster.coordinator.ensemble.reconfiguration import reconfigured
from cluster.coordinator.errors import ZooKeeperError
from cluster.coordinator.protocol.requests import Reconfig
from cluster.coordinator.state.acl import Rules
from cluster.coordinator.state.members import Member, configured_members, members_text, parse_members
from cluster.properties import parse_properties
from tests.coordinator.support import WAIT_SECONDS

THREE = {
    "server.1": "zoo1.example:2888:3888",
    "server.2": "zoo2.example:2888:3888:participant;2182",
    "server.3": "[::1]:2888:3888:observer;[::2]:2183",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "myid").write_text("1\n")
    return tmp_path


def properties(data_dir: Path, **changed: str) -> dict[str, str]:
    least = {"dataDir": str(data_dir), "clientPort": "2181", "initLimit": "10", "syncLimit": "5"}
    return least | THREE | changed


def test_server_lines_are_parsed_and_written() -> None:
    assert parse_members(THREE).members == (
        Member(1, "zoo1.example", 2888, 3888, "", False),
        Member(2, "zoo2.example", 2888, 3888, "0.0.0.0:2182", False),
        Member(3, "::1", 2888, 3888, "[::2]:2183", True),
    )
    assert members_text(parse_members(THREE).members) == (
        "server.1=zoo1.example:2888:3888:participant\n"
        "server.2=zoo2.example:2888:3888:participant;0.0.0.0:2182\n"
        "server.3=[::1]:2888:3888:observer;[::2]:2183\n"
    )
    several = parse_members({"server.9": "a:1:2|b:3:4"})
    assert several.members == (Member(9, "a", 1, 2, "", False),)
    assert several.warnings == ("server.9 has 2 addresses: a:1:2 is used, the others are not",)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"server.0": "a:1:2"}, "server.0: a server's id"),
        ({"server.256": "a:1:2"}, "server.256: a server's id"),
        ({"server.x": "a:1:2"}, "server.x: a server's id"),
        (
            {"server.1001": "a:1:2"},
            "from 1 to 255, as in ZooKeeper; give it such a number in its line on every server and in its "
            "myid",
        ),
        ({"server.1": "a:1:2", "server.01": "b:1:2"}, "server.1 appears twice"),
        ({"server.1": "a"}, "has to be host:quorumPort"),
        ({"server.1": "a:1"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2:3"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2:leader"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2;x"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2;"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2|"}, "has to be host:quorumPort"),
        ({"server.1": "a:1:2:observer|b:1:2"}, "either a participant or an observer"),
        ({"server.1": "a:0:2"}, "0 is not a port"),
        ({"server.1": "a:1:65536"}, "65536 is not a port"),
        ({"server.1": "a:1:2;70000"}, "70000 is not a port"),
        ({"server.1": "a:2:2"}, "have to differ"),
        ({"server.1": "a:1:2", "server.2": "A:3:1"}, "server.1 and server.2 are at A:1"),
    ],
)
def test_a_malformed_line_is_refused_by_name(lines: dict[str, str], message: str) -> None:
    with pytest.raises(CoordinatorError) as caught:
        parse_members(lines)
    assert message in str(caught.value)


# If this failed, an ensemble with such a line, which a reconfig allows as in ZooKeeper, would not restart.
def test_members_that_a_reconfig_allows_can_start_again(data_dir: Path, tmp_path: Path) -> None:
    local = {number: f"127.0.0.1:{2880 + number}:{3880 + number};218{number}" for number in (1, 2, 3)}
    members = parse_members({f"server.{number}": line for number, line in local.items()}).members
    for joining in (
        f"server.4={local[1]}",
        "server.4=LOCALHOST:1:2;3,server.5=localhost:2:1;4",
        f"server.2={local[3]}",
    ):
        reconfig = Reconfig(joining, None, None, -1)
        found = reconfigured(members, reconfig, Rules.NONE)
        dynamic = tmp_path / "zoo.cfg.dynamic"
        dynamic.write_text(members_text(found))
        least = {"dataDir": str(data_dir), "initLimit": "10", "syncLimit": "5"}
        configuration = parse_configuration(least | {"dynamicConfigFile": str(dynamic)})
        assert configuration.ensemble is not None
        assert configuration.ensemble.members == found
        assert " are at " in configuration.warnings[0]
        assert configured_members(members_text(found).encode()) == found
        # In a file or a full list of members, the same lines are a mistake.
        with pytest.raises(CoordinatorError, match=r"are at .*: give each its own$"):
            parse_configuration(least | dict(line.split("=") for line in members_text(found).split()))
        with pytest.raises(ZooKeeperError, match="BAD_ARGUMENTS"):
            reconfigured(members, Reconfig(None, None, members_text(found), -1), Rules.NONE)


def test_an_ensembles_file_is_parsed(data_dir: Path) -> None:
    (data_dir / "myid").write_text("2\n")
    settings = properties(data_dir, peerType="observer", quorumListenOnAllIPs="true")
    del settings["clientPort"]
    configuration = parse_configuration(settings | {"readonlymode.enabled": "true"})
    ensemble = configuration.ensemble
    assert ensemble is not None
    assert (ensemble.server_id, ensemble.init_limit, ensemble.sync_limit) == (2, 10, 5)
    assert ensemble.listen_on_all
    assert (configuration.host, configuration.port) == ("0.0.0.0", 2182)
    assert configuration.settings.server_id == 2
    assert configuration.settings.read_only_mode
    assert configuration.warnings == (
        "peerType=observer: has no effect, because the line server.2 says a participant",
        "2 servers vote: the loss of one stops the ensemble; run 3",
    )


def test_a_larger_snapshot_count_gives_a_warning(data_dir: Path) -> None:
    changed = properties(data_dir, **{"autopurge.snapRetainCount": "9"})
    *_others, warning = parse_configuration(changed).warnings
    assert warning == (
        "autopurge.snapRetainCount=9: a member of an ensemble keeps 3 snapshots, besides those that an "
        "administrator asked for"
    )


def test_a_wildcard_host_gives_a_warning(data_dir: Path) -> None:
    """Files for containers often have it in the server's own line, and ZooKeeper accepts it."""
    lines = {"server.1": "0.0.0.0:2888:3888", "server.2": "[::]:2888:3888", "server.3": "zoo3:2888:3888"}
    first, second = parse_configuration(properties(data_dir) | lines).warnings
    assert first.startswith("server.1 is at 0.0.0.0, which on each machine is that machine: ")
    assert "write the host by which the others reach it" in first
    assert second.startswith("server.2 is at ::, ")


def test_an_even_number_of_voters_gives_a_warning(data_dir: Path) -> None:
    lines = {f"server.{number}": f"h{number}:1:2" for number in range(1, 5)}
    others = {"reconfigEnabled": "true", "localSessionsEnabled": "true"}
    configuration = parse_configuration(properties(data_dir) | lines | others)
    assert configuration.ensemble is not None
    assert configuration.ensemble.reconfigurable
    assert not configuration.settings.rules & Rules.ONE_VOTER
    assert configuration.warnings == (
        "localSessionsEnabled=true: has no effect, every session is global",
        "4 servers vote: that survives no more losses than 3 servers; run an odd number",
    )


@pytest.mark.parametrize(
    ("changed", "myid", "message"),
    [
        ({}, None, "myid is missing: write this server's number into it"),
        ({}, "x", "myid has 'x' in it"),
        ({}, "1" + "0" * 5000, "write this server's number"),
        ({}, "0000000010000", "write this server's number"),
        ({}, "", "myid has '' in it"),
        ({}, "7", "has the number 7, and there are lines only for server.1, server.2, server.3"),
        ({"initLimit": "0"}, "1", "the file names 3 servers, and initLimit is not set"),
        ({"syncLimit": ""}, "1", "syncLimit is ''"),
        ({"jute.maxbuffer": "20000000"}, "1", "jute.maxbuffer is 20000000, and has to be at most 15728640"),
        ({"group.1": "1:2"}, "1", "group.1: groups and weights are not supported"),
        ({"sslQuorum": "true"}, "1", "sslQuorum=true"),
        ({"server.2": "b:1:2:observer"}, "1", "an ensemble only with standaloneEnabled=false"),
        ({"server.1": "a:1:2:observer", "server.2": "b:1:2:observer"}, "1", "at least one has to vote"),
        ({"dynamicConfigFile": "/f"}, "1", "dynamicConfigFile is set, and server.1 is in zoo.cfg"),
        (
            {"server.1": "a:1:2;2999"},
            "1",
            "clientPort and clientPortAddress are 0.0.0.0:2181, and the line server.1",
        ),
    ],
)
def test_impossible_settings_are_refused(
    data_dir: Path, changed: dict[str, str], myid: str | None, message: str
) -> None:
    (data_dir / "myid").unlink()
    if myid is not None:
        (data_dir / "myid").write_text(myid)
    with pytest.raises(CoordinatorError) as caught:
        parse_configuration(properties(data_dir) | changed)
    assert message in str(caught.value)


def test_the_dynamic_file_is_read(data_dir: Path) -> None:
    dynamic = data_dir / "zoo.cfg.dynamic"
    dynamic.write_text("".join(f"{name}={text}\n" for name, text in THREE.items()) + "version=100000000\n")
    static = {name: text for name, text in properties(data_dir).items() if not name.startswith("server.")}
    static["dynamicConfigFile"] = str(dynamic)
    ensemble = parse_configuration(static).ensemble
    assert ensemble is not None
    assert ensemble.members == parse_members(THREE).members
    dynamic.write_text("clientPort=1\n")
    with pytest.raises(CoordinatorError, match="clientPort in the dynamicConfigFile"):
        parse_configuration(static)
    dynamic.unlink()
    with pytest.raises(CoordinatorError, match="cannot be read: No such file"):
        parse_configuration(static)


def test_one_server_is_an_ensemble_only_without_standalone_enabled(data_dir: Path) -> None:
    one = parse_properties(f"dataDir={data_dir}\nclientPort=1\ninitLimit=1\nsyncLimit=1\nserver.1=a:1:2")
    assert parse_configuration(one).ensemble is None
    alone = parse_configuration(one | {"standaloneEnabled": "false"})
    assert alone.ensemble is not None
    assert alone.settings.rules & Rules.ONE_VOTER
    with pytest.raises(CoordinatorError, match="no server is named"):
        parse_configuration({"dataDir": str(data_dir), "clientPort": "1", "standaloneEnabled": "false"})


def test_a_standalone_server_refuses_a_members_data(data_dir: Path) -> None:
    (data_dir / "quorum").mkdir()
    configuration = parse_configuration({"dataDir": str(data_dir), "clientPort": "1"})
    assert replication_of(configuration) is None
    with pytest.raises(CoordinatorError, match="data of a member of an ensemble"):
        asyncio.run(CoordinatorServer(data_dir).start())


def test_the_command_prints_one_line_for_a_missing_myid(data_dir: Path) -> None:
    (data_dir / "myid").unlink()
    config = data_dir / "zoo.cfg"
    config.write_text("".join(f"{name}={text}\n" for name, text in properties(data_dir).items()))
    command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"logcore coordinator: {config}: {data_dir}/myid is missing: write this server's number into it, "
        "the N of its line server.N"
    ]

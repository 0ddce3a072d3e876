"""zoo.cfg.

If these fail, a file means something else here than for ZooKeeper, or a mistake is not reported.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.cli._coordinator_config import read_configuration
from cluster.coordinator import (
    CoordinatorError,
    DataDirectoryError,
    Settings,
    parse_configuration,
    run_coordinator,
    system_properties,
)
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.running import require_directories
from cluster.coordinator.state.acl import Rules
from cluster.properties import parse_properties
from tests.coordinator.support import WAIT_SECONDS, RawClient

LEAST = {"dataDir": "/data", "clientPort": "2181"}


def test_the_smallest_file_has_zookeepers_defaults() -> None:
    configuration = parse_configuration(LEAST)
    assert (configuration.data_dir, configuration.host, configuration.port) == (
        Path("/data"),
        "0.0.0.0",
        2181,
    )
    assert configuration.settings == Settings(tick_time_ms=3000)
    assert configuration.warnings == ()


def test_every_setting_is_parsed() -> None:
    text = """
        # A comment, and a value with an escaped colon.
        dataDir=/var/lib/zoo\\:keeper
        clientPort = 2182
        clientPortAddress: 127.0.0.1
        tickTime=1000
        minSessionTimeout=500
        maxSessionTimeout=90000
        maxClientCnxns=0
        maxCnxns=7
        snapCount=500
        autopurge.snapRetainCount=5
        4lw.commands.whitelist=ruok, mntr,,srvr
        extendedTypesEnabled=TRUE
        zookeeper.enforceQuota=true
        skipACL=yes
        reconfigEnabled=true
        DigestAuthenticationProvider.superDigest=super:hash
        jute.maxbuffer=2000000
        znode.container.checkIntervalMs=10
        znode.container.maxPerMinute=20
        znode.container.maxNeverUsedIntervalMs=30
        initLimit=5
        autopurge.purgeInterval=1
    """
    configuration = parse_configuration(parse_properties(text))
    assert (configuration.host, configuration.port) == ("127.0.0.1", 2182)
    assert configuration.data_dir == Path("/var/lib/zoo:keeper")
    assert configuration.settings == Settings(
        tick_time_ms=1000,
        min_session_timeout_ms=500,
        max_session_timeout_ms=90_000,
        max_client_connections=0,
        max_connections=7,
        snapshot_transactions=500,
        snapshots_retained=5,
        words_whitelist=frozenset({"ruok", "mntr", "srvr"}),
        rules=Rules.EXTENDED_TYPES | Rules.ENFORCE_QUOTA | Rules.SKIP_ACL,
        reconfig_enabled=True,
        super_digest="super:hash",
        max_buffer=2_000_000,
        container_check_interval_ms=10,
        container_max_per_minute=20,
        container_max_never_used_ms=30,
    )
    assert configuration.warnings == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataDir": ""}, "dataDir is not set"),
        ({"clientPort": "x"}, "clientPort is 'x', and has to be a whole number from 0 to 65535"),
        ({"clientPort": "65536"}, "clientPort is '65536'"),
        ({"clientPort": "0x86C4"}, "clientPort is '0x86C4'"),
        ({"secureClientPort": "0x86C4"}, "secureClientPort is '0x86C4'"),
        ({"tickTime": "0x7d0"}, "tickTime is '0x7d0'"),
        ({"tickTime": "9" * 5000}, "and has to be a whole number from 1 to"),
        ({"maxClientCnxns": "0x3c"}, "maxClientCnxns is '0x3c'"),
        ({"maxSessionTimeout": "-2"}, "maxSessionTimeout is '-2', and has to be a whole number from -1 to"),
        ({"admin.rateLimiterIntervalInMS": "0x10"}, "admin.rateLimiterIntervalInMS is '0x10'"),
        ({"jute.maxbuffer": "0x" + "f" * 5000}, "and has to be a whole number from 1024 to"),
        ({"jute.maxbuffer": "08888888"}, "jute.maxbuffer is '08888888'"),
        ({"jute.maxbuffer": "0x+fffff"}, "jute.maxbuffer is '0x+fffff'"),
        ({"tickTime": "0"}, "tickTime is '0'"),
        ({"tickTime": "2000 # ms"}, "tickTime is '2000 # ms'"),
        ({"jute.maxbuffer": "0x"}, "jute.maxbuffer is '0x'"),
        ({"jute.maxbuffer": "fffff"}, "jute.maxbuffer is 'fffff'"),
        ({"minSessionTimeout": "9", "maxSessionTimeout": "8"}, "larger than maxSessionTimeout"),
        ({"extendedTypesEnabled": "yes"}, "extendedTypesEnabled is 'yes', and has to be true or false"),
        ({"server.1": "a:1:2", "server.2": "b:1:2"}, "the file names 2 servers"),
        # These settings have no effect here, but ZooKeeper does not start with a bad value.
        (
            {"autopurge.purgeInterval": "x"},
            "autopurge.purgeInterval is 'x', and has to be a whole number from -2147483648 to",
        ),
        ({"autopurge.purgeInterval": ""}, "autopurge.purgeInterval is ''"),
        ({"autopurge.purgeInterval": "1h"}, "autopurge.purgeInterval is '1h'"),
        ({"clientPortListenBacklog": "x"}, "clientPortListenBacklog is 'x'"),
        ({"connectToLearnerMasterLimit": "x"}, "connectToLearnerMasterLimit is 'x'"),
        ({"multiAddress.reachabilityCheckTimeoutMs": "x"}, "multiAddress.reachabilityCheckTimeoutMs is 'x'"),
        ({"observerMasterPort": "x"}, "observerMasterPort is 'x'"),
        ({"quorum.cnxn.threads.size": "x"}, "quorum.cnxn.threads.size is 'x'"),
        ({"jvm.pause.info-threshold.ms": "x"}, "jvm.pause.info-threshold.ms is 'x'"),
        ({"jvm.pause.sleep.time.ms": "x"}, "jvm.pause.sleep.time.ms is 'x'"),
        ({"jvm.pause.warn-threshold.ms": "9" * 20}, "jvm.pause.warn-threshold.ms is '9999"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_name(changed: dict[str, str], message: str) -> None:
    with pytest.raises(CoordinatorError) as caught:
        parse_configuration(LEAST | changed)
    assert message in str(caught.value)


def test_negative_limits_mean_no_limit_as_with_zookeeper() -> None:
    """Apache ZooKeeper 3.9.4 starts with each of these."""
    values = {
        "maxClientCnxns": "-1",
        "maxCnxns": "-1",
        "minSessionTimeout": "-2",
        "netty.server.outstandingHandshake.limit": "-2",
        "autopurge.snapRetainCount": "-1",
        "snapCount": "-5",
    }
    configuration = parse_configuration(LEAST | values)
    assert configuration.settings == Settings(
        tick_time_ms=3000,
        max_client_connections=-1,
        max_connections=-1,
        min_session_timeout_ms=-2,
        max_handshakes=-2,
        snapshot_transactions=2,
    )
    assert configuration.warnings == (
        "autopurge.snapRetainCount=-1: at least 3 snapshots are kept",
        "snapCount=-5: the least is 2, which is used",
    )
    assert [configuration.settings.session_timeout_ms(wanted) for wanted in (-9, 1, 99_999)] == [0, 1, 60_000]
    assert parse_configuration(LEAST | {"snapCount": "2"}).warnings == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [("0xff", 255), ("#fF", 255), ("010", 8), ("+0", 0), ("0" * 5000 + "17", 15), ("-0x1", -1)],
)
def test_numbers_of_system_properties_may_be_hexadecimal_or_octal(text: str, number: int) -> None:
    """ZooKeeper reads them with Integer.getInteger, and all other numbers as decimals."""
    assert parse_configuration(LEAST | {"maxCnxns": text}).settings.max_connections == number


def test_leading_zeros_are_ignored() -> None:
    assert parse_configuration(LEAST | {"tickTime": "+" + "0" * 5000 + "10"}).settings.tick_time_ms == 10


def test_settings_without_effect_take_zookeepers_values() -> None:
    silent = {"autopurge.purgeInterval": "-1", "preAllocSize": "x", "commitLogCount": "x"}
    warned = {"jvm.pause.warn-threshold.ms": "99999999999", "observerMasterPort": "2191"}
    assert parse_configuration(LEAST | silent | warned).warnings == (
        "jvm.pause.warn-threshold.ms=99999999999: this setting has no effect",
        "observerMasterPort=2191: this setting has no effect",
    )


@pytest.mark.parametrize("myid", ["1\n", None])
def test_a_single_servers_line_gives_the_client_port(tmp_path: Path, myid: str | None) -> None:
    """The file that the official Docker image of ZooKeeper makes has no clientPort."""
    if myid is not None:
        (tmp_path / "myid").write_text(myid)
    properties = {
        "dataDir": str(tmp_path),
        "tickTime": "2000",
        "initLimit": "5",
        "syncLimit": "2",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "0",
        "maxClientCnxns": "60",
        "standaloneEnabled": "true",
        "admin.enableServer": "true",
        "server.1": "localhost:2888:3888;127.0.0.1:2182",
    }
    configuration = parse_configuration(properties)
    assert (configuration.ensemble, configuration.host, configuration.port) == (None, "127.0.0.1", 2182)
    assert configuration.warnings == ()
    assert parse_configuration(properties | {"clientPort": "2182"}).port == 2182
    with pytest.raises(
        CoordinatorError,
        match=r"clientPort and clientPortAddress are 0\.0\.0\.0:2183, and the line server\.1",
    ):
        parse_configuration(properties | {"clientPort": "2183"})


def test_another_servers_line_gives_no_client_port(tmp_path: Path) -> None:
    (tmp_path / "myid").write_text("2\n")
    properties = {"dataDir": str(tmp_path), "server.1": "localhost:2888:3888;2182"}
    with pytest.raises(CoordinatorError, match="clientPort is not set"):
        parse_configuration(properties)
    assert parse_configuration(properties | {"clientPort": "2183"}).port == 2183


def test_javas_flags_are_settings_with_and_without_zookeepers_prefix() -> None:
    flags = (
        "-Djute.maxbuffer=0x9fffff -Dreadonlymode.enabled=true -Dznode.container.checkIntervalMs=7 "
        "-Dzookeeper.snapCount=9 -Dother=1"
    )
    configuration = parse_configuration(system_properties({"SERVER_JVMFLAGS": flags}) | LEAST)
    assert configuration.settings == Settings(
        tick_time_ms=3000,
        max_buffer=0x9FFFFF,
        read_only_mode=True,
        words_whitelist=frozenset({"isro"}),
        container_check_interval_ms=7,
        snapshot_transactions=9,
    )
    assert configuration.warnings == ()


# If this failed, a start would apply a long log although a snapshot is small, a large tree would be written
# too often, or an administrator's snapCount would be ignored.
@pytest.mark.parametrize(
    ("snap_count", "nodes", "data_bytes", "expected"),
    [
        (None, 5, 0, 10_000),
        (None, 200_000, 0, 50_000),
        (None, 5, 64 << 20, 16_384),
        (None, 1_000_000, 0, 100_000),
        (50, 1_000_000, 0, 50),
        (1_000_000, 5, 0, 1_000_000),
    ],
)
def test_a_small_tree_gets_a_snapshot_sooner(
    snap_count: int | None, nodes: int, data_bytes: int, expected: int
) -> None:
    settings = Settings(snapshot_transactions=snap_count)
    assert settings.transactions_until_snapshot(nodes, data_bytes) == expected


def test_a_file_without_a_port_is_refused() -> None:
    with pytest.raises(CoordinatorError, match="clientPort is not set"):
        parse_configuration({"dataDir": "/data"})


def test_settings_without_effect_give_warnings() -> None:
    """A single line server.1 makes no ensemble, and gives no warning."""
    configuration = parse_configuration(
        LEAST
        | {
            "server.1": "a:1:2",
            "syncLimit": "2",
            "tickTiem": "9",
            "ssl.keyStore.location": "/k",
            "leaderServes": "no",
            "syncEnabled": "true",
            "electionAlg": "3",
        }
    )
    assert configuration.warnings == (
        "leaderServes=no: this setting has no effect",
        "ssl.keyStore.location=/k: this setting has no effect",
        "tickTiem=9: this setting has no effect",
    )


def test_a_removed_election_algorithm_is_refused() -> None:
    with pytest.raises(CoordinatorError, match="electionAlg is '0'"):
        parse_configuration(LEAST | {"electionAlg": "0"})


def test_read_only_mode_allows_the_word_isro() -> None:
    """If this failed, a read-only client could not find a server that takes writes: it asks with `isro`."""
    assert parse_configuration(LEAST).settings.words_whitelist == set()
    reading = parse_configuration(LEAST | {"readonlymode.enabled": "true"}).settings
    assert reading.words_whitelist == {"isro"}


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "zoo.cfg"
    config.write_text(
        f"dataDir={tmp_path}/data\nclientPort=0\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\ntypo=1\n"
    )
    command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "the coordinator is ready\n"
        port = int(process.stdout.readline().rpartition(":")[2])
        client = RawClient(port)
        assert client.connect()[1] != 0
        client.close()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert output.endswith("the coordinator has stopped; every write that it confirmed is on disk\n")
    assert "typo=1: this setting has no effect" in errors


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("clientPort=1\n", 2),
        (None, 2),
        ("dataDir=/proc/no\nclientPort=0\n", 3),
        ("dataDir=/nowhere\nclientPort=0\nx=\\u12\n", 2),
    ],
)
def test_a_failed_start_prints_one_line(tmp_path: Path, text: str | None, status: int) -> None:
    config = tmp_path / "zoo.cfg"
    if text is not None:
        config.write_text(text)
    command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == status
    assert done.stderr.startswith("logcore coordinator: ")
    assert len(done.stderr.splitlines()) == 1


_MEMBER = "initLimit=5\nsyncLimit=2\nstandaloneEnabled=false\nserver.1=127.0.0.1:1:2\n"


@pytest.mark.parametrize(
    ("more", "file", "message"),
    [
        ("", "data", "cannot use the coordinator's data directory {}/data: it is a file; "),
        ("", "logs", "cannot use the coordinator's data directory {}/logs: it is a file; "),
        ("", "logs/log.0000000000000001/.lock", "logs/log.0000000000000001 cannot be opened: "),
        (
            _MEMBER,
            "data/quorum",
            "cannot use the coordinator's data directory {}/data/quorum: it is a file; ",
        ),
        (_MEMBER, "logs", "cannot use the coordinator's data directory {}/logs: it is a file; "),
    ],
)
def test_an_unusable_directory_gives_exit_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, file: str, message: str
) -> None:
    """If this failed, scripts that know ZooKeeper's exit statuses would take it for another error."""
    data = tmp_path / "data"
    if file != "data":
        data.mkdir()
        (data / "myid").write_text("1\n")
    if file.endswith(".lock"):
        # A path through a file fails even for root.
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).symlink_to(data / "myid" / "lock")
    else:
        (tmp_path / file).write_bytes(b"")
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={data}\ndataLogDir={tmp_path / 'logs'}\nclientPort=0\n{more}")
    assert main(["coordinator", str(config)]) == 3
    errors = capsys.readouterr().err
    assert message.format(tmp_path) in errors
    assert errors.count(f"{tmp_path}/{file}") == 1


@pytest.mark.parametrize("more", ["", _MEMBER])
@pytest.mark.parametrize("case", ["unseen", "nowhere", "gone"])
def test_an_unreadable_directory_gives_exit_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, case: str
) -> None:
    """``unseen``: a name too long, which fails even for root.

    ``gone``: a standalone server's logs are missing.
    """
    data, logs = tmp_path / "data", tmp_path / "logs"
    data.mkdir()
    (data / "myid").write_text("1\n")
    if case == "unseen":
        logs = tmp_path / ("x" * 300)
    elif case == "nowhere":
        logs.symlink_to(tmp_path / "disk")
    elif case == "gone":
        log = TransactionLog(data, log_dir=logs)
        log.recover()
        log.close()
        shutil.rmtree(logs)
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={data}\ndataLogDir={logs}\nclientPort=0\n{more}")
    status = main(["coordinator", str(config)])
    errors = capsys.readouterr().err
    assert status == 3, errors
    if case == "nowhere":
        assert f"{logs}: it is a link to {tmp_path / 'disk'}, which is not there; " in errors
    elif case == "gone":
        assert "mount the disk that has the logs" in errors
        assert "ready" not in errors
    else:
        assert f"{logs} cannot be read: " in errors
        assert (
            "File name too long; correct that, or name other directories in dataDir and dataLogDir" in errors
        )


def test_a_server_does_not_start_empty_beside_existing_data(tmp_path: Path) -> None:
    """If this failed, a server on Apache's dataDir, or with its disk not mounted, would serve no data."""
    data_dir, logs = tmp_path / "data", tmp_path / "logs"
    properties = {"dataDir": str(data_dir), "dataLogDir": str(logs), "clientPort": "0"}

    def refusal(**more: str) -> str:
        try:
            require_directories(
                parse_configuration(
                    properties | {name.replace("_", "."): text for name, text in more.items()}
                )
            )
        except DataDirectoryError as error:
            return str(error)
        return ""

    assert refusal() == ""
    assert refusal(datadir_autocreate="false").startswith(
        f"{data_dir} has no data of a coordinator, and datadir.autocreate is false: "
    )
    # zkServer-initialize.sh makes these directories.
    (data_dir / "version-2").mkdir(parents=True)
    assert refusal(datadir_autocreate="false").startswith(f"the dataLogDir {logs} is not there, ")
    (logs / "version-2").mkdir(parents=True)
    assert refusal(datadir_autocreate="false") == ""
    for directory, name in ((data_dir, "snapshot.0"), (data_dir, "snapshot.1a.gz"), (logs, "log.100000001")):
        file = directory / "version-2" / name
        file.write_bytes(b"")
        message = refusal()
        assert message.startswith(f"{directory}/version-2 has the data of Apache ZooKeeper, ")
        assert f"`logcore coordinator import {data_dir} DIR --log-dir {logs}`" in message
        (data_dir / "quorum").mkdir()
        assert refusal() == "", "refused although a member's data exists"
        (data_dir / "quorum").rmdir()
        (data_dir / f"snapshot.{1:016x}").write_bytes(b"")
        assert refusal() == "", "refused although the imported data exists"
        (data_dir / f"snapshot.{1:016x}").unlink()
        file.unlink()
    assert refusal() == ""


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataDirectoryError, match="data: it is a file; "):
        TransactionLog(tmp_path / "data")


def test_a_file_in_another_encoding_than_utf_8_is_read(tmp_path: Path) -> None:
    """If this failed, a comment in ISO 8859-1 would stop the start."""
    config = tmp_path / "zoo.cfg"
    config.write_bytes("# café\ndataDir=/data\nclientPort=2181\n".encode("iso-8859-1"))
    assert read_configuration(config)[0].port == 2181


@pytest.mark.parametrize("unknown", ["no-such-host.invalid", "a" * 64, "a..b"])
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("clientPortAddress", "clientPortAddress or this server's line server.N"),
        ("admin.serverAddress", "admin.serverAddress"),
        ("metricsProvider.httpHost", "metricsProvider.httpHost"),
    ],
)
def test_an_unresolvable_host_is_refused_by_its_setting(
    tmp_path: Path, unused_port: int, unknown: str, setting: str, named: str
) -> None:
    settings = {
        "dataDir": str(tmp_path / "data"),
        "clientPort": "0",
        "clientPortAddress": "127.0.0.1",
        "admin.serverAddress": "127.0.0.1",
        "admin.serverPort": str(unused_port),
        "metricsProvider.className": "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
        "metricsProvider.httpHost": "127.0.0.1",
        "metricsProvider.httpPort": "0",
        setting: unknown,
    }
    with pytest.raises(CoordinatorError) as caught:
        asyncio.run(run_coordinator(parse_configuration(settings), lambda _ports: None))
    assert f"{unknown} cannot be resolved (" in str(caught.value)
    assert f"give {named} an address of this machine, or a name" in str(caught.value)


def test_another_machines_address_is_refused(tmp_path: Path) -> None:
    settings = {"dataDir": str(tmp_path), "clientPort": "0", "clientPortAddress": "192.0.2.1"}
    with pytest.raises(CoordinatorError, match=r"give clientPortAddress or .* an address of this machine$"):
        asyncio.run(run_coordinator(parse_configuration(settings), lambda _ports: None))

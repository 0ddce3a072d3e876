"""ZooKeeper 3.9.4's zkCli and `logcore zookeeper-shell` run the same lines on the same servers, Apache's and
ours. Both must print the same on both streams, and have the same exit codes and watch events.

Broken if they failed: a script for zkCli.sh or zookeeper-shell.sh would read wrong data from our shell.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from cluster.coordinator import Settings
from cluster.coordinator.state.acl import Rules
from tests.compat.conftest import KAFKA_LIBS, ROOT, RUN_TIMEOUT, missing, peer_jars
from tests.compat.zookeeper_peer import apache_zookeeper, our_coordinator
from tests.ports import free_port

JARS = ROOT / "build" / "peers" / "zookeeper-3.9.4"


class Output(NamedTuple):
    """What a shell printed, made comparable, and its exit code. Events are apart, because they may come at
    any time.
    """

    out: list[str]
    err: list[str]
    events: list[str]
    status: int


class Servers(NamedTuple):
    apache: int
    ours: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("shell")
    properties = {"zookeeper.extendedTypesEnabled": "true"}
    rules = Rules.EXTENDED_TYPES
    with (
        apache_zookeeper(directory, {"tickTime": "2000"}, properties) as apache,
        our_coordinator(directory, Settings(max_client_connections=0, rules=rules)) as ours,
    ):
        yield Servers(apache, ours)


def theirs(*arguments: str, lines: Sequence[str] = ()) -> Output:
    peer_jars(JARS.name)
    # ZooKeeper's artefact does not include commons-cli. Kafka, which has the same shell, includes it.
    options = next(peer_jars(KAFKA_LIBS.name).glob("commons-cli-*.jar"))
    java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*:{options}"]
    return run([*java, "org.apache.zookeeper.ZooKeeperMain", *arguments], lines)


def ours(*arguments: str, lines: Sequence[str] = ()) -> Output:
    return run([sys.executable, "-m", "cluster.cli", "zookeeper-shell", *arguments], lines)


def run(command: list[str], lines: Sequence[str]) -> Output:
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8", **python_path()},
    )
    out = [comparable(line) for line in done.stdout.decode().splitlines()]
    err = [comparable(line) for line in done.stderr.decode().splitlines() if not line.startswith("SLF4J")]
    events = [line for line in out if line.startswith("WatchedEvent") and "state:Closed" not in line]
    rest = [line for line in in_order(out) if line and not line.startswith(("WATCHER", "WatchedEvent"))]
    return Output(rest, [line for line in err if line], events, done.returncode)


def in_order(lines: list[str]) -> list[str]:
    """Sorts the identities that whoami prints: Apache's server has them in a set."""
    groups = groupby(lines, lambda line: re.match(r"(ip|digest): ", line) is not None)
    return [line for identities, group in groups for line in (sorted(group) if identities else group)]


def python_path() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}


def comparable(line: str) -> str:
    """A line without what differs from run to run: transaction ids, times, sessions, builds."""
    line = re.sub(r"^([cmp]Zxid|ephemeralOwner) = 0x[1-9a-f][0-9a-f]*$", r"\1 = 0x#", line)
    line = re.sub(r"^([cm]time) = \w{3} \w{3} \d\d \d\d:\d\d:\d\d UTC \d{4}$", r"\1 = #", line)
    line = re.sub(r"zxid: \d+$", "zxid: #", line)
    line = re.sub(r"^(ZooKeeper CLI version: 3\.9\.4).*", r"\1", line)
    return re.sub(r"(127\.0\.0\.1|localhost):\d{2,5}", r"\1:#", line)


def wipe(port: int) -> None:
    """Deletes everything that a server did not have at its start."""
    client = KazooClient(f"127.0.0.1:{port}")
    client.start()
    for parent, kept in (("/", ["zookeeper"]), ("/zookeeper/quota", [])):
        for name in client.get_children(parent):
            if name not in kept:
                client.delete(f"{parent.rstrip('/')}/{name}", recursive=True)
    client.stop()
    client.close()


def compare(
    servers: Servers, arguments: Sequence[str], lines: Sequence[str] = (), chroot: str = ""
) -> Output:
    """Asserts that both shells print the same on both servers, and returns it. The events of a single command
    are ignored, because a shell may end before it prints them.
    """
    outputs: dict[str, Output] = {}
    for server, port in (("Apache's server", servers.apache), ("our coordinator", servers.ours)):
        for name, shell in (("their shell", theirs), ("our shell", ours)):
            wipe(port)
            found = shell("-server", f"127.0.0.1:{port}{chroot}", *arguments, lines=lines)
            outputs[f"{name} on {server}"] = found if lines else found._replace(events=[])
    first, *others = outputs.items()
    for name, found in others:
        assert found == first[1], f"{name} prints\n{found}\nand {first[0]}\n{first[1]}"
    return first[1]


SCRIPTS = {
    "nodes": [
        "create /a",
        "create /a",
        "create /a/b data",
        'create /a/c "two words"',
        "create /a/empty ''",
        "create -s /a/s- x",
        "create -s /a/",
        "create -e /a/e x",
        "create -e -s /a/es x",
        "create /a/e/below",
        "create -c /a/container",
        "create -t 100000 /a/ttl x",
        "create -s -t 100000 /a/ttl x",
        "create /missing/b x",
        "ls /a",
        "ls -s /a",
        "ls -R /a",
        "ls /",
        "get /a",
        "get /a/b",
        "get -s /a/b",
        "get /a/empty",
        "get -b /a/c",
        "get -x /a/c",
        "get -x -b /a/c",
        "get -b /a",
        "get /missing",
        "set /a/b more",
        "set -v 0 /a/b wrong",
        "set -v 1 /a/b right",
        "set /a/b -s again",
        "set -b /a/b aGVsbG8=",
        "set -b /a/b aGVsbG8",
        "get /a/b",
        "set /missing x",
        "stat /a/b",
        "stat /missing",
        "getAllChildrenNumber /a",
        "getAllChildrenNumber /missing",
        "getEphemerals /a/es",
        "getEphemerals /b",
        "delete /a",
        "delete -v 7 /a/b",
        "delete -v=4 /a/b",
        "delete /a/b",
        "delete /",
        "deleteall /a -b 3",
        "deleteall /a",
        "ls /a",
        "sync /",
        "sync /missing",
        "version",
        "quit",
    ],
    "acl": [
        "create /p x digest:ann:7kLM0MIkZjuPKaPGbZ0IchTEhUo=:cdrwa,world:anyone:r",
        "getAcl /p",
        "getAcl -s /p",
        "set /p y",
        "setAcl /p world:anyone:cdrwa",
        "addauth digest ann:secret",
        "whoami",
        "create /mine x auth::cdrwa",
        "getAcl /mine",
        "setAcl /mine auth::rwa",
        "setAcl -s /mine world:anyone:cdrwa",
        "setAcl -v 9 /mine world:anyone:cdrwa",
        "setAcl -v 2 /mine world:anyone:cdrwa",
        "create /mine/below x",
        "setAcl -R /mine world:anyone:rwa",
        "getAcl /mine/below",
        "create /mine/other x",
        "setAcl /mine bad",
        "setAcl /mine world:anyone:raz",
        "setAcl /mine digest:x:r",
        "setAcl /missing world:anyone:r",
        "create /wrong x nonsense",
        "create /wrong x digest:x:r",
        "create /wrong x ip:127.0.0.1/33:r",
        "create /more x world:anyone:cdrwa,",
        "create /wrong x ,",
        "create /wrong x ''",
        "setAcl -R /mine bad",
        "getAcl /missing",
        "setAcl -R /mine world:anyone:cdrwa",
        "whoami",
    ],
    "watches": [
        "create /w 0",
        "get -w /w",
        "set /w 1",
        "set /w 2",
        "stat -w /w",
        "set /w 3",
        "stat -w /none",
        "create /none",
        "ls -w /w",
        "create /w/a",
        "create /w/b",
        "addWatch /w",
        "create /w/a/deep",
        "set /w/a/deep x",
        "delete /w/a/deep",
        "addWatch -m persistent /w/b",
        "set /w/b x",
        "set /w/b y",
        "removewatches /w",
        "removewatches /w/b -r",
        "removewatches /w/b -p",
        "removewatches /w/b",
        "ls -w /w",
        "removewatches /w -d",
        "removewatches /w -c -l",
        "get -w /w",
        "delete /none",
        "stat -w /later",
        "removewatches /later",
        "config -w",
        "removewatches /zookeeper/config -d",
        "addWatch -m wrong /w",
        "addWatch /w /b",
        "addWatch /missing",
        "delete /w/b",
        "ls -R -w /w",
        "deleteall /w",
        "create /w",
        "printwatches",
        "sync /",
        "sync /",
        "printwatches off",
        "printwatches",
        "printwatches on",
        "sync /",
    ],
    "quotas": [
        "create /q x",
        "create /q/a x",
        "create /q/a/deep x",
        "listquota /q",
        "setquota -n 5 /q",
        "listquota /q",
        "setquota -b 1 /q",
        "listquota /q",
        "setquota -N 1 /q",
        "setquota -n 1 /q",
        "setquota -B 1000 /q",
        "setquota -B 1 /q",
        "listquota /q",
        "setquota -n 5 /q/a",
        "setquota -n 5 /q/a/deep",
        "delquota -n /q",
        "listquota /q",
        "delquota -b -N /q",
        "delquota -N /q",
        "delquota -B /q",
        "listquota /q",
        "delquota /q",
        "delquota /q",
        "ls /zookeeper/quota",
        "setquota -n 1 /q/a/deep",
        "setquota -n 1 /q",
        "setquota -n 1 /missing",
        "listquota /missing",
        "setquota -n 0 /q",
        "setquota -b -1 /q",
        "setquota -b x /q",
        "setquota -n 99999999999 /q",
        "setquota -n 1 -b 1 /q",
        "setquota /q",
        "setquota -n 1 /zookeeper/quota/q",
        "delquota /q/a/deep",
        "setquota -b 0 /q",
        "listquota /q",
        "delquota",
        "listquota",
        "ls -R /zookeeper",
    ],
    "errors": [
        "help",
        "ls",
        "ls -?",
        "ls -? /",
        "get",
        "set",
        "set /a",
        "create",
        "delete",
        "deleteall",
        "stat",
        "getAcl",
        "setAcl /a",
        "sync",
        "addauth",
        "addWatch",
        "removewatches",
        "getAllChildrenNumber",
        "reconfig",
        "version x",
        "config -q",
        "get -q /a",
        "get --s /a",
        "delete -v",
        "set /a -1",
        "ls a",
        "ls /a/",
        "ls /a//b",
        "ls /a/./b",
        "ls /a/..",
        "get ''",
        "stat b",
        "create b",
        "set b x",
        "getAcl b",
        "setAcl b world:anyone:r",
        "delete b",
        "deleteall b",
        "sync b",
        "removewatches b",
        "getAllChildrenNumber b",
        "getEphemerals b",
        "setquota -n 1 b",
        "setquota -n 1 /",
        "listquota b",
        "delquota b",
        "getEphemerals",
        "create -c -e /x",
        "create -t x /x",
        "create -t 5 -e /x",
        "create -t 5 -c /x",
        "create -t 0 /x",
        "create -t 1099511627776 /x",
        "deleteall /x -b x",
        "reconfig -v x -add 1=a:1:2",
        "reconfig -members 1=a:1:2 -add 1=a:1:2",
        "reconfig -members 1=a:1:2 -file x",
        "reconfig -file /nonexistent",
        "reconfig --file /nonexistent",
        "reconfig -add=1=a:1:2",
        "reconfig -s -remove",
        "redo 5000",
        "redo",
        "delete /x 5",
        "get /zookeeper x",
        "ls /zookeeper x",
        "stat /missing x",
        "get -s /zookeeper x",
    ],
    "history": [
        "create /h x",
        "get /h",
        "redo 1",
        "history",
        "redo 2",
        "redo 0x0",
        "redo 01",
        "redo 6",
        "ls /",
        "ls /",
        "ls /",
        "ls /",
        "ls /",
        "history",
        "close",
        "ls /",
        "close",
        "history",
        "get",
        "unknown",
        "connect",
        "get /h",
        "sync /",
        "sync /",
    ],
}


# Broken if it failed: a command, an error or an event would be printed differently.
@pytest.mark.parametrize("name", SCRIPTS)
def test_both_shells_print_the_same(servers: Servers, name: str) -> None:
    found = compare(servers, (), SCRIPTS[name])
    assert found.events


# Broken if it failed: a script with a chroot would see or change other nodes.
def test_a_chroot_is_the_root(servers: Servers) -> None:
    lines = [
        "create / x",
        "create /a x",
        "get -w /a",
        "set /a y",
        "addWatch /",
        "create /a/b",
        "ls -R /",
        "delete /",
        "sync /",
    ]
    found = compare(servers, (), lines, chroot="/root")
    assert found.out.count("/a/b") == 1


ONE_COMMAND = {
    "done": (["create", "/one", "x"], 0),
    "node": (["get", "-s", "/missing"], 1),
    "words": (["create", "/one", "two words"], 0),
    "unknown": (["rmr", "/a"], 127),
    "usage": (["create"], 1),
    "parse": (["get", "-q", "/a"], 1),
    "quit": (["quit"], 0),
    "range": (["redo", "0"], 1),
    "history": (["history"], 0),
    "options": (["-timeout", "10000", "-waitforconnection", "ls", "/"], 0),
    "ephemeral": (["create", "-e", "/one", "x"], 0),
}


# Broken if it failed: a script could not see whether a command failed.
@pytest.mark.parametrize("name", ONE_COMMAND)
def test_one_command_has_zkclis_exit_code(servers: Servers, name: str) -> None:
    arguments, status = ONE_COMMAND[name]
    assert compare(servers, arguments).status == status


# Broken if it failed: a script could not see whether its last command failed.
def test_the_exit_code_is_the_last_commands(servers: Servers) -> None:
    assert compare(servers, (), ["ls /", "unknown"]).status == 127


# Broken if it failed: a script could not see that the server is down.
def test_a_missing_server_is_reported_as_by_zkcli(unused_port: int) -> None:
    expected = without_events(theirs)("-server", f"127.0.0.1:{unused_port}", "ls", "/")
    assert without_events(ours)("-server", f"127.0.0.1:{unused_port}", "ls", "/") == expected
    assert expected.status == 1


# Broken if it failed: a server with TLS could not be managed.
def test_a_server_is_reached_with_tls(tmp_path: Path) -> None:
    """Apache's secureClientPort requires a client certificate. Server and client have the same one."""
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    keys, certificate = tmp_path / "keys.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    make += " -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(keys), "-out", str(certificate)]
    subprocess.run([*make.split(), *files], check=True, capture_output=True, timeout=RUN_TIMEOUT)
    keys.write_bytes(keys.read_bytes() + certificate.read_bytes())
    stores = {
        "ssl.keyStore.location": str(keys),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(certificate),
        "ssl.trustStore.type": "PEM",
    }
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    }
    client = tmp_path / "client.properties"
    secure = {"client.secure": "true", "clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
    client.write_text("".join(f"zookeeper.{name}={value}\n" for name, value in (secure | stores).items()))
    with apache_zookeeper(tmp_path, settings | stores, {}):
        server = ["-server", f"127.0.0.1:{port}", "-waitforconnection"]
        done = ours(*server, "-client-configuration", str(client), "ls", "/")
        assert done == theirs(*server, "-client-configuration", str(client), "ls", "/")
        assert (done.status, done.out[-1]) == (0, "[zookeeper]")
        assert ours(*server, "-timeout", "1000", "ls", "/").status == 1, "without TLS"


def without_events(shell: Callable[..., Output]) -> Callable[..., Output]:
    """The shell without its events: it may end before its other thread prints them."""
    return lambda *arguments, **options: shell(*arguments, **options)._replace(events=[])


# Broken if it failed: a script would read wrong members.
def test_the_configuration_of_a_single_server_is_printed_as_by_zkcli(servers: Servers) -> None:
    for port in servers:
        zkcli_output, our_output = (
            without_events(shell)(
                "-server", f"127.0.0.1:{port}", lines=["config", "config -c", "config -s", "config -w"]
            )
            for shell in (theirs, ours)
        )
        assert our_output == zkcli_output


# Broken if it failed: a script would not see that nothing was changed.
def test_reconfiguring_a_single_server_is_refused_as_by_zkcli(servers: Servers) -> None:
    for port in servers:
        zkcli_output, our_output = (
            without_events(shell)(
                "-server", f"127.0.0.1:{port}", "reconfig", "-add", "2=localhost:2888:3888;2182"
            )
            for shell in (theirs, ours)
        )
        assert our_output == zkcli_output
        assert our_output.status == 1

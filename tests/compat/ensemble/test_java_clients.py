"""Java clients on single servers and on ensembles: zkCli, and Curator's recipes with three clients on
different servers.

tests/compat/curator has the program of the recipes. If these fail, Java programs that use ZooKeeper do not
work on our coordinator.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.compat.conftest import KAFKA_LIBS, ROOT, peer_jars
from tests.coordinator.support import WAIT_SECONDS

from .members import PEER, Ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

SOURCES = ROOT / "tests" / "compat" / "curator"
CURATOR = "curator-5.9.0"
RECIPES = re.findall(r'recipes\.put\("([a-z-]+)"', (SOURCES / "Recipes.java").read_text())
SECONDS = 110.0
JAVA = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("curator")
    sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
    jars = peer_jars(CURATOR, "javac")
    done = subprocess.run(
        ["javac", "-d", str(into), "-cp", f"{jars}/*", *sources],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return into


@pytest.fixture(scope="session")
def results(servers: Ensemble, classes: Path) -> dict[str, str]:
    """The program's result of each recipe."""
    hosts = [servers.hosts_from(number) for number in range(3)]
    done = subprocess.run(
        [
            *JAVA,
            "-cp",
            f"{classes}:{peer_jars(CURATOR)}/*",
            "Recipes",
            f"/curator-{uuid.uuid4().hex}",
            *hosts,
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines) == RECIPES, f"{done.stdout}\n{done.stderr}"
    return lines


@pytest.mark.parametrize("recipe", RECIPES)
def test_curators_recipe_works(results: dict[str, str], recipe: str) -> None:
    assert results[recipe] == "ok"


SCRIPT = """
create {root}/a hello
create -s -e {root}/a/s- x
addWatch -m PERSISTENT_RECURSIVE {root}/a
create {root}/a/c two
create -c {root}/a/container
set -v 0 {root}/a/c three
get -s {root}/a/c
ls {root}/a
sync {root}/a
getAllChildrenNumber {root}/a
stat {root}/a
addauth digest ann:secret
create {root}/private x auth::cdrwa
getAcl {root}/private
delete -v 9 {root}/a/c
create {root}/nobody/here x
deleteall {root}/a
ls {root}
quit
"""
OUTPUT = (
    "Created {root}/a/s-0000000000",
    "three",
    "dataVersion = 1",
    "[c, container, s-0000000000]",
    "Sync is OK",
    "numChildren = 3",
    "'digest,'ann:",
    "version No is not valid : {root}/a/c",
    "Node does not exist: {root}/nobody/here",
    "type:NodeCreated path:{root}/a/c",
    "type:NodeDataChanged path:{root}/a/c",
    "type:NodeDeleted path:{root}/a",
    "[private]",
)


def test_zkcli_works_on_every_server(servers: Ensemble, chroot: str) -> None:
    # zkCli needs commons-cli. ZooKeeper's artifact does not bring it, Kafka's does.
    options = next(peer_jars(KAFKA_LIBS.name).glob("commons-cli-*.jar"))
    zkcli = [*JAVA, "-cp", f"{peer_jars(PEER)}/*:{options}", "org.apache.zookeeper.ZooKeeperMain", "-server"]
    for number, member in enumerate(servers.members):
        root = f"{chroot}/{number}"
        done = subprocess.run(
            [*zkcli, member.hosts],
            input=f"create {root}\n{SCRIPT.format(root=root)}",
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        both = done.stdout + done.stderr
        for expected in OUTPUT:
            assert expected.format(root=root) in both, f"no {expected!r} in:\n{both}"
    client = KazooClient(servers.hosts)
    client.start(WAIT_SECONDS)
    client.sync(chroot)
    assert sorted(client.get_children(chroot)) == [str(number) for number in range(len(servers.members))]
    client.stop()
    client.close()

"""Client quotas that are changed through a broker with its coordinator in this process.

If one failed, a quota would be answered without effect, be lost at a restart, or destroy a user's credentials
in the same znode.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.dynamic import driver
from cluster.controller import znodes
from cluster.errors import DuplicateResource, ResourceNotFound
from logcore._native import Server

from .configs import SET, TOPIC, alter, embedded, limit, notices, notify, outcome, quotas, run, served, stored
from .wire import Wire


def test_quotas_are_set_found_and_removed_with_their_znodes(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            both: dict[str, str | None] = {"user": "a b", "client-id": None}
            assert await limit(wire, both, producer_byte_rate=5.0, check=True) == "ok"
            assert await quotas(wire) == []
            assert await limit(wire, both, producer_byte_rate=5.0, request_percentage=2.5) == "ok"
            assert await limit(wire, {"client-id": "c"}, consumer_byte_rate=7.0) == "ok"
            assert await limit(wire, {"ip": "127.0.0.9"}, connection_creation_rate=100.0) == "ok"
            assert await stored(zk, "users/a%20b/clients/<default>") == {
                "producer_byte_rate": "5",
                "request_percentage": "2.5",
            }
            assert await notices(zk) == ["users/a%20b/clients/<default>", "clients/c", "ips/127.0.0.9"]
            assert await quotas(wire) == [
                "client-id=c consumer_byte_rate:7",
                "ip=127.0.0.9 connection_creation_rate:100",
                "user=a b client-id=None producer_byte_rate:5 request_percentage:2.5",
            ]
            assert await quotas(wire, ("ip", 2, None), strict=True) == [
                "ip=127.0.0.9 connection_creation_rate:100"
            ]
            assert await limit(wire, both, producer_byte_rate=None, request_percentage=None) == "ok"
            assert await zk.children("/config/users") == []
            assert await limit(wire, {"client-id": "c"}, consumer_byte_rate=None) == "ok"
            assert await limit(wire, {"ip": "127.0.0.9"}, connection_creation_rate=None) == "ok"
            assert await zk.children("/config/clients") == await zk.children("/config/ips") == []
            assert await quotas(wire) == []

    run(work)


class Counting:
    """A data plane that counts its calls."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._server, name)


def test_a_quota_goes_to_the_data_plane_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert broker._dynamic is not None
            assert broker._server is not None
            assert broker._zk is not None
            counting = Counting(broker._server)
            monkeypatch.setattr(broker._dynamic, "_data_plane", counting)
            assert await limit(wire, {"client-id": "c"}, producer_byte_rate=5.0) == "ok"
            assert await limit(wire, {"ip": "127.0.0.9"}, connection_creation_rate=1.0) == "ok"
            # Another program's notice comes last: once it is applied, the changes above are applied, too.
            await broker._zk.create("/config/users/u", znodes.encode_config({"producer_byte_rate": "5"}))
            await notify(broker._zk, znodes.encode_config_change("users/u"))
            while len(await quotas(wire)) < 3 or broker._dynamic._seen < 2:
                pass
            assert counting.calls == ["set_client_quotas", "set_ip_quotas", "set_client_quotas"]

    run(work)


def test_the_quotas_of_one_request_go_to_the_data_plane_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this failed, the time of a request would grow with the square of the quotas that it sets."""

    async def work() -> None:
        async with embedded(tmp_path) as broker, Wire(broker.bootstrap) as wire:
            assert broker._dynamic is not None
            assert broker._server is not None
            counting = Counting(broker._server)
            monkeypatch.setattr(broker._dynamic, "_data_plane", counting)
            ops = [{"key": "producer_byte_rate", "value": 5.0, "remove": False}]
            names = [f"c{number:02}" for number in range(20)]
            entries = [
                {"entity": [{"entity_type": "client-id", "entity_name": name}], "ops": ops} for name in names
            ]
            answer = await wire.ask("AlterClientQuotas", 0, entries=entries, validate_only=False)
            assert [outcome(entry) for entry in answer["entries"]] == ["ok"] * 20
            assert counting.calls == ["set_client_quotas"]
            assert await quotas(wire) == [f"client-id={name} producer_byte_rate:5" for name in names]

    run(work)


def test_a_slow_name_server_delays_no_other_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def slow(host: str) -> str:
            asked.set()
            await answered.wait()
            return "127.0.0.9"

        async with served(tmp_path) as (wire, zk):
            monkeypatch.setattr(driver, "_address", slow)
            path = znodes.config_path("ips/slow.example")
            await zk.create(path, znodes.encode_config({"connection_creation_rate": "3"}))
            await notify(zk, znodes.encode_config_change("ips/slow.example"))
            await asked.wait()
            assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5")) == "ok"
            assert await quotas(wire) == []
            answered.set()
            while await quotas(wire) != ["ip=slow.example connection_creation_rate:3"]:
                pass

    run(work)


def test_hosts_are_resolved_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [f"host{number}.example" for number in range(4)]

    async def first() -> None:
        async with served(tmp_path) as (_wire, zk):
            for host in hosts:
                path = znodes.config_path(f"ips/{host}")
                await zk.create(path, znodes.encode_config({"connection_creation_rate": "3"}))

    async def second() -> None:
        all_asked = asyncio.Barrier(len(hosts))

        async def together(host: str) -> str:
            await all_asked.wait()
            return f"127.0.0.{hosts.index(host) + 2}"

        monkeypatch.setattr(driver, "_address", together)
        async with served(tmp_path) as (wire, _zk):
            assert len(await quotas(wire)) == len(hosts)

    run(first)
    run(second)


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with served(tmp_path) as (wire, _zk):
            assert await limit(wire, {"user": "u"}, producer_byte_rate=5.0) == "ok"
            assert await limit(wire, {"user": "u", "client-id": "c"}, producer_byte_rate=6.0) == "ok"

    async def second() -> None:
        async with served(tmp_path) as (wire, _zk):
            assert await quotas(wire) == [
                "user=u client-id=c producer_byte_rate:6",
                "user=u producer_byte_rate:5",
            ]

    run(first)
    run(second)


def test_credentials_beside_quotas_are_kept(tmp_path: Path) -> None:
    scram = {"SCRAM-SHA-256": "salt=a,stored_key=b,server_key=c,iterations=4096"}

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            await zk.create("/config/users/u", znodes.encode_config(scram))
            assert await limit(wire, {"user": "u"}, producer_byte_rate=5.0) == "ok"
            assert await stored(zk, "users/u") == scram | {"producer_byte_rate": "5"}
            assert await limit(wire, {"user": "u", "client-id": "c"}, producer_byte_rate=6.0) == "ok"
            assert await limit(wire, {"user": "u"}, producer_byte_rate=None) == "ok"
            assert await limit(wire, {"user": "u", "client-id": "c"}, producer_byte_rate=None) == "ok"
            assert await stored(zk, "users/u") == scram
            assert await zk.children("/config/users/u") == []

    run(work)


def test_credentials_are_described_without_their_secrets(tmp_path: Path) -> None:
    scram = "salt=a,stored_key=b,server_key=c,iterations="

    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            config = {"SCRAM-SHA-512": f"{scram}4096", "SCRAM-SHA-256": f"{scram}8192"}
            await zk.create("/config/users/u", znodes.encode_config(config))
            await notify(zk, znodes.encode_config_change("users/u"))
            users: list[dict[str, Any]] = []
            while not users:
                users = (await wire.ask("DescribeUserScramCredentials", 0, users=None))["results"]
            assert [(item["mechanism"], item["iterations"]) for item in users[0]["credential_infos"]] == [
                (1, 8192),
                (2, 4096),
            ]
            names = [{"name": name} for name in ("u", "v", "v", "w")]
            answer = await wire.ask("DescribeUserScramCredentials", 0, users=names)
            assert [(item["user"], item["error_code"]) for item in answer["results"]] == [
                ("u", 0),
                ("v", DuplicateResource.code),
                ("w", ResourceNotFound.code),
            ]

    run(work)


def test_quotas_that_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, zk):
            assert (
                await limit(wire, {"user": ""}, producer_byte_rate=5.0)
                == "INVALID_REQUEST: Empty user not supported"
            )
            odd = await limit(wire, {"ip": "no-such-host.invalid"}, connection_creation_rate=1.0)
            assert odd == "INVALID_REQUEST: no-such-host.invalid is not a valid IP or resolvable host."
            answer = await wire.ask(
                "DescribeClientQuotas",
                0,
                components=[{"entity_type": "group", "match_type": 2, "match": None}],
                strict=False,
            )
            assert outcome(answer) == "UNSUPPORTED_VERSION: Custom entity type 'group' not supported"
            assert answer["entries"] is None
            assert await notices(zk) == []

    run(work)


def test_an_invalid_entity_keeps_no_other_from_its_quotas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with served(tmp_path) as (wire, _zk):
            entities = [
                {"user": "before"},
                {"user": ".."},
                {"client-id": "."},
                {"user": "u", "client-id": ".."},
                {"user": "..."},
            ]
            entries = [
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                    "ops": [{"key": "producer_byte_rate", "value": 5.0, "remove": False}],
                }
                for entity in entities
            ]
            answer = await wire.ask("AlterClientQuotas", 0, entries=entries, validate_only=False)
            refused = "INVALID_REQUEST: The {1} {0} cannot have quotas, because no znode can have this name"
            assert [outcome(entry) for entry in answer["entries"]] == [
                "ok",
                refused.format("..", "user"),
                refused.format(".", "client-id"),
                refused.format("..", "client-id"),
                "ok",
            ]
            assert await quotas(wire) == ["user=... producer_byte_rate:5", "user=before producer_byte_rate:5"]

    with caplog.at_level(logging.ERROR):
        run(work)
    assert caplog.messages == []

"""The admin server's commands, ``/commands/<name>``, as ZooKeeper 3.9's ``Commands``.

Owns names, aliases and fields, over :class:`.words.Seen`. Unlike in ZooKeeper, secret settings have no value
in the answers. Snapshot and restore are in :mod:`.server`. Runs on the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..metrics import Sizes
from ..settings.values import HIDDEN, is_secret
from ..state.members import Member, host_and_port
from .words import Client, Seen, environment, full_version, monitored

Data = dict[str, object]
Parameters = Mapping[str, str]

_TRACE_MASK = 306
"""ZooKeeper's default: client requests, server's packets, sessions, warnings. This server traces nothing."""
_SETTING = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_LONG = range(-(1 << 63), 1 << 63)

_OF_THE_FILE = frozenset(
    {
        "dataDir",
        "dataLogDir",
        "clientPort",
        "clientPortAddress",
        "secureClientPort",
        "secureClientPortAddress",
        "observerMasterPort",
        "clientPortListenBacklog",
        "tickTime",
        "maxClientCnxns",
        "minSessionTimeout",
        "maxSessionTimeout",
        "initLimit",
        "syncLimit",
        "connectToLearnerMasterLimit",
        "electionAlg",
        "quorumListenOnAllIPs",
        "peerType",
        "syncEnabled",
        "dynamicConfigFile",
        "autopurge.snapRetainCount",
        "autopurge.purgeInterval",
        "standaloneEnabled",
        "reconfigEnabled",
        "sslQuorum",
        "portUnification",
        "sslQuorumReloadCertFiles",
        "localSessionsEnabled",
        "localSessionsUpgradingEnabled",
    }
)
_PREFIXES_OF_THE_FILE = (
    "server.",
    "group.",
    "weight.",
    "metricsProvider.",
    "quorum.",
    "multiAddress.",
    "jvm.",
)
"""The names that ZooKeeper's parser knows. All others become system properties there."""


class Command(NamedTuple):
    """The first of ``names`` is its own, the others are aliases."""

    names: tuple[str, ...]
    run: Callable[[Seen, Parameters], Data]


class Commands:
    """All commands. ``initial`` is the text of the `zoo.cfg`, ``properties`` are its names and values."""

    def __init__(self, initial: str, properties: Mapping[str, str]) -> None:
        self._initial = without_secrets(initial)
        self._properties = {
            f"zookeeper.{name}": HIDDEN if is_secret(name) else text
            for name, text in sorted(properties.items())
            if name not in _OF_THE_FILE and not name.startswith(_PREFIXES_OF_THE_FILE)
        }
        self._trace_mask = _TRACE_MASK
        self._by_name = {name: command for command in self._all() for name in command.names}

    def find(self, name: str) -> Command | None:
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """Returns the commands' own names, in order."""
        return sorted({command.names[0] for command in self._by_name.values()})

    def _all(self) -> list[Command]:
        return [
            Command(("configuration", "conf", "config"), _configuration),
            Command(("connection_stat_reset", "crst"), lambda seen, _parameters: _reset(seen, False)),
            Command(("connections", "cons"), _connections),
            Command(("dirs",), _dirs),
            Command(("dump",), _dump),
            Command(("environment", "env", "envi"), lambda _seen, _parameters: dict(environment())),
            Command(("get_trace_mask", "gtmk"), lambda _seen, _parameters: {"tracemask": self._trace_mask}),
            Command(("hash",), lambda _seen, _parameters: {"digests": []}),
            Command(
                ("initial_configuration", "icfg"),
                lambda _seen, _parameters: {"initial_configuration": self._initial},
            ),
            Command(("is_read_only", "isro"), lambda seen, _parameters: {"read_only": seen.is_read_only}),
            Command(("last_snapshot", "lsnp"), _last_snapshot),
            Command(("leader", "lead"), _leader),
            Command(("monitor", "mntr"), lambda seen, _parameters: dict(monitored(seen))),
            Command(("observer_connection_stat_reset", "orst"), lambda _seen, _parameters: {}),
            Command(
                ("observers", "obsr"),
                lambda seen, _parameters: {
                    "synced_observers": seen.ensemble.observers if seen.ensemble is not None else 0,
                    "observers": [],
                },
            ),
            Command(("ruok",), lambda _seen, _parameters: {}),
            Command(("server_stats", "srvr"), _server_stats),
            Command(("set_trace_mask", "stmk"), self._set_trace_mask),
            Command(("stat_reset", "srst"), lambda seen, _parameters: _reset(seen, True)),
            Command(("stats", "stat"), _stats),
            Command(("system_properties", "sysp"), lambda _seen, _parameters: dict(self._properties)),
            Command(("voting_view",), _voting_view),
            Command(("watch_summary", "wchs"), _watch_summary),
            Command(("watches", "wchc"), _watches),
            Command(("watches_by_path", "wchp"), _watches_by_path),
            Command(("zabstate",), _zabstate),
        ]

    def _set_trace_mask(self, _seen: Seen, parameters: Parameters) -> Data:
        wanted = "setTraceMask requires long traceMask argument"
        if "traceMask" not in parameters:
            return {"error": wanted}
        text = parameters["traceMask"]
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text) is None or int(text) not in _LONG:
            return {"error": f"{wanted}, got {text}"}
        self._trace_mask = int(text)
        return {"tracemask": self._trace_mask}


def without_secrets(text: str) -> str:
    """Returns the text of a `zoo.cfg` without its passwords."""
    lines = []
    hides = False
    for line in _LINE.findall(text):
        end = line[len(line.rstrip("\r\n")) :]
        goes_on = line.removesuffix(end).endswith("\\")
        found = _SETTING.match(line)
        if hides:
            shown = end
        elif found is not None and is_secret(found[1]):
            shown, hides = found[0] + HIDDEN + end, True
        else:
            shown = line
        lines.append(shown)
        hides = hides and goes_on
    return "".join(lines)


def _configuration(seen: Seen, _parameters: Parameters) -> Data:
    shown = seen.configuration()
    return {
        "client_port": shown["clientPort"],
        "data_dir": str(shown["dataDir"]),
        "data_log_dir": str(shown["dataLogDir"]),
        "tick_time": shown["tickTime"],
        "max_client_cnxns": shown["maxClientCnxns"],
        "min_session_timeout": shown["minSessionTimeout"],
        "max_session_timeout": shown["maxSessionTimeout"],
        "server_id": shown["serverId"],
        "client_port_listen_backlog": shown["clientPortListenBacklog"],
    }


def _leader(seen: Seen, _parameters: Parameters) -> Data:
    ensemble = seen.ensemble
    if ensemble is None:
        return {"error": "server is not initialized"}
    if ensemble.leader is None:
        return {"is_leader": False, "leader_id": -1, "leader_ip": ""}
    number, host = ensemble.leader
    return {"is_leader": number == ensemble.server_id, "leader_id": number, "leader_ip": host}


def _voting_view(seen: Seen, _parameters: Parameters) -> Data:
    members = seen.ensemble.members if seen.ensemble is not None else ()
    return {
        "current_config": {
            str(member.server_id): {
                "server_addresses": [host_and_port(member.host, member.quorum_port)],
                "election_addresses": [host_and_port(member.host, member.election_port)],
                "client_address": member.client,
                "learner_type": "participant",
            }
            for member in sorted(members)
            if not member.observer
        }
    }


def _zabstate(seen: Seen, _parameters: Parameters) -> Data:
    ensemble = seen.ensemble
    if ensemble is None:
        return {"voting": False, "zabstate": ""}
    own, zxid = ensemble.own, seen.last_zxid
    is_voter = own is not None and not own.observer
    phase = "broadcast" if ensemble.state.endswith("broadcast") else "election"
    if not seen.is_serving:
        return {"voting": is_voter, "zabstate": phase}
    return {
        "myid": ensemble.server_id,
        "is_leader": ensemble.proposals is not None,
        "quorum_address": _addresses(own, own.quorum_port) if own is not None else None,
        "election_address": _addresses(own, own.election_port) if own is not None else None,
        "client_address": host_and_port(*seen.client_address) if seen.client_address is not None else None,
        "voting": is_voter,
        "last_zxid": f"{zxid:#x}",
        "zab_epoch": zxid >> 32,
        "zab_counter": zxid & 0xFFFF_FFFF,
        "zabstate": phase,
    }


def _addresses(member: Member, port: int) -> Data:
    """Returns a ``MultipleAddresses`` with one address."""
    one = host_and_port(member.host, port)
    return {
        "empty": False,
        "all_addresses": [one],
        "wildcard_addresses": [host_and_port("0.0.0.0", port)],
        "all_ports": [port],
        "all_host_strings": [member.host],
        "reachable_address": one,
        "all_reachable_addresses": [one],
        "all_reachable_addresses_or_all": [one],
        "reachable_or_one": one,
        "one": one,
    }


def _reset(seen: Seen, whole: bool) -> Data:
    seen.reset(whole)
    return {}


def _client(client: Client, in_full: bool) -> Data:
    traffic = client.traffic
    latency = traffic.latency
    data: Data = {
        "remote_socket_address": host_and_port(client.address, client.port),
        "interest_ops": client.interest,
        "outstanding_requests": client.queued,
        "packets_received": traffic.received,
        "packets_sent": traffic.sent,
    }
    if in_full:
        data |= {
            "session_id": client.session_id,
            "last_operation": traffic.last_operation,
            "established": client.established_ms,
            "session_timeout": client.timeout_ms,
            "last_cxid": traffic.last_cxid,
            "last_zxid": traffic.last_zxid,
            "last_response_time": traffic.last_response_ms,
            "last_latency": latency.last,
            "min_latency": latency.shortest,
            "avg_latency": latency.total // latency.count if latency.count else 0,
            "max_latency": latency.most,
        }
    return data


def _connections(seen: Seen, _parameters: Parameters, in_full: bool = True) -> Data:
    return {
        "connections": [_client(client, in_full) for client in seen.plain],
        "secure_connections": [_client(client, in_full) for client in seen.secure],
    }


def _dirs(seen: Seen, _parameters: Parameters) -> Data:
    snapshots, logs = seen.data_bytes()
    return {"datadir_size": snapshots, "logdir_size": logs}


def _dump(seen: Seen, _parameters: Parameters) -> Data:
    return {
        "expiry_time_to_session_ids": {str(expiry.at_ms): list(expiry.members) for expiry in seen.expiries()},
        "session_id_to_ephemeral_paths": {
            str(session): list(paths) for session, paths in seen.ephemerals().items()
        },
    }


def _last_snapshot(seen: Seen, _parameters: Parameters) -> Data:
    found = seen.last_snapshot()
    zxid, seconds = found if found is not None else ((1 << 64) - 1, -1)
    return {"zxid": f"{zxid:x}", "timestamp": seconds}


def _server_stats(seen: Seen, _parameters: Parameters) -> Data:
    latency = seen.traffic.latency
    snapshots, logs = seen.data_bytes()
    response = _sizes(seen.response_sizes)
    proposals = seen.ensemble.proposals if seen.ensemble is not None else None
    return {
        "version": full_version(),
        "read_only": seen.is_read_only,
        "server_stats": {
            "packets_sent": seen.traffic.sent,
            "packets_received": seen.traffic.received,
            "fsync_threshold_exceed_count": 0,
            "client_response_stats": response,
            "provider_null": False,
            "server_state": seen.mode,
            "outstanding_requests": seen.outstanding,
            "min_latency": latency.shortest,
            "avg_latency": latency.mean,
            "max_latency": latency.most,
            "data_dir_size": snapshots,
            "log_dir_size": logs,
            "last_processed_zxid": seen.last_zxid,
            "num_alive_client_connections": seen.alive,
            "auth_failed_count": seen.auth_failed,
            "non_mtlsremote_conn_count": seen.plain_remote,
            "non_mtlslocal_conn_count": seen.plain_local,
            "uptime": seen.monitor()["uptime"],
        },
        "client_response": response,
        **({"proposal_stats": _sizes(proposals)} if proposals is not None else {}),
        "node_count": seen.node_count,
    }


def _sizes(sizes: Sizes) -> Data:
    return {
        "last_buffer_size": sizes.last,
        "min_buffer_size": sizes.least,
        "max_buffer_size": sizes.most,
    }


def _stats(seen: Seen, parameters: Parameters) -> Data:
    return _server_stats(seen, parameters) | _connections(seen, parameters, in_full=False)


def _watch_summary(seen: Seen, _parameters: Parameters) -> Data:
    watched = list(seen.data_watches())
    return {
        "num_connections": len({session for _path, watchers in watched for session in watchers}),
        "num_paths": len(watched),
        "num_total_watches": sum(len(watchers) for _path, watchers in watched),
    }


def _watches(seen: Seen, _parameters: Parameters) -> Data:
    by_session: dict[str, list[str]] = {}
    for path, watchers in seen.data_watches():
        for session in watchers:
            by_session.setdefault(str(session), []).append(str(path))
    return {"session_id_to_watched_paths": by_session}


def _watches_by_path(seen: Seen, _parameters: Parameters) -> Data:
    return {"path_to_session_ids": {str(path): list(watchers) for path, watchers in seen.data_watches()}}

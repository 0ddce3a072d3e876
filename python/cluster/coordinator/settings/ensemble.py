"""The settings of an ensemble in `zoo.cfg` (``QuorumPeerConfig``): its servers, which of them this one is,
and its limits.

Owns these settings and two files: ``<dataDir>/myid``, the number of this server, and the file that
``dynamicConfigFile`` names, which may have the lines ``server.N``. Pure, except for reading the two files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.properties import PropertiesError, read_properties

from ..errors import CoordinatorError
from ..state.members import SERVER_ID_MAX, Ensemble, Member, parse_members, shared_addresses, voters_warning
from .values import Values

REQUEST_BYTES_MAX = 15 << 20
"""The quorum takes commands of 16 MiB: a request, and the identities of its client."""
_HIERARCHY = ("group.", "weight.")
_ANYWHERE = ("0.0.0.0", "::")
_NUMBER = re.compile("0*([0-9]{1,9})")
_SECRETS = ("sslQuorum", "quorum.auth.enableSasl")


@dataclass(frozen=True)
class EnsembleSettings:
    """``init_limit`` and ``sync_limit`` are in ticks.

    ``standalone``: a single participant would be a standalone server.
    """

    server_id: int
    members: tuple[Member, ...]
    init_limit: int
    sync_limit: int
    listen_on_all: bool = False
    standalone: bool = True
    reconfigurable: bool = False

    @property
    def own(self) -> Member:
        """This server."""
        return next(member for member in self.members if member.server_id == self.server_id)


def ensemble_settings(values: Values, data_dir: Path, warnings: list[str]) -> EnsembleSettings | None:
    """Returns None for a standalone server: without a line ``server.N``, or with one unless
    ``standaloneEnabled`` is false.

    Adds to ``warnings``. Raises CoordinatorError, which names the setting or the file.
    """
    ensemble = _named(values)
    standalone = values.boolean("standaloneEnabled", True)
    listen_on_all = values.boolean("quorumListenOnAllIPs", False)
    init_limit, sync_limit = values.number("initLimit", 0), values.number("syncLimit", 0)
    peer_type = values.choice("peerType", "", ("participant", "observer"))
    count, voters = len(ensemble.members), ensemble.voters
    if count == 0:
        if not standalone:
            raise CoordinatorError(
                "standaloneEnabled is false, and no server is named: add the lines server.N=host:port:port"
            )
        return None
    if voters == 0 or (standalone and voters == 1 and count > 1):
        reason = (
            ", which is an ensemble only with standaloneEnabled=false"
            if voters
            else ": at least one has to vote"
        )
        raise CoordinatorError(
            f"the file names {count - voters} observers and {voters or 'no'} participant{reason}"
        )
    if standalone and voters == 1:
        return None
    for name, limit in (("initLimit", init_limit), ("syncLimit", sync_limit)):
        if limit == 0:
            raise CoordinatorError(
                f"the file names {count} servers, and {name} is not set: give it in ticks, as in {name}=5"
            )
    for name in _SECRETS:
        if values.boolean(name, False):
            raise CoordinatorError(
                f"{name}=true: the servers of an ensemble neither encrypt their connections nor authenticate "
                "each other; leave the setting out, and keep their ports in a private network"
            )
    server_id = _own_id(data_dir)
    own = ensemble.find(server_id)
    if own is None:
        named = ", ".join(f"server.{member.server_id}" for member in ensemble.members)
        raise CoordinatorError(
            f"{data_dir / 'myid'} has the number {server_id}, and there are lines only for {named}: correct "
            "the number, or add the line on every server"
        )
    if peer_type and (peer_type == "observer") != own.observer:
        role = "an observer" if own.observer else "a participant"
        warnings.append(
            f"peerType={peer_type}: has no effect, because the line server.{server_id} says {role}"
        )
    if values.boolean("localSessionsEnabled", False):
        warnings.append("localSessionsEnabled=true: has no effect, every session is global")
    warnings += ensemble.warnings
    for member in ensemble.members:
        if member.host in _ANYWHERE:
            warnings.append(
                f"server.{member.server_id} is at {member.host}, which on each machine is that machine: "
                "unless all servers run here, write the host by which the others reach it, the same line in "
                "every server's file; with quorumListenOnAllIPs=true it listens on all addresses "
                "nevertheless"
            )
    if (warning := voters_warning(voters)) is not None:
        warnings.append(warning)
    return EnsembleSettings(
        server_id,
        ensemble.members,
        init_limit,
        sync_limit,
        listen_on_all,
        standalone,
        values.boolean("reconfigEnabled", False),
    )


def line_of_one(values: Values, data_dir: Path) -> Member | None:
    """Returns the line of a standalone server, if it has one.

    With a file ``myid`` it is the line of that number. Without the file it is the line of the only voter.

    Raises CoordinatorError, which names the setting or the file.
    """
    ensemble = _named(values)
    if (data_dir / "myid").exists() and ensemble.members:
        return ensemble.find(_own_id(data_dir))
    return next((member for member in ensemble.members if not member.observer), None)


def _named(values: Values) -> Ensemble:
    ensemble = parse_members(_lines(values))
    if not values.text("dynamicConfigFile"):  # in that file a `reconfig` may have written it
        for _host, shared in shared_addresses(ensemble.members):
            raise CoordinatorError(f"{shared}: give each its own")
    return ensemble


def _lines(values: Values) -> Mapping[str, str]:
    """Returns the lines ``server.N`` of `zoo.cfg` or of the dynamic file."""
    lines = values.beginning("server.")
    path = values.text("dynamicConfigFile")
    hierarchy = [name for prefix in _HIERARCHY for name in values.beginning(prefix)]
    if path:
        if lines or hierarchy:
            raise CoordinatorError(
                f"dynamicConfigFile is set, and {min([*lines, *hierarchy])} is in zoo.cfg: move it to {path}"
            )
        lines = _dynamic(Path(path))
        hierarchy = [name for name in lines if name.startswith(_HIERARCHY)]
    if hierarchy:
        raise CoordinatorError(
            f"{min(hierarchy)}: groups and weights are not supported, every participant has one vote; leave "
            "it out"
        )
    return lines


def _dynamic(path: Path) -> dict[str, str]:
    try:
        found = read_properties(path)
    except (OSError, PropertiesError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CoordinatorError(f"the dynamicConfigFile {path} cannot be read: {reason}") from None
    for name in found:
        if not name.startswith(("server.", *_HIERARCHY)) and name != "version":
            raise CoordinatorError(
                f"{name} in the dynamicConfigFile {path}: it may have only the lines server.N and version"
            )
    found.pop("version", None)
    return found


def _own_id(data_dir: Path) -> int:
    path = data_dir / "myid"
    try:
        text = (path.read_text(encoding="utf-8").splitlines() or [""])[0].strip()
    except FileNotFoundError:
        raise CoordinatorError(
            f"{path} is missing: write this server's number into it, the N of its line server.N"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CoordinatorError(f"{path} cannot be read: {error}") from None
    found = _NUMBER.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= SERVER_ID_MAX:
        raise CoordinatorError(
            f"{path} has {text!r} in it: write this server's number, from 1 to {SERVER_ID_MAX}"
        )
    return int(found[1])

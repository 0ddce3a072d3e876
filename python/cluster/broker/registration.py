"""A broker's registration with the coordinator: the cluster's id, its own id, and its node under
/brokers/ids.

Owns the steps of kafka.server.KafkaServer's start that use the coordinator. The registration is ephemeral: it
ends with the session. A crashed broker's registration stays until its session times out. To start again at
once, the broker writes the session's id to a file in the log directory, and removes a registration of that
session.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from cluster.broker.config import BrokerConfig
from cluster.broker.errors import BrokerStartError
from cluster.controller import ZooKeeper, znodes
from cluster.controller.office import depose
from cluster.controller.zookeeper import NodeExistsError, NoNodeError
from cluster.model import BrokerId, BrokerInfo, new_topic_id, topic_id_text
from cluster.properties import PropertiesError, read_properties

log = logging.getLogger(__name__)

_SESSION_FILE = "coordinator-session"


def stored_identity(log_dirs: list[str]) -> tuple[int | None, str | None]:
    """Broker id and cluster id from the first log directory that has a readable meta.properties.

    An unreadable directory is skipped: opening it later decides whether the broker can start without it.
    """
    for directory in log_dirs:
        path = Path(directory) / "meta.properties"
        try:
            properties = read_properties(path)
        except OSError:
            continue
        except PropertiesError as error:
            raise BrokerStartError(f"{path} cannot be read: {error}") from None
        broker = properties.get("broker.id", properties.get("node.id"))
        try:
            return (None if broker is None else int(broker)), properties.get("cluster.id")
        except ValueError:
            raise BrokerStartError(f"{path} cannot be used: broker.id is {broker!r}, not a number") from None
    return None, None


async def cluster_id(zk: ZooKeeper, stored: str | None) -> str:
    """The cluster's id, which its first broker generates. Raises BrokerStartError if the log directory has
    another.
    """
    await zk.ensure(["/cluster"])
    fresh = topic_id_text(new_topic_id())
    try:
        await zk.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(fresh))
        found = fresh
    except NodeExistsError:
        data, _ = await zk.get(znodes.CLUSTER_ID)
        found = znodes.decode_cluster_id(data)
    if stored is not None and stored != found:
        raise BrokerStartError(
            f"the coordinator's cluster is {found}, but the log directory belongs to cluster {stored}; "
            "point zookeeper.connect to its coordinator, or log.dirs to another directory"
        )
    return found


async def broker_id(
    zk: ZooKeeper, configured: int, stored: int | None, reserved_max: int, generate: bool
) -> BrokerId:
    """The configured id, else the log directory's, else a generated one. Raises BrokerStartError if they
    differ.
    """
    if configured >= 0:
        if stored is not None and stored != configured:
            raise BrokerStartError(
                f"broker.id is {configured}, but the log directory belongs to broker {stored}; "
                "use that id, or another directory"
            )
        return BrokerId(configured)
    if stored is not None:
        return BrokerId(stored)
    if not generate:
        raise BrokerStartError(
            "broker.id is not set and broker.id.generation.enable is false; set one of them"
        )
    # The version of this node is the counter.
    return BrokerId(await zk.set(znodes.BROKER_SEQUENCE, b"") + reserved_max)


async def register(zk: ZooKeeper, broker: BrokerInfo, log_dir: str) -> int:
    """Creates the registration and returns its epoch (KIP-380). Raises BrokerStartError if another live
    broker has this id.
    """
    path = znodes.broker_path(broker.id)
    data = znodes.encode_broker(broker, int(time.time() * 1000))
    note = Path(log_dir) / _SESSION_FILE
    for _ in range(3):
        try:
            await zk.create(path, data, ephemeral=True)
            _write_note(note, zk.session_id)
            return (await zk.get(path))[1].czxid
        except NodeExistsError:
            await _remove_own(zk, path, broker.id, note)
    raise BrokerStartError(
        f"another broker registers with the id {broker.id} at the same time; stop it, or set another "
        "broker.id"
    )


async def advertise(zk: ZooKeeper, broker: BrokerInfo) -> None:
    """Writes new endpoints to the registration (`KafkaController.updateBrokerInfo`).

    If it went with its session, the next registration has them.
    """
    try:
        await zk.set(znodes.broker_path(broker.id), znodes.encode_broker(broker, int(time.time() * 1000)))
    except NoNodeError:
        log.info("broker %d is not registered; its endpoints wait for the next session", broker.id)


async def _remove_own(zk: ZooKeeper, path: str, broker: BrokerId, note: Path) -> None:
    found = await zk.find(path)
    if found is None:
        return
    owner = found[1].owner
    if owner not in (zk.session_id, _read_note(note)):
        raise BrokerStartError(
            f"broker id {broker} is in use: a live session ({owner:#x}) has registered it; stop that broker, "
            "or set another broker.id (the registration of a broker that crashed ends with its session, "
            "after zookeeper.session.timeout.ms at most)"
        )
    log.info("removing the registration of this broker's earlier session %#x", owner)
    await zk.delete(path)
    epoch = await zk.find(znodes.CONTROLLER_EPOCH)
    controller = await zk.find(znodes.CONTROLLER)
    if epoch is not None and controller is not None and controller[1].owner == owner:
        await depose(zk, epoch[1].version)


def _write_note(note: Path, session: int) -> None:
    try:
        note.write_text(f"{session}\n", "ascii")
    except OSError as error:
        log.warning(
            "%s could not be written, so a start after a crash waits for the session to time out: %s",
            note,
            error,
        )


def _read_note(note: Path) -> int | None:
    try:
        return int(note.read_text("ascii"))
    except (OSError, ValueError):
        return None


async def check_inter_broker_listener(zk: ZooKeeper, own: BrokerId, config: BrokerConfig) -> None:
    """Raises BrokerStartError if the cluster has other brokers that this one cannot speak with."""
    name = config.inter_broker_listener
    protocol = next(item.security_protocol for item in config.advertised if item.listener == name)
    others = sorted(int(other) for other in await zk.children(znodes.BROKER_IDS) if int(other) != own)
    if others and protocol != "PLAINTEXT":
        names = ", ".join(map(str, others))
        raise BrokerStartError(
            f"the inter-broker listener {name} is {protocol}, and the cluster has broker {names}: this "
            "version of logcore speaks only PLAINTEXT between brokers; name such a "
            "listener with inter.broker.listener.name"
        )
    for other in others:
        found = await zk.find(znodes.broker_path(other))
        if found is None:
            continue
        try:
            info = znodes.decode_broker(BrokerId(other), found[0], found[1].czxid)
        except znodes.ZnodeError as error:
            # The controller leaves it out of the cluster.
            log.error("the listeners of broker %d cannot be compared with this one's: %s", other, error)
            continue
        if info.endpoint(name) is None:
            listeners = ", ".join(endpoint.listener for endpoint in info.endpoints)
            raise BrokerStartError(
                f"broker {other} of the cluster has no listener {name}, which this broker uses between "
                f"brokers; it has {listeners}: name one of them with inter.broker.listener.name, or add "
                f"{name} to the listeners of broker {other} first"
            )

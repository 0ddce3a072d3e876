"""Types of the extension module, one section for each file of `rust/src`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, final, type_check_only

from typing_extensions import Buffer, disjoint_base

from cluster.client._errors import KafkaError

__version__: str

# ---- codec ---- A message is a dict with a key for each field, in snake case. Arrays are lists, uuids are 16
# bytes, bytes and records are bytes, null is None. Decoding fills in every field, with its default where the
# version lacks it. Encoding uses the default for a missing key. It refuses an unknown key. It refuses a value
# other than the default in a field that the version lacks, unless Kafka calls that field ignorable.

class ProtocolError(ValueError):
    """A message cannot be decoded or encoded, or an API, version or schema does not exist."""

def decode_request(api_key: int, version: int, body: bytes | bytearray) -> dict[str, Any]:
    """Decodes the body (no header) of a request; raises ProtocolError."""

def encode_request(api_key: int, version: int, message: dict[str, Any]) -> bytes:
    """The body (no header) of a request; raises ProtocolError."""

def decode_response(api_key: int, version: int, body: bytes | bytearray) -> dict[str, Any]:
    """Decodes the body (no header) of a response; raises ProtocolError."""

def encode_response(api_key: int, version: int, message: dict[str, Any]) -> bytes:
    """The body (no header) of a response; raises ProtocolError."""

def decode_data(name: str, version: int, data: bytes | bytearray) -> dict[str, Any]:
    """Decodes data by Kafka's name of its schema. The int16 version that often precedes it is not part of
    `data`.
    """

def request_to_json(api_key: int, version: int, body: bytes | bytearray) -> str:
    """Decodes a request's body to JSON, in the form of Kafka's request log."""

def response_to_json(api_key: int, version: int, body: bytes | bytearray) -> str:
    """Decodes a response's body to JSON, in the form of Kafka's request log."""

def data_to_json(name: str, version: int, data: bytes | bytearray) -> str:
    """As `decode_data`, but to JSON in the form of Kafka's tools."""

def encode_data(name: str, version: int, message: dict[str, Any]) -> bytes:
    """Encodes data by Kafka's name of its schema, without the int16 version that often precedes it."""

def decode_request_header(request: bytes | bytearray) -> tuple[int, int, int, str | None, int]:
    """API key, version, correlation id, client id, and the position of the body; raises ProtocolError."""

def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A request's header, in the header version of the API's version; raises ProtocolError."""

def decode_response_header(api_key: int, version: int, response: bytes | bytearray) -> tuple[int, int]:
    """The correlation id, and the position of the body; raises ProtocolError."""

def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """A response's header, in the header version of the API's version; raises ProtocolError."""

def api_keys() -> dict[str, int]:
    """The key of every API that the codec knows, by Kafka's name (as in "Produce")."""

def kafka_errors() -> list[tuple[int, str, str, str]]:
    """Kafka's errors in the order of their codes: code, name, when the request may succeed, sentence.

    The third is "never", "later", or "refresh": once the client has fetched new metadata.
    """

def valid_versions(api_key: int) -> tuple[int, int]:
    """The lowest and highest stable version of an API; raises ProtocolError for an unknown key."""

def string_hash(utf_16_be: bytes) -> int:
    """Java's hash of a string (String.hashCode), of its UTF-16 in big-endian."""

# ---- regexes ----

def matching_names(expression: str, names: Sequence[str]) -> list[str]:
    """The names that a regular expression matches as a whole, in RE2's syntax without `\\p`, `\\Q` and `\\C`.

    Takes time linear in the names. Raises ValueError for an expression that is wrong or too large.
    """

# ---- log ----
# `logcore.Log` is the public class; see there.

_Headers: TypeAlias = Mapping[str, Buffer | None] | Sequence[tuple[str, Buffer | None]]

@final
class Record:
    """A record as read, or to be appended. Compares by all fields; `match` takes `Record(offset, timestamp,
    ...)`.

    `timestamp` is in milliseconds since 1970 UTC; a record that is appended with -1 gets the present time.
    `headers` are pairs of name and value.
    """

    __match_args__ = ("offset", "timestamp", "key", "value", "headers")

    def __new__(
        cls,
        value: Buffer | None = None,
        key: Buffer | None = None,
        headers: _Headers | None = None,
        timestamp: int = ...,
        offset: int = ...,
    ) -> Self: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    def as_tuple(self) -> tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        """Offset, timestamp, key, value and headers."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Log:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        create: bool,
        readonly: bool,
        compression: str,
        config: dict[str, int | str | bool],
    ) -> Self: ...
    def append_record(
        self,
        value: Buffer | None,
        key: Buffer | None,
        headers: _Headers | None,
        timestamp: int | None,
    ) -> int: ...
    def append_records(self, records: Iterable[object]) -> tuple[int, int]: ...
    def append_table(
        self, table: object, compression: str | None, level: int | None, batch_bytes: int | None
    ) -> tuple[int, int]: ...
    def append_batches(self, batches: Buffer) -> tuple[int, int]: ...
    def fetch(self, offset: int, max_bytes: int, isolation_level: str) -> memoryview: ...
    def read_records(self, offset: int, max_bytes: int, isolation_level: str) -> tuple[list[Record], int]:
        """The records of about `max_bytes` of batches, and the offset to continue from."""
    def fetch_next(self, offset: int, max_bytes: int, isolation_level: str) -> tuple[memoryview, int]:
        """As `fetch`, and the offset to continue from."""
    def aborted_transactions(self, offset: int, end: int) -> list[tuple[int, int, int]]:
        """Producer id, first offset and offset of the abort marker."""
    def readable_end(self, isolation_level: str) -> int:
        """The offset before which a reader may read."""
    def index_position(self, offset: int) -> tuple[int, int]:
        """Base offset of the segment with `offset`, and a position in its file at or before that offset's
        batch.
        """
    def offset_for_time(self, timestamp: int, isolation_level: str) -> int | None: ...
    def roll(self) -> None: ...
    def truncate_to(self, offset: int) -> int: ...
    def truncate_fully_and_start_at(self, offset: int) -> None: ...
    def delete_records(self, before_offset: int) -> int: ...
    def compact(self) -> _CleanerStats: ...
    def maintain(self) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def compacted(self) -> bool:
        """Whether `cleanup.policy` contains `compact`."""
    @property
    def truncated_bytes(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def readonly(self) -> bool: ...

_CleanerStats: TypeAlias = tuple[int, int, int, int, int, int, int, int, timedelta]
"""The fields of `logcore.CleanerStats`."""

@final
class LogDir:
    """`logcore.LogDirectory` is the public class; see there."""

    def __new__(
        cls,
        path: str | os.PathLike[str],
        broker_id: int | None,
        compression: str,
        config: dict[str, int | str | bool],
        topics: dict[str, dict[str, int | str | bool]],
    ) -> Self: ...
    def partitions(self) -> list[tuple[str, int]]: ...
    def get(self, topic: str, partition: int) -> Log | None: ...
    def create(self, topic: str, partition: int, config: dict[str, int | str | bool]) -> Log: ...
    def delete(self, topic: str, partition: int) -> None: ...
    def checkpoint(self) -> None: ...
    def maintain(self) -> None: ...
    def close(self) -> None: ...
    @property
    def failures(self) -> list[tuple[Path, str]]: ...
    @property
    def path(self) -> Path: ...

def partition_of_directory(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory's name `<topic>-<partition>`; None for other names."""

@final
class Appender:
    """`logcore.Appender` is the public class; see there."""

    def __new__(cls, log: Log) -> Self: ...
    def begin(self, records: Iterable[object]) -> None:
        """Passes records to the thread."""
    def finish(self) -> bool:
        """Whether the records of the last `begin` are on disk; called when the descriptor is readable."""
    def fileno(self) -> int:
        """A descriptor that is readable when there is something to finish."""
    def close(self) -> None:
        """Waits for the thread's append and ends the thread."""

@final
class Watch:
    """Notifies of a log's growth, from when the object is made."""

    def __new__(cls, log: Log) -> Self: ...
    def wait(
        self, offset: int, timeout: float | None = None, isolation_level: str = "read_uncommitted"
    ) -> bool:
        """Waits until a reader may read `offset`. False when `timeout` seconds have passed."""
    def has_more(self, offset: int, isolation_level: str = "read_uncommitted") -> bool:
        """Whether a reader may read `offset` now."""
    def clear(self) -> None:
        """Makes the descriptor unreadable until the next change. Look at the log afterwards, not before."""
    def fileno(self) -> int:
        """A descriptor that is readable when the log may have grown."""

def build_batch(
    records: Iterable[object],
    compression: str = "none",
    level: int | None = None,
    producer: tuple[int, int, int] | None = None,
) -> bytes: ...
def parse_batches(
    batches: Buffer, offset: int = 0, *, aborted: Sequence[tuple[int, int, int | None]] = ...
) -> list[Record]: ...
def build_state_batch(records: Iterable[object], producer: tuple[int, int] | None) -> bytes: ...
def build_end_marker(
    producer: tuple[int, int], committed: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes: ...
def parse_state_batches(
    batches: Buffer, offset: int
) -> list[tuple[bytes | None, bytes | None, tuple[int, int] | None, bool | None]]: ...

class LogError(Exception):
    """An operation on a log was refused or failed; `code` is Kafka's error code, -1 when there is none."""

    code: int

class CorruptLogError(LogError):
    """A file of a log is damaged."""

class OffsetOutOfRangeError(LogError):
    """An offset before the log's start or after its end."""

class LockedError(LogError):
    """Another process, or another opening in this one, writes the log."""

class LogNotFoundError(LogError):
    """There is no log at this path."""

class LogExistsError(LogError):
    """The log to be created exists already."""

class LogClosedError(LogError):
    """The log was closed, or opened by the process this one was forked from."""

class ReadOnlyError(LogError):
    """The log was opened for reading only."""

class OfflineError(LogError):
    """A write or fsync failed before; the log has to be opened anew."""

class LogIOError(LogError):
    """The operating system refused. The text has the path and the reason; `errno` is its number or None."""

    errno: int | None

class InvalidRecordError(LogError):
    """Batches or records that are damaged or not allowed."""

class RecordTooLargeError(LogError):
    """A batch larger than `max_message_bytes`, or an append larger than a segment."""

class ProducerStateError(LogError):
    """A batch of an idempotent producer is out of order, or its producer was replaced by another."""

class LogConfigError(LogError):
    """A setting does not exist, or has a bad value."""

# ---- server ---- The broker's data plane. Every method may be called from any thread; no event loop is
# needed. Topic ids are 16 bytes. Settings are Kafka's property names with str, int or bool values; unknown
# names are ignored.

class ServerError(Exception):
    """The server refused an operation. `code` is Kafka's error code, -1 when there is none."""

    code: int

class ServerConfigError(ServerError):
    """A setting has a bad value; the text names it."""

class ListenerError(ServerError):
    """The server cannot listen on an address: it is in use, not allowed, or not this machine's."""

class LogDirError(ServerError):
    """A log directory cannot be used, or a log in it failed; the text has the path."""

def apis() -> list[tuple[int, str, int, int, bool, bool]]:
    """The APIs that a `Server` serves: key, name, first and last version, whether Rust answers, and whether
    the handler may wait for the coordinator or for group members.
    """

@final
class Request:
    """A request that Rust does not answer itself. If the object is dropped without an answer, its
    connection is closed.
    """

    @property
    def api_key(self) -> int: ...
    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def connection_id(self) -> str:
        """Local and remote address and a number; unique while the server runs."""
    @property
    def client_host(self) -> str:
        """The peer's IP address."""
    @property
    def listener(self) -> str:
        """The name of the connection's listener."""
    @property
    def principal(self) -> str:
        """The name of the client's KafkaPrincipal."""
    @property
    def large(self) -> bool:
        """Whether making `body` takes long. Then its first access should be in a thread."""
    @property
    def body(self) -> dict[str, Any]:
        """The decoded request; the same dict at each access."""
    @property
    def answered(self) -> bool:
        """Whether `respond` or `close` was called."""
    def respond(self, body: dict[str, Any], release_gil: bool = False) -> None:
        """Sends the response. Raises ProtocolError when it does not fit the API's schema, and may then be
        called again. In a thread, `release_gil` releases the GIL while a long response is encoded.

        The connection is not read for the response's `throttle_time_ms`. A second answer is ignored, and so
        is an answer to a closed connection.
        """
    def close(self) -> None:
        """Closes the connection without an answer."""

@final
class LoadProgress:
    """The progress of opening a `Server`; may be read while another thread opens it."""

    def __new__(cls) -> Self: ...
    @property
    def logs_done(self) -> int:
        """Logs that were loaded or failed to load."""
    @property
    def logs_total(self) -> int:
        """Logs found so far; log directories are opened one after the other."""
    @property
    def bytes_checked(self) -> int:
        """Bytes that recovery has read and checked."""
    @property
    def bytes_total(self) -> int:
        """Bytes that recovery must read in the logs found so far; 0 if they were closed cleanly."""

def tls_cipher_suites() -> list[str]:
    """The cipher suites of the server, by Java's names."""

def open_pkcs12(file: bytes, password: str) -> tuple[list[bytes], list[bytes]]:
    """The private keys (PKCS #8) and the certificates of a PKCS #12 file, in DER, the keys' own certificates
    first.

    Raises ValueError: not PKCS #12, another password, or an unknown cipher.
    """

def decrypt_key(key: bytes, password: str) -> bytes:
    """Decrypts a PKCS #8 key. Raises ValueError: not such a key, another password, or an unknown cipher."""

def key_with_public_key(key: bytes, certificate: bytes) -> bytes:
    """A PKCS #8 key, with the certificate's public key in it if it is an elliptic-curve key without one.

    Raises ValueError: the key or the certificate cannot be read.
    """

def certificate_subject(certificate: bytes) -> str:
    """The subject of a DER certificate, as Java's `X500Principal.getName()` writes it. Raises ValueError."""

def certificate_validity(certificate: bytes) -> tuple[int, int]:
    """The first and the last second at which a DER certificate is valid, since 1970 UTC. Raises
    ValueError.
    """

def certificate_is_authority(certificate: bytes) -> bool:
    """Whether Java lets a DER certificate of a trust store sign others. Raises ValueError."""

@final
class ListenerTls:
    """The keys, certificates and rules of a listener with TLS."""

    def __new__(
        cls,
        *,
        certificates: list[bytes],
        key: bytes,
        authorities: list[bytes],
        trusted: list[bytes],
        client_auth: str,
        protocols: list[str],
        cipher_suites: list[str],
        principal: Callable[[bytes], str],
    ) -> Self:
        """Everything is in DER, the server's own certificate first.

        Clients may have certificates that one of `authorities` issued (which need not be CA certificates),
        and certificates that are themselves in `trusted`. `client_auth` is none, requested or required. No
        `cipher_suites` means all. `principal` returns the principal of a client's certificate; it is called
        on any thread and raises for a certificate without one. Raises ServerConfigError for a value that
        cannot be used.
        """

@type_check_only
class PartitionSpec(Protocol):
    """A partition for `Server.create_partition`.

    It may also have `partition_epoch: int`, the version of `isr`: then an older one than that of
    `Server.set_isr` changes nothing in the same leader epoch.
    """

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> bytes:
        """16 bytes."""
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def config(self) -> dict[str, str]:
        """The topic's own settings."""
    @property
    def new(self) -> bool:
        """Whether it is new to the cluster."""
    @property
    def replicas(self) -> Sequence[tuple[int, str | None, Sequence[str]]]:
        """Id, rack and listener names of all brokers with a replica; empty if the leader is the only one."""
    @property
    def isr(self) -> Sequence[int]:
        """The ids of the replicas that are in sync."""

@final
class Server:
    """The sockets, the log directories, and the handlers of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch
    and ApiVersions.
    """

    def __new__(
        cls,
        *,
        node_id: int,
        cluster_id: str,
        log_dirs: list[str],
        config: dict[str, int | str | bool],
        progress: LoadProgress | None = None,
    ) -> Self:
        """Opens the log directories and recovers them after a crash; raises LogDirError or ServerConfigError.

        A directory whose disk fails is left out, unless it is the only one. `progress` is kept up to date.
        """
    def start(
        self,
        listeners: list[tuple[str, str, int]],
        tls: dict[str, ListenerTls] = ...,
    ) -> list[int]:
        """Listens on (name, host, port) and serves, with TLS where `tls` has the listener's name; returns the
        ports.

        Port 0 lets the system choose; an empty host means every interface. Raises ListenerError or
        ServerError.
        """
    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable while requests, failures or log lines wait; for `loop.add_reader`."""
    def take_requests(self, max: int) -> list[Request]:
        """The waiting requests, oldest first, at most `max` and a few hundred. Makes `wake_fd` unreadable
        if none remain, or if `max` is 0: then the caller asks again when it can take more.
        """
    def take_gone(self) -> list[str]:
        """The ids of connections that ended since the last call while their JoinGroup or SyncGroup waited for
        an answer. Call it after `take_requests`.
        """
    def take_failed(self) -> tuple[list[tuple[str, int]], str | None]:
        """The partitions (topic and index) whose logs went offline since the last call. Once, when every log
        directory is offline, also a text that says why. Call it after `take_requests`.
        """
    def take_log_lines(self) -> list[tuple[int, str, dict[str, str]]]:
        """The log lines since the last call: level (of `logging`), text, fields (`connection`,
        `client_id`, `topic` …).
        """
    def take_replica_facts(self) -> list[tuple[str, int, int, int, str]]:
        """What this broker found out about replicas since the last call: topic, partition, its leader epoch,
        the replica's id, and "caught_up" (it is not in the ISR and could be), "fell_behind" (it did not
        catch up within `replica.lag.time.max.ms`) or "lacks_space" (it is this leader, and its disk is
        full). Call it after `take_requests`.

        Each is reported once, until `set_isr` or `create_partition` answers for its partition.
        """
    def take_replicated(self) -> list[tuple[int, int]]:
        """The outcomes of `append_and_report` since the last call: number and Kafka's error code. Call it
        after `take_requests`.
        """
    def take_verifications(self) -> list[tuple[int, str, tuple[int, int], tuple[str, int], bool]]:
        """The questions about transactions since the last call: number, transactional id, producer id and
        epoch, topic and partition, and whether the partition is to be added. Each is to be answered with
        `verified`. Call it after `take_requests`.
        """
    def verified(self, number: int, code: int) -> None:
        """Answers a question of `take_verifications` with Kafka's error code."""
    def set_features(
        self, supported: list[tuple[str, int, int]], finalized: list[tuple[str, int]], epoch: int
    ) -> None:
        """The features that clients are told of (KIP-584): name, first and last version of each supported
        one, name and version of each finalized one, and the epoch of these (-1: unknown).
        """
    def create_partition(self, spec: PartitionSpec) -> None:
        """Creates a partition, or sets leader, epoch and settings of an existing one.

        If this broker is a replica and another one leads, the partition is fetched from there; a new epoch
        begins with a comparison of the logs. Otherwise fetching ends.

        Partitions found on disk have no leader, and are not served, until this is called for them. Raises
        LogDirError for a partition that is not new while a log directory is offline, because its records may
        be there. Raises ServerError when the topic has another id here.
        """
    def stop_partition(self, topic: str, partition: int, delete: bool) -> None:
        """Stops serving a partition as leader or follower, and deletes its log if `delete` is true.

        Does nothing for a partition that is not here. Raises LogDirError when its log is offline.
        """
    def set_brokers(self, brokers: list[tuple[int, str, int]]) -> None:
        """Replaces the inter-broker endpoints of the brokers that are alive: id, host, port."""
    def set_isr(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        isr: list[int],
        pending: list[int],
        partition_epoch: int,
    ) -> bool:
        """Sets the ISR of a partition that this broker leads. `pending` are replicas that an AlterPartition
        under way adds: the high watermark waits for them, too, and `min.insync.replicas` does not count them.

        False, and nothing changes, if this broker does not lead in that leader epoch or a newer partition
        epoch was set. Raises ServerError for an unknown partition.
        """
    def set_broker_epoch(self, epoch: int) -> None:
        """Sets this broker's epoch, which its fetches tell the leaders."""
    def delete_topic(self, topic: str) -> None: ...
    def update_topic_config(self, topic: str, config: dict[str, str]) -> None:
        """Replaces the topic's own settings."""
    def check_config(self, properties: dict[str, str]) -> None:
        """Raises what `update_config` would raise for these settings; nothing changes."""
    def update_config(self, properties: dict[str, str]) -> None:
        """Replaces all settings that can change while the server runs; the others keep their values.

        `properties` are all of the broker's; a setting that is missing gets its default. Logs of topics that
        do not override a setting take the new value. Raises a ServerConfigError that names setting and value;
        then nothing changes.
        """
    def set_client_quotas(self, quotas: list[tuple[str | None, str | None, dict[str, float]]]) -> None:
        """Replaces all client quotas: user, client id and values.

        None means that the entity has no such part; "" is the default of that part. The values are
        `producer_byte_rate` and `consumer_byte_rate` (bytes a second), `request_percentage` (of one thread's
        time) and `controller_mutation_rate` (a second). Raises ServerConfigError for other names; then
        nothing changes.
        """
    def set_ip_quotas(self, quotas: list[tuple[str | None, float]]) -> None:
        """Replaces the connection rates (a second) of IP addresses; None stands for every other address."""
    def partitions(self) -> list[tuple[str, bytes, int]]:
        """Topic, topic id (zeros if it has none) and index of every partition on disk, sorted."""
    def know_topic(self, topic: str, id: bytes, partitions: int, offline: list[int]) -> None:
        """Sets how many partitions a topic has in the cluster, and which of this broker's could not be
        opened. It is called once the topic's partitions on this broker exist. Requests for other partitions
        are answered accordingly.
        """
    def forget_topic(self, topic: str) -> None:
        """Removes a topic that was deleted from the cluster."""
    def partitions_left(self) -> int:
        """How many more partitions may be created before the limit of open files or of memory mappings is
        near.
        """
    def offsets(self, topic: str, partition: int) -> tuple[int, int, int]:
        """Log start, high watermark and log end."""
    def append(self, topic: str, partition: int, batches: bytes | bytearray) -> int:
        """Appends whole record batches as the partition's leader; returns the first record's offset."""
    def append_and_report(
        self, topic: str, partition: int, batches: bytes | bytearray, number: int, timeout_ms: int
    ) -> bool:
        """As `append`. Returns whether every in-sync replica has the records. If not, `take_replicated`
        reports `number` when they have, when this broker does not lead any more, or after the timeout.
        """
    def read(self, topic: str, partition: int, offset: int, max_bytes: int, to_end: bool = False) -> bytes:
        """Whole batches from the one that has `offset`, up to the high watermark; at least one if there is
        any. With `to_end` up to the end of the log, for a coordinator that loads its state as a new leader.
        """
    def delete_records(self, offsets: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
        """Moves the starts of logs (topic, partition, offset) forward; -1 is the high watermark.

        Returns for each Kafka's error code and the log's new start, -1 with an error. Blocks for the disk, so
        that the records stay deleted after a crash.
        """
    def describe_log_dirs(
        self,
    ) -> list[tuple[str, tuple[int, int] | None, list[tuple[str, int, int, int, bool]]]]:
        """Each of `log.dirs`: its absolute path, total and usable bytes of its file system, and its logs.

        A log is topic, partition, bytes, the offsets that it is behind, and whether it is a copy that is
        being moved here. None stands for the bytes of a directory that is offline.
        """
    def alter_replica_log_dirs(self, moves: list[tuple[str, int, str]]) -> list[int]:
        """Begins to move logs (topic, partition, absolute path of one of `log.dirs`); returns Kafka's error
        codes.

        A move of the same log to another directory ends. For a partition that is not here the code is
        REPLICA_NOT_AVAILABLE, and it will be created in that directory.
        """
    def describe_producers(
        self, topic: str, partition: int
    ) -> tuple[int, list[tuple[int, int, int, int, int, int]]]:
        """Kafka's error code, and the producers that the partition's log knows, in order of their ids.

        Each is: id, epoch, last sequence, last timestamp, coordinator epoch, and the first offset of its open
        transaction; -1 stands for none.
        """
    def measurements(self) -> Measurements:
        """All counters and measurements. May be called in any thread; no request waits for it."""
    def stop(self, grace_seconds: float = 2.0) -> None:
        """Stops accepting, waits up to `grace_seconds` for the answers of requests in flight, and closes the
        logs cleanly.

        Blocks: call it in a thread while requests can still be answered, or after they were. A second call
        does nothing. Raises a LogDirError that names the logs that were not closed cleanly; the others are
        closed.
        """

@final
class Measurements:
    """What `Server.measurements` read. Counters begin at 0 when the server is made, and never decrease.

    A histogram is a list and the sum of all values. The list has for each bound the number of values at or
    below it, and at last the number of all values.
    """

    @property
    def time_bounds(self) -> list[float]:
        """Upper bounds of the times' buckets, in milliseconds; one more bucket has none."""
    @property
    def size_bounds(self) -> list[int]:
        """Upper bounds of the sizes' buckets, in bytes; one more bucket has none."""
    @property
    def stages(self) -> list[str]:
        """The stages of a request, as Kafka's `RequestMetrics` names them."""
    @property
    def apis(
        self,
    ) -> list[
        tuple[
            str,
            list[tuple[int, int]],
            list[tuple[int, int]],
            list[tuple[list[int], float]],
            tuple[list[int], float],
        ]
    ]:
        """By API: name, (version, requests), (error code, count), a histogram of times for each stage, and
        one of sizes.
        """
    @property
    def topic_counters(self) -> list[str]:
        """The names of the counters in `topics` and `all_topics`, as Kafka's `BrokerTopicMetrics` names
        them.
        """
    @property
    def topics(self) -> list[tuple[str, list[int]]]:
        """By topic with partitions here: name and counters, sorted."""
    @property
    def all_topics(self) -> list[int]:
        """The counters of all topics together, deleted ones included."""
    @property
    def partitions(self) -> list[tuple[str, int, int, int, int, int, bool, bool]]:
        """By partition: topic, index, bytes, segments, log start, log end, whether this broker leads it,
        whether its log failed; sorted.
        """
    @property
    def connections(self) -> list[tuple[str, int]]:
        """By listener: name and open connections."""
    @property
    def authentications(self) -> list[tuple[str, int, int]]:
        """By listener: name, connections that authenticated, connections that failed to."""
    @property
    def gauges(self) -> dict[str, float]:
        """Measurements of the server as a whole, by name."""

# ---- client ----

@disjoint_base
class Message:
    """A record that was consumed or delivered; with an error, an event of a partition."""

    def __new__(
        cls,
        topic: str | None = None,
        partition: int = ...,
        offset: int = ...,
        key: object = None,
        value: object = None,
        headers: object = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] | None = None,
        latency: float | None = None,
        leader_epoch: int | None = None,
    ) -> Self: ...
    def topic(self) -> str | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> Any:
        """bytes in a consumed message; in a delivered message, the object that was produced."""
    def value(self) -> Any:
        """As `key`; None is a tombstone."""
    def headers(self) -> Any:
        """A list of (str, bytes | None) pairs, or None when there are none."""
    def timestamp(self) -> tuple[int, int]:
        """A TIMESTAMP_* constant, and milliseconds since the epoch."""
    def error(self) -> KafkaError | None: ...
    def leader_epoch(self) -> int | None: ...
    def latency(self) -> float | None:
        """Seconds from produce() to the report; None in a consumed message."""
    def set_key(self, key: object) -> None: ...
    def set_value(self, value: object) -> None: ...
    def set_headers(self, headers: object) -> None: ...
    def set_topic(self, topic: str) -> None: ...
    def set_error(self, error: KafkaError | None) -> None: ...
    def __len__(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@disjoint_base
class ProducerCore:
    """The native base of `cluster.Producer`."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self: ...
    def _start(
        self,
        config: dict[str, Any],
        on_delivery: Callable[..., object] | None,
        error_cb: Callable[..., object] | None,
        counts_errors: bool,
    ) -> None: ...
    def produce(
        self,
        topic: str,
        value: str | Buffer | None = None,
        key: str | Buffer | None = None,
        partition: int = ...,
        callback: Callable[[KafkaError | None, Message], object] | None = None,
        on_delivery: Callable[[KafkaError | None, Message], object] | None = None,
        timestamp: int = 0,
        headers: Mapping[str, str | Buffer | None] | Iterable[tuple[str, str | Buffer | None]] | None = None,
    ) -> None:
        """Takes one record and returns before it is sent. `timestamp` is in milliseconds, 0 for now.

        Raises BufferError when the queue is full, KafkaException for a record that can never be sent.
        """
    def _produce_table(self, table: object, topic: str | None) -> int: ...
    def poll(self, timeout: float | None = None) -> int:
        """Waits up to `timeout` seconds for reports and calls their callbacks; returns the number of
        events served.
        """
    def flush(self, timeout: float | None = None) -> int:
        """Waits up to `timeout` seconds until all records are delivered or failed; returns how many are
        not.
        """
    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drops the records that are not in flight."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def _network(self, log: Callable[[KafkaError], object] | None = None) -> Network: ...
    def _transactions(self) -> TransactionCore: ...
    def _stop(self) -> int: ...
    def _closed(self) -> bool: ...

@final
class TransactionCore:
    """The records of a transactional producer's transaction. It does not keep the producer open."""

    def set_producer(self, id: int, epoch: int) -> None: ...
    def begin(self) -> None: ...
    def close(self) -> None: ...
    def fail(self) -> None: ...
    def status(self) -> tuple[KafkaError | None, int, bool]:
        """(first failure, records not written, whether the next transaction needs a later epoch)."""
    def next_partitions(self, timeout: float) -> list[tuple[str, int]] | None:
        """Waits for partitions to add to the transaction; None once the producer is closed."""
    def partitions_added(self, partitions: list[tuple[str, int]]) -> None: ...

@final
class ConsumerCore:
    """The data path under `cluster.Consumer`.

    Offsets: -2 beginning, -1 end, -1000 not known yet (`seek` begins), other negatives: as auto.offset.reset
    says.
    """

    def __new__(cls, config: dict[str, Any], error_cb: Callable[..., object] | None) -> Self: ...
    def poll(self, timeout: float | None = None) -> Message | None: ...
    def consume(self, max: int, timeout: float | None) -> list[Message]: ...
    def interrupt(self) -> None: ...
    def assign(self, partitions: list[tuple[str, int, int]]) -> None: ...
    def unassign(self, partitions: list[tuple[str, int]] | None) -> None: ...
    def seek(self, topic: str, partition: int, offset: int) -> bool: ...
    def set_paused(self, topic: str, partition: int, paused: bool) -> bool: ...
    def progress(self, topic: str, partition: int) -> tuple[int, int, int, int, int] | None:
        """(position, stored offset, its leader epoch, log start, high watermark)."""
    def store(self, topic: str, partition: int, offset: int, leader_epoch: int) -> bool: ...
    def stored(self) -> list[tuple[str, int, int, int]]: ...
    def network(self, log: Callable[[KafkaError], object] | None = None) -> Network: ...
    def close(self) -> None: ...

@final
class Network:
    """Requests of any API over a client's connections. Timeouts in seconds; broker -1 is any, -2 the
    controller.

    `log` is called with failures that are tried again, by the threads that wait for requests.
    """

    def __new__(cls, config: dict[str, Any], log: Callable[[KafkaError], object] | None = None) -> Self: ...
    def take_errors(self) -> list[KafkaError]:
        """The failures that are tried again and were not reported yet."""
    def request(
        self,
        api_key: int,
        version: int,
        body: bytes,
        *,
        broker: int = ...,
        purpose: str = "general",
        timeout: float = 60.0,
    ) -> bytes: ...
    def versions(
        self, api_key: int, *, broker: int = ..., purpose: str = "general", timeout: float = 60.0
    ) -> tuple[int, int] | None: ...
    def metadata(
        self, topics: list[str] | None, *, create: bool = False, timeout: float = 60.0
    ) -> dict[str, Any]: ...
    def list_offsets(
        self,
        questions: list[tuple[str, int, int]],
        *,
        timeout: float = 60.0,
        read_committed: bool | None = None,
    ) -> list[tuple[str, int, int, int, int, KafkaError | None]]:
        """(topic, partition, offset, timestamp, leader epoch, error) of (topic, partition, timestamp)
        questions.
        """
    def close(self) -> None: ...

def client_set_error_types(error: type, exception: type[Exception]) -> None: ...
def client_after_fork() -> None: ...
def client_partitions_of_rows(
    rows: object, partitioner: str, count: int, otherwise: int
) -> _ArrowRecordBatch:
    """The partition of each row of a table, int32: its column `partition`, or the partitioner's choice for
    its key, or `otherwise`.
    """

def client_partition(partitioner: str, key: bytes | None, count: int) -> int | None:
    """The partition that a partitioner chooses for a key; None when it chooses at random."""

# ---- columns ---- Columns are named as in Spark's Kafka source: key, value, topic, partition, offset,
# timestamp, timestampType, headers. Offsets are [start_offset, end_offset); no end means the log's end.
# Damaged bytes raise CorruptLogError, offsets outside the log OffsetOutOfRangeError, other wrong arguments
# ValueError.

@type_check_only
class _ArrowRecordBatch(Protocol):
    """A record batch, or an array, that Arrow libraries take without a copy, as in `pyarrow.record_batch`."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...

@type_check_only
class _ArrowField(Protocol):
    """A field or schema of an Arrow library, such as `pyarrow.field`."""

    def __arrow_c_schema__(self) -> object: ...

@final
class PartitionScan:
    """The records of a partition as Arrow record batches of the named columns: an iterator, and an Arrow
    stream.

    `source` is the partition's directory, which a broker may be writing, or the native part of a
    `logcore.Log`. `topic` and `partition` fill their columns. A batch has at most `batch_rows` rows, and at
    most `batch_bytes` bytes (64 MiB at most) of keys, values and headers unless one record is larger. Times
    are milliseconds since 1970 UTC, the end excluded.

    Records of the `aborted` transactions are left out; each is a producer id, the offset of its first record,
    and that of its abort marker or None. With `isolation_level="read_committed"` the scan ends at the last
    stable offset and leaves out the transactions that the log knows as aborted.
    """

    def __new__(
        cls,
        source: str | os.PathLike[str] | Log,
        topic: str,
        partition: int,
        columns: Sequence[str],
        start_offset: int = 0,
        end_offset: int | None = None,
        batch_rows: int = ...,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        batch_bytes: int = ...,
        aborted: Sequence[tuple[int, int, int | None]] = ...,
        isolation_level: str = "read_uncommitted",
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> _ArrowRecordBatch: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

def decode_batches(
    records: Buffer,
    topic: str,
    partition: int,
    columns: Sequence[str],
    start_offset: int = 0,
    end_offset: int | None = None,
    batch_rows: int = ...,
    *,
    start_time: int | None = None,
    end_time: int | None = None,
    batch_bytes: int = ...,
    aborted: Sequence[tuple[int, int, int | None]] = ...,
) -> tuple[list[_ArrowRecordBatch], int]:
    """The records field of a Fetch response as Arrow record batches, and the offset to fetch from next."""

def partition_splits(
    source: str | os.PathLike[str] | Log,
    parts: int,
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> list[tuple[int, int]]:
    """At most `parts` ranges of offsets of about the same number of bytes, for readers that work side by
    side.
    """

def partition_offsets(
    directory: str | os.PathLike[str], isolation_level: str | None = None
) -> tuple[int, int]:
    """The earliest offset in a partition's directory, and the offset after its last record.

    With `isolation_level` "read_uncommitted" or "read_committed", the end is what a consumer may read: the
    high watermark or the last stable offset. In a broker's directory that is what the broker noted last, up
    to 5 s ago (`replica.high.watermark.checkpoint.interval.ms`).
    """

def partition_topic_id(directory: str | os.PathLike[str]) -> bytes | None:
    """The id of the topic to which a partition's directory belongs, 16 bytes, as the broker has noted it in
    `partition.metadata`; None if it has not.
    """

def partition_covers(
    directory: str | os.PathLike[str],
    start_offset: int,
    end_offset: int,
    leader_epoch: int,
    isolation_level: str,
) -> bool:
    """Whether a replica's directory certainly has these records as the partition's leader has them.

    `end_offset` and `leader_epoch` are the leader's answer to ListOffsets, or lower. False when the records
    are not there, or may be others that the replica is going to truncate.
    """

def partition_offset_for_timestamp(directory: str | os.PathLike[str], timestamp: int) -> int | None:
    """The offset of the first record at or after `timestamp` (milliseconds since 1970 UTC), None when
    there is none.
    """

@final
class TypedDecoder:
    """Replaces a binary column of record batches by a struct column: `field` has its name and its type, whose
    fields are all nullable and may be a part of what the records have.

    A record is malformed when it is not exactly one value, or does not fit the type. Its row is null, or left
    out with `drop_malformed`. With `corrupt_column`, a binary column of this name is added, which has its
    bytes. A null record is a null row. More than 64 MiB, or 1,000 levels of JSON, are malformed.

    JSON: numbers may be strings. Integers have no fraction and no exponent, decimals no exponent. A string
    field takes any plain value. Dates and timestamps are ISO 8601 strings, without a zone in UTC. Binary is
    base64. CSV: one line a record, as in RFC 4180, without a header; an empty field is null. Avro: `schema`
    is the reader's; without frames it is also the writer's.

    A type or schema that cannot be used raises ValueError.
    """

    @staticmethod
    def json(
        field: _ArrowField, *, corrupt_column: str | None = None, drop_malformed: bool = False
    ) -> TypedDecoder: ...
    @staticmethod
    def csv(
        field: _ArrowField,
        columns: Sequence[str],
        delimiter: str = ",",
        *,
        corrupt_column: str | None = None,
        drop_malformed: bool = False,
    ) -> TypedDecoder:
        """`columns` are all columns of a line, in their order."""

    @staticmethod
    def avro(
        field: _ArrowField,
        schema: str,
        framed: bool = False,
        *,
        corrupt_column: str | None = None,
        drop_malformed: bool = False,
    ) -> TypedDecoder:
        """With `framed`, a record begins with a zero byte and the 4-byte id of its writer's schema, which
        `add_schema` makes known (Confluent's wire format).
        """

    @staticmethod
    def protobuf(
        field: _ArrowField,
        descriptors: bytes,
        message: str,
        framed: bool = False,
        *,
        corrupt_column: str | None = None,
        drop_malformed: bool = False,
    ) -> TypedDecoder:
        """`descriptors` is a `FileDescriptorSet` with everything that `message`, a full name, refers to. With
        `framed`, a record begins with a zero byte, a schema's 4-byte id, and the message's position in its
        file (Confluent's wire format); the id is not used. An absent field, and one that is not optional and
        has its default value, is null.
        """

    def unknown_schemas(self, batch: _ArrowRecordBatch) -> list[int]:
        """The ids in a batch that `add_schema` must make known before `decode`."""

    def add_schema(self, id: int, schema: str | None) -> None:
        """Records of a schema that is None, or does not resolve to the reader's, are malformed."""

    def decode(self, batch: _ArrowRecordBatch) -> tuple[_ArrowRecordBatch, int, tuple[int, str] | None]:
        """The batch, how many records are malformed, and row and reason of the first."""

def avro_schema(schema: str) -> _ArrowField:
    """The Arrow schema of the columns for an Avro schema of a record, with the types that Spark's Avro source
    has; a UUID is binary. Raises ValueError for a type without a column type, such as a union of two types.
    """

def protobuf_schema(descriptors: bytes, message: str) -> _ArrowField:
    """The Arrow schema of the columns for a Protobuf message. Unsigned integers have a wider type, durations
    are strings. Raises ValueError for a message that contains itself, or Any, Struct, Value or ListValue.
    """

# ---- tools ----
# For `logcore.verify` and `logcore.repair` (`logcore._tools`), and for `logcore dump-log`.

_Finding: TypeAlias = tuple[str, str, Path, int | None, int | None, str, str]
"""The fields of `logcore.Finding`."""
_RepairAction: TypeAlias = tuple[str, Path, str, int | None, int | None, int, int]
"""The fields of `logcore.RepairAction`."""

_Bytes: TypeAlias = bytes

@final
class SegmentBatch:
    """One batch, or legacy message, of a `.log` file."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def valid(self) -> bool: ...
    @property
    def compression(self) -> str: ...
    @property
    def bytes(self) -> _Bytes: ...
    @property
    def header(self) -> tuple[int, int, int, int, int, int, int] | None:
        """Of a v2 batch: record count, base sequence, last sequence, producer id, producer epoch, leader
        epoch, base timestamp.
        """

    def records(self) -> list[_SegmentRecord]:
        """Offset, timestamp, key, value, headers, and a legacy message's checksum; raises CorruptLogError."""

_SegmentRecord: TypeAlias = tuple[
    int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None
]

@final
class SegmentReader:
    """An iterator over the batches of a `.log` file, unchanged, from a position on."""

    def __new__(cls, path: str | os.PathLike[str], position: int = 0, limit: int | None = None) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> SegmentBatch: ...
    @property
    def remaining(self) -> int:
        """Bytes that are not part of a batch that was read."""

_Progress: TypeAlias = Callable[[int, int, int, int], object]

def verify_directory(
    path: str | os.PathLike[str], threads: int = 0, progress: _Progress | None = None
) -> tuple[list[_Finding], int, int, int, int, int]:
    """Findings, and how many partitions, segments, batches, records and bytes were read."""

def repair_directory(
    path: str | os.PathLike[str],
    apply: bool = False,
    cut_at_corruption: bool = False,
    backup_dir: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: _Progress | None = None,
) -> tuple[list[_RepairAction], list[_RepairAction], bool, Path | None, list[_Finding]]:
    """Actions, refused actions, whether the actions were applied, where copies are, and findings."""

def read_producer_snapshot(
    path: str | os.PathLike[str],
) -> list[tuple[int, int, int, int, int, tuple[int, int, int, int, int] | None]]:
    """Producer id, producer epoch, coordinator epoch, first offset of the open transaction or -1, last
    timestamp, and the last batch's first and last sequence, last offset, offset delta and timestamp.
    """

def read_transaction_index(path: str | os.PathLike[str]) -> list[tuple[int, int, int, int]]:
    """Producer id, first offset, last offset, last stable offset of each aborted transaction."""

# ---- quorum ----

FIRST_STATE: int
"""The index of the last entry in the state that an ensemble begins with."""

class QuorumError(Exception):
    """A member of an ensemble refused an operation or failed. Failures of its log's files are LogErrors."""

class QuorumFullError(QuorumError):
    """Too many bytes are outstanding; the call had no effect. Try again later."""

class QuorumStoppedError(QuorumError):
    """The member has not started, has stopped or has failed, or belongs to the parent of this forked
    process.
    """

@final
class Quorum:
    """One member of an ensemble that agrees on one log of commands (Raft), with its threads.

    Every method is thread-safe and returns at once, unless its text says that it blocks. Every method raises
    QuorumStoppedError when the member is not running.
    """

    def __new__(
        cls,
        *,
        data_dir: str,
        server_id: int,
        servers: Sequence[tuple[int, str, int, int, str, bool]],
        tick_ms: int,
        init_limit: int,
        sync_limit: int,
        listen_on_all: bool = False,
        entries_kept: int = 10_000,
        reconfigurable: bool = False,
        has_state: bool = False,
    ) -> Self:
        """Opens the member's directory, which is created when missing, and checks its files; blocks.

        - `servers`: (server id, host, quorum port, election port, clients' "[host:]port" or "", observer) of
          every server. They count only until there is an ensemble.
        - `init_limit`: ticks that sending a snapshot to a member may take, and after which a silent server
          that is not listed is forgotten.
        - `sync_limit`: ticks that a read barrier may wait.
        - `listen_on_all`: ZooKeeper's quorumListenOnAllIPs.
        - `entries_kept`: entries that stay in the log after a snapshot.
        - `reconfigurable`: servers that no file names are sent the log, and do not vote until
          `change_members` lists them.
        - `has_state`: the ensemble is to begin with this server's state, unless the directory knows of an
          ensemble. The state is then written with `first_state`.

        Raises QuorumError (this server is not named, the directory is another server's, an observer has a
        state), LogError (LockedError: in use; CorruptLogError), ValueError.
        """
    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable while `take` may have events; for `loop.add_reader`."""
    def start(self) -> None:
        """Listens, and founds the ensemble with the other servers or joins it. Blocks until it listens.
        Raises QuorumError.
        """
    def propose(self, commands: Sequence[bytes]) -> int:
        """Proposes commands, 16 MiB each at most, in order. Returns the first one's ticket; the others' are
        consecutive.

        A command is sent to the leader until it is committed, and counts once. Raises QuorumFullError,
        ValueError; nothing was proposed then.
        """
    def take(self, max_bytes: int) -> list[tuple[Any, ...]]:
        """The next events, in order: about `max_bytes`, at least one if there is any. Clears the wake
        descriptor first.

        - ("entries", [(index, term, time in ms, [(mine, ticket, command)], members or None)]): committed,
          each index once;
        - ("install", SnapshotSource, my_next): begin anew with this snapshot; own commands with tickets below
          my_next will not be delivered any more;
        - ("role", "leader" | "follower" | "observer" | "looking", term, leader's server id or 0, in contact);
        - ("leading", term): this member leads, and every entry of earlier terms was delivered;
        - ("renewed", server id, sessions): at the leader, from another member's `renew_sessions`;
        - ("renewal_ack", round); ("barrier", number, ok); ("snapshot", index, error or None); ("warning",
          text);
        - ("flushed", [(ms, [(commands, time, came, on disk)])]), beside another event: flushes of the log
          since the last one. Each is its duration, and for every entry of commands its time, when it arrived
          and when it was on disk, in ms since 1970;
        - ("failed", text): the last event.

        `members` are tuples as in `servers`; None while they do not change, or are changing.
        """
    def set_wake_interval(self, milliseconds: int) -> None:
        """Sets how often the wake descriptor notifies of other members' commands; every millisecond at
        first.
        """
    def applied(self, index: int) -> None:
        """Reports that every entry up to this one is applied. Raises ValueError for one that was not
        taken.
        """
    def read_barrier(self) -> int:
        """Requests an event "barrier", which follows all entries that were committed before this call;
        returns its number (Raft, 6.4). The event is not ok if it waited for `sync_limit` ticks or the member
        stops. Raises QuorumFullError.
        """
    def renew_sessions(self, sessions: bytes) -> int:
        """Renews sessions at the leader, big-endian i64 each; returns the round's number.

        An event "renewal_ack" follows once the leader received them and a majority followed the leader after
        that. It may not come at all. Raises ValueError.
        """
    def has_quorum(self, servers: Sequence[tuple[int, str, int, int, str, bool]]) -> bool:
        """At the leader: whether a majority of the voters among `servers` follow it and have nearly all of
        the log. False at other members. Raises QuorumError for servers that cannot be an ensemble,
        ValueError.
        """
    def change_members(self, term: int, servers: Sequence[tuple[int, str, int, int, str, bool]]) -> None:
        """At the leader of this term: makes `servers` the members of the ensemble.

        An entry's `members` say when it is done. Nothing happens if another member leads. A leader that does
        not vote any more hands leadership over, and is still sent the log. Raises QuorumError for servers
        that cannot be an ensemble, ValueError.
        """
    def status(self) -> dict[str, Any]:
        """The member's state: role, term, leader, in_contact, server_id, member_id, ensemble, members,
        last_index, committed, applied, snapshot, purged, quorum_ack_ms, outstanding, refused, last_refused.
        None stands for unknown.
        """
    def snapshot_begin(self, index: int) -> SnapshotSink:
        """Begins a snapshot of all entries up to the last applied one, whose index is `index`. One snapshot
        at a time. Raises ValueError.
        """
    @property
    def awaits_state(self) -> bool:
        """Whether the ensemble still needs the state that `has_state` announced. False if the directory knows
        of an ensemble, whose state counts then.
        """
    def first_state(self) -> SnapshotSink:
        """Begins that state, as a snapshot up to entry `FIRST_STATE`; ("snapshot", FIRST_STATE, error or
        None) follows.

        ("install", ...) follows once a majority of the servers agreed to begin with it. After a crash before
        that, the state must be written again. Servers without a state wait meanwhile. ("failed", ...) follows
        if there is an ensemble already, or another server with a state. Raises ValueError when no state is
        needed.
        """
    def stop(self) -> None:
        """Hands leadership over, brings the log to disk, and ends the threads; blocks. Safe to repeat.

        Events that were not taken still can be. Raises QuorumStoppedError when the disk hangs.
        """

@final
class MemberFiles:
    """The directory of a stopped member: a snapshot and the entries behind it. A majority may not have the
    last entries. Nothing is changed that a start would not change.
    """

    def __new__(cls, data_dir: str | os.PathLike[str]) -> Self:
        """Locks the directory and checks its files; blocks. Raises QuorumError (not a member's directory),
        LogError (LockedError: in use; CorruptLogError).
        """
    def snapshot(self) -> SnapshotSource | None:
        """The snapshot; None if there is none. Raises OSError, ValueError when this is closed."""
    def entries(self, max_bytes: int) -> list[tuple[Any, ...]]:
        """The next entries, as in `Quorum.take`: about `max_bytes`, at least one; none at the end. Raises
        as `snapshot`.
        """
    def close(self) -> None:
        """Unlocks the directory. Safe to repeat. Raises LogError."""

@final
class SnapshotSink:
    """Takes the bytes of a snapshot. A sink that is dropped or aborted leaves no file."""

    def write(self, data: bytes) -> bool:
        """Appends bytes. False: they were taken, but more than 4 MiB wait for the disk, so wait some
        milliseconds.

        Raises QuorumFullError when more than 64 MiB wait, QuorumStoppedError after the end.
        """
    def finish(self) -> None:
        """Ends the snapshot. An event "snapshot" follows once it is on disk. Raises QuorumStoppedError
        after the end.
        """
    def abort(self) -> None:
        """Discards the snapshot; no event follows."""

@final
class SnapshotSource:
    """A snapshot to begin anew with: the bytes that were written to a sink."""

    @property
    def index(self) -> int:
        """The index of the last entry in it."""
    @property
    def term(self) -> int:
        """The term of that entry."""
    def read(self, max: int) -> bytes:
        """The next bytes, at most `max`; none at the end. Reads the disk. Raises OSError."""

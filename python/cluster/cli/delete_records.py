"""`logcore delete-records`: the flags and output of kafka-delete-records.sh (DeleteRecordsCommand of Apache
Kafka 3.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.cli._admin_tool import add_connection, administer, json_file, need, reason, repeated
from cluster.cli._common import CommandError, Once, Parser

if TYPE_CHECKING:
    from cluster.client import TopicPartition


def parser() -> Parser:
    options = Parser("delete-records", "Deletes the records of partitions before an offset.")
    add_connection(options)
    options.add_argument(
        "--offset-json-file",
        action=Once,
        metavar="FILE",
        help='the first offset that is kept in each partition, as {"partitions": [{"topic": "foo", '
        '"partition": 1, '
        '"offset": 1}], "version": 1}; offset -1 stands for the high watermark',
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    need(options.bootstrap_server, "bootstrap-server")
    need(options.offset_json_file, "offset-json-file")
    offsets = read_offsets(json_file(options.offset_json_file, "offset-json-file"))

    from cluster.client import KafkaException, delete_records

    with administer("delete-records", options.bootstrap_server, options.command_config) as admin:
        print("Executing records delete operation")
        results = delete_records(admin, offsets)
    print("Records delete operation completed:")
    status = 0
    for partition, result in results.items():
        name = f"{partition.topic}-{partition.partition}"
        if isinstance(result, KafkaException):
            status = 1
            print(f"partition: {name}\terror: {reason(result.error)}")
        else:
            print(f"partition: {name}\tlow_watermark: {result}")
    return status


def read_offsets(contents: Any) -> dict[TopicPartition, int]:
    """The offsets in the JSON file. Raises CommandError."""
    from cluster.client import TopicPartition

    if not isinstance(contents, dict) or not isinstance(contents.get("partitions"), list):
        raise CommandError("Missing partitions field")
    if contents.get("version", 1) != 1:
        raise CommandError(f"Not supported version field value {contents['version']}")
    try:
        found = [
            (TopicPartition(one["topic"], int(one["partition"])), int(one["offset"]))
            for one in contents["partitions"]
        ]
    except (KeyError, TypeError, ValueError):
        raise CommandError('each of "partitions" needs a "topic", a "partition" and an "offset"') from None
    if twice := repeated(partition for partition, _ in found):
        names = ",".join(f"{one.topic}-{one.partition}" for one in twice)
        raise CommandError(f"Offset json file contains duplicate topic partitions: {names}")
    return dict(found)

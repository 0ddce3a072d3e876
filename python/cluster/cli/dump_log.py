"""`logcore dump-log`: the flags and output of kafka-dump-log.sh (DumpLogSegments of Apache Kafka 3.9), and
JSON and Arrow.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli import _dump_files as files
from cluster.cli._common import CommandError, Once, Parser

if TYPE_CHECKING:
    from cluster.cli._dump_decoders import Parse
    from cluster.cli._dump_text import Faults

SUFFIXES = (files.LOG, files.CHECKPOINT, files.INDEX, files.TIME_INDEX, files.TXN_INDEX, files.SNAPSHOT)
STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"


def parser() -> Parser:
    options = Parser("dump-log", "Prints the contents of a log's segment files. Changes nothing.")
    options.register("action", None, Once)
    options.add_argument(
        "--files",
        required=True,
        metavar="FILE,...",
        help=".log, .index, .timeindex, .txnindex and .snapshot files, and KRaft's .checkpoint files",
    )
    options.add_argument("--deep-iteration", action="store_true", help="print records, not only batches")
    options.add_argument("--print-data-log", action="store_true", help="print keys and values too")
    options.add_argument(
        "--verify-index-only", action="store_true", help="check indexes without printing them"
    )
    options.add_argument(
        "--index-sanity-check",
        action="store_true",
        help="check the indexes only as Kafka does at its start",
    )
    options.add_argument(
        "--max-message-size",
        type=int,
        default=5 * 1024 * 1024,
        metavar="BYTES",
        help="the largest batch that an index entry may point to (default: %(default)s)",
    )
    options.add_argument(
        "--max-bytes",
        type=int,
        default=files.NO_LIMIT,
        metavar="BYTES",
        help="read at most so many bytes of each .log file",
    )
    for what in ("value", "key"):
        options.add_argument(
            f"--{what}-decoder-class",
            nargs="?",
            const=STRING_DECODER,
            metavar="NAME",
            help=f"how {what}s are decoded: string, long, integer or byte, or Kafka's name of a decoder "
            "(default: string)",
        )
    options.add_argument(
        "--offsets-decoder", action="store_true", help="decode records of __consumer_offsets"
    )
    options.add_argument(
        "--transaction-log-decoder", action="store_true", help="decode records of __transaction_state"
    )
    options.add_argument(
        "--cluster-metadata-decoder",
        action="store_true",
        help="decode records of KRaft's __cluster_metadata and its snapshots",
    )
    options.add_argument(
        "--remote-log-metadata-decoder",
        action="store_true",
        help="decode records of __remote_log_metadata",
    )
    options.add_argument(
        "--skip-record-metadata", action="store_true", help="print only the keys and values of records"
    )
    options.add_argument(
        "--format",
        choices=("text", "json", "arrow"),
        default="text",
        help="text as Kafka's tool prints it (default), a line of JSON for each record or entry, or an "
        "Arrow IPC stream of records",
    )
    options.add_argument(
        "--out", metavar="FILE", help="with --format arrow: where to write (default: standard output)"
    )
    return options


def check(options: argparse.Namespace) -> list[str]:
    """Refuses wrong combinations of options, and returns the files."""
    from cluster.cli._dump_decoders import check_name

    for flag in ("value", "key"):
        name = getattr(options, f"{flag}_decoder_class")
        if name is not None:
            check_name(name, f"--{flag}-decoder-class")
    for flag in ("max_message_size", "max_bytes"):
        if not 0 <= getattr(options, flag) <= files.NO_LIMIT:
            raise CommandError(f"--{flag.replace('_', '-')} must be between 0 and {files.NO_LIMIT}", status=2)
    if options.out is not None and options.format != "arrow":
        raise CommandError("--out needs --format arrow", status=2)
    paths = [path for path in options.files.split(",") if path]
    if not paths:
        raise CommandError("--files names no file", status=2)
    if options.format == "arrow":
        if has_decoder(options):
            raise CommandError(
                "--format arrow writes keys and values as they are, without a decoder", status=2
            )
        for path in paths:
            if Path(path).suffix != files.LOG:
                raise CommandError(f"--format arrow takes .log files, not {path}", status=2)
    return paths


def has_decoder(options: argparse.Namespace) -> bool:
    named = (options.value_decoder_class, options.key_decoder_class) != (None, None)
    chosen = (
        options.offsets_decoder,
        options.transaction_log_decoder,
        options.cluster_metadata_decoder,
        options.remote_log_metadata_decoder,
    )
    return named or any(chosen)


def message_parser(options: argparse.Namespace) -> Parse:
    from cluster.cli import _dump_decoders as decoders

    if options.offsets_decoder:
        return decoders.offsets_parser
    if options.transaction_log_decoder:
        return decoders.transactions_parser
    if options.cluster_metadata_decoder or options.remote_log_metadata_decoder:
        from cluster.cli import _dump_metadata as metadata

        return metadata.cluster_parser if options.cluster_metadata_decoder else metadata.remote_parser
    return decoders.plain_parser(
        options.key_decoder_class or STRING_DECODER, options.value_decoder_class or STRING_DECODER
    )


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    paths = check(options)
    from logcore import LogError

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Records may have characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    try:
        if options.format == "text":
            dump_text(paths, options)
        elif options.format == "json":
            dump_json(paths, options)
        else:
            from cluster.cli._dump_rows import dump_arrow

            dump_arrow(paths, options.out, options.max_bytes)
    except LogError as error:
        raise CommandError(str(error)) from None
    return 0


def dump_text(paths: list[str], options: argparse.Namespace) -> None:
    from cluster.cli._dump_text import Faults

    faults = Faults()
    for path in paths:
        print(f"Dumping {path}")
        dump_file(path, options, faults)
    sys.stdout.flush()
    faults.print()


def dump_file(path: str, options: argparse.Namespace, faults: Faults) -> None:
    from cluster.cli import _dump_text as text

    suffix = Path(path).suffix
    if suffix in SUFFIXES:
        files.check_there(path)
    sanity_only, verify_only = options.index_sanity_check, options.verify_index_only
    if suffix in (files.LOG, files.CHECKPOINT):
        print_data = options.print_data_log or has_decoder(options)
        chosen = text.LogOptions(
            deep=options.deep_iteration or print_data,
            print_data=print_data,
            skip_metadata=options.skip_record_metadata,
            max_bytes=options.max_bytes,
        )
        text.dump_log(path, chosen, message_parser(options), faults)
    elif suffix == files.INDEX:
        text.dump_index(path, sanity_only, verify_only, options.max_message_size, faults)
    elif suffix == files.TIME_INDEX:
        text.dump_time_index(path, sanity_only, verify_only, faults)
    elif suffix == files.TXN_INDEX:
        text.dump_transactions(path)
    elif suffix == files.SNAPSHOT:
        text.dump_producers(path)
    else:
        ignore(path)


def dump_json(paths: list[str], options: argparse.Namespace) -> None:
    from cluster.cli import _dump_rows as rows

    parse = message_parser(options) if has_decoder(options) else None
    for path in paths:
        if Path(path).suffix in SUFFIXES:
            files.check_there(path)
            rows.dump_json(path, parse, options.max_bytes)
        else:
            ignore(path)


def ignore(path: str) -> None:
    """Prints Kafka's line and, for a directory, the name of a file that could have been meant."""
    print(f"Ignoring unknown file {path}", file=sys.stderr)
    if Path(path).is_dir():
        from logcore import find_logs

        found = sorted(file for log in find_logs(path).values() for file in log.glob("*" + files.LOG))
        example = f", such as {found[0]}" if found else ""
        print(f"  it is a directory: name files in it{example}", file=sys.stderr)

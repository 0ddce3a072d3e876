"""`logcore coordinator import` and `export`: data from Apache ZooKeeper into a coordinator's data directory, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cluster.cli._common import CommandError, Parser, directory
from cluster.cli._coordinator_config import read_configuration
from cluster.cli._progress import progress_of_steps

if TYPE_CHECKING:
    from cluster.coordinator.transfer import Credentials, Moved, Progress

T = TypeVar("T")

_INSIDE = "coordinator"
"""`logcore start --data-dir DIR` keeps its coordinator's data in this directory of DIR."""

_DATA_HELP = "the coordinator's data directory, or a zoo.cfg that names it"


def import_parser() -> Parser:
    options = Parser(
        "coordinator import",
        "Reads all nodes, sessions and the last transaction id of Apache ZooKeeper into the empty data directory of a "
        "coordinator, which then starts where ZooKeeper stopped. An ensemble starts with it when it is the dataDir of one of its "
        "servers that vote, whichever, and the others' are empty but for myid: all get it.",
    )
    options.add_argument(
        "source",
        metavar="SOURCE",
        help="a dataDir of Apache ZooKeeper that is stopped (or a copy of one), or HOST:PORT[,HOST:PORT...] of one that runs: "
        "then without sessions, ephemeral nodes, and what nodes are containers or have a TTL",
    )
    options.add_argument("target", type=directory, metavar="DIR|zoo.cfg", help=_DATA_HELP)
    options.add_argument(
        "--log-dir", type=directory, metavar="DIR", help="ZooKeeper's dataLogDir (default: its dataDir)"
    )
    options.add_argument(
        "--lenient",
        action="store_true",
        help="go on where ZooKeeper would: transactions are missing or in disorder, or the nodes' digest is not the noted one",
    )
    options.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="for HOST:PORT: lines of what zkCli.sh's addauth takes, as in `digest super:secret`",
    )
    return options


def export_parser() -> Parser:
    options = Parser(
        "coordinator export",
        "Writes what is in a stopped coordinator's data directory as a dataDir that Apache ZooKeeper 3.9 starts on, with the "
        "same nodes, sessions and last transaction id. Of an ensemble take the member with the highest transaction id.",
    )
    options.add_argument("source", type=directory, metavar="DIR|zoo.cfg", help=_DATA_HELP)
    options.add_argument(
        "target", type=directory, metavar="DIR", help="the dataDir to make: missing, or empty but for myid"
    )
    options.add_argument(
        "--log-dir",
        type=directory,
        metavar="DIR",
        help="the coordinator's dataLogDir (default: what zoo.cfg says, or where the logs were)",
    )
    return options


def run_import(arguments: list[str]) -> int:
    options = import_parser().parse_args(arguments)
    from cluster.coordinator.transfer import begin_directory, require_empty

    target, _log_dir = _data_dirs(options.target)
    read = _reader(options.source, options.log_dir, options.lenient, options.credentials)

    def move(progress: Progress) -> Moved:
        require_empty(target)
        moved = read(progress)
        begin_directory(target, moved.state)
        return moved

    state, notes = _done(move)
    print(
        f"imported {len(state.nodes)} nodes and {len(state.sessions)} sessions, up to zxid {state.last_zxid:#x}, into {target}"
    )
    _print_notes(notes)
    print(
        f"a server by itself starts on it, and so does an ensemble: with {target} as the dataDir of one server that votes, and empty "
        "dataDirs (but for myid) of the others, which all have the same lines server.N"
    )
    return 0


def run_export(arguments: list[str]) -> int:
    options = export_parser().parse_args(arguments)
    from cluster.coordinator.transfer import Moved, read_own, require_empty, write_directory

    target = options.target
    source, log_dir = _data_dirs(options.source)
    log_dir = options.log_dir or log_dir

    def move(progress: Progress) -> Moved:
        require_empty(target)
        state, notes = read_own(source, log_dir)
        return Moved(state, notes + write_directory(target, state, progress))

    state, notes = _done(move)
    print(
        f"exported {len(state.nodes)} nodes and {len(state.sessions)} sessions, up to zxid {state.last_zxid:#x}, into {target}"
    )
    _print_notes(notes)
    return 0


def _reader(
    source: str, log_dir: Path | None, lenient: bool, credentials: Path | None
) -> Callable[[Progress], Moved]:
    """What reads the source: a directory if there is one of this name, else an ensemble."""
    from cluster.coordinator.transfer import parse_addresses, read_directory, read_ensemble

    if Path(source).is_dir():
        if credentials is not None:
            raise CommandError("--credentials is for a running ensemble, not for a directory", status=2)
        return lambda progress: read_directory(Path(source), log_dir, lenient=lenient, progress=progress)
    try:
        addresses = parse_addresses(source)
    except ValueError:
        raise CommandError(
            f"{source} is neither a directory nor HOST:PORT[,HOST:PORT...]", status=2
        ) from None
    if log_dir is not None or lenient:
        raise CommandError(
            "--log-dir and --lenient are for a directory, not for a running ensemble", status=2
        )
    known = _credentials(credentials)
    return lambda progress: read_ensemble(addresses, known, progress=progress)


def _credentials(path: Path | None) -> list[Credentials]:
    from cluster.coordinator.transfer import Credentials

    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--credentials: cannot read {path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        scheme, space, auth = line.strip().partition(" ")
        if not scheme:
            continue
        if not space:
            raise CommandError(
                f"--credentials: {path}, line {number}: there is a scheme and no credentials", status=2
            )
        found.append(Credentials(scheme, auth.strip().encode()))
    return found


def _data_dirs(path: Path) -> tuple[Path, Path | None]:
    """The directory that is named; or the ``dataDir`` that a zoo.cfg names, and its ``dataLogDir`` if that is another one."""
    if not path.is_file():
        if path.suffix == ".cfg" and not path.exists():
            raise CommandError(f"{path} cannot be read: there is no such file")
        inside = path / _INSIDE
        return (inside if inside.is_dir() else path), None
    configuration, _text = read_configuration(path)
    return configuration.data_dir, configuration.settings.log_dir


def _done(move: Callable[[Progress], T]) -> T:
    from cluster.coordinator.transfer import Contradiction

    try:
        with progress_of_steps() as progress:
            return move(progress)
    except Contradiction as error:
        raise CommandError(f"{error} (--lenient goes on all the same)") from None
    except OSError as error:
        raise CommandError(str(error)) from None


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"  note: {note}")

"""`logcore coordinator import` and `export`: move data from Apache ZooKeeper to a coordinator's data
directory, and back.
"""

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
        "Reads all nodes, sessions and the last transaction id of Apache ZooKeeper into an empty data "
        "directory, with which a coordinator continues where ZooKeeper stopped. For an ensemble, make it "
        "the dataDir of one voting server; the others' must be empty, except for myid.",
    )
    options.add_argument(
        "source",
        metavar="SOURCE",
        help="a dataDir (or a copy of one) of Apache ZooKeeper that is stopped, or HOST:PORT[,HOST:PORT...] "
        "of one that runs. From a running one, sessions and ephemeral nodes are not read, nor which "
        "nodes are containers or have a TTL",
    )
    options.add_argument("target", type=directory, metavar="DIR|zoo.cfg", help=_DATA_HELP)
    options.add_argument(
        "--log-dir", type=directory, metavar="DIR", help="ZooKeeper's dataLogDir (default: its dataDir)"
    )
    options.add_argument(
        "--lenient",
        action="store_true",
        help="continue, as ZooKeeper would, when transactions are missing or out of order, or when the "
        "digest of the nodes is not the recorded one",
    )
    options.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="with HOST:PORT: a file with arguments of zkCli.sh's addauth, one a line, such as `digest "
        "super:secret`",
    )
    return options


def export_parser() -> Parser:
    options = Parser(
        "coordinator export",
        "Writes the data of a stopped coordinator as a dataDir for Apache ZooKeeper 3.9, with the same "
        "nodes, sessions and last transaction id. Of an ensemble, export the member with the highest "
        "transaction id.",
    )
    options.add_argument("source", type=directory, metavar="DIR|zoo.cfg", help=_DATA_HELP)
    options.add_argument(
        "target", type=directory, metavar="DIR", help="the new dataDir; missing, or empty except for myid"
    )
    options.add_argument(
        "--log-dir",
        type=directory,
        metavar="DIR",
        help="the coordinator's dataLogDir (default: the one in zoo.cfg, else its dataDir)",
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

    state, notes = _moved(move)
    print(
        f"imported {len(state.nodes)} nodes and {len(state.sessions)} sessions, up to zxid "
        f"{state.last_zxid:#x}, into {target}"
    )
    _print_notes(notes)
    print(
        f"start a single server with it; or start an ensemble, with {target} as the dataDir of one voting "
        "server, empty dataDirs (except for myid) of the others, and the same lines server.N everywhere"
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

    state, notes = _moved(move)
    print(
        f"exported {len(state.nodes)} nodes and {len(state.sessions)} sessions, up to zxid "
        f"{state.last_zxid:#x}, into {target}"
    )
    _print_notes(notes)
    return 0


def _reader(
    source: str, log_dir: Path | None, lenient: bool, credentials: Path | None
) -> Callable[[Progress], Moved]:
    """The function that reads the source: a directory if there is one of this name, else an ensemble."""
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
        raise CommandError(f"--credentials: {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        scheme, space, auth = line.strip().partition(" ")
        if not scheme:
            continue
        if not space:
            raise CommandError(
                f"--credentials: {path}, line {number} has a scheme but no credentials", status=2
            )
        found.append(Credentials(scheme, auth.strip().encode()))
    return found


def _data_dirs(path: Path) -> tuple[Path, Path | None]:
    """The data directory at `path`, or that of a zoo.cfg with its `dataLogDir` if that is another
    directory.
    """
    if not path.is_file():
        if path.suffix == ".cfg" and not path.exists():
            raise CommandError(f"{path} cannot be read: there is no such file")
        inside = path / _INSIDE
        return (inside if inside.is_dir() else path), None
    configuration, _text = read_configuration(path)
    return configuration.data_dir, configuration.settings.log_dir


def _moved(move: Callable[[Progress], T]) -> T:
    from cluster.coordinator.transfer import Contradiction

    try:
        with progress_of_steps() as progress:
            return move(progress)
    except Contradiction as error:
        raise CommandError(f"{error} (--lenient continues nevertheless)") from None
    except OSError as error:
        raise CommandError(str(error)) from None


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        print(f"  note: {note}")

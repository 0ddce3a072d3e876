"""Reading a zoo.cfg file for `logcore coordinator` and its `import` and `export`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.cli._common import CommandError
from cluster.properties import PropertiesError, decode_properties, parse_properties

if TYPE_CHECKING:
    from cluster.coordinator import Configuration

INVALID = 2
"""ZooKeeper's exit status for a configuration that it cannot use."""


def read_configuration(path: Path) -> tuple[Configuration, str]:
    """The configuration of a zoo.cfg and the file's text. Raises CommandError for a file that cannot be
    used.
    """
    from cluster.coordinator import CoordinatorError, parse_configuration, system_properties

    try:
        text = decode_properties(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", status=INVALID) from None
    try:
        return parse_configuration(system_properties(os.environ) | parse_properties(text), path), text
    except (CoordinatorError, PropertiesError) as error:
        raise CommandError(f"{path}: {error}", status=INVALID) from None
    except OSError as error:  # of a file that zoo.cfg names
        raise CommandError(
            f"{path}: {error.filename} cannot be read: {error.strerror}", status=INVALID
        ) from None

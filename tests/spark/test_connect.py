"""Spark Connect: the client has no JVM, and the data source runs at the server.

Broken if it failed: those who have only a Connect server would have no logcore.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.clusters import connect_server
from tests.spark.conftest import ORDERS, ROOT
from tests.spark.streams import TIMEOUT


@pytest.mark.timeout(600)
def test_a_client_of_spark_connect(log_directory: Path, tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "spark" / "connect.py")
    with connect_server(sys.executable) as server:
        done = subprocess.run(
            [sys.executable, program, server, str(log_directory), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    assert done.stdout.splitlines() == [
        "read 100 40 60",
        "view 10",
        f"stream {sum(ORDERS.values())}",
        "refused True",
    ], done.stdout + done.stderr

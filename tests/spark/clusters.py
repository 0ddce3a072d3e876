"""Spark outside this process: a standalone cluster, and a server of Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.ports import free_port
from tests.spark.streams import TIMEOUT

BIN = Path(pyspark.__file__).parent / "bin"


@contextmanager
def spawned(ready: str, *command: str, **environment: str) -> Iterator[re.Match[str]]:
    """A process that has said a line like `ready`; it is killed at the end."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    said: list[str] = []
    found = threading.Event()

    def collect() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                said.append(line)
                if re.search(ready, line):
                    found.set()
        found.set()

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    try:
        assert found.wait(TIMEOUT), f"no line like {ready!r} within {TIMEOUT} s"
        match = re.search(ready, "".join(said))
        assert match is not None, f"{command[0]} has ended; it said:\n{''.join(said)}"
        yield match
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(TIMEOUT)


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """A master and two workers with a core each; the master's address."""
    spark_class = str(BIN / "spark-class")
    port, web = free_port(), free_port()
    # Executors have no path to this checkout from their environment.
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(directory), "PYTHONPATH": ""}
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    with spawned(r"(spark://127.0.0.1:\d+)", spark_class, *master, "--webui-port", str(web), **local) as said:
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
        worker += ["--memory", "700m", "--webui-port"]
        with (
            spawned("Successfully registered", spark_class, *worker, str(free_port()), said[1], **local),
            spawned("Successfully registered", spark_class, *worker, str(free_port()), said[1], **local),
        ):
            yield said[1]


@contextmanager
def connect_server(python: str) -> Iterator[str]:
    """A server of Spark Connect; its URL. Its Python workers run in this interpreter."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    command = [str(BIN / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}
    with spawned(r"Spark Connect server started at: \S+:(\d+)", *command, **environment) as said:
        yield f"sc://127.0.0.1:{said[1]}"

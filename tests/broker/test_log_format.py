"""Log lines with text that clients sent.

If one failed, a client could write its own lines into the broker's log, control the terminal that shows it,
or fill the disk with a few requests.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest

from cluster.broker import bridge as bridge_module
from cluster.broker.bridge import Bridge
from cluster.broker.context import Context, Request
from cluster.log_format import formatter

from ..conftest import StartBroker
from .test_handlers import FakeRequest
from .wire import Wire

FORGED = "2026-01-01 00:00:00,000 ERROR cluster.broker: a disk failed"
NAME = f"g\n{FORGED}\r\x1b[2J\x9b2J\x7f\u2028\u202eé"
ESCAPED = rf"g\n{FORGED}\r\x1b[2J\x9b2J\x7f\u2028\u202eé"
CUT = " ... (cut) ... "
LINE_MAX = 4300
"""A line's 4,096 characters of message, the mark of a cut, and the names before it."""


@pytest.fixture
def written() -> Iterator[dict[str, io.StringIO]]:
    """The output of the logger `cluster`, as text and as JSON."""
    streams = {"text": io.StringIO(), "json": io.StringIO()}
    handlers = [logging.StreamHandler(stream) for stream in streams.values()]
    logger = logging.getLogger("cluster")
    for name, handler in zip(streams, handlers, strict=True):
        handler.setFormatter(formatter(name))
        logger.addHandler(handler)
    yield streams
    for handler in handlers:
        logger.removeHandler(handler)


def only_line(written: dict[str, io.StringIO]) -> tuple[str, dict[str, Any]]:
    """The only line, as text and as JSON."""
    [text] = written["text"].getvalue().split("\n")[:-1]
    [line] = written["json"].getvalue().split("\n")[:-1]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u202e]", text + line)
    return text, json.loads(line)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_group_cannot_write_lines_of_the_log(start_broker: StartBroker, log_format: str) -> None:
    broker = start_broker(None, 0, "--override", f"log.format={log_format}")

    async def commit_what_fits_nowhere() -> None:
        async with Wire(broker.bootstrap) as wire:
            await wire.ask("FindCoordinator", 1, key=NAME, key_type=0)
            protocols = [{"name": "range", "metadata": b""}]
            group = {"group_id": NAME, "member_id": ""}
            timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
            joined = await wire.ask(
                "JoinGroup", 1, protocol_type="consumer", protocols=protocols, **group, **timeouts
            )
            member = {"member_id": joined["member_id"]}
            too_large = [member | {"assignment": bytes(2_000_000)}]
            generation = {"generation_id": joined["generation_id"]}
            synced = await wire.ask("SyncGroup", 0, assignments=too_large, **group | member, **generation)
            assert synced["error_code"] != 0

    asyncio.run(commit_what_fits_nowhere())
    line = broker.wait_output("its record could not be written").rstrip("\n")
    assert broker.stop() == 0
    assert re.match(r"\{.*\}$" if log_format == "json" else r"\d{4}-.* WARNING cluster\.state_topics\.", line)
    message = json.loads(line)["message"] if log_format == "json" else line
    assert f"group {ESCAPED}: its record could not be written: " in message
    assert not any(line.startswith(FORGED) for line in broker.output().splitlines())
    assert "\x1b" not in broker.output()


def test_the_client_id_of_a_failed_request_is_one_field(
    monkeypatch: pytest.MonkeyPatch, written: dict[str, io.StringIO]
) -> None:
    class Failing:
        async def handle(self, context: Context, request: Request) -> dict[str, Any]:
            raise ValueError(f"no group {NAME}")

        def failure(self, request: Request, code: int) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(bridge_module, "HANDLERS", {15: Failing()})
    bridge = Bridge(
        cast(Any, None),
        cast(Context, None),
        1,
        lambda *_: None,
        lambda _: None,
        lambda _: None,
        lambda _: None,
    )
    request = FakeRequest(15, 0, {}, client_id=NAME)
    asyncio.run(bridge._answer(cast(Request, request)))
    assert request.answers == [{}]

    first, *traceback = written["text"].getvalue().split("\n")[:-1]
    assert first.endswith("ERROR cluster.broker.bridge: a request failed: API 15 version 0")
    assert traceback[0] == "    Traceback (most recent call last):"
    assert any(
        re.match(r'      File ".*test_log_format.py", line \d+, in handle$', line) for line in traceback
    )
    assert "    ValueError: no group g" in traceback
    assert all(line.startswith("    ") for line in traceback)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", "\n".join(traceback))

    [text] = written["json"].getvalue().split("\n")[:-1]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u202e]", text)
    line = json.loads(text)
    assert line["client_id"] == ESCAPED
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "\nValueError: no group g\n" in line["exception"]


def test_a_long_name_is_cut_and_the_text_after_it_is_not(written: dict[str, io.StringIO]) -> None:
    # A name has 32,767 bytes at most, and a message may have several.
    name = "\x1b" + "é" * 100_000
    logging.getLogger("cluster.x").error("group %s: its disk failed", name, extra={"topic": name})
    text, line = only_line(written)
    assert len(text) < LINE_MAX
    for message in (text, line["message"]):
        assert r"group \x1bé" in message
        assert message.endswith("é: its disk failed")
        assert message.count(CUT) == 1
    assert len(line["message"]) < LINE_MAX
    assert len(line["topic"]) < LINE_MAX
    # The data plane cuts its own lines, to at most as many bytes.
    cut = "x" * 4096 + " ... (cut)"
    logging.getLogger("cluster.y").error("%s", cut)
    assert json.loads(written["json"].getvalue().split("\n")[1])["message"] == cut


def test_a_traceback_with_a_clients_text_is_not_long(written: dict[str, io.StringIO]) -> None:
    try:
        raise ValueError("\n\x1b" * 1_000_000) from KeyError("x" * 1_000_000)
    except ValueError:
        logging.getLogger("cluster.x").exception("no")
    first, *traceback = written["text"].getvalue().split("\n")[:-1]
    assert first.endswith(": no")
    assert traceback[0].startswith("    KeyError: 'xxx")
    assert CUT in traceback[0]
    assert len(traceback[0]) < LINE_MAX
    assert "    ... (cut) ..." in traceback
    assert {line for line in traceback if not line.startswith("    ")} == set()
    assert sum(map(len, traceback)) < 70_000
    assert len(json.loads(written["json"].getvalue())["exception"]) < 70_000

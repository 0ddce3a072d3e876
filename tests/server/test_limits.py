"""Changes of settings and quotas through the extension while the server runs."""

from __future__ import annotations

import pytest

from cluster.errors import MessageTooLarge
from logcore._native import ServerConfigError

from . import wire
from .conftest import Running, StartServer

MESSAGE_TOO_LARGE = MessageTooLarge.code


def test_settings_change_while_running(start_server: StartServer) -> None:
    """If this failed, each change of a setting would need a restart."""
    running = start_server(message_max_bytes=1000)
    large = wire.batch([b"x" * 2000])
    with running.client() as client:
        assert client.produce("t", 0, large)["error_code"] == MESSAGE_TOO_LARGE
        with pytest.raises(ServerConfigError, match=r"^max\.connections=some "):
            running.server.update_config({"message.max.bytes": "3000", "max.connections": "some"})
        assert client.produce("t", 0, large)["error_code"] == MESSAGE_TOO_LARGE
        running.server.update_config({"message.max.bytes": "3000"})
        assert client.produce("t", 0, large)["error_code"] == 0


def test_a_response_of_python_has_the_throttle_time(running: Running) -> None:
    """If this failed, a client could keep Python busy without a limit, or would not notice the throttling."""
    quota = ("ANONYMOUS", "", {"request_percentage": 0.0000001, "controller_mutation_rate": 5.0})
    running.server.set_client_quotas([quota])
    with running.client() as client:
        sent = client.send(wire.METADATA, 12, {"topics": None})
        (request,) = running.take(1)
        answer = {"brokers": [], "cluster_id": None, "controller_id": 7, "topics": []}
        assert request.body["topics"] is None
        request.respond(answer)
        received, response = client.receive(wire.METADATA, 12)
    assert received == sent
    assert response["controller_id"] == 7
    # Request quotas throttle for at most one sample of the window.
    assert response["throttle_time_ms"] == 1000


def test_bad_quotas_are_refused(running: Running) -> None:
    """If this failed, a mistyped quota would be ignored silently."""
    with pytest.raises(ServerConfigError, match="there is no such quota"):
        running.server.set_client_quotas([(None, "", {"producer_byte_rat": 1.0})])
    with pytest.raises(ServerConfigError, match="from 0"):
        running.server.set_client_quotas([("a", None, {"producer_byte_rate": -1.0})])
    with pytest.raises(ServerConfigError, match="from 0"):
        running.server.set_ip_quotas([(None, -1.0)])


def test_an_address_has_its_rate(running: Running) -> None:
    """If this failed, one host could open connections at any rate."""
    running.server.set_ip_quotas([("127.0.0.1", 0.1), (None, 1000.0)])
    with running.client() as first, running.client() as second:
        first.send(wire.API_VERSIONS, 0, {})
        first.receive(wire.API_VERSIONS, 0)
        assert second.is_closed()
    running.wait_for_line("connection_creation_rate")
    running.server.set_ip_quotas([])
    with running.client() as third:
        third.send(wire.API_VERSIONS, 0, {})
        third.receive(wire.API_VERSIONS, 0)

"""A proxy between a client and its broker. A test can have it fail at one kind of request."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from logcore import _native
from tests.client.conftest import WAIT

API_KEYS = _native.api_keys()
Change = Callable[[int, bytes], bytes]
"""Returns the changed body of a response; takes its version and body."""


class Proxy:
    """Passes frames on, one request of a connection after another. Its broker must advertise `address`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.broker_port = 0
        self._changed = threading.Condition()
        self._cut: set[int] = set()
        self._responses: dict[int, Change] = {}
        self._cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *apis: str) -> None:
        """Closes a connection at each request of these APIs; without any, lets all pass."""
        self._cut = {API_KEYS[api] for api in apis}
        self._cuts = 0

    def change(self, api: str, change: Change | None) -> None:
        """Has the responses of an API changed."""
        if change is None:
            del self._responses[API_KEYS[api]]
        else:
            self._responses[API_KEYS[api]] = change

    def wait_for_cuts(self, count: int) -> None:
        """Waits until so many connections were closed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._cuts >= count, WAIT)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(("127.0.0.1", self.broker_port)) as broker:
                    while self._pass_one(client, broker):
                        pass
            except OSError:
                return

    def _pass_one(self, client: socket.socket, broker: socket.socket) -> bool:
        request = _read_frame(client)
        if request is None:
            return False
        api_key, version, _ = struct.unpack_from(">hhi", request)
        if api_key in self._cut:
            with self._changed:
                self._cuts += 1
                self._changed.notify_all()
            return False
        broker.sendall(struct.pack(">i", len(request)) + request)
        response = _read_frame(broker)
        if response is None:
            return False
        change = self._responses.get(api_key)
        if change is not None:
            _, header = _native.decode_response_header(api_key, version, response)
            response = response[:header] + change(version, response[header:])
        client.sendall(struct.pack(">i", len(response)) + response)
        return True


def _read_frame(stream: socket.socket) -> bytes | None:
    length = _read(stream, 4)
    return None if length is None else _read(stream, struct.unpack(">i", length)[0])


def _read(stream: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)

"""Types of the extension module, one section per room."""

from typing import Any

__version__: str

# ---- codec ----
# A message is a dict with a key for each field, in snake case; arrays are lists, uuids 16 bytes, bytes and records
# bytes, null None. Decoding fills in every field, with its default where the version lacks it. Encoding takes the
# default for a missing key, and refuses an unknown key, and a value other than the default in a field which the
# version lacks (unless Kafka calls that field ignorable).

class ProtocolError(ValueError):
    """A message that cannot be decoded or encoded, or an API, version or schema that does not exist."""

def decode_request(api_key: int, version: int, body: bytes | bytearray) -> dict[str, Any]:
    """Decodes the body (no header) of a request; raises ProtocolError."""

def encode_request(api_key: int, version: int, message: dict[str, Any]) -> bytes:
    """The body (no header) of a request; raises ProtocolError."""

def decode_response(api_key: int, version: int, body: bytes | bytearray) -> dict[str, Any]:
    """Decodes the body (no header) of a response; raises ProtocolError."""

def encode_response(api_key: int, version: int, message: dict[str, Any]) -> bytes:
    """The body (no header) of a response; raises ProtocolError."""

def decode_data(name: str, version: int, data: bytes | bytearray) -> dict[str, Any]:
    """Decodes data by Kafka's name of its schema, without the int16 version that often stands before it."""

def encode_data(name: str, version: int, message: dict[str, Any]) -> bytes:
    """Encodes data by Kafka's name of its schema, without the int16 version that often stands before it."""

def api_keys() -> dict[str, int]:
    """Every API the codec knows: Kafka's name, as in "Produce", and key."""

def valid_versions(api_key: int) -> tuple[int, int]:
    """The lowest and highest stable version of an API; raises ProtocolError for an unknown key."""


# ---- log ----

# ---- server ----

# ---- client ----

# ---- columns ----

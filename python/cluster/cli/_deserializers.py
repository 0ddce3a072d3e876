"""Apache Kafka's deserializers by Java class name (`org.apache.kafka.common.serialization.*`).

Each turns bytes into the text that Java would print: it deserializes, and applies Java's `toString`. Bytes
that the class could not deserialize are a ValueError.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

from cluster.cli._common import CommandError

PACKAGE = "org.apache.kafka.common.serialization."

Deserializer = Callable[[bytes], bytes]


def deserializer(class_name: str, flag: str) -> Deserializer:
    """The deserializer of a Java class name. Raises a CommandError that names `flag` for a class that is
    not Kafka's.
    """
    found = _BY_NAME.get(class_name.strip().removeprefix(PACKAGE))
    if found is None or not class_name.strip().startswith(PACKAGE):
        names = ", ".join(_BY_NAME)
        raise CommandError(
            f"{flag}: {class_name!r} is not supported, because Java classes cannot be loaded here; "
            f"supported are, in {PACKAGE[:-1]}, {names}",
            status=2,
        )
    return found


def _packed(name: str, code: str, text: Callable[[float], str]) -> Deserializer:
    size = struct.calcsize(code)

    def read(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"the size of the data received by {name} is {len(data)} and not {size}")
        return text(struct.unpack(code, data)[0]).encode()

    return read


def _boolean(data: bytes) -> bytes:
    if data not in (b"\x00", b"\x01"):
        raise ValueError("BooleanDeserializer reads one byte, 0 or 1")
    return b"true" if data == b"\x01" else b"false"


def _string(data: bytes) -> bytes:
    return data.decode("utf-8", errors="replace").encode()


def _uuid(data: bytes) -> bytes:
    try:
        return str(uuid.UUID(data.decode())).encode()
    except ValueError:
        raise ValueError("UUIDDeserializer reads the text of a UUID") from None


def _bytes(data: bytes) -> bytes:
    """org.apache.kafka.common.utils.Bytes: bytes that are not printable ASCII, and backslashes, as \\xNN."""
    shown = (chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02X}" for byte in data)
    return "".join(shown).encode()


def _byte_buffer(data: bytes) -> bytes:
    return f"java.nio.HeapByteBuffer[pos=0 lim={len(data)} cap={len(data)}]".encode()


def _double(number: float) -> str:
    return java_decimal(number, repr(number))


def _float(number: float) -> str:
    """Java prints as few digits as distinguish a 32-bit number from its neighbours."""
    digits = (f"{number:.{count}g}" for count in range(1, 10))
    shortest = next((text for text in digits if _as_float(float(text)) == number), repr(number))
    return java_decimal(number, shortest)


def _as_float(number: float) -> float:
    try:
        found: float = struct.unpack(">f", struct.pack(">f", number))[0]
    except OverflowError:
        return float("inf")
    return found


def java_decimal(number: float, digits: str) -> str:
    """Java's `Double.toString` of a number with known digits: 1.0, 1.0E7, 1.0E-4, NaN, -Infinity."""
    if number != number:
        return "NaN"
    sign = "-" if digits.startswith("-") else ""
    if number in (float("inf"), float("-inf")):
        return f"{sign}Infinity"
    if number == 0:
        return f"{sign}0.0"
    mantissa, _, exponent = digits.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    significant = (whole + fraction).lstrip("0")
    # The power of ten of the first significant digit: 0 for units, -1 for tenths.
    lead = len(whole) - 1 - (len(whole + fraction) - len(significant)) + int(exponent or 0)
    significant = significant.rstrip("0")
    if -3 <= lead < 7:
        if lead < 0:
            return f"{sign}0.{'0' * (-lead - 1)}{significant}"
        padded = significant.ljust(lead + 1, "0")
        return f"{sign}{padded[: lead + 1]}.{padded[lead + 1 :] or '0'}"
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{lead}"


_BY_NAME: dict[str, Deserializer] = {
    "StringDeserializer": _string,
    # Java would print an array's address, which is of no use.
    "ByteArrayDeserializer": bytes,
    "ByteBufferDeserializer": _byte_buffer,
    "BytesDeserializer": _bytes,
    "BooleanDeserializer": _boolean,
    "ShortDeserializer": _packed("ShortDeserializer", ">h", str),
    "IntegerDeserializer": _packed("IntegerDeserializer", ">i", str),
    "LongDeserializer": _packed("LongDeserializer", ">q", str),
    "FloatDeserializer": _packed("FloatDeserializer", ">f", _float),
    "DoubleDeserializer": _packed("DoubleDeserializer", ">d", _double),
    "UUIDDeserializer": _uuid,
}

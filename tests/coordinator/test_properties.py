"""Java properties files.

If these fail, an operator's file means something else here than in Java, or a file that Java refuses is
accepted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.properties import (
    PropertiesError,
    decode_properties,
    escape,
    parse_properties,
    properties_lines,
    read_properties,
)

LINES = "# a\\\n\r\n ! b\n\ta=1\\\r\n  2\\\n\nb : \\u00e9\r\\\n\nc=\\\\\nd\\\n"


# If this failed, a setting with a backslash would be another one in a file that we write.
@pytest.mark.parametrize("value", ["", " a ", "a\\,b\\", "\\u0041", "a\nb\r\tc", "\fa=b:c#!"])
def test_a_value_that_is_written_is_read_as_it_was(value: str) -> None:
    assert parse_properties(f"name={escape(value)}\n") == {"name": value}


def test_a_file_in_another_encoding_than_utf_8_is_read_as_java_does(tmp_path: Path) -> None:
    path = tmp_path / "some.properties"
    path.write_bytes("# café\na=é\n".encode("iso-8859-1"))
    assert read_properties(path) == {"a": "é"}
    path.write_bytes("# café\na=é\n".encode())
    assert read_properties(path) == {"a": "é"}
    assert decode_properties(bytes(range(256))) == bytes(range(256)).decode("iso-8859-1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\nx=\\u12", r"^line 2: \\u12 of x is not a character"),
        ("x=\\u", r"^line 1: \\u of x"),
        ("x=1\\u00g0", r"\\u00g0 of x"),
        ("x=\\u +1", r"\\u \+1 of x"),
        ("# c\\\n\na\\u12=1", r"^line 3: \\u12 of a"),
        ("a=1\\\n2\\\n3\\u1", r"^line 1: \\u1 of a"),
    ],
)
def test_invalid_escapes_are_refused(text: str, message: str) -> None:
    with pytest.raises(PropertiesError, match=message):
        parse_properties(text)
    assert parse_properties(text, lenient=True)


def test_escapes_are_decoded_as_in_java() -> None:
    """The expected values are those of java.util.Properties of JDK 17."""
    text = "# \\u12\ne=\\ud83d\\ude00\nl=\\ud83d\nf=\\fx\nU=\\U12\nj=\\u00\\\n  e9\nb=\\\\u12\n\\\n\nz=2"
    expected = {"e": "😀", "l": "\ud83d", "f": "\fx", "U": "U12", "j": "é", "b": "\\u12", "z": "2"}
    assert parse_properties(text) == expected


def test_the_lines_together_are_the_whole_text() -> None:
    lines = list(properties_lines(LINES))
    assert "".join(line.text for line in lines) == LINES
    found = [(line.key, line.value) for line in lines if line.key is not None]
    assert found == [("a", "12"), ("b", "é"), ("c", "\\"), ("d", "")]

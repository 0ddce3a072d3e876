"""Java's login configuration (JAAS): the file with the names and passwords of a ZooKeeper server's SASL
users.

Owns the grammar of ``com.sun.security.auth.login.ConfigFile``, as far as such files use it::

    Server {
        org.apache.zookeeper.server.auth.DigestLoginModule required
            user_super="adminsecret"
            user_bob="bobsecret";
    };

with comments as in Java. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    \s+ | //[^\n]* | /\*.*?\*/
    | "(?P<quoted>(?:[^"\\\n]|\\.)*)"
    | (?P<mark>[{};=])
    | (?P<word>[^\s{};="]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}
_FLAGS = {"required", "requisite", "sufficient", "optional"}


class LoginModule(NamedTuple):
    """A Java class, and its options."""

    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    text: str
    is_mark: bool
    line: int


def parse(text: str) -> dict[str, list[LoginModule]]:
    """Returns the sections of a file. Raises ValueError, which names the line."""
    tokens = _tokens(text)
    sections: dict[str, list[LoginModule]] = {}
    for name in tokens:
        if name.is_mark:
            raise ValueError(f"line {name.line}: {name.text!r} in the place of a section's name")
        _expect(tokens, "{", name)
        modules = []
        for token in tokens:
            if token.text == "}" and token.is_mark:
                break
            modules.append(_module(token, tokens))
        else:
            raise ValueError(f"section {name.text} has no closing brace")
        _expect(tokens, ";", name)
        if name.text in sections:
            raise ValueError(f"line {name.line}: section {name.text} appears twice")
        sections[name.text] = modules
    return sections


def _module(name: _Token, tokens: Iterator[_Token]) -> LoginModule:
    flag = next(tokens, name)
    if flag.text.lower() not in _FLAGS:
        raise ValueError(
            f"line {flag.line}: {flag.text!r} in the place of one of {', '.join(sorted(_FLAGS))}"
        )
    options: dict[str, str] = {}
    for token in tokens:
        if token.is_mark:
            if token.text == ";":
                return LoginModule(name.text, options)
            raise ValueError(f"line {token.line}: {token.text!r} in the place of an option or a semicolon")
        _expect(tokens, "=", token)
        value = next(tokens, None)
        if value is None or value.is_mark:
            raise ValueError(f"line {token.line}: {token.text} has no value")
        if "${" in value.text:
            raise ValueError(
                f"line {token.line}: {token.text} refers to a Java property; write the property's value "
                "instead"
            )
        options[token.text] = value.text
    raise ValueError(f"line {name.line}: {name.text} has no closing semicolon")


def _expect(tokens: Iterator[_Token], mark: str, after: _Token) -> None:
    token = next(tokens, None)
    if token is None or not token.is_mark or token.text != mark:
        raise ValueError(
            f"line {token.line if token else after.line}: {mark!r} is missing after {after.text}"
        )


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        line = text.count("\n", 0, position) + 1
        if found is None:
            raise ValueError(f"line {line}: a quotation mark that is not closed")
        position = found.end()
        if found["quoted"] is not None:
            yield _Token(_ESCAPE.sub(_unescape, found["quoted"]), False, line)
        elif found["mark"] is not None:
            yield _Token(found["mark"], True, line)
        elif found["word"] is not None:
            yield _Token(found["word"], False, line)


def _unescape(found: re.Match[str]) -> str:
    character = found[1]
    if character[0] in "01234567":
        return chr(int(character, 8) & 0xFF)
    return _CONTROLS.get(character, character)

"""Splits a line into words, and parses a command's options as the DefaultParser of commons-cli does (one
dash).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.cli.zookeeper.errors import ShellError

# A word that starts with a quote ends at the next quote of the same kind. There are no escapes.
_WORD = re.compile(r"""\s*([^"']\S*|"[^"]*"|'[^']*')\s*""", re.ASCII)


def split(line: str) -> list[str]:
    """The words of a line, without the quotes around them."""
    return [_unquoted(word) for word in _WORD.findall(line)]


def _unquoted(word: str) -> str:
    quoted = len(word) > 1 and word[0] in "\"'" and word[-1] == word[0]
    return word[1:-1] if quoted else word


@dataclass(frozen=True)
class Options:
    """The options of a command: `flags` have no value, `valued` have one. At most one of `exclusive` may be
    set; at least one must be if `required` is set, which is the text for the error.
    """

    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    exclusive: frozenset[str] = frozenset()
    required: str | None = None

    def known(self, name: str) -> bool:
        return name in self.flags or name in self.valued


@dataclass
class Arguments:
    """A command's words and options, without its name. A flag's value is empty. Of a repeated option the
    first counts.
    """

    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def has(self, option: str) -> bool:
        return option in self.options


def parse(words: Sequence[str], options: Options) -> Arguments:
    """Parses the words after a command's name. Raises ShellError for an unknown option, and for a missing
    or second value.
    """
    parser = _Parser(options)
    for word in words:
        parser.take(word)
    return parser.end()


class _Parser:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._found = Arguments()
        self._waiting: str | None = None
        """The option whose value comes next."""
        self._selected: str | None = None
        self._only_words = False

    def take(self, word: str) -> None:
        if self._only_words:
            self._found.words.append(word)
        elif word == "--":
            self._only_words = True
        elif self._waiting is not None and self._is_value(word):
            self._value(word)
        elif word.startswith("--"):
            raise _refused("UnrecognizedOption", f"Unrecognized option: {word}")
        elif word.startswith("-") and word != "-":
            self._option(word)
        else:
            self._found.words.append(word)

    def end(self) -> Arguments:
        self._no_value()
        if self._options.required and self._selected is None:
            raise _refused("MissingOption", f"Missing required option: {self._options.required}")
        return self._found

    def _is_value(self, word: str) -> bool:
        if not word.startswith("-") or len(word) == 1:
            return True
        name = word[1:].partition("=")[0]
        is_option = self._options.known(name) or (name != "" and self._options.known(name[0]))
        return not is_option or _is_number(word)

    def _option(self, word: str) -> None:
        name, equals, value = word[1:].partition("=")
        if equals:
            if len(name) != 1 or name not in self._options.valued:
                raise _refused("UnrecognizedOption", f"Unrecognized option: {word}")
            self._start(name)
            self._value(value)
        elif self._options.known(name):
            self._start(name)
        else:
            self._several(word)

    def _several(self, word: str) -> None:
        """Several one-letter options in one word. The rest of the word after a valued option is its value."""
        for index, letter in enumerate(word[1:], 1):
            if not self._options.known(letter):
                raise _refused("UnrecognizedOption", f"Unrecognized option: {word}")
            self._start(letter)
            if letter in self._options.valued and index + 1 < len(word):
                self._value(word[index + 1 :])
                return

    def _start(self, name: str) -> None:
        self._no_value()
        if name in self._options.exclusive:
            if self._selected not in (None, name):
                raise _refused(
                    "AlreadySelected",
                    f"The option '{name}' was specified but an option from this group has already been"
                    f" selected: '{self._selected}'",
                )
            self._selected = name
        if name in self._options.valued:
            self._waiting = name
        else:
            self._found.options.setdefault(name, "")

    def _value(self, text: str) -> None:
        assert self._waiting is not None
        if len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]:
            text = text[1:-1]
        self._found.options.setdefault(self._waiting, text)
        self._waiting = None

    def _no_value(self) -> None:
        if self._waiting is not None:
            raise _refused("MissingArgument", f"Missing argument for option: {self._waiting}")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _refused(kind: str, message: str) -> ShellError:
    # zkCli prints this exception with its class's name.
    return ShellError(f"org.apache.commons.cli.{kind}Exception: {message}")

"""`ssl.principal.mapping.rules`: from the distinguished name in a certificate to a principal.

Owns the rules of SslPrincipalMapper. The first rule that matches the whole name applies. `DEFAULT` is the
name itself. `RULE:pattern/replacement/` replaces; `L` or `U` after it changes the case. Patterns are Java's;
a pattern that Python's `re` does not accept, or reads differently, is refused. Pure; any thread.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_DEFAULT = "DEFAULT"
_END = re.compile(r"\s*(,\s*|$)")
_PIECE = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|(\$)", re.DOTALL)
_NAMED_GROUP = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z])")
_CASES: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}


class RuleError(ValueError):
    """A rule that cannot be used; the text has the rule and the reason."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: Callable[[re.Match[str]], str]
    case: Callable[[str], str]

    def apply(self, name: str) -> str | None:
        if self.pattern.fullmatch(name) is None:
            return None
        return self.case(self.pattern.sub(self.replacement, name))


class PrincipalMapper:
    """The rules, in order. Raises RuleError for the first that is not valid."""

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule | None] = []
        """None is DEFAULT."""
        text = text.strip()
        position = 0
        while position < len(text):
            position = self._take(text, position)

    def _take(self, text: str, start: int) -> int:
        """Reads one rule, which may be empty, and the comma after it."""
        rule = _RULE.match(text, start)
        position = start
        if rule is not None:
            position = rule.end()
        elif text.startswith(_DEFAULT, start):
            position += len(_DEFAULT)
        end = _END.match(text, position)
        if end is None:
            raise RuleError(
                f"{text[start:]!r} does not begin with a rule: rules are DEFAULT and "
                "RULE:pattern/replacement/, the latter optionally with L or U after it, separated by commas"
            )
        if rule is not None:
            pattern = _pattern(rule[1])
            self._rules.append(_Rule(pattern, _replacement(rule[2], pattern), _CASES[rule[3]]))
        elif position > start:
            self._rules.append(None)
        return end.end()

    def name(self, distinguished_name: str) -> str:
        """The principal's name. Raises ValueError if no rule applies."""
        for rule in self._rules:
            mapped = distinguished_name if rule is None else rule.apply(distinguished_name)
            if mapped is not None:
                return mapped
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _pattern(text: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        # Java reads a set in a set. Python warns that it will in the future.
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(_NAMED_GROUP.sub("(?P<", text), re.ASCII)
        except (re.error, FutureWarning, OverflowError) as error:
            raise RuleError(f"the pattern {text!r} cannot be used: {error}") from None


def _replacement(text: str, pattern: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
    """A function from a match to its replacement: text, and groups by number or name."""
    pieces: list[str | int] = []
    position = 0
    for found in _PIECE.finditer(text):
        pieces.append(text[position : found.start()])
        position = found.end()
        escaped, number, name, _ = found.groups()
        if escaped is not None:
            pieces.append(escaped)
        elif number is not None and (group := _group(number, pattern.groups)) is not None:
            pieces += [group, number[len(str(group)) :]]
        elif number is not None and pattern.groups:
            pieces.append(found[0])
        elif name is not None and name in pattern.groupindex:
            pieces.append(pattern.groupindex[name])
        else:
            raise RuleError(
                f"the replacement {text!r} names a group that {pattern.pattern!r} does not have: {found[0]}"
            )
    pieces.append(text[position:])
    return lambda match: "".join(match[each] or "" if isinstance(each, int) else each for each in pieces)


def _group(digits: str, groups: int) -> int | None:
    """The longest prefix of the digits that is the number of a group; None if there is none."""
    for length in range(min(len(digits), len(str(groups))), 0, -1):
        number = int(digits[:length])
        if number <= groups and str(number) == digits[:length]:
            return number
    return None

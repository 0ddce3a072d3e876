"""Regular expressions of subscriptions.

If one failed, a member would read other topics than it asked for, or an expression could stop the broker.
"""

from __future__ import annotations

import pytest

from logcore._native import matching_names

NAMES = ["a", "ab", "abc", "b.1", "b_1", "A"]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("a", ["a"]),
        ("a.*", ["a", "ab", "abc"]),
        ("a|b.1", ["a", "b.1", "b_1"]),
        ("(?i)a", ["a", "A"]),
        (r"b\.\d", ["b.1"]),
        (r"\w+", ["a", "ab", "abc", "b_1", "A"]),
        ("^a$", ["a"]),
        ("", []),
        ("é", []),
    ],
)
def test_an_expression_matches_whole_names(expression: str, found: list[str]) -> None:
    assert matching_names(expression, NAMES) == found


@pytest.mark.parametrize(
    "expression", ["(", "a)|(b", "a(?=b)", r"(a)\1", "(((a{100}){100}){100}){100}", "(" * 10_000]
)
def test_a_wrong_or_large_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        matching_names(expression, NAMES)


def test_no_expression_takes_long() -> None:
    """Python's `re` would need 2^10,000 steps."""
    assert matching_names("(a*)*b", ["a" * 10_000]) == []

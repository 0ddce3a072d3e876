"""The ephemeral checker.

If these fail, it misses ephemerals without a session, or takes what is allowed for a problem.
"""

from __future__ import annotations

import pytest

from .book import ROOT, A, B, Book, Case, new_book
from .ephemerals import check_ephemerals
from .history import (
    NO_NODE,
    Check,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    SetData,
    Stat,
    Sync,
)
from .test_watches import GOOD_WATCHES
from .test_zxids import GOOD_ZXIDS


def ephemeral(ends: str) -> Book:
    """B is an ephemeral of session 2, which has "closed", "expired" or lives."""
    made = new_book()
    made.write(2, Create(B, b"", ephemeral=True))
    if ends == "closed":
        made.write(2, CloseSession())
    elif ends == "expired":
        made.contact(2, "lost")
        made.zxid += 1
        made.tree.apply(made.zxid, made.tree.write(CloseSession(), 2, made.zxid).changes)
        made.contact(2, "expired")
    return made


OWNED = Stat(0x103, 0x103, 0, 0, 0, 0, 0, 2, 0, 0, 0x103)


def exists_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), error=0, result=OWNED)
    return made


def read_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.read(3, GetData(B), error=0, result=(b"", OWNED))
    return made


def exists_without_an_owner() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), error=0, result=OWNED._replace(owner=0))
    return made


def made_again_in_a_multi_without_an_owner() -> Book:
    made = new_book()
    made.write(2, Multi((Create(B, b""), Delete(B), Create(B, b"", ephemeral=True))))
    made.write(2, CloseSession())
    made.read(3, Exists(B), error=0, result=OWNED._replace(owner=0))
    return made


def exists_after_the_expiry() -> Book:
    made = ephemeral("expired")
    made.other(3, Sync(ROOT))
    made.read(3, Exists(B), error=0, result=OWNED)
    return made


def made_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.write(2, Create(f"{ROOT}/late", b"", ephemeral=True))
    return made


def answered_after_the_closing() -> Book:
    made = ephemeral("closed")
    made.zxid += 1
    made.read(2, Exists(A))
    return made


def answered_after_the_expiry() -> Book:
    made = ephemeral("expired")
    made.read(2, Exists(A))
    return made


def missing_in(request: GetData | Exists | GetChildren) -> Case:
    def case() -> Book:
        made = ephemeral("lives")
        result = (
            ((("a",), made.tree.read(GetChildren(ROOT), made.zxid).result[1]))
            if isinstance(request, GetChildren)
            else None
        )
        made.read(3, request, error=0 if result else NO_NODE, result=result)
        made.zxid += 1
        made.read(2, Exists(A))
        return made

    case.__name__ = f"gone_from_{type(request).__name__}"
    return case


def missing_and_made_by_another() -> Book:
    made = ephemeral("lives")
    made.zxid += 1
    made.read(3, Exists(B), error=0, result=OWNED._replace(czxid=made.zxid, owner=3))
    made.read(2, Exists(A))
    return made


def missing_after_a_refused_delete() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B, 5))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


def missing_before_the_delete() -> Book:
    made = ephemeral("lives")
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.write(3, Delete(B))
    made.read(2, Exists(A))
    return made


def missing_from_a_multi() -> Book:
    made = new_book()
    made.write(2, Multi((SetData(A, b"1"), Create(B, b"", ephemeral=True))))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


def missing_after_a_refused_multi() -> Book:
    made = ephemeral("lives")
    made.write(3, Multi((Delete(B), Check(A, 9))))
    made.read(3, Exists(B), error=NO_NODE, result=None)
    made.read(2, Exists(A))
    return made


BAD_EPHEMERALS: list[Case] = [
    missing_after_a_refused_multi,
    exists_after_the_closing,
    read_after_the_closing,
    exists_after_the_expiry,
    made_after_the_closing,
    answered_after_the_closing,
    answered_after_the_expiry,
    missing_in(Exists(B)),
    missing_in(GetData(B)),
    missing_in(GetChildren(ROOT)),
    missing_and_made_by_another,
    missing_after_a_refused_delete,
    missing_before_the_delete,
    missing_from_a_multi,
    exists_without_an_owner,
    made_again_in_a_multi_without_an_owner,
]


def exists_on_a_server_that_is_behind() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B), made.zxid - 1)
    return made


def read_after_the_expiry_on_a_server_that_is_behind() -> Book:
    made = ephemeral("expired")
    made.read(3, Exists(B), made.zxid - 1)
    made.other(4, Sync(ROOT))
    made.read(4, Exists(B))
    return made


def deleted_by_another() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B))
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def deleted_by_an_unknown_write() -> Book:
    made = ephemeral("lives")
    made.write(3, Delete(B), is_answered=False)
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def deleted_with_its_session() -> Book:
    made = ephemeral("closed")
    made.read(3, Exists(B))
    made.read(3, GetChildren(ROOT))
    return made


def made_and_deleted_in_a_multi() -> Book:
    made = new_book()
    made.write(2, Multi((Create(B, b"", ephemeral=True), Delete(B))))
    made.read(3, Exists(B))
    made.read(2, Exists(A))
    return made


def made_deleted_and_made_persistent_in_a_multi() -> Book:
    made = new_book()
    made.write(2, Multi((Create(B, b"", ephemeral=True), Delete(B), Create(B, b""))))
    made.write(2, CloseSession())
    made.read(3, Exists(B))
    made.read(3, GetData(B))
    return made


GOOD_EPHEMERALS: list[Case] = [
    made_and_deleted_in_a_multi,
    made_deleted_and_made_persistent_in_a_multi,
    exists_on_a_server_that_is_behind,
    read_after_the_expiry_on_a_server_that_is_behind,
    deleted_by_another,
    deleted_by_an_unknown_write,
    deleted_with_its_session,
]


@pytest.mark.parametrize("case", BAD_EPHEMERALS, ids=lambda case: case.__name__)
def test_bad_ephemerals_are_refused(case: Case) -> None:
    assert check_ephemerals(case().history)


@pytest.mark.parametrize(
    "case", [*GOOD_EPHEMERALS, *GOOD_ZXIDS, *GOOD_WATCHES], ids=lambda case: case.__name__
)
def test_good_ephemerals_are_accepted(case: Case) -> None:
    assert check_ephemerals(case().history) == []

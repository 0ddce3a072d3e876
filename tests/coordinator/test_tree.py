"""The znode tree against a small model.

If these fail, clients get other versions, children, sequence numbers or error codes than from ZooKeeper, or a
refused multi leaves changes behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.protocol.jute import Acl, Id
from cluster.coordinator.protocol.replies import Event
from cluster.coordinator.protocol.requests import (
    EPHEMERAL,
    SEQUENTIAL,
    Check,
    Create,
    Delete,
    Op,
    SetAcl,
    SetData,
)
from cluster.coordinator.state.acl import ALL, OPEN, READ, READ_ONLY
from cluster.coordinator.state.tree import (
    CONFIG,
    ROOT,
    SPECIAL_PATHS,
    Context,
    Effects,
    Tree,
    parent_of,
    validate_path,
)

NAMES = ("a", "b", "c")
PATHS = [f"/{x}" for x in NAMES] + [f"/{x}/{y}" for x in NAMES for y in NAMES] + ["/a/b/c", ROOT]
Operation = Create | Delete | SetData | SetAcl | Check
# Each of them permits everything to everyone.
ACLS = [
    OPEN,
    (*OPEN, Acl(READ, Id("ip", "127.0.0.1"))),
    (*OPEN, Acl(ALL, Id("digest", "ann:x"))),
]


@dataclass(frozen=True)
class ModelNode:
    """A znode as ZooKeeper's documentation describes it, with plain counters."""

    data: bytes | None
    acl: tuple[Acl, ...] = OPEN
    version: int = 0
    acl_version: int = 0
    created: int = 0
    deleted: int = 0
    owner: int = 0
    czxid: int = 0
    mzxid: int = 0
    pzxid: int = 0


Model = dict[str, ModelNode]


def children_of(model: Model, path: str) -> set[str]:
    return {other for other in model if other != ROOT and parent_of(other) == path}


def model_apply(model: Model, operation: Operation, zxid: int, session: int) -> Code:
    """Changes the model, or returns the error code."""
    assert operation.path is not None
    node = model.get(operation.path)
    if isinstance(operation, Create):
        parent_path = parent_of(operation.path)
        parent = model.get(parent_path)
        path = operation.path
        if parent is None:
            return Code.NO_NODE
        if operation.flags & SEQUENTIAL:
            path += f"{parent.created:010}"
        if path in model:
            return Code.NODE_EXISTS
        if parent.owner:
            return Code.NO_CHILDREN_FOR_EPHEMERALS
        owner = session if operation.flags & EPHEMERAL else 0
        acl = tuple(operation.acl)
        model[path] = ModelNode(operation.data, acl, owner=owner, czxid=zxid, mzxid=zxid, pzxid=zxid)
        model[parent_path] = replace(parent, created=parent.created + 1, pzxid=zxid)
        return Code.OK
    if isinstance(operation, Delete) and operation.path in SPECIAL_PATHS:
        return Code.BAD_ARGUMENTS
    if node is None:
        return Code.NO_NODE
    version = node.acl_version if isinstance(operation, SetAcl) else node.version
    if operation.version not in (-1, version):
        return Code.BAD_VERSION
    if isinstance(operation, Delete):
        if children_of(model, operation.path):
            return Code.NOT_EMPTY
        del model[operation.path]
        parent_path = parent_of(operation.path)
        parent = model[parent_path]
        model[parent_path] = replace(parent, deleted=parent.deleted + 1, pzxid=zxid)
    elif isinstance(operation, SetData):
        model[operation.path] = replace(node, data=operation.data, version=node.version + 1, mzxid=zxid)
    elif isinstance(operation, SetAcl):
        acl = tuple(operation.acl)
        model[operation.path] = replace(node, acl=acl, acl_version=node.acl_version + 1)
    return Code.OK


def tree_apply(tree: Tree, operation: Operation, context: Context, effects: Effects) -> None:
    if isinstance(operation, Create):
        tree.create(operation, context, effects)
    elif isinstance(operation, Delete):
        tree.delete(operation, context, effects)
    elif isinstance(operation, SetData):
        tree.set_data(operation, context, effects)
    elif isinstance(operation, SetAcl):
        tree.set_acl(operation, context, effects)
    else:
        tree.check(operation, context)


paths = st.sampled_from(PATHS)
versions = st.sampled_from([-1, -1, 0, 1, 2])
data = st.one_of(st.none(), st.binary(max_size=3))
flags = st.sampled_from([0, 0, EPHEMERAL, SEQUENTIAL, EPHEMERAL | SEQUENTIAL])
# A new list each time, because a client's requests do not share lists.
acls = st.sampled_from(ACLS).map(list)
operations = st.one_of(
    st.builds(Create, paths, data, acls, flags, st.just(Op.CREATE), st.just(-1)),
    st.builds(Delete, paths, versions),
    st.builds(SetData, paths, data, versions),
    st.builds(SetAcl, paths, acls, versions),
    st.builds(Check, paths, versions),
)


class TreeAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()
        self.model: Model = {path: ModelNode(b"") for path in SPECIAL_PATHS}
        self.model[CONFIG] = ModelNode(b"", READ_ONLY, acl_version=-1)
        self.zxid = 0

    def context(self, session: int) -> Context:
        self.zxid += 1
        return Context(self.zxid, self.zxid * 10, session, ())

    @rule(operation=operations, session=st.sampled_from([1, 2]))
    def one(self, operation: Operation, session: int) -> None:
        context, effects = self.context(session), Effects()
        expected = model_apply(self.model, operation, context.zxid, session)
        if isinstance(operation, Create) and operation.path == ROOT and operation.flags & SEQUENTIAL == 0:
            expected = Code.NODE_EXISTS
        try:
            tree_apply(self.tree, operation, context, effects)
            code = Code.OK
        except ZooKeeperError as error:
            code = error.code
        assert code is expected
        assert len(effects.changes) == (code is Code.OK and not isinstance(operation, Check | SetAcl))

    @rule(batch=st.lists(operations, min_size=1, max_size=6), session=st.sampled_from([1, 2]))
    def multi(self, batch: list[Operation], session: int) -> None:
        context, effects = self.context(session), Effects()
        attempt = dict(self.model)
        expected = [model_apply(attempt, operation, context.zxid, session) for operation in batch]
        failed = next((i for i, code in enumerate(expected) if code is not Code.OK), None)
        refused: tuple[int, Code] | None = None
        for position, operation in enumerate(batch):
            try:
                tree_apply(self.tree, operation, context, effects)
            except ZooKeeperError as error:
                refused = (position, error.code)
                effects.roll_back()
                break
        if refused is None:
            assert failed is None
            self.model = attempt
        else:
            assert refused == (failed, expected[refused[0]])
            assert effects.changes == []

    @rule(session=st.sampled_from([1, 2]))
    def end_session(self, session: int) -> None:
        context, effects = self.context(session), Effects()
        ephemerals = sorted(path for path, node in self.model.items() if node.owner == session)
        self.tree.delete_ephemerals(session, context.zxid, effects)
        for path in ephemerals:
            assert model_apply(self.model, Delete(path, -1), context.zxid, session) is Code.OK
        assert [change[:2] for change in effects.changes] == [(Event.DELETED, path) for path in ephemerals]

    @rule()
    def restore(self) -> None:
        self.tree = Tree.restore(self.tree.export())

    @invariant()
    def same(self) -> None:
        assert len(self.tree) == len(self.model)
        sizes = (len(path) + len(node.data or b"") for path, node in self.model.items())
        assert self.tree.data_size() == sum(sizes)
        for path, expected in self.model.items():
            node = self.tree.node(path)
            stat = node.stat()
            assert (node.state.data, node.state.acl) == (expected.data, expected.acl)
            assert (stat.version, stat.ephemeral_owner) == (expected.version, expected.owner)
            assert stat.aversion == expected.acl_version
            assert (stat.czxid, stat.mzxid, stat.pzxid) == (expected.czxid, expected.mzxid, expected.pzxid)
            below = {name.rpartition("/")[2] for name in children_of(self.model, path)}
            assert (node.children or set()) == below
            assert stat.num_children == len(below)
            if path not in SPECIAL_PATHS:
                assert stat.cversion == expected.created + expected.deleted
        states = [state for _path, state in self.tree.export()]
        assert len({id(state.acl) for state in states}) == len({state.acl for state in states})
        assert self.tree.acl_count() == len({state.acl for state in states} - {OPEN})
        assert self.tree.owners() == {node.owner for node in self.model.values() if node.owner}


TestTreeAgainstModel = TreeAgainstModel.TestCase
TestTreeAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "a/b",
        "/a/",
        "//",
        "/a//b",
        "/.",
        "/a/..",
        "/a/./b",
        "/\0",
        "/a\x1f",
        "/\x7f",
        "/\uf000",
        "/\uffff",
        "/\U0001f600",
    ],
)
def test_bad_paths_are_refused(path: str) -> None:
    with pytest.raises(ZooKeeperError) as caught:
        validate_path(path)
    assert caught.value.code is Code.BAD_ARGUMENTS


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/...", "/.a", "/a.", "/ä/日本", "/a b", "/a\u00a0"])
def test_good_paths_are_accepted(path: str) -> None:
    validate_path(path)


def test_a_sequential_child_may_have_only_its_number_for_a_name() -> None:
    tree, effects = Tree(), Effects()
    create = Create("/", b"", list(OPEN), SEQUENTIAL)
    # The root's counter is 0: no request has created the nodes that every tree starts with.
    assert tree.create(create, Context(1, 0, 1, ()), effects) == "/0000000000"


def test_unknown_create_flags_are_refused() -> None:
    with pytest.raises(ZooKeeperError) as caught:
        Tree().create(Create("/a", b"", list(OPEN), 7), Context(1, 0, 1, ()), Effects())
    assert caught.value.code is Code.BAD_ARGUMENTS


def test_restore_refuses_orphans_and_an_incomplete_root() -> None:
    nodes = Tree().export()
    orphan = [*nodes, ("/x/y", nodes[0][1])]
    with pytest.raises(ValueError, match="parent"):
        Tree.restore(orphan)
    with pytest.raises(ValueError, match="missing"):
        Tree.restore([(path, state) for path, state in nodes if path != "/zookeeper/config"])

#!/usr/bin/env python3
"""Fails when modules of a Rust crate import each other in a circle.

The rule is import-linter's for Python (`acyclic_siblings`). The nodes are the modules of one folder, each
with everything below it. A parent and its own children may use each other. Tests are left out: files named
`tests.rs` or `*_tests.rs`, folders `tests`, and modules under `#[cfg(test)]`.

Reads the sources as text: `use` declarations and paths that begin with `crate::`, `super::` or `self::`.
Re-exports are followed.

usage: tools/rust_circles.py [CRATE_DIRECTORY ...]     (default: every crate of the workspace)
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\.[^']*|[^'\\])'""", re.S | re.X
)
TEST_MODULE = re.compile(
    r"#\[cfg\((?:test|all\(test[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])"
)
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
INLINE = re.compile(r"\b(?:crate|super|self)(?:\s*::\s*\w+)+")

Module = tuple[str, ...]


def sources(crate: Path) -> dict[Module, str]:
    """The text of each module's file, by the module's path, without comments, strings and tests."""
    texts: dict[Module, str] = {}
    tests: set[Module] = set()
    for file in sorted((crate / "src").rglob("*.rs")):
        parts = list(file.relative_to(crate / "src").with_suffix("").parts)
        if any(part == "tests" or part.endswith("_tests") for part in parts):
            continue
        if parts[-1] in ("lib", "main", "mod"):
            parts.pop()
        text = NOISE.sub(" ", file.read_text())
        module = tuple(parts)
        while found := TEST_MODULE.search(text):
            end = found.end()
            if found[2] == "{":
                end = closing_brace(text, end)
            else:
                tests.add((*module, found[1]))
            text = text[: found.start()] + text[end:]
        texts[module] = text
    return {
        module: text
        for module, text in texts.items()
        if not any(module[: len(test)] == test for test in tests)
    }


def closing_brace(text: str, begin: int) -> int:
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)


def expand(tree: str) -> list[tuple[str, str]]:
    """The paths of a `use` tree, each with the name that it has from then on."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, name = tree.partition(" as ")
        path = re.sub(r"\s", "", path)
        return [(path, name.strip() or path.rsplit("::", 1)[-1])]
    head, _, rest = tree.partition("{")
    head = re.sub(r"\s", "", head)
    inner = rest[: closing_brace(rest, 0) - 1]
    items, depth, item = [], 0, ""
    for character in inner + ",":
        if character == "," and depth == 0:
            items.append(item)
            item = ""
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        item += character
    paths = []
    for item in filter(str.strip, items):
        for path, name in expand(item):
            path = head.removesuffix("::") if path == "self" else head + path
            paths.append((path, head.removesuffix("::").rsplit("::", 1)[-1] if name == "self" else name))
    return paths


def absolute(module: Module, path: str, modules: dict[Module, str]) -> Module | None:
    """The path from the crate's root; none for what another crate has."""
    parts = [part.strip() for part in path.split("::")]
    if parts[0] == "crate":
        return tuple(parts[1:])
    base = module
    if parts[0] == "self":
        return (*base, *parts[1:])
    if parts[0] == "super":
        while parts and parts[0] == "super":
            base, parts = base[:-1], parts[1:]
        return (*base, *parts)
    return (*base, *parts) if (*base, parts[0]) in modules else None


class Crate:
    def __init__(self, directory: Path) -> None:
        self.texts = sources(directory)
        self.exports: dict[Module, Module] = {}
        self.uses: dict[Module, set[Module]] = defaultdict(set)
        for module, text in self.texts.items():
            for public, tree in USE.findall(text):
                for path, name in expand(tree):
                    target = absolute(module, path, self.texts)
                    if target is None:
                        continue
                    if public and name != "*":
                        self.exports[(*module, name)] = target
                    else:
                        self.uses[module].add(target)
            for path in INLINE.findall(USE.sub(" ", text)):
                target = absolute(module, path, self.texts)
                if target is not None:
                    self.uses[module].add(target)

    def owner(self, path: Module) -> Module:
        """The module in whose file the path's item is written."""
        for _ in range(10):
            for length in range(1, len(path) + 1):
                if path[:length] in self.exports and path[:length] not in self.texts:
                    path = self.exports[path[:length]] + path[length:]
                    break
            else:
                break
        while path and path not in self.texts:
            path = path[:-1]
        return path

    def circles(self) -> list[tuple[Module, list[str], list[str]]]:
        """Each circle: its folder, the modules in it, and an example of each import that closes it."""
        edges: dict[Module, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for module, targets in self.uses.items():
            for target in sorted(targets):
                owner = self.owner(target)
                common = 0
                while common < min(len(module), len(owner)) and module[common] == owner[common]:
                    common += 1
                if common < len(module) and common < len(owner):
                    example = f"{'::'.join(module)} uses {'::'.join(target)}"
                    edges[module[:common]][module[common]].setdefault(owner[common], example)
        found = []
        for folder, graph in sorted(edges.items()):
            for circle in strongly_connected(graph):
                inside = [graph[a][b] for a in circle for b in graph[a] if b in circle]
                found.append((folder, circle, inside))
        return found


def strongly_connected(graph: dict[str, dict[str, str]]) -> list[list[str]]:
    """Sets of two or more nodes that all reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for node in graph.get(todo.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
        return seen

    reach = {node: reached(node) for node in list(graph)}
    circles, done = [], set()
    for node in sorted(reach):
        if node in done or node not in reach[node]:
            continue
        circle = sorted(other for other in reach[node] if node in reach.get(other, ()))
        done.update(circle)
        circles.append(circle)
    return circles


def main() -> int:
    directories = [Path(argument) for argument in sys.argv[1:]]
    directories = directories or [ROOT / "rust", *sorted((ROOT / "rust/crates").iterdir())]
    failed = False
    for directory in directories:
        for folder, circle, imports in Crate(directory).circles():
            failed = True
            where = "::".join(("crate", *folder))
            print(
                f"{directory.name}: {len(circle)} modules of {where} import each other in a circle: "
                f"{', '.join(circle)}"
            )
            for line in imports:
                print(f"    {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Code is written in the field's terms: words of our own are gone, each constant has its line."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: A word that is gone, in names and in prose, and the field's term for it.
GONE = {
    "sip": "keep-alive bytes",
    "sips": "keep-alive bytes",
    "upkeep": "keep-alive budget",
    "barren": "a source without useful bytes",
    "scanty": "short answer",
    "jury": "vote",
    "testify": "vote",
    "testifies": "votes",
    "take in": "report, add",
    "takes in": "reports, adds",
    "taken in": "reported, added",
    "bring ahead": "leave the background",
    "in earnest": "established",
    "broke off": "connection lost",
    "hardly": "a number, or 'rarely'",
}
#: Gone from prose alone: the subject of a sentence has a name.
VAGUE = {
    "anybody": "client, visitor, operator, attacker",
    "everybody": "all clients, all visitors",
    "nobody": "no client, no visitor",
    "somebody": "a client, a visitor",
    "whoever": "a client that",
    "so many": "how many",
    "the former": "its name",
    "the latter": "its name",
}
#: Gone from names alone: as verbs of a sentence they are plain English.
NAMES = {"said": "a past participle of what happened", "hear": "handle", "heard": "received"}


def room(name: str) -> str:
    """The folder that a module belongs to, two steps deep at most."""
    parts = name.split("/")[:-1]
    return "/".join(parts[:2])


def words(name: str) -> str:
    """An identifier as words: `bring_ahead` and `BringAhead` are both "bring ahead"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name).strip().lower()


def prose(source: str, tree: ast.Module) -> Iterator[str]:
    """All docstrings of a module, and its comments, each run of lines as one text."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield " ".join(text.split())
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("#: "))
            last = token.start[0]
    yield " ".join(lines)


def identifiers(tree: ast.Module) -> set[str]:
    """All names that a module defines: functions, classes, arguments, attributes, variables."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def faults(source: str) -> list[str]:
    """What a module says in words that are gone, and its constants that share a line."""
    found = []
    tree = ast.parse(source)
    unnamed = _any(GONE | NAMES)
    vague = _any(GONE | VAGUE)
    for name in sorted(identifiers(tree)):
        if hit := unnamed.search(words(name)):
            found.append(f"name {name}: {(GONE | NAMES)[hit[0]]}")
    for text in prose(source, tree):
        for hit in vague.finditer(text.lower()):
            around = text[max(0, hit.start() - 30) : hit.end() + 30]
            found.append(f"“{around}”: {(GONE | VAGUE)[hit[0]]}")
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)]):
                if all(isinstance(name, ast.Name) and name.id.isupper() for name in names):
                    found.append(f"line {node.lineno}: one constant a line")
    return found


def _any(table: dict[str, str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(table) + r")\b")


def _modules() -> dict[str, list[Path]]:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    rooms: dict[str, list[Path]] = {}
    for name in tracked:
        if name and not name.startswith("tests/") and (ROOT / name).exists():
            rooms.setdefault(room(name), []).append(ROOT / name)
    return rooms


def test_the_rules_find_what_they_name() -> None:
    source = (
        "A, B = 1, 2\n"
        "def bring_ahead(said: int) -> None:\n"
        '    """Nobody\n    waits so many seconds."""\n'
        "# In earnest, a sip.\n"
    )
    assert len(faults(source)) == 7
    assert not faults('TOLD = "x"\ndef hearing() -> None:\n    """The client said so."""\n')


@pytest.mark.parametrize("name", sorted(_modules()))
def test_a_room_is_written_in_the_terms_of_its_field(name: str) -> None:
    bad = {
        str(path.relative_to(ROOT)): found
        for path in _modules().get(name, [])
        if (found := faults(path.read_text("utf-8")))
    }
    assert bad == {}

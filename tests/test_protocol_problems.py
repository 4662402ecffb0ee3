"""Problem documents: every code that the source can send stands in the one table, and is served."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.policies.contract import Reason
from tidegate.protocol import problems
from tidegate.server.control.problems import Problem

ROOT = Path(__file__).parent.parent
#: Codes that never leave the process: they end in an exit status or a log line.
INTERNAL = {"too-old", "visitor-forged"}
#: Erasure codes, which are named by a keyword of the same name.
INTERNAL |= {"xor"}


def codes_in(tree: ast.AST) -> Iterator[str]:
    """The literal codes of a module: second argument of refuse(), `code=` and `code = `."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if getattr(node.func, "attr", "") in ("refuse", "document") and len(node.args) > 1:
                yield from _literals(node.args[1])
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from _literals(keyword.value)
        elif isinstance(node, ast.Assign):
            if any(getattr(target, "id", "") == "code" for target in node.targets):
                yield from _literals(node.value)
        elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "code":
            yield from _literals(node)


def _literals(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        value = getattr(part, "value", None)
        if isinstance(value, str) and value.replace("-", "").isalpha():
            yield value


def sent_codes() -> set[str]:
    found = {str(reason) for reason in Reason}
    found |= {Problem(status, "").code for status in (400, 401, 403, 404, 405, 409, 415)}
    found |= {Problem(status, "").code for status in (422, 428, 429, 500, 503)}
    for folder in ("server", "protocol"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "problems.py":
                found |= set(codes_in(ast.parse(path.read_text("utf-8"))))
    return found - INTERNAL


def test_every_code_that_can_be_sent_is_explained_and_no_other() -> None:
    assert sent_codes() == set(problems.PROBLEMS)


def test_the_protocol_names_every_code() -> None:
    text = (ROOT / "PROTOCOL.md").read_text("utf-8")
    assert [code for code in problems.PROBLEMS if f"`{code}`" not in text] == []


def test_a_document_leads_to_its_explanation() -> None:
    found = json.loads(problems.document(503, "waiting", "You are number 3.", place=3))
    assert found["place"] == 3
    assert found["title"] == "Service Unavailable"
    code = found["type"].removeprefix(problems.BASE)
    explained = problems.explanation(code)
    assert explained is not None
    assert "Come back" in explained


@pytest.mark.parametrize("code", ["nothing", "../x", "<b>", "waiting "])
def test_an_unknown_code_explains_nothing(code: str) -> None:
    assert problems.explanation(code) is None


def test_all_are_explained_on_one_page() -> None:
    page = problems.explanation()
    assert page is not None
    assert all(f'id="{code}"' in page for code in problems.PROBLEMS)

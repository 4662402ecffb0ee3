"""The documents tell the truth: links lead somewhere, locks fit, no machine shows through."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from tidegate.client.cli.completion import manual_page
from tidegate.commands import cli
from tidegate.server.control.history import SERIES

ROOT = Path(__file__).parent.parent
TRACKED = subprocess.run(
    ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split("\0")
REASONS = "docs/decisions/dependencies.md"
DOCUMENTS = [name for name in TRACKED if name.endswith(".md") and (ROOT / name).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_within_the_repository_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            page = (ROOT / name).parent / target if target else ROOT / name
            assert page.exists(), target
            if heading:
                lines = re.findall(r"(?m)^#+ (.+)$", page.read_text("utf-8"))
                names = [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines]
                assert heading in names, f"{target}#{heading}"


def test_every_document_has_its_place_in_the_site() -> None:
    index = ROOT / "docs/site/index.md"
    listed = re.findall(r"^(\.\./[^\s`]+)$", index.read_text("utf-8"), re.MULTILINE)
    pages = [(index.parent / f"{page}.md").resolve() for page in listed]
    shown = {ROOT / name for name in DOCUMENTS if not name.startswith("tests/")} - {index}
    assert len(pages) == len(set(pages))
    assert set(pages) == shown


def test_every_dependency_stands_in_the_lock_and_says_why_it_is_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {"run": project["dependencies"], "docs": extras.pop("docs")}
    wanted["test"] = [pin for pins in extras.values() for pin in pins]
    wanted["server"] = extras["postgres"] + extras["peers"] + extras["oidc"]
    wanted["load"] = extras["loadtest"]
    reasons = (ROOT / REASONS).read_text("utf-8").lower()
    for lock, pins in wanted.items():
        locked = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8").lower()
        for pin in pins:
            name, _, rest = re.sub(r"\[.*?\]", "", pin).lower().partition(">=")
            assert rest, f"{pin} has no lower bound"
            version = rest.partition(";")[0].strip()
            # A lock spells names as the package index does.
            found = re.search(rf"^{name.replace('.', '-')}==([\w.]+)", locked, re.MULTILINE)
            assert found, f"{pin}: run `make lock`"
            assert Version(found[1]) >= Version(version), f"{pin}: run `make lock`"
            assert f"`{name}`" in reasons, f"{pin}: {REASONS} does not say why"


def test_no_file_names_a_private_place() -> None:
    """Paths of one machine and hosts of one network mean nothing to a reader."""
    private = re.compile(rb"/" + rb"(work|wt)/|files\.python" + rb"hosted|registry\.npm" + rb"js")
    for name in TRACKED:
        path = ROOT / name
        if name and path.is_file():
            assert not private.search(path.read_bytes()), name


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for name in DOCUMENTS:
        for target in re.findall(r"`make ([a-z][\w-]*)", (ROOT / name).read_text("utf-8")):
            assert target in targets, f"{name} names `make {target}`"


def test_every_series_of_the_charts_stands_in_the_manual() -> None:
    manual = (ROOT / "docs/admin.md").read_text("utf-8")
    assert [name for name in SERIES if f"`{name}`" not in manual] == []


def test_every_page_of_the_administration_stands_in_the_manual() -> None:
    """Each of the navigation, with its own row, in the same order."""
    base = (ROOT / "templates/admin/base.html").read_text("utf-8")
    manual = (ROOT / "docs/admin.md").read_text("utf-8")
    pages = re.findall(r'\("/[a-z]*", "([A-Z][a-z ]+)"\)', base)
    table = manual.partition("| page | what it is for |\n|---|---|\n")[2].partition("\n\n")[0]
    assert len(pages) > 5
    assert re.findall(r"^\| ([\w ]+) \|", table, re.MULTILINE) == pages


def test_every_address_beside_the_files_stands_in_a_document() -> None:
    names = [name for name in TRACKED if name.startswith("docs/") and name.endswith(".md")]
    told = "".join((ROOT / name).read_text("utf-8") for name in (*names, "PROTOCOL.md"))
    found: set[str] = set()
    for name in TRACKED:
        if name.startswith("server/") and name.endswith(".py") and (ROOT / name).exists():
            text = (ROOT / name).read_text("utf-8")
            found |= {one.rstrip("/") for one in re.findall(r'"(/-/[a-z/-]+)', text)}
    assert len(found) > 8
    assert sorted(one for one in found if f"{one}`" not in told and f"{one}/" not in told) == []


def test_every_header_field_of_our_own_stands_in_the_protocol() -> None:
    protocol = (ROOT / "PROTOCOL.md").read_text("utf-8")
    names: set[str] = set()
    for name in TRACKED:
        room = name.split("/")[0] in ("server", "client", "protocol")
        if room and name.endswith(".py") and (ROOT / name).exists():
            text = (ROOT / name).read_text("utf-8")
            names |= set(re.findall(r'"(Tidegate-[A-Z][A-Za-z-]+)"', text))
    assert len(names) > 10
    assert sorted(name for name in names if f"`{name}" not in protocol) == []


def test_every_module_stands_in_the_map() -> None:
    """ARCHITECTURE.md names each module in the row of its room, and none that is gone."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([\w/]+)/` \|[^|]*\| (.*) \|$", text, re.MULTILINE))
    rooms: dict[str, set[str]] = {}
    for name in TRACKED:
        path = Path(name)
        apart = name.startswith(("tests/", "templates/", "server/store/migrations/"))
        if path.suffix != ".py" or len(path.parts) == 1 or apart or path.stem == "__init__":
            continue
        if (ROOT / path).exists():
            rooms.setdefault(str(path.parent), set()).add(path.stem)
    assert {room: set(re.findall(r"`(\w+)`", row)) for room, row in rows.items()} == rooms
    assert len(text.split()) <= 1850


@pytest.mark.parametrize("name", [n for n in TRACKED if n.endswith(".md")])
def test_every_test_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        source = (ROOT / file).read_text("utf-8")
        assert not test or re.search(rf"^def {test}\(", source, re.MULTILINE), (file, test)


def test_every_pair_of_twins_names_the_test_that_holds_it_together() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    table = text.partition("| pair | test that holds it together |\n|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"\| `tests/\w+\.py::test_\w+` \|$", row)] == []
    told = set(re.findall(r"`tests/(test_twins_\w+)\.py", table))
    assert told == {path.stem for path in (ROOT / "tests").glob("test_twins_*.py")}


def test_every_fault_of_the_operators_table_names_the_test_that_injects_it() -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = text.partition("| test |\n|---|---|---|---|---|\n")[2].partition("\n\n")[0]
    rows = table.splitlines()
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`tests/\w+\.py::test_\w+` \|$", row)] == []


#: What readers of technical English stumble over; CONTRIBUTING.md has the rule.
STUMBLED_OVER = re.compile(r"\b(?:whoever|as\s+ever|for\s+want\s+of)\b", re.IGNORECASE)
#: "Who comes late waits." A question, a heading and a quotation are no such sentence.
WHO_FIRST = re.compile(r"(?:^|[.:;!?]\s|[|>*-] ?)(Who\s[^.:;!?<|]*[.:;|])", re.MULTILINE)


def _stumbles(text: str) -> list[str]:
    return STUMBLED_OVER.findall(text) + WHO_FIRST.findall(text)


def test_documents_pages_and_help_are_in_plain_english() -> None:
    assert len(_stumbles("On as\never. Who asks\nlate waits. - **Who floods:** x |Who is up|")) == 4
    assert not _stumbles('## Who waits\n\nAs everybody. Who is it? It was ever (see "Who waits").')
    pages = re.compile(r"templates/(?!vendor|static).*\.(html|xml)|docs/(?!pictures).*\.html")
    names = [n for n in TRACKED if pages.fullmatch(n) and (ROOT / n).exists()] + DOCUMENTS
    names.remove("CHANGELOG.md")  # What was published stays as it was.
    texts = {name: (ROOT / name).read_text("utf-8") for name in names}
    texts["--help"] = manual_page(cli, "tidegate")
    assert {name: bad for name, text in texts.items() if (bad := _stumbles(text))} == {}


#: In code "Who leads" may head a comment, like the name of a list; it is no subject further on.
WHO_LATER = re.compile(r"[.!?]\s+(Who\s[^.:;!?]*[.:;])")


#: What none of it is without.
ROUGHLY = re.compile(r"hoever|s\s+ever\b|s$\W+ever\b|want\s+of|want$|Who\s", re.MULTILINE)


def _prose(source: str) -> Iterator[str]:
    """The docstrings of a module, and its comments, each run of lines as one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    lines, last = [""], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield "\n".join(lines)
                lines = []
            lines.append(token.string.lstrip("#: "))
            last = token.start[0]
    yield "\n".join(lines)


def test_comments_and_docstrings_are_in_plain_english() -> None:
    source = (
        '"""As\never. Who\ncame waits."""\nx = 1  # For want\ny = 2\n# Whoever\n#: for want\n# of x'
    )
    found = [STUMBLED_OVER.findall(text) + WHO_LATER.findall(text) for text in _prose(source)]
    assert sum(map(len, found)) == 4
    names = [name for name in TRACKED if name.endswith(".py") and (ROOT / name).exists()]
    names.remove("tests/test_docs.py")
    bad: dict[str, list[str]] = {}
    for name in names:
        source = (ROOT / name).read_text("utf-8")
        # Most have none of the words at all, and need not be parsed.
        for text in _prose(source) if ROUGHLY.search(source) else ():
            if stumbles := STUMBLED_OVER.findall(text) + WHO_LATER.findall(text):
                bad.setdefault(name, []).extend(stumbles)
    assert bad == {}

"""The walls of DESIGN: who may import whom, checked on the real import graph."""

from __future__ import annotations

import ast
import contextlib
import functools
import graphlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import PYTHON

ROOT = Path(__file__).parent.parent


def named_checkout() -> Path:
    """The folder in which the checkout is named `tidegate`, as in the Makefile."""
    link = ROOT / "build" / "typed" / "tidegate"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to("../..")
    return link.parent


def test_import_contracts_hold() -> None:
    """The contracts of setup.cfg, as `make layers` runs them."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
            "--config",
            str(ROOT / "setup.cfg"),
        ],
        cwd=named_checkout(),
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


#: What is ours and no test: the rooms of the product and its benchmarks.
PRODUCT = ("policies", "protocol", "server", "client", "loadtest")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Each module of the product and what it imports, for types too."""
    program = (
        "import grimp, json\n"
        "graph = grimp.build_graph('tidegate', 'bench', exclude_type_checking_imports=False,"
        " cache_dir=None)\n"
        "print(json.dumps({m: sorted(graph.find_modules_directly_imported_by(m))"
        " for m in graph.modules}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=named_checkout(),
        env={"PYTHONPATH": f"{named_checkout()}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    rooms = tuple(f"tidegate.{room}" for room in PRODUCT)
    imports = json.loads(found.stdout)
    return {m: set(names) for m, names in imports.items() if m.startswith((*rooms, "bench"))}


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    """Not for types either: who reads one of a circle must read all of it."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


@functools.cache
def classes() -> list[tuple[str, ast.ClassDef, dict[str, str]]]:
    """Each class of the product: its module, itself, and where the names of the module are from."""
    all_of_them = []
    for package in (*PRODUCT, "bench"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = module if package == "bench" else f"tidegate.{module}"
            nodes = list(ast.walk(ast.parse(path.read_text())))
            found = [node for node in nodes if isinstance(node, ast.ClassDef)]
            names = {node.name: f"{module}.{node.name}" for node in found}
            for node in nodes:
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        source = importlib.util.resolve_name(
                            "." * node.level + (node.module or ""), module.rpartition(".")[0]
                        )
                        names[alias.asname or alias.name] = f"{source}.{alias.name}"
            all_of_them += [(module, node, names) for node in found]
    return all_of_them


def test_no_class_has_a_grandparent_of_ours() -> None:
    """What a framework gives (and an interface asks for) does not count."""
    parents: dict[str, list[str]] = {}
    for module, node, names in classes():
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        words = [ast.unparse(base).split(".") for base in bases]
        known = [".".join([names.get(first, first), *rest]) for first, *rest in words]
        if "typing.Protocol" not in known:
            parents[f"{module}.{node.name}"] = known
    assert len(parents) > 700
    deep = [
        f"{name} -> {parent} -> {grandparent}"
        for name, known in parents.items()
        for parent in known
        for grandparent in parents.get(parent, ())
        # A document's shape is Pydantic's model with our settings: a framework's class, too.
        if grandparent in parents and grandparent != "tidegate.server.admin.shapes.Shape"
    ]
    assert deep == []


def test_a_class_name_means_one_thing() -> None:
    """Two classes of one name are either one concept with two homes, or hard to tell apart."""
    homes: dict[str, set[str]] = {}
    for module, node, _ in classes():
        homes.setdefault(node.name, set()).add(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_the_command_line_loads_only_the_room_it_needs() -> None:
    """`tidegate --help` and `tidegate get` pay neither for the database nor for the server."""
    probe = (
        "import sys, click.testing, tidegate.commands\n"
        "r = click.testing.CliRunner().invoke(tidegate.commands.cli, ['get', '--help'])\n"
        "assert r.exit_code == 0, r.output\n"
        "rooms = {f'tidegate.{room}' for room in ('server', 'loadtest', 'policies')}\n"
        "bad = {'sqlalchemy', *rooms} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    result = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_server_loads_nothing_that_a_setting_or_a_request_switches_on() -> None:
    """Each costs every server some of its start and its memory."""
    probe = (
        "import importlib, sys\n"
        "from tests.fork_server import LOADED\n"
        "for name in LOADED:\n"
        "    importlib.import_module(name)\n"
        "bad = set(sys.argv[1:]) & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    switched_on = [
        "OpenSSL",
        "alembic",
        "babel",
        "backports.zstd",
        "tidegate.client",
        "cryptography",
        "difflib",
        "tidegate.loadtest",
        "markdown_it",
        "numpy",
        "prometheus_client",
        "psycopg",
        "raptorq",
        "rich",
        "segno",
        "tidegate.server.app.machine",
        "tidegate.server.app.node_service",
        "tidegate.server.mirror.repository",
        "tidegate.server.multicast.service",
        "tidegate.server.torrent.room",
        "sqlalchemy.dialects.postgresql",
        "tuf",
        "xml",
    ]
    result = subprocess.run(
        [PYTHON, "-c", probe, *switched_on],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_only_the_gate_and_its_leases_tell_a_policy_something() -> None:
    """Others may ask it; what it consists of is for its own room."""
    tells = (
        *("offer", "release", "detach", "progress", "observe", "advance", "restore", "close"),
        *("present", "absent", "withdraw", "promote", "changes", "admit_small"),
        *("queue", "pool", "state", "estimator", "capacity", "laws", "policy"),
    )
    told = re.compile(rf"\bpolicy\.(?:{'|'.join(tells)})\b")
    rooms = [path for path in (ROOT / "server").rglob("*.py") if "admission" not in path.parts]
    found = [
        path.name for path in rooms if told.search(re.sub(r"#.*", "", path.read_text("utf-8")))
    ]
    assert not found
    assert told.search((ROOT / "server" / "admission" / "gate.py").read_text("utf-8"))

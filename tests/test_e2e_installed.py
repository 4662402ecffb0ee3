"""An installation as users make it: the wheel and its requirements, in a fresh environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.installed import APART, PACKAGE, PYTHON, ROOT, TIDEGATE, user_environ, wheel
from tests.running import RunningServer, make_release, serving
from tidegate.commands import COMMANDS
from tidegate.protocol.version import __version__

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
#: Of all that `serve`, `get`, `plan` and `simulate` need, where pip compiles no module: 95 MB.
MOST_INSTALLED_BYTES = 105_000_000


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `bin` of an environment with the wheel and the locked requirements only."""
    folder = tmp_path_factory.mktemp("fresh")
    home = folder / "env"
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    into = ("--python", str(home / "bin" / "python"))
    locked = ("--require-hashes", "-r", ROOT / "requirements" / "run.txt")
    # A tenth of pip's work.
    uv = (sys.executable, "-m", "uv", "pip", "install", "-q", "--link-mode", "copy")
    subprocess.run([*uv, *into, *locked], check=True)
    install = (*pip, *into, "install", "--no-compile")
    # Without --no-deps: pip fails here if the lock lacks a requirement of the wheel.
    subprocess.run([*install, "--no-index", wheel()], check=True)
    return home / "bin"


def run(words: list[str | Path], folder: Path) -> str:
    """What a command prints."""
    done = subprocess.run(
        words, cwd=folder, env=user_environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_a_wheel_puts_one_package_into_site_packages() -> None:
    names = zipfile.ZipFile(wheel()).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"tidegate"}
    assert {"tidegate/__init__.py", "tidegate/__main__.py", "tidegate/py.typed"} <= set(names)
    assert not [name for name in names if "/tests/" in name or "/bench/" in name]


def test_the_wheel_has_each_module_of_the_checkout_and_no_other() -> None:
    with zipfile.ZipFile(wheel()) as packed:
        modules = {name: packed.read(name) for name in packed.namelist() if name.endswith(".py")}
    rooms = ("policies", "protocol", "server", "client", "loadtest", "templates")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    files += [ROOT / "__init__.py", ROOT / "__main__.py", ROOT / "commands.py"]
    assert modules == {f"tidegate/{path.relative_to(ROOT)}": path.read_bytes() for path in files}


#: Asks each command for its help.
HELP = """
import sys, click.testing, tidegate.commands
for words in sys.argv[1:]:
    found = click.testing.CliRunner().invoke(
        tidegate.commands.cli, [*words.split(), "--help"], prog_name="tidegate",
        catch_exceptions=False,
    )
    assert found.output.startswith("Usage: tidegate"), (words, found.output)
"""


def test_every_command_runs_without_what_only_tests_need(fresh: Path, tmp_path: Path) -> None:
    run([fresh / "python", "-c", HELP, *COMMANDS], tmp_path)
    assert run([fresh / "tidegate", "get", "--help"], tmp_path).startswith("Usage: tidegate get")


def test_the_version_says_which_program_this_is(fresh: Path, tmp_path: Path) -> None:
    shown = run([fresh / "tidegate", "--version"], tmp_path)
    assert shown.startswith("tidegate 0.")
    assert "Python {}.{}.{},".format(*sys.version_info) in shown
    assert f"from {fresh.parent}" in shown
    assert run([fresh / "python", "-m", "tidegate", "--version"], tmp_path) == shown


#: Runs the client's own command; Ctrl-C comes while it loads.
INTERRUPTED_ALONE = """
import signal, sys
from importlib.metadata import distribution
def interrupt(event, about):
    if event == "import" and about[0] == "tidegate.client.api":
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(interrupt)
distribution("tidegate-get").entry_points["tidegate-get"].load()()
"""


def test_the_client_alone_downloads_with_four_packages(tmp_path: Path) -> None:
    build = (sys.executable, ROOT / "tools" / "build-get", tmp_path)
    # It took the option for the folder.
    assert "where the wheel is written" in run([*map(str, build[:2]), "--help"], tmp_path)
    assert not any(tmp_path.iterdir())
    subprocess.run(build, check=True, env=user_environ())
    (built,) = tmp_path.glob("tidegate_get-*.whl")
    rooms = {
        name.split("/")[1] for name in zipfile.ZipFile(built).namelist() if "dist-info" not in name
    }
    assert rooms == {"__init__.py", "py.typed", "client", "protocol"}
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    uv = (sys.executable, "-m", "uv", "pip", "install", "-q", "--python", home / "bin" / "python")
    locked = ("--constraints", ROOT / "requirements" / "run.txt")
    subprocess.run([*uv, *locked, f"tidegate-get @ {built.as_uri()}"], check=True)
    installed = (home / "lib").glob("python*/site-packages/*.dist-info")
    names = {path.name.partition("-")[0] for path in installed}
    assert names == {"aiohappyeyeballs", "click", "httptools", "msgspec", "tidegate_get"}
    make_release(tmp_path / "release", tool_iso=3_000_000)
    with serving(tmp_path / "release", tmp_path / "state") as server:
        url, program = f"{server.url}/tool.iso", home / "bin" / "tidegate-get"
        # On a terminal: the package that draws there is an extra.
        assert run([program, "--version"], tmp_path) == f"tidegate {__version__}\n"
        shown = run(["script", "-qec", f"{program} {url}", "/dev/null"], tmp_path)
        assert "tool.iso: 3.0 MB in" in shown
        library = "import sys, tidegate; tidegate.fetch_blocking(sys.argv[1:], 'by-library.iso')"
        run([home / "bin" / "python", "-c", library, url], tmp_path)
        no = subprocess.run(
            [program, "--multicast", "-o", "x", url], cwd=tmp_path, capture_output=True, text=True
        )
    start = (home / "bin" / "python", "-c", INTERRUPTED_ALONE, "http://127.0.0.1:1/x")
    cut = subprocess.run(start, capture_output=True, text=True, check=False)
    assert (cut.returncode, cut.stderr) == (130, "")
    assert (no.returncode, no.stderr) == (
        8,
        "tidegate: --multicast needs the package cryptography\n",
    )
    whole = (tmp_path / "release" / "tool.iso").read_bytes()
    assert (tmp_path / "tool.iso").read_bytes() == whole
    assert (tmp_path / "by-library.iso").read_bytes() == whole


def test_an_installation_is_small(fresh: Path) -> None:
    files = [path for path in fresh.parent.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < MOST_INSTALLED_BYTES


def test_it_serves_and_fetches_and_plans_and_simulates(fresh: Path, tmp_path: Path) -> None:
    make_release(tmp_path / "release", tool_iso=3_000_000)
    with serving(tmp_path / "release", tmp_path / "state", program=fresh / "tidegate") as server:
        run([fresh / "tidegate", "get", "-q", f"{server.url}/tool.iso"], tmp_path)
        headers = {"Accept": "text/html", "Accept-Language": "pl"}
        asked = urllib.request.Request(f"{server.url}/", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as page:
            assert b'<html lang="pl"' in page.read()
    assert (tmp_path / "tool.iso").read_bytes() == (tmp_path / "release/tool.iso").read_bytes()
    words = ("plan", "release", "--bandwidth", "8Mbit", "--visitors", "40", "--within", "10min")
    assert run([fresh / "tidegate", *words], tmp_path)
    words = ("simulate", "run", "--policy", "fair", "--workload", "exp2", "--bandwidth", "2")
    assert json.loads(run([fresh / "tidegate", *words, "--seeds", "1", "--json"], tmp_path))


def test_it_works_beside_a_project_with_modules_of_the_same_names(
    fresh: Path, tmp_path: Path
) -> None:
    rooms = ("server", "client", "policies", "protocol", "loadtest", "templates", "bench", "tests")
    for room in rooms:
        (tmp_path / f"{room}.py").write_text("WHOSE = 'the project'\n")
    program = tmp_path / "project.py"
    program.write_text(
        textwrap.dedent(f"""
            import importlib, pathlib, sys
            from tidegate import fetch_blocking
            fetch_blocking([sys.argv[1]], pathlib.Path("fetched.iso"))
            for room in {rooms}:
                assert importlib.import_module(room).WHOSE == "the project"
        """)
    )
    make_release(tmp_path / "release", tool_iso=3_000_000)
    # The server's current folder is the project, too.
    with serving(tmp_path / "release", tmp_path / "state", program=fresh / "tidegate") as server:
        run([fresh / "python", program, f"{server.url}/tool.iso"], tmp_path)
        run([fresh / "python", "-m", "tidegate", "get", f"{server.url}/tool.iso"], tmp_path)
    whole = (tmp_path / "release" / "tool.iso").read_bytes()
    assert (tmp_path / "fetched.iso").read_bytes() == whole
    assert (tmp_path / "tool.iso").read_bytes() == whole


def test_a_program_of_a_user_runs_and_type_checks(fresh: Path, tmp_path: Path) -> None:
    """The library guide's program, by the installed wheel alone, in a folder of the user's own."""
    text = (ROOT / "docs" / "library.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text(example)
    make_release(tmp_path / "release", tool_iso=3_000_000)
    with serving(tmp_path / "release", tmp_path / "state", program=fresh / "tidegate") as server:
        shown = run([fresh / "python", program, "x.iso", f"{server.url}/tool.iso"], tmp_path)
    assert "3000000 bytes in x.iso, digest checked" in shown
    # The checker reads the installed package, and finds a wrong use of it.
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import tidegate\ntidegate.fetch_blocking(5, 'x').size_bytes + ''\n")
    words = ("-m", "mypy", "--strict", "--no-incremental", "--config-file", "")
    command = [sys.executable, *words, "--python-executable", fresh / "python", program, wrong]
    done = subprocess.run(
        command, cwd=tmp_path, env=user_environ(), capture_output=True, text=True, check=False
    )
    found = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in found[:-1]] == ["wrong.py:2"] * 2, done.stdout
    assert "[arg-type]" in found[0]
    assert "[operator]" in found[1]


def test_the_api_describes_itself(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "state", "--admin", "127.0.0.1:0") as server:
        admin = next(line.split()[1] for line in server.lines if line.startswith("Admin"))
        with urllib.request.urlopen(f"{admin}api/v1/openapi.json", timeout=20) as answer:
            document = json.load(answer)
    assert document["openapi"].startswith("3.")
    assert len(document["paths"]) > 20


def test_processes_of_the_suite_run_the_installation(tmp_path: Path) -> None:
    shown = subprocess.run([TIDEGATE, "--version"], capture_output=True, text=True, check=True)
    assert f"from {PACKAGE})" in shown.stdout
    server = RunningServer(tmp_path, tmp_path / "state")
    try:
        loaded = Path(f"/proc/{server.process.pid}/environ").read_text()
        assert str(APART) in loaded
        assert (
            str(PACKAGE)
            in subprocess.run(
                [PYTHON, "-c", "import tidegate.server.app.run as module; print(module.__file__)"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    finally:
        server.stop()


@pytest.mark.parametrize("words", [("-m", "tidegate", "--version"), ("-c", "import server")])
def test_a_process_that_looks_into_the_checkout_fails(words: tuple[str, ...]) -> None:
    done = subprocess.run([PYTHON, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "looks for modules in" in done.stderr


def test_no_test_starts_the_interpreter_of_the_suite() -> None:
    """Its environment may hold an editable installation, which is the checkout."""
    allowed = {
        # Programs that a test starts, and that start servers or programs of their own.
        "composition.py",
        "machine_faults.py",
        "real_clients.py",
        "installed.py",
        # Its text runs inside a server, whose interpreter that is.
        "intruder.py",
        "test_e2e_deb.py",
        "test_e2e_installed.py",
        "test_layering.py",
        # Reads a list of failures for a Makefile.
        "test_make.py",
        "test_supply_chain.py",
    }
    found = {
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if "sys.executable" in path.read_text("utf-8")
    }
    assert found <= allowed

"""What the documents tell people to type can be typed: options exist, and the walks work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import requests

import tidegate
from tests.running import make_release, serving
from tests.test_docs import DOCUMENTS, ROOT

#: What stands for something of the reader's own, and in commands that are sketched.
_SKETCHED = re.compile(r"…|\.\.\.|\bOPTIONS?\b|\[[A-Z-]|\bCOMMAND\b")
_ENDS = re.compile(r"\s+(?:\||&&|>|;|#).*$|\s+--\s*$")


def commands() -> list[tuple[str, str]]:
    """Every `tidegate …` that a document shows in a block of its own, with the document."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text("utf-8")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks += re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)
        for block in blocks:
            joined = re.sub(r"\\\n\s*", " ", block)
            for line in joined.splitlines():
                for part in re.split(r"&&", line):
                    part = part.strip().removeprefix("$ ").removeprefix("sudo ")
                    if part.startswith("tidegate ") and not _SKETCHED.search(part):
                        found.append((name, _ENDS.sub("", part)))
    return found


@pytest.mark.parametrize(("document", "line"), commands())
def test_a_command_of_a_document_is_one_of_ours(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = tidegate.cli
    context = click.Context(command, info_name="tidegate")
    if words and words[0] == "--version":
        return
    while isinstance(command, click.Group):
        # A group's own options stand before the next word.
        context = command.make_context(command.name, list(words), parent=context.parent)
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None, f"{document}: {name}"
        command, words = found, rest
    faults = []
    try:
        command.make_context(command.name or "", list(words), parent=context)
    except click.UsageError as fault:
        # The reader's own files are not here.
        if "does not exist" not in fault.format_message():
            faults.append(fault.format_message())
    assert not faults, f"{document}: {line}"


def test_the_documents_have_commands() -> None:
    assert len(commands()) > 25


def run(line: str, folder: Path, **changed: str) -> str:
    """A command as it stands, with the reader's places exchanged; what it says."""
    for old, new in changed.items():
        line = line.replace(old, new)
    words = shlex.split(line)
    assert words[0] == "tidegate"
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *words[1:]],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def shown(document: str, begins: str) -> str:
    """The command of a document that begins so."""
    (found,) = {line for name, line in commands() if name == document and line.startswith(begins)}
    return found


@pytest.mark.e2e
def test_backup_and_restore_as_the_manual_has_it(tmp_path: Path) -> None:
    document = "docs/deployment.md"
    make_release(tmp_path / "release", big_iso=3_000_000)
    state = tmp_path / "state"
    places = {"/var/lib/tidegate": str(state)}
    ticket = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "80KB")

    def ask(url: str, agent: str, token: str = "") -> requests.Response:
        """The header of an answer; a download that begins goes on until it is closed."""
        fields = {"User-Agent": agent, "Tidegate-Wait": "ticket"}
        if token:
            fields["Tidegate-Ticket"] = token
        return requests.get(url, headers=fields, timeout=60, stream=True)

    with serving(tmp_path / "release", state, *ticket) as server:
        url = server.url + "/big.iso"
        with ask(url, "zero"), ask(url, "one") as one:
            assert one.headers["Tidegate-Place"] == "1"
            run(shown(document, "tidegate backup"), tmp_path, **places)
            with ask(url, "two") as two:
                assert two.headers["Tidegate-Place"] == "2"
            server.kill()
    archive = tmp_path / "tidegate-state.tar.gz"
    assert archive.stat().st_mode & 0o077 == 0
    shutil.rmtree(state)
    run(shown(document, "tidegate restore"), tmp_path, **places)
    assert state.stat().st_mode & 0o077 == 0
    with serving(tmp_path / "release", state, *ticket) as server:
        url = server.url + "/big.iso"
        places_now = {}
        # The third comes before the second shows the token of which the backup knows nothing.
        tokens = {"one": one, "three": None, "two": two}
        for name in ("one", "three", "two", "three"):
            had = tokens[name]
            with ask(url, name, had.headers["Tidegate-Ticket"] if had is not None else "") as told:
                assert told.status_code == 503
                places_now[name] = int(told.headers["Tidegate-Place"])
                tokens[name] = told
        assert places_now["one"] < places_now["two"] < places_now["three"]
        server.kill()
    again = [sys.executable, "-m", "tidegate", "restore", "--state", str(state), str(archive)]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not empty" in done.stderr


@pytest.mark.e2e
def test_what_the_readme_tells_a_downloader(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", image_iso=200_000)
    with serving(tmp_path / "release", tmp_path / "state") as server:
        line = shown("README.md", "tidegate get")
        run(line, tmp_path, **{"https://example.org": server.url})
    assert (tmp_path / "image.iso").stat().st_size == 200_000
    assert digests


@pytest.mark.e2e
def test_systemd_takes_what_we_install(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for tool, kind in (("systemd-sysusers", "sysusers.d"), ("systemd-tmpfiles", "tmpfiles.d")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
        place = root / "usr" / "lib" / kind
        place.mkdir(parents=True)
        (root / "etc").mkdir(exist_ok=True)
        shutil.copy(ROOT / "deploy" / kind / "tidegate.conf", place)
        extra = ["--create"] if tool == "systemd-tmpfiles" else []
        done = subprocess.run(
            [tool, *extra, f"--root={root}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (root / "srv" / "release").is_dir()
    assert "tidegate" in (root / "etc" / "passwd").read_text()

"""What the documents tell people to type can be typed: options exist, and the walks work."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import requests

import tidegate
from server.app.keys import load_keys
from tests.admin_browser import AdminVisit
from tests.running import make_release, serving, sha256
from tests.test_docs import DOCUMENTS, ROOT

pytestmark = pytest.mark.timeout(600)
#: What stands for something of the reader's own, and in commands that are sketched.
_SKETCHED = re.compile(r"…|\.\.\.|\bOPTIONS?\b|\[[A-Z-]|\bCOMMAND\b")
_ENDS = re.compile(r"\s+(?:\||&&|>|;|#).*$|\s+--\s*$")


def blocks(document: str) -> list[str]:
    """What a document shows apart from its sentences, fenced or indented."""
    text = (ROOT / document).read_text("utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return fenced + re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Every `tidegate …` that a document shows in a block of its own, with the document."""
    found = []
    for name in DOCUMENTS:
        for block in blocks(name):
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


def run(line: str, folder: Path, environ: Mapping[str, str] | None = None, **changed: str) -> str:
    """A command as it stands, with the reader's places exchanged; what it says."""
    for old, new in changed.items():
        line = line.replace(old, new)
    words = shlex.split(line)
    assert words[0] == "tidegate"
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *words[1:]],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            **(environ or {}),
        },
        capture_output=True,
        text=True,
        timeout=300,
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
    keys = load_keys(state / "keys.json", time.time())

    def number(told: requests.Response) -> int:
        """Of the ticket that came with an answer."""
        token = told.headers["Tidegate-Ticket"]
        return keys.read_ticket(token, "127.0.0.1", "/big.iso", time.time()).number

    with (
        serving(tmp_path / "release", state, *ticket) as server,
        contextlib.ExitStack() as stack,
    ):
        url = server.url + "/big.iso"
        # Of these at most one begins at once; who comes before the second shows its token, of
        # which the backup knows nothing, has a later number all the same.
        fresh = [stack.enter_context(ask(url, f"fresh-{one}")) for one in range(3)]
        numbers = [number(told) for told in fresh if "Tidegate-Ticket" in told.headers]
        assert len(numbers) >= 2
        assert min(numbers) > number(two) > number(one)
        kept = stack.enter_context(ask(url, "two", two.headers["Tidegate-Ticket"]))
        assert kept.status_code in (200, 503)
        assert number(kept) == number(two)
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


@pytest.mark.e2e
def test_systemd_finds_no_fault_in_our_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    theirs = Path("/usr/lib/systemd/system")
    units = tmp_path / "usr" / "lib" / "systemd" / "system"
    # With the targets that ours name, and what they call.
    shutil.copytree(theirs, units, symlinks=True)
    for program in ("usr/bin/tidegate", "bin/kill"):
        place = tmp_path / program
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", place)
    ours = [shutil.copy(unit, units) for unit in (ROOT / "deploy" / "systemd").iterdir()]
    verify = ["systemd-analyze", "verify", f"--root={tmp_path}", "--man=no"]
    names = [Path(unit).name for unit in ours]
    done = subprocess.run([*verify, *names], capture_output=True, text=True, check=False)
    faults = [
        line for line in done.stderr.splitlines() if "tidegate" in line.replace(str(tmp_path), "")
    ]
    assert (done.returncode, faults) == (0, [])


@pytest.mark.e2e
def test_the_walk_to_a_mirror_as_the_manual_has_it(tmp_path: Path) -> None:
    document = "docs/mirrors.md"
    www = tmp_path / "www"
    make_release(www / "pub", tool_tar=50_000)
    places = {"/srv/www": str(www), "~/mirror-keys": str(tmp_path / "keys")}
    told = run(shown(document, "tidegate mirror init"), tmp_path, **places)
    found = re.search(r"sha256:([0-9a-f]{64})", told)
    assert found is not None, told
    run(shown(document, "tidegate mirror publish"), tmp_path, **places)
    offered = ["--mirror-publish", str(www / "updates"), "--mirror-channel", "main"]
    with serving(www, tmp_path / "state", *offered, "--mirror-prefix", "/pub/") as server:
        follow = shown(document, "tidegate mirror follow") + " --once"
        here = {"https://origin.example": server.url, "/srv/mirror": str(tmp_path / "mirror")}
        run(follow, tmp_path, **here, HEX=found[1])
    (copy,) = (path for path in (tmp_path / "mirror").rglob("tool.tar") if path.is_file())
    assert copy.read_bytes() == (www / "pub" / "tool.tar").read_bytes()


@pytest.mark.e2e
def test_an_operator_types_what_the_manual_has(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10)
    with serving(
        tmp_path / "release", tmp_path / "state", "--admin", "127.0.0.1:0", "--slots", "8"
    ) as server:
        visit = AdminVisit(server)
        environ = {"TIDEGATE_ADMIN_TOKEN": visit.api_token(), "TIDEGATE_ADMIN_URL": visit.url}
        lines = [line for name, line in commands() if name == "docs/admin.md"]
        steering = [line for line in lines if "reset-password" not in line]
        assert len(steering) >= 10
        for line in steering:
            # The recorded past is short here: a preview of it has nothing to play.
            if "preview" in line:
                continue
            run(line.replace("restore 3", "restore 1"), tmp_path, environ)


@pytest.mark.e2e
@pytest.mark.parametrize("document", ["README.md", "loadtest/README.md"])
def test_a_plan_as_the_documents_have_it(document: str, tmp_path: Path) -> None:
    make_release(tmp_path / "release", image_iso=2_000_000)
    line = shown(document, "tidegate plan")
    quick = {"/srv/release": str(tmp_path / "release"), "5000": "50", "1h": "2m"}
    assert run(line, tmp_path, **quick).startswith("With 200 Mbit/s, 50 visitors within 2 min")


@pytest.mark.e2e
def test_every_get_of_the_manuals(tmp_path: Path) -> None:
    release = tmp_path / "release"
    digests = make_release(release, x_iso=300_000)
    (release / "x.tar").write_text("tide" * 20_000)
    lines = [
        line
        for name, line in commands()
        if name in ("docs/parallel.md", "docs/peers.md") and line.startswith("tidegate get")
    ]
    assert len(lines) >= 6
    with (
        serving(release, tmp_path / "one") as one,
        serving(release, tmp_path / "two") as two,
    ):
        places = {
            "https://tidegate.example/release/": one.url + "/",
            **dict.fromkeys(("https://tidegate.example", "https://dl.example.org"), one.url),
            **dict.fromkeys(("https://a.example", "https://c.example"), one.url),
            "https://b.example": two.url,
        }
        metalink = requests.get(f"{one.url}/x.iso.meta4", timeout=60)
        for number, line in enumerate(lines):
            folder = tmp_path / f"reader-{number}"
            folder.mkdir()
            if line.endswith(".meta4"):
                (folder / "x.iso.meta4").write_bytes(metalink.content)
            told = run(line, folder, **places)
            if " -o - " in line:
                assert told == "tide" * 20_000
            else:
                (got,) = folder.rglob("x.iso")
                assert sha256(got) == digests["x.iso"], line


@pytest.mark.e2e
def test_what_an_operator_looks_at_before_the_start(tmp_path: Path) -> None:
    settings = tmp_path / "tidegate.toml"
    settings.write_text('listen = ["127.0.0.1:0"]\n')
    check = shown("docs/deployment.md", "tidegate config check")
    run(check, tmp_path, **{"/etc/tidegate/tidegate.toml": str(settings)})


@pytest.mark.e2e
def test_a_simulation_as_the_manual_has_it(tmp_path: Path) -> None:
    line = shown("docs/simulator.md", "tidegate simulate run")
    assert json.loads(run(line, tmp_path, **{"--seeds 20": "--seeds 1"}))


@pytest.mark.e2e
def test_a_comparison_as_the_readme_has_it(tmp_path: Path) -> None:
    told = run(shown("README.md", "tidegate simulate compare") + " --seeds 1", tmp_path)
    assert {"http", "ticket", "fair"} <= set(told.split())

"""What the documents tell people to type can be typed: options exist, and the walks work."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
import requests

from bench.shared.ports import free_port
from tests import test_e2e_loadtest_cli as loadtest_cli
from tests import test_loadtest_sim_cli as sim_cli
from tests.admin_browser import AdminVisit
from tests.gate_site import GateProcess, Nginx
from tests.installed import TIDEGATE
from tests.running import make_release, serving, sha256, wait_for
from tests.test_docs import DOCUMENTS, ROOT
from tidegate.commands import cli
from tidegate.server.app.keys import load_keys

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
                    part = re.sub(r"^\w*\$ |\s+#.*", "", part.strip()).removeprefix("sudo ")
                    if part.startswith("tidegate ") and not _SKETCHED.search(part):
                        found.append((name, _ENDS.sub("", part)))
    return found


@pytest.mark.parametrize(("document", "line"), commands())
def test_a_command_of_a_document_is_one_of_ours(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
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


def run(
    line: str,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    typed: str = "",
    **changed: str,
) -> str:
    """A command as it stands, with the reader's places exchanged; what it says."""
    for old, new in changed.items():
        line = line.replace(old, new)
    words = shlex.split(line)
    assert words[0] == "tidegate"
    done = subprocess.run(
        [TIDEGATE, *words[1:]],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            **(environ or {}),
        },
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def started(line: str, folder: Path, **changed: str) -> Iterator[str]:
    """A `tidegate serve` as it stands, but for places and ports; under which URL it serves."""
    for old, new in changed.items():
        line = line.replace(old, new)
    here = {"LISTEN": "127.0.0.1:0", "ADMIN": "off", "STATE": str(folder / "state")}
    if os.geteuid() == 0:
        here["USER"] = "root"
    folder.mkdir(exist_ok=True)
    with subprocess.Popen(
        [TIDEGATE, *shlex.split(line)[1:]],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"} | {f"TIDEGATE_{name}": value for name, value in here.items()},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            told = list(itertools.takewhile(lambda text: "ready http" not in text, server.stdout))
            assert server.poll() is None, f"{line}: {told}"
            files = [text.split()[1] for text in told if text.startswith("Files ")]
            yield files[0].rstrip("/")
        finally:
            server.terminate()
            server.communicate(timeout=40)


def shown(document: str, begins: str) -> str:
    """The command of a document that begins so."""
    (found,) = {line for name, line in commands() if name == document and line.startswith(begins)}
    return found


@pytest.mark.e2e
def test_backup_and_restore_as_the_manual_has_it(tmp_path: Path) -> None:
    document = "docs/deployment.md"
    # Nobody gets it whole, however long the commands take: eight minutes at this rate.
    make_release(tmp_path / "release", big_iso=40_000_000)
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
    again = [TIDEGATE, "restore", "--state", str(state), str(archive)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
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
    serve = (
        shown(document, "tidegate serve /srv/www"),
        shown(document, "tidegate serve /srv/mirror"),
    )
    copy = {"/srv/mirror": str(tmp_path / "mirror")}
    with started(serve[0], tmp_path / "origin", **places) as origin:
        follow = shown(document, "tidegate mirror follow") + " --once"
        follow = follow.replace("https://origin.example", origin).replace("HEX", found[1])
        run(follow, tmp_path, **copy)
        with started(serve[1], tmp_path / "copy", **copy) as url:
            own = {"https://one.example": url}
            admit = shown(document, "tidegate mirror admit")
            (tmp_path / "one.secret").write_text(run(admit, tmp_path, **places, **own))
            reports = "--report-as one --report-key one.secret --own-url https://one.example/"
            assert reports in (ROOT / document).read_text("utf-8")
            run(f"{follow} {reports}", tmp_path, **copy, **own)
            assert (
                requests.get(f"{url}/tool.tar", timeout=10).content
                == (www / "pub" / "tool.tar").read_bytes()
            )
            assert "one" in run(f"tidegate mirror status {origin}/", tmp_path)


@pytest.mark.e2e
def test_an_operator_types_what_the_manual_has(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a_txt=10, b_iso=9_000_000)
    with serving(
        tmp_path / "release", tmp_path / "state", "--admin", "127.0.0.1:0", "--slots", "8"
    ) as server:
        visit = AdminVisit(server)
        environ = {"TIDEGATE_ADMIN_TOKEN": visit.api_token(), "TIDEGATE_ADMIN_URL": visit.url}
        lines = [line for name, line in commands() if name == "docs/admin.md"]
        steering = [line for line in lines if "--state" not in line]
        assert len(steering) >= 10
        # A preview takes some who came.
        for number in range(30):
            who = {"Tidegate-Client": f"visitor-{number}"}
            assert requests.get(f"{server.url}/b.iso", headers=who, timeout=10).ok
        past = f"file:{tmp_path}/state/tidegate.db?mode=ro"
        with contextlib.closing(sqlite3.connect(past, uri=True)) as database:
            came = "SELECT count(*) FROM arrivals"
            wait_for(lambda: database.execute(came).fetchone()[0] == 30)
        for line in steering:
            told = run(line.replace("restore 3", "restore 1"), tmp_path, environ)
            assert told or "set" in line, line
    twice = "tall ships sail at dawn\n" * 2
    reset = run(shown("docs/admin.md", "tidegate admin reset-password"), tmp_path, typed=twice)
    assert "admin" in reset


@pytest.mark.e2e
def test_a_plan_as_the_documents_have_it(tmp_path: Path) -> None:
    make_release(tmp_path / "release", image_iso=2_000_000)
    documents = ("README.md", "loadtest/README.md")
    (line,) = {shown(name, "tidegate plan --bandwidth") for name in documents}
    quick = {"/srv/release": str(tmp_path / "release"), "5000": "50", "1h": "2m"}
    assert run(line, tmp_path, **quick).startswith("With 200 Mbit/s, 50 visitors within 2 min")
    assert "worker_connections" in run(shown("docs/gate.md", "tidegate plan"), tmp_path, **quick)


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
@pytest.mark.parametrize("document", ["README.md", "docs/deployment.md"])
def test_what_an_operator_is_told_to_start(tmp_path: Path, document: str) -> None:
    make_release(tmp_path / "release", image_iso=200_000)
    places = {
        "/srv/release": str(tmp_path / "release"),
        "/var/lib/tidegate": str(tmp_path / "kept"),
    }
    ports = {"0.0.0.0:80": "127.0.0.1:0", "127.0.0.1:8081": "127.0.0.1:0"}
    # The folder of a test is not open to other users; tests/attacks/test_user.py has the user.
    here = {" --user tidegate": ""}
    with started(shown(document, "tidegate serve"), tmp_path, **ports, **places, **here) as url:
        assert len(requests.get(f"{url}/image.iso", timeout=10).content) == 200_000
    assert (tmp_path / "kept" / "keys.json").exists()


@pytest.mark.e2e
def test_multicast_as_the_manual_has_it(tmp_path: Path) -> None:
    document, release = "docs/multicast.md", tmp_path / "release"
    make_release(release, image_iso=200_000)
    places = {"/srv/release": str(release), "192.0.2.1": "127.0.0.1"}
    with started(shown(document, "tidegate serve"), tmp_path, **places) as url:
        send = shown(document, "tidegate multicast send").replace("18:00", "+1s")
        assert run(send, tmp_path, **places)
        get = shown(document, "tidegate get").replace("http://192.0.2.1:8080", url)
        run(get, tmp_path)
    assert (tmp_path / "image.iso").read_bytes() == (release / "image.iso").read_bytes()


@pytest.mark.e2e
def test_a_release_is_published_as_the_manual_has_it(tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    make_release(tmp_path / "build", image_iso=1000)
    (release := tmp_path / "release").mkdir()
    (block,) = (text for text in blocks("docs/deployment.md") if "rsync" in text)
    script = block.replace("$ ", "").replace("/srv/release", str(release))
    for _ in range(2):
        subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    assert (release / "latest" / "image.iso").stat().st_size == 1000
    assert sorted(path.name for path in release.iterdir()) == ["9.0", "latest"]


@pytest.mark.e2e
def test_a_draw_is_checked_as_the_manual_has_it(tmp_path: Path) -> None:
    make_release(tmp_path / "release", image_iso=1000)
    opens = int(time.time()) + 9  # A busy machine needs some of them to start the server.
    when = datetime.datetime.fromtimestamp(opens, datetime.UTC).isoformat()
    rule = (
        f'[[rules]]\npath = "/*"\nhidden_until = "{when}"\nprequeue_from = "2020-01-01T00:00:00Z"\n'
    )
    (settings := tmp_path / "tidegate.toml").write_text(rule)
    (block,) = (text for text in blocks("docs/admin.md") if "/-/prequeue/" in text)
    with serving(
        tmp_path / "release", tmp_path / "state", "--config", str(settings), "--policy", "ticket"
    ) as server:
        for number in range(4):
            fields = {"Tidegate-Client": f"visitor-{number}", "Tidegate-Wait": "ticket"}
            requests.get(f"{server.url}/image.iso", headers=fields, timeout=10)
        script = block.replace("https://download.example", server.url)
        script = script.replace("1900000000", str(opens))
        address = f"{server.url}/-/prequeue/{opens}"
        wait_for(lambda: len(requests.get(address, timeout=10).json().get("order", ())) == 4, 20)
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


#: Twenty clients, one a second.
CROWD = "".join(
    f'{{"t_s": {one}, "client": "c{one}", "file": "/x.iso", "size_bytes": 9000000}}\n'
    for one in range(20)
)


@pytest.mark.e2e
def test_a_recorded_crowd_is_played_and_planned_for(tmp_path: Path) -> None:
    (tmp_path / "crowd.jsonl").write_text(CROWD)
    make_release(tmp_path / "next", x_iso=9_000_000)
    line = shown("loadtest/README.md", "tidegate simulate compare --trace")
    told = run(line, tmp_path)
    assert told.startswith("On average a client has its last byte ")
    assert {"http", "ticket", "fair"} <= set(told.split())
    line = shown("loadtest/README.md", "tidegate plan /srv/next")
    told = run(line, tmp_path, **{"/srv/next": str(tmp_path / "next")})
    assert told.startswith("With 200 Mbit/s, 20 visitors")


@pytest.mark.e2e
def test_a_recorded_day_is_compared_as_the_manual_has_it(tmp_path: Path) -> None:
    (tmp_path / "yesterday.jsonl").write_text(CROWD)
    line = shown("docs/simulator.md", "tidegate simulate compare --policy ticket")
    assert {"ticket", "fair"} <= set(run(line, tmp_path).split())


@pytest.mark.e2e
def test_a_comparison_as_the_readme_has_it(tmp_path: Path) -> None:
    told = run(shown("README.md", "tidegate simulate compare") + " --seeds 1", tmp_path)
    assert {"http", "ticket", "fair"} <= set(told.split())


@pytest.mark.e2e
def test_the_walk_from_nginx_to_a_queue_as_the_manual_has_it(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=300_000)
    document = "docs/gate.md"
    port = free_port()
    # `--user` names a user who need not be able to read a checkout.
    words = shown(document, "tidegate gate /srv/release").replace(" --user www-data", "")
    places = {
        "/srv/release": str(tmp_path / "release"),
        "/run/tidegate": str(tmp_path),
        "/var/lib/tidegate": str(tmp_path / "state"),
        "127.0.0.1:8090": f"127.0.0.1:{port}",
    }
    outer = run(shown(document, "tidegate gate snippet nginx --part http"), tmp_path, **places)
    inner = run(shown(document, "tidegate gate snippet nginx --root"), tmp_path, **places)
    whole = run(shown(document, "tidegate gate snippet nginx --complete"), tmp_path, **places)
    # What a site includes is what the whole configuration holds.
    held = {line.strip() for line in whole.splitlines()}
    assert {line.strip() for line in (outer + inner).splitlines()} <= held
    for old, new in places.items():
        words = words.replace(old, new)
    # The example of a site, but for its port and places.
    (tmp_path / "tidegate").mkdir()
    for name, text in (("http.conf", outer), ("server.conf", inner)):
        (tmp_path / "tidegate" / name).write_text(text)
    other = free_port()
    site = (ROOT / "deploy" / "gate" / "nginx.conf").read_text("utf-8")
    site = site.replace("listen 80;", f"listen 127.0.0.1:{other};")
    site = site.replace("include tidegate", f"include {tmp_path}/tidegate")
    frame = whole[: whole.index("    # Tidegate, for the http block")] + site + "}\n"
    with (
        GateProcess(tmp_path, line=words) as gate,
        Nginx(tmp_path / "nginx", whole, port),
        Nginx(tmp_path / "site", frame, other),
    ):
        for one in (port, other):
            with urllib.request.urlopen(f"http://127.0.0.1:{one}/big.iso", timeout=30) as answer:
                assert hashlib.sha256(answer.read()).hexdigest() == digests["big.iso"]
        assert gate.process.poll() is None
        line = shown(document, "tidegate gate check")
        told = run(line, tmp_path, **{"https://download.example": f"http://127.0.0.1:{other}"})
        assert "The end was reported" in told


#: Each command of the documents -> the test that executes it.
_EXECUTED = {
    "README.md": {
        "tidegate serve": test_what_an_operator_is_told_to_start,
        "tidegate plan": test_a_plan_as_the_documents_have_it,
        "tidegate simulate compare": test_a_comparison_as_the_readme_has_it,
        "tidegate get": test_what_the_readme_tells_a_downloader,
    },
    "docs/admin.md": {"tidegate admin": test_an_operator_types_what_the_manual_has},
    "docs/deployment.md": {
        "tidegate serve": test_what_an_operator_is_told_to_start,
        "tidegate config check": test_what_an_operator_looks_at_before_the_start,
        "tidegate backup": test_backup_and_restore_as_the_manual_has_it,
        "tidegate restore": test_backup_and_restore_as_the_manual_has_it,
    },
    "docs/gate.md": {
        "tidegate gate": test_the_walk_from_nginx_to_a_queue_as_the_manual_has_it,
        "tidegate plan": test_a_plan_as_the_documents_have_it,
    },
    "docs/mirrors.md": {
        "tidegate mirror": test_the_walk_to_a_mirror_as_the_manual_has_it,
        "tidegate serve": test_the_walk_to_a_mirror_as_the_manual_has_it,
    },
    "docs/multicast.md": {"tidegate": test_multicast_as_the_manual_has_it},
    "docs/parallel.md": {"tidegate get": test_every_get_of_the_manuals},
    "docs/peers.md": {"tidegate get": test_every_get_of_the_manuals},
    "docs/simulator.md": {
        # Its own options make it a run of seconds there.
        "tidegate simulate paper": sim_cli.test_paper_marks_every_cell_and_every_finding,
        "tidegate simulate compare --policy ticket": (
            test_a_recorded_day_is_compared_as_the_manual_has_it
        ),
        "tidegate simulate compare --workload": test_a_comparison_as_the_readme_has_it,
        "tidegate simulate run": test_a_simulation_as_the_manual_has_it,
    },
    "loadtest/README.md": {
        "tidegate admin arrivals": (
            loadtest_cli.test_an_operator_rehearses_the_day_and_plays_it_again
        ),
        "tidegate loadtest": loadtest_cli.test_it_lays_out_runs_and_ends_in_one_page,
        "tidegate plan --bandwidth": test_a_plan_as_the_documents_have_it,
        "tidegate plan /srv/next": test_a_recorded_crowd_is_played_and_planned_for,
        "tidegate simulate compare": (test_a_recorded_crowd_is_played_and_planned_for),
    },
}


def test_every_command_of_the_documents_is_executed() -> None:
    """Whatever a document comes to show needs a test that types it."""
    left = {
        (name, line)
        for name, line in commands()
        if not any(line.startswith(begins) for begins in _EXECUTED.get(name, ()))
    }
    assert left == set()
    for name, walks in _EXECUTED.items():
        for begins in walks:
            assert any(one == name and line.startswith(begins) for one, line in commands()), begins

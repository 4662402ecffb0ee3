"""The Debian package, from its installation to its purge, in each Debian that it supports."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.admin_browser import AdminVisit
from tests.booted import booted
from tests.installed import user_environ
from tests.roots import RELEASES, ROOT, View, debian, entered, kept
from tests.running import RunningServer, wait_for
from tests.test_docs_commands import blocks
from tests.test_e2e_crash import ask

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SETTINGS = "/etc/tidegate/tidegate.toml"
RELEASE, STATE = Path("/srv/release"), Path("/var/lib/tidegate")
#: The operator's lines that make the next client wait.
ONE_AT_A_TIME = """
policy = "ticket"
bandwidth = "1MB"
clients_per_address = 65536
admission = {slots = 1, reserve_small = 0}
"""
UNATTENDED = {"DEBIAN_FRONTEND": "noninteractive"}
CONTENT = b"tide" * 5_000_000
#: What installing and purging any package changes: dpkg takes /opt with the last package in it. The
#: account stays, because its number may own files.
TRACES = re.compile(
    r"/var/(lib/(dpkg|apt)|cache/(apt|debconf)|log/(apt|dpkg))|/root/tidegate\.deb|/opt$"
    r"|/etc/(passwd|group|shadow|gshadow|\.pwd\.lock)"
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the working folder as `make deb` builds it."""
    folder = tmp_path_factory.mktemp("deb")
    built = subprocess.run(
        [sys.executable, ROOT / "tools" / "build-deb", folder],
        env=user_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip())


def files_of_the_unit(view: View) -> list[str]:
    """The words of the unit's ExecStart, after making what the unit has systemd make."""
    unit = view.run("cat", "/lib/systemd/system/tidegate.service")
    for key, place in (("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log")):
        assert f"{key}=tidegate\n" in unit
        view.run("install", "-d", "-m", "700", "-o", "tidegate", f"{place}/tidegate")
    (line,) = (text for text in unit.splitlines() if text.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def start(view: View) -> RunningServer:
    """The server of the unit, by its user, on ports of its own."""
    program = view.words("/usr/bin/tidegate", user="tidegate")
    words = ("--config", SETTINGS, "--admin", "127.0.0.1:0")
    return RunningServer(RELEASE, STATE, *words, program=program)


def places(url: str, tokens: dict[str, str]) -> list[str]:
    """Where the tickets stand, while another client downloads."""
    status, _, holder = ask(url, "holder", file="/image.iso")
    assert status == 200
    found = []
    for client, token in tokens.items():
        status, fields, connection = ask(url, client, token or None, file="/image.iso")
        assert (status, fields is not None) == (503, True)
        assert fields is not None
        tokens[client] = fields["Tidegate-Ticket"]
        found.append(fields["Tidegate-Place"])
        connection.close()
    holder.close()
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_the_package_from_installation_to_purge(
    release: str, package: Path, tmp_path: Path
) -> None:
    depends = ["dpkg-deb", "-f", package, "Depends"]
    needed = subprocess.run(depends, capture_output=True, text=True, check=True).stdout

    def satisfy(scratch: Path) -> None:
        with entered(scratch, debian(release)) as view:
            view.run("apt-get", "update")
            view.run("apt-get", "satisfy", "-y", needed, environ=UNATTENDED)
            # Nothing more can be installed, and apt need not read 60 000 packages each time.
            view.run("sh", "-c", "rm -r /var/lib/apt/lists/* /var/cache/apt/*.bin")

    layer = kept(f"only-needed-{release}", (needed,), (debian(release),), satisfy)
    with entered(tmp_path / "view", layer, debian(release)) as view:
        view.put(package, "/root/tidegate.deb")
        view.run("apt-get", "install", "-y", "./tidegate.deb", folder="/root", environ=UNATTENDED)
        assert f" (Python {RELEASES[release]}." in view.run("tidegate", "--version")
        site = f"/opt/tidegate/lib/python{RELEASES[release]}/site-packages/tidegate"
        assert f"from {site})" in view.run("tidegate", "--version")
        # Where the machine has no time zones, the pages have UTC.
        no_zones = {"PYTHONTZPATH": ""}
        program = "import joserfc, libtorrent, psycopg, tidegate.server.admin.site"
        view.run("/opt/tidegate/bin/python3", "-c", program, environ=no_zones)
        # The service may not write there.
        view.run("sh", "-c", f"ls {site}/server/app/__pycache__/service.*.pyc")
        manual = view.changes / "usr/share/man/man1/tidegate.1.gz"
        assert b"tidegate serve" in gzip.decompress(manual.read_bytes())
        view.run("bash", "-n", "/usr/share/bash-completion/completions/tidegate")
        view.put(made(tmp_path / "image.iso"), "/srv/release/image.iso")
        words = f"/usr/bin/tidegate serve {RELEASE} --config {SETTINGS} --state {STATE}"
        assert files_of_the_unit(view) == words.split()
        server = start(view)
        try:
            fetch(view, server.url)
            visit = AdminVisit(server)
            environ = {"TIDEGATE_ADMIN_TOKEN": visit.api_token(), "TIDEGATE_ADMIN_URL": visit.url}
            assert "image.iso" in view.run("tidegate", "admin", "files", environ=environ)
        finally:
            assert server.stop() == 0
        assert "image.iso" in view.run("cat", "/var/log/tidegate/access.log")
        view.run("sh", "-c", f"printf '%s' '{ONE_AT_A_TIME}' >> {SETTINGS}")
        view.run("tidegate", "config", "check", "--config", SETTINGS)
        # With Debian 12's Python the suite kills and restores the installed wheel elsewhere.
        if release == "trixie":
            keeps_tickets(view)
        view.run("apt-get", "remove", "-y", "tidegate")
        view.run("test", "!", "-e", "/opt/tidegate")
        view.run("test", "-s", SETTINGS, "-a", "-s", f"{STATE}/keys.json")
        view.run("apt-get", "purge", "-y", "tidegate")
        left = {name for name in view.changed_files() if not TRACES.match(name)}
        assert left == {"/srv/release/image.iso"}, "the release is the operator's"


def made(file: Path) -> Path:
    file.write_bytes(CONTENT)
    return file


def fetch(view: View, url: str) -> None:
    """Download with the command of the package."""
    view.run("tidegate", "get", f"{url}/image.iso", "-o", "/tmp/got", "--quiet")
    view.run("sh", "-c", "cmp /tmp/got /srv/release/image.iso && rm -r /tmp/got /root/.local")


def keeps_tickets(view: View) -> None:
    """Tickets live through a kill, and through a backup that is restored."""
    tokens = dict.fromkeys(("one", "two", "three"), "")
    state = ("--state", str(STATE))
    server = start(view)
    try:
        before = places(server.url, tokens)
        assert before == sorted(set(before))
        view.run("tidegate", "backup", *state, "/var/lib/tidegate/backup.tar.gz", user="tidegate")
        server.kill()
        server = start(view)
        assert places(server.url, tokens) == before
    finally:
        server.kill()
    view.run("sh", "-c", f"mv {STATE}/backup.tar.gz /tmp && find {STATE} -mindepth 1 -delete")
    view.run("tidegate", "restore", *state, "/tmp/backup.tar.gz", user="tidegate")
    view.run("rm", "/tmp/backup.tar.gz")
    server = start(view)
    try:
        assert places(server.url, tokens) == before
    finally:
        assert server.stop() == 0


def test_a_service_in_the_four_commands_of_the_manual(package: Path, tmp_path: Path) -> None:
    (block,) = (text for text in blocks("docs/deployment.md") if "systemctl enable" in text)
    make, install, copy, start = (line.removeprefix("$ ") for line in block.splitlines())
    assert make == "make deb", "what the fixture has done"
    brought = tmp_path / "brought"
    (brought / "dist").mkdir(parents=True)
    shutil.copy(package, brought / "dist")
    (brought / "build").mkdir()
    (brought / "build/image.iso").write_bytes(b"tide" * 100_000)
    with booted(tmp_path / "machine", brought) as machine:
        assert "could not be found" in machine.run("systemctl status tidegate", check=False)
        for line in (install, copy, start):
            machine.run(line.removeprefix("sudo ").replace("apt install", "apt install -y"))
        told = "journalctl -u tidegate --no-pager -o cat"
        wait_for(lambda: "ready http" in machine.run(told), 60)
        assert "ready http" in machine.run(told), machine.run(
            "systemctl status tidegate", check=False
        )
        machine.run(
            "tidegate get http://127.0.0.1/image.iso -o got --quiet && cmp got build/image.iso"
        )
        log = "cat /var/log/tidegate/access.log"
        wait_for(lambda: "image.iso" in machine.run(log))
        assert "image.iso" in machine.run(log)
        assert "admin" in machine.run(told), "the banner has the first password"
        # The unit allows what the server needs to confine itself.
        assert "no Landlock" not in machine.run(told)
        assert "no filter" not in machine.run(told)
        # Nobody but the service reads its keys, and it is nobody who could log in.
        assert machine.run("stat -Lc %a /var/lib/tidegate").strip() == "700"
        assert machine.run("ps -o user= -p $(systemctl show -P MainPID tidegate)").strip() != "root"
        machine.run("systemctl reload tidegate && curl -fsS http://127.0.0.1/ >/dev/null")
        # The gate takes its place, with its state.
        machine.run("systemctl enable --now tidegate-gate && ! systemctl is-active tidegate")
        told = "journalctl -u tidegate-gate --no-pager -o cat"
        wait_for(lambda: "ready http" in machine.run(told), 60)
        assert "ready http" in machine.run(told)
        asked = "curl -fsS --unix-socket /run/tidegate/gate.sock http://gate"
        assert '"moving": 0' in machine.run(f"{asked}/-/gate")
        machine.run(f"{asked}/image.iso | cmp - build/image.iso")
        assert "no Landlock" not in machine.run(told)
        assert "no filter" not in machine.run(told)
        # nginx, which is another user, asks and reports.
        for name in ("gate.sock", "gate.sock.end"):
            assert machine.run(f"stat -c %a /run/tidegate/{name}").strip() == "666"
        before = machine.run("systemctl show -P MainPID tidegate-gate")
        machine.run("apt install -y --reinstall ./dist/*.deb")
        assert machine.run("systemctl show -P MainPID tidegate-gate") != before
        wait_for(lambda: "moving" in machine.run(f"{asked}/-/gate", check=False), 60)
        machine.run("apt remove -y tidegate && ! systemctl is-active tidegate-gate")
        machine.run("! systemctl is-enabled tidegate-gate")
        machine.run("test -e /var/lib/private/tidegate && apt purge -y tidegate")
        machine.run("! ls -d /var/l*/tidegate /var/l*/private/tidegate")

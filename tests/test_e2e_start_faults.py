"""Whatever keeps a server from starting is told in one sentence, and never as a traceback."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.installed import PYTHON
from tests.running import fork_server
from tidegate.server.app.config import CannotStart, ConfigError, load_config, start_fault
from tidegate.server.app.start_checks import start_faults

pytestmark = pytest.mark.e2e
#: Makes the fault in a folder (`release` and `state` are there): flags, and words of the sentence.
Fault = Callable[[Path], tuple[Sequence[str], str]]
#: Keeps what a fault needs (a listener, a lock) until the test is over.
KEPT = contextlib.ExitStack()


def no_tree(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "release").rmdir()
    return (), "give a directory"


def bad_setting(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "t.toml").write_text("slotz = 3\n")
    return ("--config", str(folder / "t.toml")), "slotz"


def bad_toml(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "t.toml").write_text("[[[\n")
    return ("--config", str(folder / "t.toml")), "t.toml"


def port_in_use(folder: Path) -> tuple[Sequence[str], str]:
    taken = socket.create_server(("127.0.0.1", 0))
    KEPT.enter_context(taken)
    return ("--listen", f"127.0.0.1:{taken.getsockname()[1]}"), "choose another address"


def port_in_use_of_workers(folder: Path) -> tuple[Sequence[str], str]:
    flags, words = port_in_use(folder)
    return (*flags, "--workers", "2"), words


def admin_port_in_use(folder: Path) -> tuple[Sequence[str], str]:
    (_, place), _ = port_in_use(folder)
    return ("--admin", place), "--admin"


def state_in_use(folder: Path) -> tuple[Sequence[str], str]:
    lock = (folder / "state" / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    KEPT.enter_context(lock)
    return (), "--state"


def state_is_a_file(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "state").rmdir()
    (folder / "state").write_text("")
    return (), "--state"


def newer_database(folder: Path) -> tuple[Sequence[str], str]:
    with sqlite3.connect(folder / "state" / "tidegate.db") as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('of the future')")
    database.close()
    return (), "or restore a backup from before it.\n"


def no_database(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "state" / "tidegate.db").write_bytes(b"nonsense" * 1000)
    return (), "move it away"


def damaged_keys(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "state" / "keys.json").write_text("[{")
    (folder / "state" / "keys.json").chmod(0o600)
    return (), "keys.json"


def open_keys(folder: Path) -> tuple[Sequence[str], str]:
    # In a folder of others, which the server does not close to them by itself.
    (folder / "state" / "keys.json").mkdir()
    return (), "keys.json"


def damaged_mark(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "state" / "ticket-numbers").write_text("many")
    return (), "write one into it"


def bad_certificate(folder: Path) -> tuple[Sequence[str], str]:
    (folder / "x.pem").write_text("no certificate")
    return ("--tls-cert", str(folder / "x.pem"), "--tls-key", str(folder / "x.pem")), "--tls-key"


def bad_certificate_of_workers(folder: Path) -> tuple[Sequence[str], str]:
    flags, words = bad_certificate(folder)
    return (*flags, "--workers", "1"), words


def access_log_nowhere(folder: Path) -> tuple[Sequence[str], str]:
    return ("--access-log", str(folder / "none" / "log")), "access log"


def access_log_nobody_reads(folder: Path) -> tuple[Sequence[str], str]:
    os.mkfifo(folder / "pipe")
    return ("--access-log", str(folder / "pipe")), "no program reads"


def no_interface(folder: Path) -> tuple[Sequence[str], str]:
    return ("--multicast", "--multicast-interface", "nowhere0"), "nowhere0"


FAULTS: tuple[Fault, ...] = (
    *(no_tree, bad_setting, bad_toml, port_in_use, port_in_use_of_workers, admin_port_in_use),
    *(state_in_use, state_is_a_file, newer_database, no_database, damaged_keys, open_keys),
    *(damaged_mark, bad_certificate, bad_certificate_of_workers, access_log_nowhere, no_interface),
    access_log_nobody_reads,
)

_NO_THREAD = """
import threading
def refuse(self): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
"""
#: A thread never hears that it is over, as there was no memory to tell it.
_STUCK_THREAD = """
import threading
import tidegate.server.app.service as module
threading.Thread(target=threading.Event().wait).start()
def refuse(*_): raise RuntimeError("can't start new thread")
module.Service.start = refuse
"""
_NO_MEMORY = """
import resource
import tidegate.server.app.line_room as module
def refuse(*_): raise MemoryError
module.Pacer = refuse
"""
_NO_HASH = """
import argon2
def refuse(*_): raise argon2.exceptions.HashingError("Threading failure")
argon2.PasswordHasher.hash = refuse
"""


def told(folder: Path, flags: Sequence[str], patch: str = "") -> str:
    """What a server says that cannot start; it ends, and says nothing else."""
    program = f"{patch}\nimport sys, tidegate\ntidegate.main()"
    words = ["serve", str(folder / "release"), "--state", str(folder / "state")]
    defaults = {"--listen": "127.0.0.1:0", "--admin": "off"}
    for flag, value in defaults.items():
        if flag not in flags:
            words += [flag, value]
    if patch:
        done = subprocess.run(
            [PYTHON, "-c", program, *words, *flags],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        code, output, said = done.returncode, done.stdout, done.stderr
    else:
        server = fork_server().start([*words, *flags], folder, os.environ)
        with server.stdout, server.stderr:
            code, output, said = server.wait(100), server.stdout.read(), server.stderr.read()
    assert code in (1, 2), (code, output, said)
    assert output == ""
    assert "Traceback" not in said, said
    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "release").mkdir()
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_at_the_start_is_one_sentence(folder: Path, fault: Fault) -> None:
    flags, words = fault(folder)
    with KEPT:
        said = told(folder, flags)
    assert said.startswith("tidegate: ")
    assert len(said.splitlines()) == 1, said
    assert words in said
    assert said.rstrip().endswith((".", "tidegate serve --help")), said


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (_NO_THREAD, "ulimit -u"),
        (_STUCK_THREAD, "ulimit -u"),
        (_NO_MEMORY, "ulimit -v"),
        (_NO_HASH, "ulimit -v"),
    ],
    ids=["thread", "stuck thread", "memory", "password"],
)
def test_without_threads_or_memory_it_says_so(folder: Path, patch: str, words: str) -> None:
    flags = ("--admin", "127.0.0.1:0") if patch == _NO_HASH else ()
    lines = told(folder, flags, patch).splitlines()
    assert words in lines[-1]
    assert all("ulimit" in line or "database" in line for line in lines)


_NO_TORRENTS = "import sys; sys.modules['libtorrent'] = None"
_OLD_TORRENTS = """
import sys, types
sys.modules["libtorrent"] = types.SimpleNamespace(__version__="2.0.14")
"""


@pytest.mark.parametrize("patch", [_NO_TORRENTS, _OLD_TORRENTS], ids=["missing", "old"])
def test_torrents_without_their_library_are_refused(folder: Path, patch: str) -> None:
    (folder / "t.toml").write_text("[torrent]\nenabled = true\n")
    (line,) = told(folder, ("--config", str(folder / "t.toml")), patch).splitlines()
    assert "libtorrent 2.1.1 or later" in line


#: A line of the configuration with a fault of its machine, and words of the sentence.
UNMET = {
    "tls": ('tls_cert = "gone.pem"\ntls_key = "gone.pem"', "gone.pem"),
    "directory": ('directory = "gone"', "gone cannot be served"),
    "twice": ('listen = ["0.0.0.0:8123", "127.0.0.1:8123"]', "name 127.0.0.1:8123 twice"),
    "admin": ('listen = ["127.0.0.1:8123"]\nadmin = "127.0.0.1:8123"', "give each place a port"),
    "address": ('listen = ["203.0.113.7:0"]', "Cannot listen on 203.0.113.7:0"),
    "log": ('access_log = "gone/access.log"', "access log gone/access.log"),
    "state": ('state = "t.toml"', "it is no folder"),
    "pages": ('waiting_pages = "gone"', "gone is no folder"),
    "secret": (
        'policy = "ticket"\ntrusted_proxies = ["127.0.0.1"]\n[gate]\nenabled = true\n'
        'report = "127.0.0.1:8124"\nlog_secret_file = "gone"',
        "gate.log_secret_file: gone: No such file or directory.\n",
    ),
    "multicast": ('[multicast]\nenabled = true\ninterface = "203.0.113.7"', "no interface here"),
}


@pytest.mark.parametrize("name", UNMET)
def test_the_check_says_what_a_start_would(folder: Path, name: str) -> None:
    lines, words = UNMET[name]
    places = "".join(
        f'{key} = "{value}"\n' if key == "admin" else f'{key} = ["{value}"]\n'
        for key, value in {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}.items()
        if f"{key} =" not in lines
    )
    (folder / "t.toml").write_text(f"{places}{lines}\n")
    started, checked = both(folder)
    assert words in started
    assert checked == started


def test_the_check_knows_who_is_to_serve(folder: Path) -> None:
    (folder / "t.toml").write_text("")
    started, checked = both(folder, TIDEGATE_USER="nobody-of-this-name")
    assert "There is no user nobody-of-this-name" in started
    assert checked == started


def both(folder: Path, **environ: str) -> list[str]:
    """What a start and a check say of `t.toml`."""
    said = []
    for command in ("serve", "config check"):
        words = [*command.split(), "--config", "t.toml"]
        end = fork_server().start(words, folder, {**os.environ, **environ})
        with end.stdout, end.stderr:
            assert end.wait(100) in (1, 2)
            said.append(end.stderr.read())
    return said


def test_a_folder_where_the_check_may_not_look_is_no_fault_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = tmp_path / "closed" / "access.log", os.stat
    settings = {"TIDEGATE_ACCESS_LOG": str(log), "TIDEGATE_STATE": str(tmp_path)}
    loaded = load_config(None, settings, {})

    def closed(path: Any, *words: Any, **named: Any) -> os.stat_result:
        if str(path) == str(log):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(log))
        return real(path, *words, **named)

    monkeypatch.setattr(os, "stat", closed)
    (said,) = start_faults(loaded)
    assert said.startswith(f"The access log {log} cannot be opened")


def test_a_log_folder_that_the_unit_makes_is_not_missed(tmp_path: Path) -> None:
    for place, faults in (("/var/log/of-no-unit/a.log", 0), (f"{tmp_path}/none/a.log", 1)):
        settings = {"TIDEGATE_ACCESS_LOG": place, "TIDEGATE_STATE": str(tmp_path)}
        assert len(start_faults(load_config(None, settings, {}))) == faults


def test_the_check_starts_nothing(folder: Path) -> None:
    (folder / "t.toml").write_text('access_log = "access.log"\n')
    end = fork_server().start(["config", "check", "--config", "t.toml"], folder, os.environ)
    with end.stdout, end.stderr:
        assert end.wait(100) == 0, end.stderr.read()
    assert {one.name for one in folder.iterdir()} == {"release", "state", "t.toml"}
    assert list((folder / "state").iterdir()) == []


def test_a_fault_of_its_own_code_is_no_start_fault() -> None:
    assert start_fault(ValueError("x")) is None
    assert start_fault(RuntimeError("x")) is None
    assert start_fault(CannotStart("Do this.")) == "Do this."
    assert start_fault(ConfigError(["One.", "Two."])) == "One.\nTwo."
    assert start_fault(OSError(24, "Too many open files", "/x")) == "/x: Too many open files."


_NO_IPV6 = """
import errno, socket, sys
import tidegate.server.http.front as module
class Socket(socket.socket):
    def __init__(self, family=socket.AF_INET, *more):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *more)
module.socket.socket = Socket
"""
_DISABLED = "ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1; exec "


def served(folder: Path, words: Sequence[str], before: Sequence[str] = (), patch: str = "") -> str:
    """What a server says that starts; it is stopped then."""
    program = f"{patch}\nimport sys, tidegate\ntidegate.main()"
    start = ["serve", str(folder / "release"), "--state", str(folder / "state"), "--admin", "off"]
    with subprocess.Popen(
        [*before, PYTHON, "-c", program, *start, *words],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if line.startswith("ready "):
                break
        server.terminate()
        return said + server.communicate(timeout=60)[1]


@pytest.mark.parametrize("more", [(), ("--workers", "2")], ids=["one", "two"])
def test_the_package_starts_where_ipv6_is_not_to_be_had(folder: Path, more: Sequence[str]) -> None:
    both = ("--listen", "127.0.0.1:0", "--listen", "[::]:0", *more)
    said = served(folder, both, patch=_NO_IPV6)
    assert "ready http://127.0.0.1:" in said, said
    assert "No IPv6 on this machine: [::]:0 is left out." in said
    refused = told(folder, ("--listen", "[::]:0", *more), _NO_IPV6)
    assert "Cannot listen on [::]:0" in refused


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_the_package_starts_where_ipv6_is_switched_off(folder: Path) -> None:
    inside = ("unshare", "--net", "sh", "-c", f'{_DISABLED}"$@"', "sh")
    said = served(folder, ("--listen", "0.0.0.0:0", "--listen", "[::]:0"), inside)
    assert "ready http://0.0.0.0:" in said, said

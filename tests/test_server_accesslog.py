"""The access log: what a line says, what it never says, how many there are, and where they go."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from tests.http_bench import Bench, Dialled
from tests.running import wait_for
from tidegate.server.app import log_outlets
from tidegate.server.app.log_format import parse_format
from tidegate.server.app.log_outlets import InThread, LineWriter, open_outlet
from tidegate.server.http.accesslog import AccessLog
from tidegate.server.http.request import AccessEntry

WHEN_S = 1_795_336_607.25
LINE = re.compile(
    r"^\S+ - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "
    r'"[^"]*" \d{3} \d+ "[^"]*" "[^"]*"$'
)


@pytest.fixture(autouse=True)
def _hang_up() -> Generator[None, None, None]:
    yield
    Dialled.hang_up()


def entry(client: str = "192.0.2.7", ended_s: float = WHEN_S, **said: bytes) -> AccessEntry:
    fields = {"agent": b"curl/8", "referrer": b"", "range": b"", "target": b"/a%0a?b", **said}
    return AccessEntry(
        client,
        b"GET",
        fields["target"],
        "HTTP/1.1",
        fields["agent"],
        fields["referrer"],
        fields["range"],
        False,
        0.0,
        ended_s,
        1.5,
        200,
        42,
        True,
        60.25,
        "gold",
    )


class Lines:
    """An outlet that remembers; it can be told to fail, or to block."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reopened = 0
        self.fault: OSError | None = None
        self.free = threading.Event()
        self.free.set()

    def send(self, lines: list[str]) -> None:
        self.free.wait()
        if self.fault is not None:
            raise self.fault
        self.lines += lines

    def reopen(self) -> None:
        self.reopened += 1

    def close(self) -> None:
        pass


def test_combined_is_what_log_readers_know() -> None:
    line = parse_format("combined")(entry(referrer=b"https://e.org/x", agent=b'a "b"\\\x1b[0m\xff'))
    assert line == (
        '192.0.2.7 - - [22/Nov/2026:08:36:47 +0000] "GET /a%0a?b HTTP/1.1" 200 42 '
        '"https://e.org/x" "a \\x22b\\x22\\x5C\\x1B[0m\\xFF"'
    )


def test_json_has_all_that_is_known() -> None:
    assert json.loads(parse_format("json")(entry(range=b"bytes=1-"))) == {
        "time": WHEN_S,
        "client": "192.0.2.7",
        "method": "GET",
        "target": "/a%0a?b",
        "status": 200,
        "bytes": 42,
        "referrer": "",
        "agent": "curl/8",
        "range": "bytes=1-",
        "seconds": 1.5,
        "waited": 60.25,
        "class": "gold",
        "complete": True,
        "tls": False,
    }


def test_a_pattern_of_ones_own() -> None:
    form = parse_format("{client} {waited}/{seconds} {class} {complete} {range} 100%")
    assert form(entry()) == "192.0.2.7 60.25/1.5 gold yes - 100%"


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [("{who} {client}", "who"), ("common", "neither"), ("{client}\n", "printable")],
)
def test_a_bad_pattern_is_named(pattern: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_format(pattern)


def test_the_manual_has_every_field() -> None:
    manual = (Path(__file__).parents[1] / "docs" / "operations.md").read_text("utf-8")
    section = manual.partition("## Access log")[2]
    with pytest.raises(ValueError, match="none of the fields") as fault:
        parse_format("{}")
    names = str(fault.value).partition(": ")[2].split(", ")
    assert {name for name in names if f"`{{{name}}}`" not in section} == set()


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_no_client_writes_a_line_of_its_own(target: bytes, agent: bytes, referrer: bytes) -> None:
    said = entry(target=target, agent=agent, referrer=referrer, range=agent)
    assert LINE.match(parse_format("combined")(said))
    for form in ("json", "{agent}", "{range}"):
        line = parse_format(form)(said)
        assert line.isascii()
        assert line.isprintable()


@pytest.mark.parametrize("form", ["combined", "json", "{referrer}{agent}{target}{request}"])
def test_no_token_is_written_wherever_it_stands(form: str) -> None:
    token = b"t2.k.SECRET.SECRET"
    said = entry(
        target=b"/f?tidegate-pass=" + token,
        referrer=b"https://e.org/?tidegate-ticket=" + token,
        agent=b"x " + token,
    )
    assert "SECRET" not in parse_format(form)(said)


def test_lines_of_one_address_and_of_its_network_are_bounded() -> None:
    outlet = Lines()
    writer = LineWriter(outlet, parse_format("{client}"), 10)
    writer.write([entry() for _ in range(100)])
    assert len(outlet.lines) == 10
    writer.write([entry("198.51.100.1") for _ in range(5)])
    assert len(outlet.lines) == 15
    outlet.lines.clear()
    writer.write([entry(f"2001:db8::{one:x}:0:0:0:1") for one in range(1000)])
    assert len(outlet.lines) == 80
    outlet.lines.clear()
    writer.write([entry(ended_s=WHEN_S + 61) for _ in range(100)])
    assert len(outlet.lines) == 10


def test_a_disk_that_takes_nothing_stops_nobody() -> None:
    outlet = Lines()
    outlet.free.clear()
    writer = InThread(LineWriter(outlet, parse_format("{client}")))
    log = AccessLog(writer.write)
    for _ in range(2000):
        log.add(entry())
        log.flush()
    outlet.free.set()
    wait_for(lambda: len(outlet.lines) >= 200, 30)
    log.flush()
    writer.close()
    assert 200 <= len(outlet.lines) < 2000


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    outlet = Lines()
    outlet.fault = OSError(28, "No space left on device")
    writer = LineWriter(outlet, parse_format("{client}"))
    with capturedLogs() as logged:
        writer.write([entry(), entry()])
    assert [event["count"] for event in logged] == [2]
    outlet.fault = None
    writer.write([entry()])
    assert outlet.lines == ["192.0.2.7"]


def test_a_pipe_that_no_program_reads_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="no program reads this pipe"):
        open_outlet(str(tmp_path / "log"))


def test_a_line_that_a_full_disk_cut_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.log"
    outlet = open_outlet(str(path))
    room = [25]

    def write(handle: int, data: memoryview, write: Callable[..., int] = os.write) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(handle, data[: room[0]])
        room[0] -= done
        return done

    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        for lines in (["the first line", "the second line"], ["the third line"]):
            with pytest.raises(OSError, match="No space left"):
                outlet.send(lines)
    outlet.send(["the fourth line"])
    outlet.send(["the fifth line"])
    outlet.close()
    written = path.read_text().splitlines()
    assert written == ["the first line", "the second", "the fourth line", "the fifth line"]


def test_a_file_that_was_renamed_is_begun_anew(tmp_path: Path) -> None:
    file, old = tmp_path / "access.log", tmp_path / "access.log.1"
    outlet = open_outlet(str(file))
    writer = InThread(LineWriter(outlet, parse_format("{agent}")))
    log = AccessLog(writer.write)
    log.add(entry(agent=b"one"))
    log.flush()
    wait_for(lambda: file.read_text() == "one\n", 30)
    file.rename(old)
    log.add(entry(agent=b"two"))
    log.flush()
    writer.reopen()
    log.add(entry(agent=b"three"))
    log.flush()
    writer.close()
    assert (old.read_text(), file.read_text()) == ("one\ntwo\n", "three\n")


def test_syslog_gets_each_line_and_may_be_started_again(tmp_path: Path) -> None:
    def daemon() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(str(tmp_path / "log"))
        sock.settimeout(30)
        return sock

    first = daemon()
    outlet = open_outlet(f"syslog:{tmp_path / 'log'}")
    outlet.send(["one", "two"])
    assert re.fullmatch(rb"<30>tidegate\[\d+\]: one", first.recv(1000))
    assert first.recv(1000).endswith(b": two")
    first.close()
    (tmp_path / "log").unlink()
    second = daemon()
    outlet.send(["three"])
    assert second.recv(1000).endswith(b": three")
    second.close()
    outlet.close()


def test_syslog_over_the_network() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(30)
        outlet = open_outlet(f"syslog:127.0.0.1:{sock.getsockname()[1]}")
        outlet.send(["one"])
        assert sock.recv(1000).endswith(b": one")
        outlet.close()


def test_the_journal_gets_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_outlets, "_JOURNAL", str(tmp_path / "journal"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "journal"))
        sock.settimeout(30)
        outlet = open_outlet("journal")
        outlet.send(["a line"])
        assert b"MESSAGE=a line\n" in sock.recv(1000)
        outlet.close()


def logged(tmp_path: Path, form: str, **options: object) -> tuple[Bench, Callable[[], list[str]]]:
    """A bench with a log, and what that holds once it is flushed."""
    outlet = Lines()
    bench = Bench(
        tmp_path, access_log=AccessLog(LineWriter(outlet, parse_format(form)).write), **options
    )
    bench.write("a.txt", b"hello")
    bench.write("big.bin", b"x" * 300_000)

    def lines() -> list[str]:
        assert bench.factory.access_log is not None
        bench.factory.access_log.flush()
        return outlet.lines

    return bench, lines


FULL = "{client} {method} {target} {status} {bytes} {agent} {referrer} {range} {complete}"


def test_the_fast_path_writes_the_lines_that_the_strict_path_writes(tmp_path: Path) -> None:
    found = []
    for known in (False, True):
        bench, lines = logged(tmp_path, FULL, known=known, proxies=("198.51.100.0/24",))
        for address in ("192.0.2.1", "192.0.2.2", "198.51.100.9"):
            client = Dialled(bench, address)
            for _ in range(4):
                for target in ("/a.txt", "/none", "/big.bin"):
                    client.get(target, User_Agent="x/1", Referer="r", X_Forwarded_For="203.0.113.5")
                client.get("/a.txt", Range="bytes=0-1")
                client.get("/a.txt", "HEAD")
        found.append(lines())
    assert found[0] == found[1]
    assert found[0][0] == "192.0.2.1 GET /a.txt 200 5 x/1 r - yes"
    assert found[0][-5] == "203.0.113.5 GET /a.txt 200 5 x/1 r - yes"
    assert sum("206 2 - - bytes=0-1 yes" in line for line in found[0]) == 12


def test_lines_leave_once_a_second(tmp_path: Path) -> None:
    outlet = Lines()
    bench = Bench(
        tmp_path, access_log=AccessLog(LineWriter(outlet, parse_format("{target}")).write)
    )
    Dialled(bench).get("/a%0a?b")
    assert outlet.lines == []
    bench.tick(2)
    assert outlet.lines == ["/a%0a?b"]


def test_a_download_that_breaks_off_says_so(tmp_path: Path) -> None:
    bench, lines = logged(tmp_path, FULL)
    client = Dialled(bench, send_buffer=8192)
    client.send(b"GET /big.bin HTTP/1.1\r\nHost: h\r\nUser-Agent: slow\r\n\r\n")
    client.sock.close()
    client.turn()
    bench.tick(3)
    client.turn()
    (line,) = lines()
    assert re.fullmatch(r"192\.0\.2\.1 GET /big.bin 200 \d+ slow - - no", line)
    assert int(line.split()[4]) < 300_000

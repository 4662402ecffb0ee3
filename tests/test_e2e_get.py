from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest
from faulty_mirrors import Behaviour, Mirror, running, wait_for
from running import RunningServer

from tests.installed import PYTHON, TIDEGATE
from tidegate.client.net.errors import LocalProblem
from tidegate.client.storage.output import FileOutput, is_outlet

ROOT = Path(__file__).parent.parent
DATA = Random(9).randbytes(3_000_000)
SHA = hashlib.sha256(DATA).hexdigest()
COMMAND = [TIDEGATE, "get"]

pytestmark = pytest.mark.e2e


def environ(folder: Path) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    return {**env, "TIDEGATE_DATA": str(folder / "data"), "HOME": str(folder)}


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environ(folder), **pipes)


def get(folder: Path, *words: str) -> tuple[int, bytes, str]:
    process = start(folder, *words)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err.decode()


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("behaviour", "words", "status"),
    [
        (Behaviour(DATA), [], 0),
        (Behaviour(DATA), ["--checksum", f"sha256:{SHA}"], 0),
        (Behaviour(DATA), ["--checksum", "sha256:12"], 2),
        (Behaviour(DATA), ["--limit-rate", "fast"], 2),
        (Behaviour(DATA), ["--no-such-option"], 2),
        (Behaviour(DATA), ["--limit-rate", "0MB/s"], 2),
        (Behaviour(DATA), ["--timeout", "0s"], 2),
        (Behaviour(DATA), ["-H", "nonsense"], 2),
        (Behaviour(DATA, status=404), [], 3),
        (Behaviour(DATA, status=403), [], 4),
        (Behaviour(DATA, status=401), [], 4),
        (Behaviour(DATA, redirect="/file.bin"), [], 5),
        (Behaviour(DATA), ["--checksum", "sha256:" + "0" * 64], 6),
        (Behaviour(DATA, busy_times=9, retry_after="60"), ["--max-wait", "5s"], 7),
        (Behaviour(DATA, busy_times=9, retry_after="60"), ["--no-wait"], 7),
        (Behaviour(DATA), ["-o", "no/such/folder/x"], 8),
    ],
)
def test_every_end_has_its_own_status(
    tmp_path: Path, behaviour: Behaviour, words: list[str], status: int
) -> None:
    with running(behaviour) as (mirror,):
        code, _, err = get(tmp_path, *words, mirror.url)
    assert code == status, err
    assert "Traceback" not in err
    assert (tmp_path / "file.bin").exists() == (status == 0)
    if status > 2:
        assert err.count("\n") <= 3


def test_urls_that_end_in_other_names_are_files_of_their_own(tmp_path: Path) -> None:
    names = {"a.iso": b"a" * 200_000, "b.iso": b"b" * 300_000}
    with release(tmp_path) as server:
        for name, content in names.items():
            (tmp_path / "release" / name).write_bytes(content)
        urls = [f"{server.url}/a.iso", f"{server.url}/gone.iso", f"{server.url}/b.iso"]
        code, _, said = get(tmp_path, *urls)
        assert code == 3, said
        assert "gone.iso" in said
        for name, content in names.items():
            assert (tmp_path / name).read_bytes() == content
            (tmp_path / name).unlink()
        # One name for all: the second is a mirror with another copy, and is dropped.
        code, _, said = get(tmp_path, "-o", "one.iso", urls[0], urls[2])
    assert (code, (tmp_path / "one.iso").read_bytes()) == (0, names["a.iso"]), said
    assert [path.name for path in tmp_path.glob("*.iso")] == ["one.iso"]


def test_each_file_of_a_command_line_may_have_mirrors_and_a_login(tmp_path: Path) -> None:
    with release(tmp_path) as server:
        for name in ("a.iso", "b.iso"):
            (tmp_path / "release" / name).write_bytes(name.encode() * 100_000)
        with_login = server.url.replace("//", "//user:word@")
        code, _, said = get(
            tmp_path, f"{server.url}/a.iso", f"{with_login}/b.iso", f"{server.url}/b.iso?2"
        )
    assert code == 0, said
    for name in ("a.iso", "b.iso"):
        assert (tmp_path / name).read_bytes() == name.encode() * 100_000


def test_json_tells_what_happens_a_line_at_a_time(tmp_path: Path) -> None:
    with running(Behaviour(DATA, busy_times=1, retry_after="0"), Behaviour(DATA)) as mirrors:
        code, out, err = get(tmp_path, "--json", "--explain", *(m.url for m in mirrors))
    assert code == 0
    assert out == b""
    found = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    kinds = [row["event"] for row in found]
    assert kinds[-1] == "done"
    assert {"start", "wait"} <= set(kinds)
    assert found[-1]["size"] == len(DATA)
    assert sum(row["bytes"] for row in found[-1]["mirrors"]) >= len(DATA)


def test_a_failure_in_json_has_its_code(tmp_path: Path) -> None:
    with running(Behaviour(DATA, status=404)) as (mirror,):
        code, _, err = get(tmp_path, "--json", mirror.url)
    assert code == 3
    assert events(err)[-1]["event"] == "error"
    assert events(err)[-1]["code"] == 3


def test_a_tar_is_unpacked_while_it_arrives_from_two_mirrors(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("inner.bin")
        member.size = len(DATA)
        tar.addfile(member, io.BytesIO(DATA))
    data = packed.getvalue()
    with running(*(Behaviour(data, rate=6e6) for _ in range(2))) as mirrors:
        reading = start(tmp_path, "-q", "-o", "-", *(m.url for m in mirrors))
        subprocess.run(["tar", "-x"], stdin=reading.stdout, cwd=tmp_path, check=True, timeout=60)
        assert reading.stdout is not None
        reading.stdout.close()
        assert reading.wait(60) == 0
        assert reading.stderr is not None
        reading.stderr.close()
    assert (tmp_path / "inner.bin").read_bytes() == DATA


def test_a_device_or_a_pipe_is_written_into_and_never_replaced(tmp_path: Path) -> None:
    pipe, full = tmp_path / "pipe", tmp_path / "full"
    os.mkfifo(pipe)
    # As root, /dev/null itself was once replaced by a file, for the whole machine.
    full.symlink_to("/dev/full")
    with running(Behaviour(DATA)) as (mirror,):
        process = start(tmp_path, mirror.url, "-o", str(pipe))
        assert pipe.read_bytes() == DATA
        told = process.communicate(timeout=20)[1]
        code, _, err = get(tmp_path, mirror.url, "-o", str(full))
    assert (process.returncode, pipe.is_fifo()) == (0, True)
    assert f"{pipe}: " in str(told)
    assert (code, full.is_symlink()) == (8, True)
    assert "cannot write /dev/full: the disk is full" in err
    with pytest.raises(LocalProblem, match="no ordinary file"):
        FileOutput(full).resumable()
    assert is_outlet(Path("/proc/self/status"))
    assert not is_outlet(tmp_path / "x")


def test_the_file_that_a_named_link_leads_to_is_replaced(tmp_path: Path) -> None:
    """The link was replaced, which curl and wget do not do, and the file it led to stayed old."""
    store, link, new, loop = (tmp_path / name for name in ("store", "link", "new", "loop"))
    store.mkdir()
    (store / "old.bin").write_bytes(b"old")
    link.symlink_to("store/old.bin")
    new.symlink_to("store/new.bin")
    loop.symlink_to("loop")
    with running(Behaviour(DATA)) as (mirror,):
        for at in (link, new):
            assert get(tmp_path, mirror.url, "-o", at.name)[0] == 0
        code, _, err = get(tmp_path, mirror.url, "-o", "loop")
    assert (code, "loop" in err) == (8, True)
    assert all(at.is_symlink() for at in (link, new, loop))
    assert sorted(path.name for path in store.iterdir()) == ["new.bin", "old.bin"]
    assert link.read_bytes() == new.read_bytes() == DATA


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_file_arrives_though_nobody_can_be_told(tmp_path: Path, closed: str) -> None:
    """Without standard error its lines went to standard output, or the download ended."""
    with running(Behaviour(DATA)) as (mirror,):
        words = shlex.join([*COMMAND, "-o", "out.bin", mirror.url])
        status = subprocess.run(
            f"{words} {closed}", shell=True, cwd=tmp_path, env=environ(tmp_path), check=False
        ).returncode
    assert (status, (tmp_path / "out.bin").read_bytes() == DATA) == (0, True)


def test_standard_output_that_is_closed_is_said(tmp_path: Path) -> None:
    with running(Behaviour(DATA)) as (mirror,):
        words = shlex.join([*COMMAND, "-o", "-", mirror.url])
        done = subprocess.run(
            f"{words} >&-",
            shell=True,
            cwd=tmp_path,
            env=environ(tmp_path),
            capture_output=True,
            check=False,
        )
    assert done.returncode == 8
    assert done.stderr == b"tidegate: cannot write standard output: it is closed\n"


def half(folder: Path, mirrors: list[Mirror], *words: str) -> subprocess.Popen[bytes]:
    """A download that has noted some of what arrived."""
    process = start(folder, "-q", "-o", "out.bin", *words, *(m.url for m in mirrors))
    journal = folder / "out.bin.tidegate-part.journal"
    wait_for(lambda: journal.exists() and b"\n+" in journal.read_bytes(), 30)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_download_from_two_mirrors_goes_on_after_it_was_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(*(Behaviour(DATA, rate=1e6) for _ in range(2))) as mirrors:
        process = half(tmp_path, mirrors)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
        for mirror in mirrors:
            mirror.behaviour.rate = 0.0
        sent = sum(m.sent for m in mirrors)
        code, _, err = get(tmp_path, "--json", "-o", "out.bin", *(m.url for m in mirrors))
        assert code == 0
        assert events(err)[-1]["resumed"] != 0
        assert sum(m.sent for m in mirrors) - sent < len(DATA)
    assert (tmp_path / "out.bin").read_bytes() == DATA
    assert not list(tmp_path.glob("*tidegate-part*"))


def test_two_downloads_never_write_one_file(tmp_path: Path) -> None:
    with running(Behaviour(DATA, rate=1e6)) as mirrors:
        process = half(tmp_path, mirrors)
        code, _, err = get(tmp_path, "-o", "out.bin", mirrors[0].url)
        assert code == 8
        assert "another download" in err
        process.kill()
        process.communicate(timeout=30)


def test_a_finished_file_with_the_right_digest_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(DATA)
    with running(Behaviour(DATA)) as (mirror,):
        code, _, err = get(tmp_path, "--checksum", f"sha256:{SHA}", mirror.url)
        assert mirror.requests == []
    assert code == 0
    assert "complete" in err


@contextlib.contextmanager
def release(folder: Path) -> Iterator[RunningServer]:
    """A real server with a small tree."""
    tree = folder / "release"
    (tree / "sub" / "deeper").mkdir(parents=True)
    (tree / "big.bin").write_bytes(DATA)
    for number in range(20):
        (tree / "sub" / f"small-{number}.txt").write_text(f"number {number}\n")
    (tree / "sub" / "deeper" / "with space.txt").write_text("x")
    server = RunningServer(tree, folder / "state")
    try:
        yield server
    finally:
        server.stop()


def digest_of(url: str) -> str | None:
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.headers["Repr-Digest"] or "") or None


def test_a_folder_of_the_real_server_arrives_whole(tmp_path: Path) -> None:
    with release(tmp_path) as server:
        code, _, err = get(tmp_path, "-r", "-o", "copy", server.url.rstrip("/") + "/")
        assert code == 0, err
        big = server.url.rstrip("/") + "/big.bin"
        # The server digests files in the background.
        wait_for(lambda: digest_of(big), 30)
        tree, copy = tmp_path / "release", tmp_path / "copy"
        listed = server.url.rstrip("/") + "/sub/?format=json"

        def all_are_digested() -> bool:
            with urllib.request.urlopen(listed, timeout=10) as answer:
                rows = json.load(answer)["entries"]
            return all(row.get("sha256") for row in rows if row["type"] == "file")

        wait_for(all_are_digested, 30)
        (copy / "big.bin").write_bytes(b"another version")
        # What the listing names by its digest is here already, and need not be asked for.
        code, _, err = get(tmp_path, "-r", "-o", "copy", server.url.rstrip("/") + "/")
        assert code == 0, err
        assert len(re.findall(r"(?m)^copy/sub/small-.* is complete", err)) == 20, err
        assert re.search(r"(?m)^copy/big.bin: .* in .*, digest right", err), err
        code, _, err = get(tmp_path, "--explain", big)
        assert code == 0, err
        assert "digest right" in err
    for path in tree.rglob("*"):
        if path.is_file():
            assert (copy / path.relative_to(tree)).read_bytes() == path.read_bytes()


class NoRoomHere(BaseHTTPRequestHandler):
    """A folder of files that no disk takes, and one with a short one that comes late."""

    def do_GET(self) -> None:
        body = b"".join(b'<a href="%d.bin">' % number for number in range(40))
        size = len(body) if self.path.endswith("/") else 1 << 50
        if self.path.startswith("/short/"):
            body = b'<a href="0.bin"><a href="a.txt">'
            size = 1 << 50 if self.path.endswith("0.bin") else len(body)
            time.sleep(self.path.endswith("a.txt"))
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: object) -> None:
        pass


def test_a_full_disk_ends_a_folder_and_is_said_once(tmp_path: Path) -> None:
    """Files that were under way were cut off, and not counted if they were whole."""
    with ThreadingHTTPServer(("127.0.0.1", 0), NoRoomHere) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            site = f"http://127.0.0.1:{server.server_port}"
            all_large = get(tmp_path, "-r", site + "/f/")
            short = get(tmp_path, "-r", site + "/short/")
        finally:
            server.shutdown()
    for answer, whole in ((all_large, "0 of 40 files"), (short, "1 of 2 files")):
        code, _, err = answer
        assert code == 8
        assert err.count("are needed") == 1, err
        assert whole in err
    assert (tmp_path / "short" / "a.txt").read_bytes() == b'<a href="0.bin"><a href="a.txt">'


def on_terminal(folder: Path, *words: str) -> str:
    """What `tidegate get` shows on a terminal."""
    main, side = pty.openpty()
    env = {**environ(folder), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([*COMMAND, *words], cwd=folder, env=env, stderr=side, stdout=side)
    os.close(side)
    shown = b""
    end = time.monotonic() + 30
    while time.monotonic() < end and select.select([main], [], [], 20)[0]:
        try:
            shown += os.read(main, 65536)
        except OSError:
            # The other end is closed.
            break
    os.close(main)
    assert process.wait(10) == 0
    return shown.decode()


def test_a_folder_on_a_terminal_is_a_line_for_each_file(tmp_path: Path) -> None:
    """The view of one download, begun for each, left blank lines and hid the cursor."""
    with release(tmp_path) as server:
        shown = on_terminal(tmp_path, "-r", "-o", "copy", server.url.rstrip("/") + "/sub/")
    lines = shown.splitlines()
    assert len(lines) == 21
    assert all(re.match(r"copy/.*: .* in ", line) for line in lines), shown


def test_the_progress_view_shows_each_mirror_and_cleans_up(tmp_path: Path) -> None:
    queued = {"rate": 2e6, "ticket_first": True, "ticket_retry": "1"}
    with running(*(Behaviour(DATA, **queued) for _ in range(2))) as mirrors:  # type: ignore[arg-type]
        shown = on_terminal(tmp_path, "-o", "out.bin", *(m.url for m in mirrors))
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
        for mirror in mirrors:
            assert f"127.0.0.1:{mirror.port}" in text
    assert "waiting, place 1, done in about 2 min, asks again in 1 s" in text
    assert re.search(r"\d+ %.*/s.* left", text)
    assert "━" in text
    assert "\x1b[?25h" in shown
    assert (tmp_path / "out.bin").read_bytes() == DATA


@pytest.mark.parametrize(
    "told", ['attachment; filename="Makefile"', "inline; filename*=UTF-8''Makefile"]
)
def test_a_server_cannot_replace_a_file_of_the_folder(tmp_path: Path, told: str) -> None:
    (tmp_path / "Makefile").write_text("mine")
    with running(Behaviour(DATA, headers=(("Content-Disposition", told),))) as (mirror,):
        status, _, err = get(tmp_path, mirror.url)
    assert status == 0
    assert (tmp_path / "Makefile").read_text() == "mine"
    assert (tmp_path / "Makefile.1").read_bytes() == DATA
    assert "Makefile was there and stays as it is" in err


def test_a_metalink_cannot_replace_a_file_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("mine")
    with running(Behaviour(DATA)) as (mirror,):
        (tmp_path / "x.meta4").write_text(
            '<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="setup.py">'
            f'<hash type="sha-256">{SHA}</hash><url>{mirror.url}</url></file></metalink>'
        )
        assert get(tmp_path, "x.meta4")[0] == 0
        assert (tmp_path / "setup.py").read_text() == "mine"
        assert (tmp_path / "setup.1.py").read_bytes() == DATA
        # What the user names is the user's to replace.
        assert get(tmp_path, "-o", "setup.py", "x.meta4")[0] == 0
    assert (tmp_path / "setup.py").read_bytes() == DATA


@pytest.mark.parametrize("told", ['attachment; filename=""', "attachment; filename=", "filename*="])
def test_an_empty_name_is_no_name(tmp_path: Path, told: str) -> None:
    with running(Behaviour(DATA, headers=(("Content-Disposition", told),))) as (mirror,):
        status, _, err = get(tmp_path, mirror.url)
    assert status == 0, err
    assert (tmp_path / "file.bin").read_bytes() == DATA


def test_the_program_of_the_library_guide_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "library.md").read_text("utf-8")
    program = tmp_path / "program.py"
    program.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    queued = Behaviour(DATA, ticket_first=True)
    with running(queued, Behaviour(DATA)) as (first, second):
        command = [PYTHON, str(program), "x.iso", first.url, second.url]
        env = {**environ(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.iso").read_bytes() == DATA
    assert f"{len(DATA)} of {len(DATA)} bytes, 0 bytes/s" in done.stdout
    assert f"{len(DATA)} bytes in x.iso, length checked" in done.stdout
    missing = subprocess.run(
        [*command[:3], first.url + "x"], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert missing.returncode == 1
    assert b"Traceback" not in missing.stderr


def test_forgetting_makes_a_stranger_of_the_user(tmp_path: Path) -> None:
    names = []
    with running(Behaviour(DATA)) as (mirror,):
        for words in ([], [], ["--forget"]):
            assert get(tmp_path, *words, "-o", "x", mirror.url)[0] == 0
            names.append(re.findall(r"Tidegate-Client: (\w+)", mirror.requests[-1]))
    assert names[0] == names[1] != names[2]
    status, _, err = get(tmp_path, "--forget")
    assert status == 0
    assert "client-id" in err
    assert get(tmp_path)[0] == 2


def test_a_failure_is_told_once(tmp_path: Path) -> None:
    with running(Behaviour(DATA, status=404)) as (mirror,):
        status, _, err = get(tmp_path, mirror.url)
        assert status == 3
        assert err.count("\n") == 1, err
        status, _, err = get(tmp_path, mirror.url, mirror.url + "?2")
    # Of several, each is told of, and then the end.
    assert err.count("\n") == 3, err


def test_what_a_failed_download_keeps_is_told(tmp_path: Path) -> None:
    with running(Behaviour(DATA)) as (mirror,):
        # No file may be longer than 1000 KiB.
        limited = f"ulimit -f 1000; exec {shlex.join([*COMMAND, mirror.url])}"
        done = subprocess.run(
            ["bash", "-c", limited],
            cwd=tmp_path,
            env=environ(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 8
        assert re.search(r"; [0-9.]+ [kM]B are kept, the same command goes on", done.stderr)
        _, _, err = get(tmp_path, mirror.url)
        _, _, wrong = get(tmp_path, "-o", "x", "--checksum", "sha256:" + "0" * 64, mirror.url)
    assert "were there from an earlier try" in err
    assert "are kept" not in wrong
    assert next(tmp_path.glob("*.bin")).read_bytes() == DATA


def test_a_wait_is_told_and_left_out_of_the_rate(tmp_path: Path) -> None:
    queued = Behaviour(DATA, busy_times=1, retry_after="2", rate=6e6)
    with running(queued) as (mirror,):
        status, _, err = get(tmp_path, "--json", mirror.url)
    assert status == 0
    told = events(err)
    names = [one["event"] for one in told]
    done = told[-1]
    # Nothing is said of progress while there is none.
    assert "progress" not in names[names.index("wait") : names.index("start")]
    assert isinstance(done["first_byte_s"], float)
    assert isinstance(done["seconds"], float)
    assert done["first_byte_s"] >= 2.0
    assert done["rate"] == pytest.approx(
        len(DATA) / (done["seconds"] - done["first_byte_s"]), rel=0.05
    )


def test_a_file_from_a_real_server_keeps_its_name(tmp_path: Path) -> None:
    """Its digest is told in the answer once it is known; nothing of that is a name."""
    folder = tmp_path / "here"
    folder.mkdir()
    with release(tmp_path) as server:
        urllib.request.urlopen(server.url + "/big.bin.meta4", timeout=60).read()
        code, _, err = get(folder, server.url + "/big.bin")
    assert code == 0, err
    assert "digest right" in err
    assert (folder / "big.bin").read_bytes() == DATA


@pytest.mark.parametrize("count", [1, 3])
def test_the_command_asks_no_mirror_twice(tmp_path: Path, count: int) -> None:
    with running(*(Behaviour(DATA) for _ in range(count))) as mirrors:
        assert get(tmp_path, "-q", *(mirror.url for mirror in mirrors))[0] == 0
        for mirror in mirrors:
            assert mirror.requests.count(mirror.requests[0]) == 1


@pytest.mark.parametrize("name", ["x" * 300, "/", ".", "..", "none/x", "\udcff"])
def test_no_name_of_a_file_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    with running(Behaviour(DATA)) as (mirror,):
        _, _, err = get(tmp_path, "-o", name, mirror.url)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("variable", "proxy", "url", "told"),
    [
        ("http_proxy", "http://[", "http://x.invalid/y", "the proxy in http_proxy is unusable"),
        ("all_proxy", "127.0.0.1:1", "https://x.invalid/y", "1 (the proxy in all_proxy): connect"),
        ("https_proxy", "no.invalid", "https://x/y", "for no.invalid (the proxy in https_proxy)"),
    ],
)
def test_an_unusable_proxy_is_named_with_its_variable(
    variable: str, proxy: str, url: str, told: str, tmp_path: Path
) -> None:
    env = {**environ(tmp_path), variable: proxy}
    command = [*COMMAND, "--max-wait", "1", url]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, check=False)
    assert told in done.stderr.decode()

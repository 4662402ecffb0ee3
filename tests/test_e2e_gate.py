"""The gate with a real nginx in front: Tidegate decides, nginx sends the files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import urlopen

import pytest

from bench.shared.ports import free_port
from tests import real_clients as clients
from tests.composition import ROOT, read_composition
from tests.faulty_mirrors import certificate
from tests.gate_site import (
    FILES,
    MOVERS,
    S3_KEYS,
    GateProcess,
    HAProxy,
    Nginx,
    Sampler,
    bucket,
    gate_and_nginx,
    listens,
)
from tests.http3 import Http3Download
from tests.installed import PYTHON, TIDEGATE
from tests.running import make_release, run_forked, sha256, wait_for
from tests.test_e2e_clock import HOUR, faked_time, set_clock
from tidegate.server.files.paths import url_of
from tidegate.server.gate.signing import s3_signer

pytestmark = pytest.mark.e2e

SIZE = 2_000_000
#: Two slots, 1 MB/s for each of them.
TWO = ("--slots", "2", "--reserve-small", "0", "--bandwidth", "2MB")
ONE = ("--slots", "1", "--reserve-small", "0", "--bandwidth", "1MB")
PROGRAMS = {
    "curl": ["curl", "-sSf", "-o", "OUT", "URL"],
    # Another name, or both would be connections of one download.
    "curl -C": ["curl", "-sSf", "-A", "resumed/1", "-C", "-", "-o", "OUT", "URL"],
    "wget": ["wget", "-q", "-O", "OUT", "URL"],
    "wget2": ["wget2", "-q", "-O", "OUT", "URL"],
    "aria2": ["aria2c", "-q", "-x1", "-d", "/", "-o", "OUT", "URL"],
    "Python": [PYTHON, "-c", "import urllib.request as u; u.urlretrieve('URL', 'OUT')"],
}

RESUME = ["curl", "-sSf", "-C", "-", "-o", "OUT", "URL"]


@pytest.fixture(autouse=True)
def _needs_nginx() -> None:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")


def fetch(nginx: Nginx, out: Path, command: list[str], name: str) -> subprocess.Popen[bytes]:
    words = [word.replace("OUT", str(out)).replace("URL", f"{nginx.url}{name}") for word in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def whole(process: subprocess.Popen[bytes], out: Path, digest: str, limit_s: float = 60) -> None:
    said = process.communicate(timeout=limit_s)[0]
    assert process.returncode == 0, said
    assert sha256(out) == digest


def settled(gate: GateProcess) -> dict[str, float]:
    """The figures once nothing is on its way."""
    wait_for(lambda: gate.figures()["moved_bodies"] == 0)
    seen = gate.figures()
    assert seen["moved_bodies"] == 0
    return seen


def test_real_programs_are_whole_slots_are_kept_and_bytes_are_counted(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    with gate_and_nginx(tmp_path, *TWO) as (gate, nginx):
        sampler = Sampler(nginx, tmp_path / "release")
        running = {
            name: fetch(nginx, tmp_path / f"{number}.out", command, "/big.iso")
            for number, (name, command) in enumerate(PROGRAMS.items())
        }
        for number, process in enumerate(running.values()):
            whole(process, tmp_path / f"{number}.out", digests["big.iso"])
        sampler.stop()
        seen = settled(gate)
    assert sampler.looks > 10
    assert sampler.most == 2
    assert gate.usage() == (len(PROGRAMS), len(PROGRAMS) * SIZE)
    assert seen["mover_reports_total"] == len(PROGRAMS)
    assert seen["mover_reports_lost_total"] == 0


def test_fair_starts_the_shortest_first_and_fills_the_line(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", long_iso=1_500_000, short_iso=500_000)
    words = ("--policy", "fair", "--bandwidth", "2MB")
    with gate_and_nginx(tmp_path, *words) as (gate, nginx):
        sampler = Sampler(nginx, tmp_path / "release")
        running: list[tuple[str, Path, subprocess.Popen[bytes]]] = []

        def ask(name: str) -> None:
            out = tmp_path / f"{len(running)}.out"
            command = [*PROGRAMS["curl"], "--interface", f"127.0.{len(running) + 1}.1"]
            running.append((name, out, fetch(nginx, out, command, f"/{name}")))

        # At once: a busy machine needs as long for these programs as the line for their files.
        for _ in range(12):
            ask("long.iso")
        wait_for(lambda: arrived(gate) == 12)
        ask("short.iso")
        for name, out, process in running:
            whole(process, out, digests[name])
        sampler.stop()
        settled(gate)
    begun = [json.loads(line) for line in (tmp_path / "state" / "moves").read_text().splitlines()]
    order = [one["target"] for one in begun if isinstance(one, dict)]
    assert sorted(order) == ["/long.iso"] * 12 + ["/short.iso"]
    # Those called with it may ask before it.
    assert order.index("/short.iso") < 12
    # Each gets a quarter of the line, and a few more start where not all take theirs: on a busy
    # machine they take less.
    assert 3 <= sampler.most <= 7


def arrived(gate: GateProcess) -> float:
    """How many downloads run or wait."""
    seen = gate.figures()
    return seen["moved_bodies"] + seen["people_waiting"]


def test_a_slot_is_taken_until_its_client_has_the_file(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=900_000)
    seen: dict[str, float] = {}
    with gate_and_nginx(tmp_path, "--slots", "1", "--reserve-small", "0") as (gate, nginx):
        # The kernel takes all of it, and the client nothing yet.
        with asked(nginx, "/big.iso", "GET") as sent:

            def was_reported() -> bool:
                seen.update(gate.figures())
                return seen["mover_reports_total"] == 1

            wait_for(was_reported)
            assert (seen["mover_reports_total"], seen["moved_bodies"]) == (1, 1)
            assert hashlib.sha256(sent.read()).hexdigest() == digests["big.iso"]
        settled(gate)
    assert gate.usage() == (1, 900_000)


def test_ends_are_reported_from_a_log_file_where_syslog_cannot(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    port, log = free_port(), tmp_path / "tidegate.log"
    with GateProcess(tmp_path, "--slots", "1", "--reserve-small", "0") as gate:
        text = gate.snippet("--complete", "--listen", f"127.0.0.1:{port}")
        text, count = re.subn(
            r"access_log syslog:\S+ tidegate;", f"access_log {log} tidegate;", text
        )
        assert count == 1
        log.touch()
        tail = subprocess.Popen(["tail", "-n", "0", "-F", str(log)], stdout=subprocess.PIPE)
        to = ("-t", "tidegate", "-u", f"{tmp_path}/gate.sock.end")
        logger = subprocess.Popen(["logger", *to], stdin=tail.stdout)
        try:
            with Nginx(tmp_path / "nginx", text, port) as nginx:
                for number in range(2):
                    out = tmp_path / f"{number}.out"
                    whole(fetch(nginx, out, PROGRAMS["curl"], "/big.iso"), out, digests["big.iso"])
                    # A client that asks again before its end is known is the same download still.
                    seen = settled(gate)
        finally:
            tail.terminate()
            assert tail.stdout is not None
            tail.stdout.close()
            tail.wait(10)
            logger.wait(10)
    assert (seen["mover_reports_total"], seen["mover_reports_lost_total"]) == (2, 0)
    assert gate.usage() == (2, 2 * SIZE)


def moving(gate: GateProcess) -> str:
    """The lease of the only download that has not ended."""
    *_, line = (gate.folder / "state" / "moves").read_text().splitlines()
    lease: str = json.loads(line)["lease"]
    return lease


def walk(url: str) -> tuple[int, list[str]]:
    """What `tidegate gate check` ends with, and what it says."""
    code, text = run_forked("gate", "check", url)
    assert "Traceback" not in text
    return code, text.splitlines()


#: Movers that take no rate: their clients are slow by themselves.
SLOW = {
    "curl": ["curl", "-sSf", "--limit-rate", "6M", "-o", "OUT", "URL"],
    "wget": ["wget", "-q", "--limit-rate=6M", "-O", "OUT", "URL"],
    "aria2": [*("aria2c", "-q", "-x1", "--max-download-limit=6M"), "-d", "/", "-o", "OUT", "URL"],
    "Python": PROGRAMS["Python"],
}


@pytest.mark.parametrize("mover", sorted(MOVERS.keys() - {"nginx"}))
def test_another_mover_sends_as_nginx_does(mover: str) -> None:
    words = ("--slots", "2", "--reserve-small", "0")
    odd = "/%C3%A4%20b%2520%3F%23%22%24x.iso"
    with tempfile.TemporaryDirectory() as scratch:
        # Apache reads it as a user of its own.
        folder = Path(scratch)
        folder.chmod(0o755)
        digests = make_release(folder / "release", big_iso=6 * SIZE, a=SIZE)
        os.rename(folder / "release" / "a", folder / "release" / 'ä b%20?#"$x.iso')
        (folder / "release" / 'ä b%20?#"$x.iso.zst').write_bytes(b"z" * SIZE)
        with gate_and_nginx(folder, *words, mover=mover) as (gate, site):
            sampler = Sampler(site, folder / "release")
            running = {
                folder / f"{name}.out": fetch(site, folder / f"{name}.out", command, "/big.iso")
                for name, command in SLOW.items()
            }
            for out, process in running.items():
                whole(process, out, digests["big.iso"])
            sampler.stop()
            assert sampler.most == 2
            assert walk(f"{site.url}/big.iso")[0] == 0
            seen = settled(gate)
            assert seen["mover_reports_total"] == len(SLOW) + 1
            assert seen["mover_reports_lost_total"] == 0

            forged = {
                "Tidegate_Mover": "nginx HTTP/3.0 203.0.113.9 9 203.0.113.1 80",
                "Tidegate_Lease": "0" * 32,
                "X_Forwarded_For": "203.0.113.9",
                "X_Sendfile": "/etc/passwd",
            }
            sent = answer(site, odd, **forged)
            assert (sent.status, len(sent.body)) == (200, SIZE)
            assert "X-Sendfile" not in sent.headers
            assert mover == "caddy" or "Tidegate-Lease" not in sent.headers
            head = answer(site, odd, "HEAD").headers
            for field in ("ETag", "Last-Modified", "Content-Type", "Content-Length", "Repr-Digest"):
                assert head[field] == sent.headers[field], field
            tag = sent.headers["ETag"]
            # A compressed file beside it would need a coding that the mover does not say.
            plain = answer(site, odd, Accept_Encoding="zstd")
            assert (plain.body, plain.headers["ETag"]) == (sent.body, tag)
            assert answer(site, odd, If_None_Match=tag).status == 304
            for matching, status in ((tag, 206), ('"other"', 200)):
                part = answer(site, odd, Range="bytes=10-300009", If_Range=matching)
                assert part.status == status
                assert part.body == (sent.body[10:300_010] if status == 206 else sent.body)
            # The gate itself sends several ranges. By Lua they would fill HAProxy's memory, and
            # what comes by Lua has no Server.
            parts = answer(site, odd, Range="bytes=0-0,900000-900000")
            assert parts.headers["Content-Type"].startswith("multipart/byteranges")
            assert "Server" in parts.headers
            settled(gate)

            # One that leaves, and one on whose way the gate is killed.
            out = folder / "left"
            left = fetch(site, out, SLOW["curl"], "/big.iso")
            wait_for(lambda: out.exists() and out.stat().st_size > SIZE)
            left.kill()
            left.communicate()
            settled(gate)
            # It reads nothing meanwhile, so that its body outlasts the gate's start.
            with asked(site, "/big.iso", "GET") as found:
                # Only its mover ends its lease, which clients of Caddy see.
                lease = found.headers["Tidegate-Lease"] or moving(gate)
                with asked(site, "/-/gate", "POST", f"tidegate: {lease} 200 1 OK") as told:
                    assert json.loads(told.read())["moving"] == 1
                gate.stop(signal.SIGKILL)
                gate.start()
                assert gate.figures()["moved_bodies"] == 1
                assert hashlib.sha256(found.read()).hexdigest() == digests["big.iso"]
            settled(gate)
            gate.stop()
            unled = answer(site, odd, Range="bytes=0-9")
            part = (206, sent.body[:10])
            alone = {"caddy": (200, sent.body), "envoy": part, "haproxy": part}
            if mover in alone:
                assert (unled.status, unled.body) == alone[mover]
            else:
                assert (unled.status, unled.headers["Retry-After"]) == (503, "30")


def test_envoy_asks_whether_it_may_send(tmp_path: Path) -> None:
    release = tmp_path / "release"
    digests = make_release(release, big_iso=6 * SIZE, small_txt=10_000)
    make_release(release / "more", a=1)
    browser = {"Accept": "text/html", "Sec_Fetch_Dest": "document", "User_Agent": "Mozilla/5.0"}
    with gate_and_nginx(tmp_path, *ONE, mover="envoy") as (gate, site):
        # A small body is Envoy's to send, and its end is reported.
        sent = answer(site, "/small.txt", X_Accel_Redirect="/big.iso", Tidegate_Range="bytes=0-0")
        assert hashlib.sha256(sent.body).hexdigest() == digests["small.txt"]
        assert settled(gate)["mover_reports_total"] == 1
        tag = sent.headers["ETag"]
        assert [sent.headers.get_all(name) for name in ("ETag", "Content-Type")] == [
            [tag],
            ["text/plain; charset=utf-8"],
        ]
        part = answer(site, "/small.txt?x", Range="bytes=5-6", If_Range=tag)
        assert (part.status, part.body) == (206, sent.body[5:7])
        assert answer(site, "/small.txt", Range="bytes=5-6", If_Range='"other"').body == sent.body
        assert answer(site, "/small.txt", If_None_Match=tag).status == 304
        assert answer(site, "/small.txt", If_Match='"other"').status == 412
        # What is no file is the gate's own answer, with the status that it has.
        listing = answer(site, "/more/", **browser)
        assert (listing.status, b"</html>" in listing.body) == (200, True)
        assert answer(site, "/more").headers["Location"] == "/more/"
        for name in ("/none", "/-/authorize/big.iso", "/-/authorize", "/-/moved/big.iso"):
            assert answer(site, name).status == 404, name
        # One that waits has the page of the queue, and its place.
        with asked(site, "/big.iso", "GET") as first:
            page = answer(site, "/big.iso", **browser)
            assert (page.status, b"</html>" in page.body) == (503, True)
            assert page.headers["Retry-After"]
            assert " url=/big.iso?tidegate-ticket=" in page.headers["Refresh"]
            told = answer(site, "/big.iso", Tidegate_Wait="ticket", User_Agent="aware/1")
            assert (told.status, told.headers["Tidegate-Place"]) == (503, "2")
            assert hashlib.sha256(first.read()).hexdigest() == digests["big.iso"]
        settled(gate)
    assert gate.usage()[0] == 3


def test_a_mover_that_does_not_start_leaves_no_server_behind(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(AssertionError, match="unknown keyword"):
        HAProxy(tmp_path / "haproxy", f"server files 127.0.0.1:{port}\n", free_port())
    assert not listens(port)


#: A bucket that gives its files to those alone who show a signed URL.
SIGNED = """
location / {
    secure_link $arg_md5,$arg_expires;
    secure_link_md5 "$secure_link_expires$uri the secret";
    if ($secure_link = "") { return 403; }
    if ($secure_link = "0") { return 410; }
    limit_rate 2m;
}
location /bucket/moved { return 302 http://127.0.0.1:1/secret; }
"""


def test_files_of_an_origin_come_through_the_mover_or_from_there(tmp_path: Path) -> None:
    make_release(tmp_path / "release", own_txt=10)
    bucket = tmp_path / "root" / "bucket"
    digests = make_release(bucket, big_iso=3 * SIZE, a=SIZE)
    odd = "/%C3%A4%20b%2520%3F%23%22%24x.iso"
    os.rename(bucket / "a", bucket / 'ä b%20?#"$x.iso')
    (tmp_path / "secret").write_text("the secret\n")
    port = free_port()
    url = f"http://127.0.0.1:{port}/bucket/"
    words = ["--slots", "2", "--reserve-small", "0", "--origin", url, "--sign", "secure-link"]
    # The origin sends twice as fast.
    words += ["--sign-file", str(tmp_path / "secret"), "--redirect", "--assumed-rate", "1MB"]
    text = FILES.format(port=port, root=tmp_path / "root", more=SIGNED)
    snippet = ("--origin", url, "--if-absent", "closed")
    with (
        Nginx(tmp_path / "origin", text, port) as origin,
        gate_and_nginx(tmp_path, *words, snippet=snippet) as (gate, site),
    ):
        sampler = Sampler(origin, bucket)
        names = ("curl", "wget", "aria2", "Python")
        running = {
            tmp_path / f"{name}.out": fetch(
                site, tmp_path / f"{name}.out", PROGRAMS[name], "/big.iso"
            )
            for name in names
        }
        for out, process in running.items():
            whole(process, out, digests["big.iso"])
        sampler.stop()
        assert sampler.most == 2
        seen = settled(gate)
        # aria2 and Python follow redirects, and nobody reports their ends.
        assert seen["mover_reports_total"] == 2
        assert seen["mover_reports_lost_total"] == 0

        sent = answer(site, odd)
        assert (sent.status, len(sent.body)) == (200, SIZE)
        head = answer(site, odd, "HEAD").headers
        for field in ("ETag", "Last-Modified", "Content-Type", "Content-Length"):
            assert head[field] == sent.headers[field], field
        tag = sent.headers["ETag"]
        assert answer(site, odd, If_None_Match=tag).status == 304
        for matching, status in ((tag, 206), ('"other"', 200)):
            part = answer(site, odd, Range="bytes=10-300009", If_Range=matching)
            assert part.status == status
            assert part.body == (sent.body[10:300_010] if status == 206 else sent.body)
        assert answer(site, odd, Range="bytes=0-0,9-9").body == sent.body
        assert answer(site, "/own.txt").status == 200
        # Another mover has no files of the origin: only a redirect helps.
        asked = ["curl", "-sS", "--unix-socket", gate.place.removeprefix("unix:")]
        asked += ["-H", "Tidegate-Mover: caddy HTTP/1.1", "-i", "http://gate/big.iso"]
        refused = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert refused.startswith("HTTP/1.1 403 ")
        assert "redirect-needed" in refused
        assert answer(site, "/none.iso").status == 404
        page = answer(site, odd, Accept="text/html", Sec_Fetch_Dest="document")
        assert page.status == 302
        assert page.headers["Location"].startswith(f"{url}%C3%A4")
        # It holds its slot as long as it is taken to download.
        settled(gate)

        # A redirect of the origin names any place: it is not followed.
        moved = answer(site, "/moved")
        assert (moved.status, moved.headers["Retry-After"]) == (503, "5")
        # A gate that is killed knows its bodies again.
        digests |= make_release(bucket, long_iso=8 * SIZE)
        left = fetch(site, tmp_path / "left", SLOW["curl"], "/long.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 1)
        gate.stop(signal.SIGKILL)
        gate.start()
        assert gate.figures()["moved_bodies"] == 1
        whole(left, tmp_path / "left", digests["long.iso"])
        settled(gate)
        origin.stop()
        assert answer(site, "/unknown.iso").status == 503


#: What a CDN posts, of each answer.
LOGGED = """\
log_format posted escape=json
    '{"url":"$request_uri","status":$status,"bytes":$body_bytes_sent}';
server {"""


def test_a_posted_log_ends_downloads_at_a_cdn(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    digests = make_release(tmp_path / "root" / "bucket", big_iso=SIZE)
    for name in ("sign", "log"):
        (tmp_path / name).write_text("the secret of it\n")
    port, log = free_port(), tmp_path / "cdn.log"
    url = f"http://127.0.0.1:{port}/bucket/"
    words = ["--slots", "1", "--reserve-small", "0", "--origin", url, "--sign", "secure-link"]
    words += ["--sign-file", str(tmp_path / "sign"), "--log-secret-file", str(tmp_path / "log")]
    # Without the log the slot is taken for weeks.
    words += ["--redirect", "--assumed-rate", "1B"]
    more = f"access_log {log} posted; {SIGNED.replace('the secret', 'the secret of it')}"
    text = FILES.format(port=port, root=tmp_path / "root", more=more).replace("server {", LOGGED)
    snippet = ("--origin", url, "--if-absent", "closed")
    browser = {"Accept": "text/html", "Sec_Fetch_Dest": "document", "User_Agent": "Mozilla/5.0"}
    with (
        Nginx(tmp_path / "origin", text, port),
        gate_and_nginx(tmp_path, *words, snippet=snippet) as (gate, site),
    ):

        def post(lines: str, secret: str = "the secret of it") -> int:
            fields = {"Authorization": f"Bearer {secret}"}
            with asked(site, "/-/gate/log", "POST", lines, **fields) as told:
                return told.status

        sent = answer(site, "/big.iso", **browser)
        assert sent.status == 302
        with urlopen(sent.headers["Location"]) as found:
            assert hashlib.sha256(found.read()).hexdigest() == digests["big.iso"]
        waiting = answer(site, "/big.iso", **{**browser, "User_Agent": "Mozilla/6.0"})
        assert waiting.status == 503
        # Neither its client nor another ends it by its lease.
        lease = re.search(r"tidegate-lease=(\w{32})", sent.headers["Location"])
        assert lease is not None
        with asked(site, "/-/gate", "POST", f"tidegate: {lease[1]} 200 {SIZE} OK") as told:
            assert json.loads(told.read())["moving"] == 1
        wait_for(lambda: log.exists() and " 200" not in log.read_text() and bool(log.read_text()))
        assert post(log.read_text(), "no secret of it") == 403
        assert gate.figures()["moved_bodies"] == 1
        wait_for(lambda: post(log.read_text()) == 204)
        assert settled(gate)["mover_reports_total"] == 1
        assert post(log.read_text()) == 204
        assert gate.figures()["mover_unknown_total"] == 1
        ticket = re.search(r"tidegate-ticket=([^\s;]+)", waiting.headers["Refresh"])
        assert ticket is not None
        query = {**browser, "User_Agent": "Mozilla/6.0"}
        assert answer(site, f"/big.iso?tidegate-ticket={ticket[1]}", **query).status == 302
    assert gate.usage() == (1, SIZE)


def test_a_bucket_gives_its_files_to_the_gate_alone(tmp_path: Path) -> None:
    files = tmp_path / "bucket" / "release"
    digests = make_release(files, first_iso=3 * SIZE, big_iso=SIZE)
    fresh = make_release(tmp_path / "fresh", big_iso=SIZE + 5000)
    odd = 'ä b%20?#"$+x.iso'
    keys = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    (tmp_path / "keys").write_text(keys.format(*S3_KEYS))
    (files / odd).write_bytes(b"x" * SIZE)
    (tmp_path / "release").mkdir()
    with bucket(tmp_path / "bucket") as url:
        signed = s3_signer(url, "us-east-1", *S3_KEYS)("GET", b"big.iso", time.time())
        with urlopen(signed) as sent:
            assert len(sent.read()) == SIZE
        # Path, time and method are signed.
        marked = f"tidegate-lease={'ab' * 16}"
        lease = s3_signer(url, "us-east-1", *S3_KEYS)("GET", b"big.iso", time.time(), marked)
        with urlopen(lease) as sent:
            assert len(sent.read()) == SIZE
        for wrong in (
            lease.replace("abab", "cdcd"),
            signed.replace("big.iso", "first.iso"),
            signed.replace("Expires=3600", "Expires=9999"),
            s3_signer(url, "us-east-1", *S3_KEYS)("HEAD", b"big.iso", time.time()),
            f"{url}big.iso",
        ):
            with pytest.raises(HTTPError, match="403"):
                urlopen(wrong)
        words = ["--origin", url, "--sign", "s3:us-east-1", "--sign-file", str(tmp_path / "keys")]
        snippet = ("--origin", url, "--if-absent", "closed")
        with gate_and_nginx(tmp_path, *ONE, *words, snippet=snippet) as (gate, site):
            first, out = tmp_path / "first", tmp_path / "got"
            command = [*(TIDEGATE, "get", "--quiet", "-o"), str(out), f"{site.url}/big.iso"]
            subprocess.run(command, check=True, timeout=60)
            assert sha256(out) == digests["big.iso"]
            assert len(answer(site, f"/{quote(odd)}").body) == SIZE
            tag = answer(site, "/big.iso", "HEAD").headers["ETag"]

            # Replaced while its client waits: the rest of the old one is not to be had.
            blocker = fetch(site, first, PROGRAMS["curl"], "/first.iso")
            wait_for(lambda: gate.figures()["moved_bodies"] == 1)
            rest = ["-r", "10-", "-H", f"If-Range: {tag}", "-D", str(tmp_path / "head")]
            waiting = fetch(site, out, [*PROGRAMS["curl"], "-A", "rest/1", *rest], "/big.iso")
            wait_for(lambda: gate.figures()["held_requests"] == 1)
            os.replace(tmp_path / "fresh" / "big.iso", files / "big.iso")
            whole(waiting, out, fresh["big.iso"])
            whole(blocker, first, digests["first.iso"])
            head = (tmp_path / "head").read_text()
            assert f"ETag: {tag}" not in head
            assert f"ETag: {answer(site, '/big.iso', 'HEAD').headers['ETag']}" in head
            settled(gate)


def test_a_gate_needs_no_directory_beside_its_origin(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "root", big_iso=SIZE)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    own = "--listen unix:gate.sock --report unix:end.sock --state state"
    line = f"tidegate gate --origin {url} {own}"
    text = FILES.format(port=port, root=tmp_path / "root", more="")
    with (
        Nginx(tmp_path / "origin", text, port),
        GateProcess(tmp_path, line=line) as gate,
    ):
        said = gate.log.read_text()
        assert f"Serving   {url}" in said
        apart, words = (part.splitlines()[0].split() for part in said.split("gate snippet ")[1:])
        assert apart == ["nginx", "--origin", url, "--part", "http", "--gate", gate.place]
        assert words[:5] == ["nginx", "--if-absent", "closed", "--origin", url]
        # Its sockets by their whole paths: nginx runs elsewhere.
        assert f"unix:{tmp_path}/end.sock" in words
        front = free_port()
        own = ("--complete", "--listen", f"127.0.0.1:{front}")
        code, made = run_forked("gate", "snippet", *words, *own)
        assert code == 0, made
        with Nginx(tmp_path / "nginx", made, front) as site:
            out = tmp_path / "out"
            whole(fetch(site, out, PROGRAMS["curl"], "/big.iso"), out, digests["big.iso"])
            assert settled(gate)["mover_reports_total"] == 1
            assert answer(site, "/none.iso").status == 404


def test_every_program_that_is_installed_gets_its_file(tmp_path: Path) -> None:
    """The same names and manners as in docs/clients.md, all at once."""
    tools = [name for name in clients.there() if name not in ("pacman", "cargo")]
    (tmp_path / "release").mkdir()
    clients.lay_out(tmp_path / "release", tools)
    words = ("--slots", "4", "--reserve-small", "0", "--bandwidth", "4MB")
    with gate_and_nginx(tmp_path, *words) as (gate, nginx):
        with tempfile.TemporaryDirectory() as work:
            Path(work).chmod(0o755)
            said = clients.all_at_once(nginx.url, tools, Path(work), 100)
            for tool in tools:
                folder = Path(work) / clients.place_of(tool)
                got = {out.read_bytes() for out in folder.glob("out*")}
                assert got <= {clients.PAYLOAD}, tool
        settled(gate)
    for tool in tools:
        code, text = said[tool]
        assert clients.got_it(tool, code, len(clients.PAYLOAD)), f"{tool}: {text}"
    assert gate.usage()[0] >= len(tools)


def test_a_lost_report_leaks_no_slot(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    lost = ("--report", f"unix:{tmp_path}/nobody.sock")
    with gate_and_nginx(tmp_path, *ONE, snippet=lost) as (gate, nginx):
        for number in range(2):
            out = tmp_path / f"{number}.out"
            agent = [*PROGRAMS["curl"], "-A", f"curl/{number}"]
            whole(fetch(nginx, out, agent, "/big.iso"), out, digests["big.iso"])
        seen = settled(gate)
    assert seen["mover_reports_total"] == 0
    assert seen["mover_reports_lost_total"] == 2
    assert gate.usage() == (2, 2 * SIZE)


def test_a_full_report_socket_leaks_no_slot(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=8 * SIZE)
    with gate_and_nginx(tmp_path, "--slots", "1", "--reserve-small", "0") as (gate, nginx):
        with closing(HTTPConnection("127.0.0.1", nginx.port, timeout=60)) as client:
            client.request("GET", "/big.iso")
            # It reads nothing before the socket is full.
            sent = client.getresponse()
            wait_for(lambda: gate.figures()["moved_bodies"] == 1)
            gate.process.send_signal(signal.SIGSTOP)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as noise:
                noise.setblocking(False)
                noise.connect(str(tmp_path / "gate.sock.end"))
                with suppress(BlockingIOError):
                    while True:
                        noise.send(b"noise")
            assert hashlib.sha256(sent.read()).hexdigest() == digests["big.iso"]
            # nginx has reported an end when it answers the next request.
            client.request("GET", "/-/moved/")
            assert client.getresponse().status == 404
        gate.process.send_signal(signal.SIGCONT)
        seen = settled(gate)
    assert (seen["mover_reports_total"], seen["mover_reports_lost_total"]) == (0, 1)
    assert gate.usage() == (1, 8 * SIZE)


@pytest.mark.parametrize(
    ("sleeps", "ahead_s"), [(False, -HOUR), (True, HOUR)], ids=["set back", "asleep"]
)
def test_a_clock_that_leaps_ends_no_download_and_no_place(
    tmp_path: Path, sleeps: bool, ahead_s: int
) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE, more_iso=SIZE)
    outs = [tmp_path / "first", tmp_path / "second"]
    with gate_and_nginx(tmp_path, *ONE, environ=faked_time(tmp_path, sleeps=sleeps)) as both:
        gate, nginx = both
        first = fetch(nginx, outs[0], PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 1)
        second = fetch(nginx, outs[1], [*PROGRAMS["curl"], "-A", "second/1"], "/more.iso")
        wait_for(lambda: gate.figures()["held_requests"] == 1)
        set_clock(tmp_path, ahead_s)
        whole(first, outs[0], digests["big.iso"])
        whole(second, outs[1], digests["more.iso"])
        seen = settled(gate)
    assert (seen["mover_reports_total"], seen["mover_reports_lost_total"]) == (2, 0)
    assert seen["mover_unclaimed_total"] == 0
    assert gate.usage() == (2, 4 * SIZE)


def test_a_client_that_leaves_gives_its_slot_back_and_resumes(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        out = tmp_path / "out"
        first = fetch(nginx, out, PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: out.exists() and out.stat().st_size > 0)
        # It reads no more: on a busy machine it would be done by the time of the next lines.
        first.send_signal(signal.SIGSTOP)
        wait_for(lambda: gate.figures()["sent_bytes_total"] > 0)
        assert 0 < gate.figures()["sent_bytes_total"] < 3 * SIZE
        first.kill()
        first.communicate()
        settled(gate)
        assert not nginx.sending(tmp_path / "release")
        whole(fetch(nginx, out, RESUME, "/big.iso"), out, digests["big.iso"])
        settled(gate)
    assert gate.usage()[0] == 1


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


@contextmanager
def asked(
    nginx: Nginx, path: str, method: str, body: str | None = None, **fields: str
) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", nginx.port, timeout=30)) as connection:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        connection.request(method, path, body, named)
        with closing(connection.getresponse()) as answer:
            yield answer


def answer(nginx: Nginx, path: str, method: str = "GET", **fields: str) -> Answer:
    with asked(nginx, path, method, **fields) as found:
        return Answer(found.status, found.headers, found.read())


def test_a_client_forges_neither_socket_nor_lease(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        forged = {
            "Tidegate_Mover": "nginx HTTP/3.0 203.0.113.9 9 203.0.113.1 80",
            "Tidegate_Lease": "0" * 32,
            "X_Forwarded_For": "203.0.113.9",
            "X_Accel_Redirect": "/etc/passwd",
        }
        # Envoy alone asks there, and lets none of its clients ask.
        assert answer(nginx, "/-/authorize/big.iso", **forged).status == 404
        with asked(nginx, "/big.iso", "GET", **forged) as found:
            assert found.status == 200
            assert "Tidegate-Lease" not in found.headers
            assert "X-Accel-Redirect" not in found.headers
            # The socket is the real one: it tells what this client took, before nginx reports.
            wait_for(lambda: gate.figures()["sent_bytes_total"] > 100_000)
            assert gate.figures()["moved_bodies"] == 1
            assert len(found.read()) == SIZE
        settled(gate)
        # What only the gate may name.
        assert answer(nginx, "/-/moved/big.iso").status == 404
        out = tmp_path / "out"
        whole(fetch(nginx, out, PROGRAMS["curl"], "/big.iso"), out, digests["big.iso"])


def test_fields_and_names_are_those_of_the_gate(tmp_path: Path) -> None:
    make_release(tmp_path / "release", a=SIZE)
    os.rename(tmp_path / "release" / "a", tmp_path / "release" / 'ä b%20?#"$x.iso')
    (tmp_path / "release" / 'ä b%20?#"$x.iso.zst').write_bytes(b"z" * SIZE)
    name = "/%C3%A4%20b%2520%3F%23%22%24x.iso"
    with gate_and_nginx(tmp_path, *TWO) as (_gate, nginx):
        sent = answer(nginx, name)
        assert sent.status == 200
        assert len(sent.body) == SIZE
        tag = sent.headers["ETag"]
        plain = answer(nginx, name, Accept_Encoding="zstd")
        assert (plain.body, plain.headers["ETag"]) == (sent.body, tag)
        part = answer(nginx, name, Range="bytes=10-19", If_Range=tag)
        assert part.status == 206
        assert part.body == sent.body[10:20]
        assert part.headers["Content-Range"] == f"bytes 10-19/{SIZE}"
        parts = answer(nginx, name, Range="bytes=0-0,900000-900000")
        assert parts.status == 206
        assert parts.headers["Content-Type"].startswith("multipart/byteranges")
        assert answer(nginx, name, If_None_Match=tag).status == 304
        head = answer(nginx, name, "HEAD").headers
        for field in ("ETag", "Last-Modified", "Content-Type", "Content-Length", "Repr-Digest"):
            assert head[field] == sent.headers[field], field


#: How TLS and HTTP/2 are turned on: a pattern in a configuration, and what stands there then.
#: Debian's lighttpd has its TLS in another package.
ENVOY_TLS = """\
        - transport_socket:
            name: tls
            typed_config:
              "@type": TYPES.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificates:
                  - {certificate_chain: {filename: PEM}, private_key: {filename: PEM}}
          filters:
""".replace("TYPES", "type.googleapis.com/envoy.extensions.transport_sockets")
APACHE_TLS = """\
LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so
LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so
Protocols h2 http/1.1
SSLEngine on
SSLCertificateFile PEM
PidFile"""
TLS = {
    "apache": ("PidFile", APACHE_TLS),
    "caddy": (r"http://127.0.0.1(:\d+) {", r"https://localhost\1 {\n    tls PEM PEM"),
    "envoy": ("        - filters:\n", ENVOY_TLS),
    "haproxy": (r"bind (\S+)", r"bind \1 ssl crt PEM alpn h2,http/1.1"),
    "nginx": (
        r"(listen \S+);",
        r"\1 ssl http2; ssl_certificate PEM; ssl_certificate_key PEM;",
    ),
}


@pytest.mark.parametrize("mover", sorted(TLS))
def test_http2_streams_of_one_connection_are_told_apart(mover: str) -> None:
    names = ("one.iso", "two.iso")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        digests = make_release(folder / "release", one_iso=SIZE, two_iso=SIZE)
        pem = str(certificate(folder))
        pattern, secure = TLS[mover]

        def with_tls(text: str) -> str:
            text, count = re.subn(pattern, secure.replace("PEM", pem), text)
            assert count == 1
            return text

        with gate_and_nginx(folder, *TWO, mover=mover, change=with_tls) as (gate, site):
            command = ["curl", "-sSfZk", "-w", "%{http_version}"]
            for name in names:
                command += ["-o", f"{folder}/{name}", f"https://localhost:{site.port}/{name}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, "22"), done.stderr
            for name in names:
                assert sha256(folder / name) == digests[name]
            seen = settled(gate)
    assert seen["mover_reports_lost_total"] == 0
    assert seen["mover_reports_total"] == 2


def test_clients_of_http3_wait_for_the_slot_and_are_whole(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE)
    pem = str(certificate(tmp_path))
    pattern, secure = TLS["caddy"]

    def with_tls(text: str) -> str:
        return re.sub(pattern, secure.replace("PEM", pem), text)

    slot = ("--slots", "1", "--reserve-small", "0")
    with gate_and_nginx(tmp_path, *slot, mover="caddy", change=with_tls) as (gate, site):
        running = [Http3Download(site.port, "/big.iso", "first/1")]
        wait_for(lambda: running[0].size_bytes > 0)
        for number in range(2):
            running.append(Http3Download(site.port, "/big.iso", f"later{number}/1"))
            wait_for(lambda: gate.figures()["held_requests"] == len(running) - 1)
        # The gate sees no socket, so the slot is taken until the report.
        seen = gate.figures()
        assert (seen["moved_bodies"], seen["held_requests"]) == (1, 2)
        assert not running[1].status + running[2].status
        for download in running:
            assert download.join() == digests["big.iso"]
            assert download.status == b"200"
        settled(gate)
        left = Http3Download(site.port, "/big.iso", "left/1", most_bytes=SIZE)
        left.join()
        seen = settled(gate)
        assert (seen["mover_reports_total"], seen["mover_reports_lost_total"]) == (4, 0)
    whole_files, sent_bytes = gate.usage()
    assert whole_files == 3
    assert 10 * SIZE <= sent_bytes < 12 * SIZE


@pytest.mark.parametrize("if_absent", ["open", "closed"])
def test_without_the_gate_files_go_on_or_clients_are_told(tmp_path: Path, if_absent: str) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    with gate_and_nginx(tmp_path, *TWO, snippet=("--if-absent", if_absent)) as (gate, nginx):
        gate.stop()
        found = answer(nginx, "/big.iso")
        if if_absent == "open":
            assert found.status == 200
            assert len(found.body) == SIZE
        else:
            assert found.status == 503
            assert found.headers["Retry-After"] == "30"
        gate.start()
        out = tmp_path / "out"
        whole(fetch(nginx, out, PROGRAMS["curl"], "/big.iso"), out, digests["big.iso"])
        assert settled(gate)["mover_reports_total"] + settled(gate)["mover_reports_lost_total"] == 1


@pytest.mark.parametrize("mover", sorted(MOVERS))
def test_small_files_are_sent_by_the_mover_alone(mover: str) -> None:
    odd = 'ä b%20?#"$x\\n;{}.txt'
    snippet = ("--if-absent", "closed", "--small-below", "256kB")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        release = folder / "release"
        make_release(release, a=10_000, README=10, readme=400_000, big_iso=400_000)
        os.rename(release / "a", release / odd)
        (release / ".own").write_bytes(b"own")
        (release / "link").symlink_to(release / "README")
        make_release(release / "more", **{"c++ +": 4})
        # Envoy compares paths as listings spell them.
        small = ["/more/c++%20+" if mover == "envoy" else "/more/c++%20%2B"]
        others = ["/readme", "/big.iso", "/more/", "/.own"]
        # What a list has, and what a look at the file finds.
        looks = mover in ("apache", "lighttpd")
        (others if mover == "caddy" else small).append(url_of(odd.encode()))
        (small if looks else others).extend(("/README", "/link", "/later"))
        with gate_and_nginx(folder, *TWO, mover=mover, snippet=snippet) as (gate, site):
            (release / "later").write_bytes(b"later")
            for name in (*small, *others):
                assert answer(site, name).status == (404 if name == "/.own" else 200), name
            if mover == "nginx":
                tag = answer(site, small[1]).headers["ETag"]
                place = gate.place.removeprefix("unix:")
                told = subprocess.run(
                    ["curl", "-sS", "--unix-socket", place, "-I", f"http://gate{small[1]}"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                assert f"etag: {tag}\n" in told.lower().replace("\r", "")
            gate.stop()
            for name in small:
                sent = answer(site, name)
                assert sent.status == 200
                assert sent.body == (release / unquote(name[1:])).read_bytes()
                assert answer(site, name, Range="bytes=1-2").body == sent.body[1:3]
            for name in (*others, "/more/../big.iso"):
                assert answer(site, name, Tidegate_Small="1").status == 503, name


#: What the manual says to write before the snippet, for a folder of small files.
BESIDE = {
    "apache": ("ProxyPass ", 'DocumentRoot "ROOT"\nProxyPass "/sums/" "!"\n'),
    "caddy": ("reverse_proxy ", "handle /sums/* {\n    root * ROOT\n    file_server\n}\n"),
    "nginx": ("location / {", "location /sums/ { root ROOT; }\n"),
}


@pytest.mark.parametrize("mover", sorted(BESIDE))
def test_a_folder_of_small_files_needs_no_gate(mover: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        make_release(folder / "release", big_iso=SIZE)
        make_release(folder / "release" / "sums", a=10)
        before, text = BESIDE[mover]

        def with_folder(made: str) -> str:
            assert made.count(before) >= 1
            return made.replace(before, text.replace("ROOT", f"{folder}/release") + before, 1)

        closed = ("--if-absent", "closed") if MOVERS[mover][1] else ()
        both = gate_and_nginx(folder, mover=mover, snippet=closed, change=with_folder)
        with both as (gate, site):
            assert len(answer(site, "/big.iso").body) == SIZE
            gate.stop()
            assert answer(site, "/big.iso").status == 503
            assert len(answer(site, "/sums/a").body) == 10


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_gate_that_is_restarted_finds_its_leases_again(tmp_path: Path, number: int) -> None:
    digests = make_release(tmp_path / "release", big_iso=8 * SIZE)
    with gate_and_nginx(tmp_path, *ONE[:-1], "2MB") as (gate, nginx):
        outs = [tmp_path / "first", tmp_path / "second"]
        first = fetch(nginx, outs[0], PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: outs[0].exists() and outs[0].stat().st_size > SIZE)
        gate.stop(number)
        assert first.poll() is None
        gate.start()
        assert gate.figures()["moved_bodies"] == 1
        # The slot is taken: this one waits.
        second = fetch(nginx, outs[1], [*PROGRAMS["curl"], "-A", "second/1"], "/big.iso")
        sampler = Sampler(nginx, tmp_path / "release")
        whole(first, outs[0], digests["big.iso"])
        whole(second, outs[1], digests["big.iso"])
        sampler.stop()
        settled(gate)
    assert sampler.most == 1
    assert gate.usage() == (2, 16 * SIZE)


def test_a_gate_with_fewer_slots_than_bodies_on_their_way_keeps_them_and_starts_none(
    tmp_path: Path,
) -> None:
    digests = make_release(tmp_path / "release", big_iso=4 * SIZE, last_iso=SIZE)
    words = ("--reserve-small", "0", "--bandwidth", "6MB", "--slots", "3")
    # Else those that stand still lose their slots after 10 s.
    kept = {"TIDEGATE_ADMISSION__SLOT_USE_FRACTION": "0"}
    with gate_and_nginx(tmp_path, *words, environ=kept) as (gate, nginx):
        running = {}
        for number in range(3):
            out = tmp_path / f"{number}.out"
            command = [*PROGRAMS["curl"], "-A", f"early{number}/1"]
            running[out] = fetch(nginx, out, command, "/big.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 3)
        # They stand still, so that their bodies outlast the restart.
        for process in running.values():
            process.send_signal(signal.SIGSTOP)
        gate.stop(signal.SIGKILL)
        gate.words[-1] = "1"
        gate.start()
        assert gate.figures()["moved_bodies"] == 3
        last = fetch(nginx, tmp_path / "last", [*PROGRAMS["curl"], "-A", "last/1"], "/last.iso")
        wait_for(lambda: gate.figures()["held_requests"] == 1)
        for out, process in running.items():
            assert (gate.figures()["held_requests"], last.poll()) == (1, None)
            process.send_signal(signal.SIGCONT)
            whole(process, out, digests["big.iso"])
        whole(last, tmp_path / "last", digests["last.iso"])
        settled(gate)
    assert gate.usage() == (4, 13 * SIZE)


def test_a_download_that_ends_without_the_gate_takes_no_slot_of_the_next(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        out = tmp_path / "out"
        first = fetch(nginx, out, PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 1)
        gate.stop(signal.SIGKILL)
        whole(first, out, digests["big.iso"])
        gate.start()
        assert gate.figures()["moved_bodies"] == 0
        assert "Of 1 files that were on their way when the gate ended, 0" in gate.log.read_text()


def test_an_nginx_that_is_killed_leaks_no_slot(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        out = tmp_path / "out"
        first = fetch(nginx, out, PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: out.exists() and out.stat().st_size > SIZE)
        nginx.stop(signal.SIGKILL)
        first.communicate()
        assert first.returncode != 0
        assert settled(gate)["mover_reports_lost_total"] == 1
        nginx.start()
        whole(fetch(nginx, out, RESUME, "/big.iso"), out, digests["big.iso"])


#: Programs that ask again after a fault, and wait inside each request.
PATIENT = {
    "curl": ["sh", "-c", "until curl -sSf -o OUT URL; do sleep 0.2; done"],
    "wget": [
        *("wget", "-q", "--tries=0", "--waitretry=1", "--retry-connrefused"),
        *("--retry-on-http-error=503", "-O", "OUT", "URL"),
    ],
    # It ends with 0 at a 503, too.
    "wget2": ["sh", "-c", "until wget2 -q -O OUT URL && test -s OUT; do sleep 0.2; done"],
}


@pytest.mark.parametrize("victim", ["gate", "nginx"])
def test_a_kill_costs_nobody_the_place_who_waits_inside_a_request(
    tmp_path: Path, victim: str
) -> None:
    digests = make_release(tmp_path / "release", first_iso=4 * SIZE, big_iso=SIZE)
    closed, log = ("--if-absent", "closed"), tmp_path / "access.log"
    logged = ("--access-log", str(log))
    with gate_and_nginx(tmp_path, *ONE, *logged, snippet=closed) as (gate, nginx):

        def held(count: int) -> None:
            wait_for(lambda: gate.figures()["held_requests"] == count, 60)
            assert gate.figures()["held_requests"] == count

        # Another client than the curl that waits: one without a download goes first.
        other = [*PROGRAMS["curl"], "-A", "first/1"]
        first = fetch(nginx, tmp_path / "first", other, "/first.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 1)
        # It stands still, so that its body outlasts the kill.
        first.send_signal(signal.SIGSTOP)
        waiting = {}
        for count, (name, command) in enumerate(PATIENT.items()):
            waiting[name] = fetch(nginx, tmp_path / name, command, "/big.iso")
            held(count + 1)
        sampler = Sampler(nginx, tmp_path / "release")
        killed: GateProcess | Nginx = gate if victim == "gate" else nginx
        killed.stop(signal.SIGKILL)
        if victim == "gate":
            # They are told to come back, and try in vain meanwhile.
            assert answer(nginx, "/big.iso").status == 503
        killed.start()
        if victim == "gate":
            held(len(PATIENT))
            assert gate.figures()["moved_bodies"] == 1
        # One that comes now comes last.
        late = fetch(nginx, tmp_path / "late", [*PROGRAMS["curl"], "-A", "late/1"], "/big.iso")
        first.send_signal(signal.SIGCONT)
        for name, process in (*waiting.items(), ("late", late)):
            whole(process, tmp_path / name, digests["big.iso"], 120)
        first.communicate()
        assert (first.returncode == 0) == (victim == "gate")
        sampler.stop()
        settled(gate)
    started = re.findall(r'(?m) 200 \d+ "-" "(\w+)/\S+"$', log.read_text().lower())
    assert [name for name in started if name != "first"] == [*PATIENT, "late"]
    # Also after the wait a body takes its time: it is seen twice.
    assert sampler.most == 1


@pytest.mark.parametrize("seed", [1])
def test_kills_in_a_rush_lose_no_place_and_leak_no_slot(tmp_path: Path, seed: int) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    closed, log = ("--if-absent", "closed"), tmp_path / "access.log"
    rng = random.Random(seed)
    running: dict[str, subprocess.Popen[bytes]] = {}
    with gate_and_nginx(tmp_path, *ONE, "--access-log", str(log), snippet=closed) as (gate, nginx):

        def ask(name: str) -> None:
            command = PATIENT["curl"][-1].replace("-sSf", f"-sSf -A {name}/1")
            running[name] = fetch(nginx, tmp_path / name, ["sh", "-c", command], "/big.iso")

        def have_come() -> bool:
            began = log.read_text().count(" 200 ") if log.exists() else 0
            return began + gate.figures()["held_requests"] == len(running)

        for number in range(6):
            ask(f"early{number}")
            wait_for(have_come)
        sampler = Sampler(nginx, tmp_path / "release")
        for kill in range(3):
            time.sleep(rng.uniform(0, 2.5))
            victim: GateProcess | Nginx = rng.choice((gate, nginx))
            victim.stop(signal.SIGKILL)
            victim.start()
            ask(f"late{kill}")
        for name, process in running.items():
            whole(process, tmp_path / name, digests["big.iso"], 120)
        sampler.stop()
        settled(gate)
        # The slot is free.
        with asked(nginx, "/big.iso", "GET") as sent:
            assert sent.status == 200
    order = sorted(running, key=lambda name: (tmp_path / name).stat().st_mtime_ns)
    assert order[:6] == [f"early{number}" for number in range(6)], order
    assert sampler.most == 1


def test_a_reload_of_nginx_is_not_noticed(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=3 * SIZE)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        out = tmp_path / "out"
        first = fetch(nginx, out, PROGRAMS["curl"], "/big.iso")
        wait_for(lambda: out.exists() and out.stat().st_size > SIZE)
        nginx.process.send_signal(signal.SIGHUP)
        whole(first, out, digests["big.iso"])
        assert settled(gate)["mover_reports_total"] == 1
    assert gate.usage() == (1, 3 * SIZE)


def test_a_file_that_is_replaced_while_its_client_waits_comes_new(tmp_path: Path) -> None:
    make_release(tmp_path / "release", first_iso=2 * SIZE, big_iso=SIZE)
    fresh = make_release(tmp_path / "fresh", big_iso=SIZE + 5000)
    with gate_and_nginx(tmp_path, *ONE) as (gate, nginx):
        blocker = fetch(nginx, tmp_path / "first", PROGRAMS["curl"], "/first.iso")
        wait_for(lambda: gate.figures()["moved_bodies"] == 1)
        waiting = fetch(nginx, tmp_path / "out", PROGRAMS["wget"], "/big.iso")
        wait_for(lambda: gate.figures()["held_requests"] == 1)
        os.replace(tmp_path / "fresh" / "big.iso", tmp_path / "release" / "big.iso")
        whole(waiting, tmp_path / "out", fresh["big.iso"])
        blocker.communicate()
        settled(gate)
    assert gate.usage()[0] == 2


def test_the_composition_of_nginx_and_gate_works_as_processes(tmp_path: Path) -> None:
    digests = make_release(tmp_path / "release", big_iso=SIZE)
    own = ROOT / "deploy" / "gate"
    services = read_composition(own, "compose.yml")["services"]
    for name in ("sockets", "snippets"):
        (tmp_path / name).mkdir()
    port = free_port()
    places = {
        "/run/tidegate": f"{tmp_path}/sockets",
        "/etc/nginx/tidegate": f"{tmp_path}/snippets",
        "include tidegate/": f"include {tmp_path}/snippets/",
        "/state": f"{tmp_path}/state",
        " /release": f" {tmp_path}/release",
        "listen 80": f"listen 127.0.0.1:{port}",
        # Their user is one of the image.
        "chown 10001": "test -d",
    }

    def here(text: str) -> str:
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    # What the folders are in their containers.
    for name, folders in (("prepare", 2), ("nginx", 4), ("gate", 3)):
        assert len(services[name]["volumes"]) == folders
    assert services["gate"]["network_mode"] == "service:nginx"
    (script,) = services["prepare"]["command"]
    search = {"PATH": f"{Path(TIDEGATE).parent}:/usr/bin:/bin"}
    subprocess.run([*services["prepare"]["entrypoint"], here(script)], check=True, env=search)
    # The image brings the frame of the site.
    frame = FILES.format(port=free_port(), root=tmp_path, more="").rstrip().removesuffix("}")
    site = here((own / "nginx.conf").read_text())
    words = services["gate"]["command"]
    at = words.index("--admin")
    line = f"tidegate {' '.join([*words[:at], *words[at + 2 :]])}"
    with (
        GateProcess(tmp_path, line=here(line)),
        Nginx(tmp_path / "nginx", f"{frame}{site}}}\n", port) as nginx,
    ):
        out = tmp_path / "out"
        whole(fetch(nginx, out, PROGRAMS["curl"], "/big.iso"), out, digests["big.iso"])
        status, lines = walk(f"{nginx.url}/big.iso")
        assert status == 0, lines
        assert "does not see the sockets" not in "".join(lines)


def test_a_walk_through_the_gate_says_what_is_missing(tmp_path: Path) -> None:
    make_release(tmp_path / "release", big_iso=3 * SIZE, small_txt=10)
    lost = ("--report", f"unix:{tmp_path}/nobody.sock")
    with gate_and_nginx(tmp_path, *ONE, snippet=lost) as (gate, nginx):
        status, lines = walk(f"{nginx.url}/big.iso")
        assert (status, lines[-1].split()[0]) == (1, "missing")
        assert "No end was reported" in lines[-1]
        nginx.file.write_text(nginx.file.read_text().replace("nobody.sock", "gate.sock.end"))
        nginx.process.send_signal(signal.SIGHUP)
        # The first walk's lease idles: the second one waits for its turn.
        wait_for(lambda: walk(f"{nginx.url}/big.iso")[0] == 0, 60)
        status, lines = walk(f"{nginx.url}/big.iso")
        assert status == 0, lines
        assert lines[-1] == "ok       The end was reported."
        assert "without a lease" in walk(f"{nginx.url}/small.txt")[1][-1]
        assert "The gate answers 404" in walk(f"{nginx.url}/none.iso")[1][-1]
        nginx.file.write_text(nginx.file.read_text().replace("/release/", "/elsewhere/"))
        nginx.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "nginx answers 404 for an admitted" in walk(f"{nginx.url}/big.iso")[1][-1])
        gate.stop()
        assert "No gate answers" in walk(f"{nginx.url}/big.iso")[1][-1]
    assert "The connection failed" in walk(f"{nginx.url}/big.iso")[1][-1]
    assert walk("ftp://x/y")[0] == 2

"""The follower's requests against servers that drip, lie, redirect, queue and break off."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from tuf.api.exceptions import DownloadError

from tests.faulty_mirrors import Behaviour, certificate, running
from tidegate.client.admin.cli import admin
from tidegate.client.mirror.cli import follow, status
from tidegate.client.mirror.fetching import HttpTransport
from tidegate.client.mirror.problem import MirrorProblem, named
from tidegate.client.mirror.transport import TooSlow
from tidegate.client.storage.piece_writer import FileStorage

Script = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def do_GET(self) -> None:
            script(self)

        do_POST = do_HEAD = do_GET  # noqa: N815 - so the standard library calls them

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}/"
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def answer(
    handler: BaseHTTPRequestHandler,
    status: int = 200,
    body: bytes = b"",
    length: int | None = None,
    **fields: str,
) -> None:
    handler.send_response(status)
    for name, value in fields.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def test_a_queue_is_waited_for_with_its_ticket() -> None:
    seen: list[str | None] = []

    def queue(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Tidegate-Ticket"])
        if len(seen) < 3:
            answer(handler, 503, Retry_After="7", Tidegate_Ticket=f"t{len(seen)}")
        else:
            answer(handler, body=b"now")

    slept: list[float] = []
    with server(queue) as url:
        assert HttpTransport(sleep=slept.append).request("GET", url).body == b"now"
    assert seen == [None, "t1", "t2"]
    assert len(slept) == 2
    # Never sooner than told, and not all followers at the same moment.
    assert all(6.9 < wait_s < 7.4 for wait_s in slept)


def test_a_queue_without_end_is_left() -> None:
    slept: list[float] = []
    with server(lambda h: answer(h, 503, Retry_After="1000")) as url:
        transport = HttpTransport(sleep=slept.append, clock=lambda: sum(slept))
        assert transport.request("GET", url).status == 503
    assert 3000 <= sum(slept) <= 4000


@pytest.mark.timeout(60)
def test_a_queue_without_end_is_left_for_files_too(tmp_path: Path) -> None:
    """A follower waited for three years, and looked for no newer version meanwhile."""
    with server(lambda handler: answer(handler, 503, Retry_After="100000000")) as url:
        with pytest.raises(DownloadError, match="past the limit of 3600 s"):
            HttpTransport(tmp_path).download(f"{url}f", tmp_path / "f", 10, "0" * 64)


def test_an_answer_that_ends_early_is_network_trouble_and_no_bad_metadata() -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, body=b'{"signed": ', length=1000)
        handler.close_connection = True

    with server(cut) as url, pytest.raises(DownloadError, match="ended early"):
        HttpTransport().request("GET", url)


def test_an_answer_that_drips_is_given_up() -> None:
    ended = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not ended.wait(0.02):
            handler.wfile.write(b".")

    with server(drip) as url:
        with pytest.raises(DownloadError, match="drips"):
            HttpTransport().request("GET", url, timeout_s=1.0)
        ended.set()


def test_no_more_is_read_than_was_asked_for() -> None:
    with server(lambda h: answer(h, body=b"x" * 100_000)) as url:
        assert len(HttpTransport().request("GET", url, limit_bytes=10).body) == 10


@pytest.mark.parametrize("aim", ["file:///etc/passwd", "data:,x"])
def test_no_redirect_leads_off_the_web(aim: str) -> None:
    with server(lambda h: answer(h, 302, Location=aim)) as url:
        with pytest.raises(DownloadError, match="redirects to"):
            HttpTransport().request("GET", url)
    with pytest.raises(DownloadError):
        HttpTransport().request("GET", aim)


def test_no_redirect_leads_to_another_protocol() -> None:
    with server(lambda h: answer(h, 302, Location="ftp://127.0.0.1/x")) as url:
        with pytest.raises(DownloadError, match="redirects to"):
            HttpTransport().request("GET", url)


def test_a_login_in_the_url_and_a_pass_go_to_that_server_only() -> None:
    seen: list[tuple[str | None, str | None]] = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        seen.append((handler.headers["Authorization"], handler.headers["Tidegate-Pass"]))
        answer(handler)

    with server(note) as other:

        def move(handler: BaseHTTPRequestHandler) -> None:
            seen.append((handler.headers["Authorization"], handler.headers["Tidegate-Pass"]))
            answer(handler, 302, Location=other)

        with server(move) as url:
            HttpTransport(pass_token="vip").request("GET", url.replace("//", "//me:se%20cret@"))
    login = "Basic " + base64.b64encode(b"me:se cret").decode()
    assert seen == [(login, "vip"), (None, None)]


def brought(tmp_path: Path, script: Script, length: int, content: bytes) -> bool:
    """Whether the transport brought this content, from a server with such manners."""
    path = tmp_path / "got"
    digest = hashlib.sha256(content).hexdigest()
    with server(script) as url:
        HttpTransport(tmp_path / "data").download(url + "file", path, length, digest)
    return path.exists() and path.read_bytes() == content


def test_a_file_is_brought(tmp_path: Path) -> None:
    content = bytes(range(256)) * 500
    assert brought(tmp_path, lambda h: answer(h, body=content), len(content), content)


def test_a_certificate_of_the_operator_s_own_is_believed_for_answers_and_files(
    tmp_path: Path,
) -> None:
    content, own = bytes(range(256)) * 500, certificate(tmp_path)
    digest = hashlib.sha256(content).hexdigest()
    with running(Behaviour(content, tls=own)) as (origin,):
        with pytest.raises(DownloadError, match="certificate is not trusted"):
            HttpTransport(tmp_path / "data").request("GET", origin.url)
        transport = HttpTransport(tmp_path / "data", ca_file=str(own))
        assert transport.request("GET", origin.url).body == content
        transport.download(origin.url, tmp_path / "got", len(content), digest)
    assert (tmp_path / "got").read_bytes() == content


def test_a_file_that_drips_is_left_and_gone_on_with_later(tmp_path: Path) -> None:
    content = bytes(range(256)) * 500
    ended = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        for byte in content:
            if ended.wait(0.05):
                return
            handler.wfile.write(bytes([byte]))

    with server(drip) as url:
        transport = HttpTransport(tmp_path / "data", pace_window_s=2.0)
        digest = hashlib.sha256(content).hexdigest()
        try:
            with pytest.raises(TooSlow, match="is kept"):
                transport.download(url + "file", tmp_path / "got", len(content), digest)
        finally:
            ended.set()
    assert brought(tmp_path, lambda h: answer(h, body=content), len(content), content)


@pytest.mark.parametrize("sent", [0, 300], ids=["at once", "under way"])
def test_an_origin_that_is_gone_is_left_and_gone_on_with_later(tmp_path: Path, sent: int) -> None:
    """Its packets are dropped: connections stand or are tried, and nothing comes."""
    content = bytes(range(256)) * 500
    ended = threading.Event()
    asked: list[str] = []

    def swallow(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        if sent and len(asked) == 1:
            answer(handler, body=content[: sent * 256], length=len(content))
        ended.wait(30)
        handler.close_connection = True

    digest = hashlib.sha256(content).hexdigest()
    with server(swallow) as url:
        assert HttpTransport(tmp_path / "data")._gone_s == 90.0
        transport = HttpTransport(tmp_path / "data", gone_s=0.5)
        try:
            with pytest.raises(MirrorProblem, match="nothing came from it") as told, named():
                transport.download(url + "file", tmp_path / "got", len(content), digest)
        finally:
            ended.set()
    assert (told.value.code, told.value.passing) == ("unreachable", True)
    assert brought(tmp_path, lambda h: answer(h, body=content), len(content), content)


def test_an_origin_that_says_wait_is_neither_gone_nor_slow(tmp_path: Path) -> None:
    asked, content = [], b"content" * 100

    def queue(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        if len(asked) == 1:
            answer(handler, 503, Retry_After="1")
        else:
            answer(handler, body=content)

    digest = hashlib.sha256(content).hexdigest()
    with server(queue) as url:
        transport = HttpTransport(tmp_path / "data", gone_s=0.3, pace_window_s=0.3)
        transport.download(url + "file", tmp_path / "got", len(content), digest)
    assert (tmp_path / "got").read_bytes() == content


def test_a_slow_origin_has_a_name() -> None:
    with pytest.raises(MirrorProblem) as told, named():
        raise TooSlow("it brought 3 bytes")
    assert (told.value.code, told.value.passing) == ("slow", True)


def test_an_endless_body_is_cut_off_at_the_signed_length(tmp_path: Path) -> None:
    sent = [0]

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while sent[0] < 1 << 30:
            handler.wfile.write(bytes(1 << 16))
            sent[0] += 1 << 16

    assert not brought(tmp_path, endless, 5000, b"a" * 5000)
    assert sent[0] < 1 << 28


def test_a_huge_announcement_takes_no_room(tmp_path: Path) -> None:
    assert not brought(tmp_path, lambda h: answer(h, length=1 << 44), 5000, b"a" * 5000)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("got")]


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileStorage, "room_bytes", lambda _: 4096)
    with pytest.raises(OSError, match="No space left"):
        brought(tmp_path, lambda h: answer(h, body=b"a" * 5000), 5000, b"a" * 5000)


def test_wrong_bytes_are_not_brought(tmp_path: Path) -> None:
    assert not brought(tmp_path, lambda h: answer(h, body=b"b" * 5000), 5000, b"a" * 5000)


def test_a_report_is_not_sent_on_to_where_a_redirect_leads() -> None:
    with server(lambda h: answer(h, 307, Location="/elsewhere")) as url:
        with pytest.raises(DownloadError, match="give that URL instead"):
            HttpTransport().request("POST", url, body=b"{}")


def test_redirects_in_circles_come_to_an_end() -> None:
    with server(lambda h: answer(h, 302, Location="/again")) as url:
        with pytest.raises(DownloadError, match="in circles"):
            HttpTransport().request("GET", url)


def test_a_head_request_waits_for_no_body() -> None:
    with server(lambda h: answer(h, body=b"x" * 9)) as url:
        reply = HttpTransport().request("HEAD", url, timeout_s=5.0)
    assert (reply.ok, reply.body, reply.headers["content-length"]) == (True, b"", "9")


def test_silence_comes_to_an_end() -> None:
    ended = threading.Event()

    def silent(handler: BaseHTTPRequestHandler) -> None:
        ended.wait(30)
        handler.close_connection = True

    with server(silent) as url:
        with pytest.raises(DownloadError, match="no answer in time"):
            HttpTransport().request("GET", url, timeout_s=0.1)
        ended.set()


def test_a_file_of_a_secret_that_is_no_text_is_told_in_a_sentence(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"\xd0\xff")
    words = ["http://127.0.0.1:1/", str(tmp_path / "mirror"), "--channel", "main"]
    told = CliRunner().invoke(follow, [*words, "--report-as", "one", "--report-key", str(key)])
    assert (told.exit_code, "--report-key" in told.output, "no text" in told.output) == (2, 1, 1)
    told = CliRunner().invoke(admin, ["--token-file", str(key), "status"])
    assert (told.exit_code, "--token-file" in told.output, "no text" in told.output) == (2, 1, 1)


def test_an_origins_list_of_mirrors_sends_a_terminal_no_commands_and_may_be_any_json() -> None:
    row = {"name": "one\x1b[2J", "condition": "current", "free": True, "version": 3}
    row |= {"seen_s": 4.0, "url": "https://one.example/", "trouble": ""}
    told = {"latest": {"main\x1b[2J": 3}, "mirrors": [row]}
    with server(lambda h: answer(h, body=json.dumps(told).encode())) as url:
        shown = CliRunner().invoke(status, [url])
    assert shown.exit_code == 0
    assert "one\N{REPLACEMENT CHARACTER}[2J  current, free  version 3" in shown.output
    assert "\x1b" not in shown.output
    for odd in ([], {"latest": [], "mirrors": []}, {"latest": {}, "mirrors": [{"free": []}]}):
        with server(lambda h, odd=odd: answer(h, body=json.dumps(odd).encode())) as url:
            shown = CliRunner().invoke(status, [url])
        assert (shown.exit_code, "gave no list of mirrors" in shown.output) == (1, True)

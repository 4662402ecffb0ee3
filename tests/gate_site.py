"""A gate with a real nginx in front, for tests."""

from __future__ import annotations

import http.client
import http.server
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from bench.shared.ports import free_port
from tests.running import fork_server, run_forked, wait_for

#: The only ones that the S3 server knows.
S3_KEYS = ("AKIDEXAMPLE", "the/secret+key")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def answering(pages: Mapping[str, tuple[int, Mapping[str, str], bytes]]) -> Iterator[str]:
    """The URL of a server that has these answers, by their paths: status, fields and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, fields, body = pages[self.path]
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class GateProcess:
    """`tidegate gate` with these words, or as a document has it, for the length of a `with`."""

    def __init__(
        self, folder: Path, *words: str, line: str = "", environ: Mapping[str, str] = {}
    ) -> None:
        self.folder = folder
        self.environ = environ
        self.place = f"unix:{folder / 'gate.sock'}"
        own = ("gate", str(folder / "release"), "--listen", self.place)
        self.words = shlex.split(line)[1:] or [*own, "--state", str(folder / "state"), *words]
        self.admin_port = free_port()
        self.log = folder / "gate.log"
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            said = log.tell()
            words = [*self.words, "--admin", f"127.0.0.1:{self.admin_port}"]
            words += ["--metrics-from", "127.0.0.1"]
            environ = {**os.environ, **self.environ}
            self.process = fork_server(**self.environ).start(words, self.folder, environ, log)

        def has_begun() -> bool:
            # It listens before it is ready.
            ready = b"\nready " in self.log.read_bytes()[said:]
            return ready or self.process.poll() is not None

        wait_for(has_begun, 60)
        assert self.process.poll() is None, self.log.read_text()

    def __enter__(self) -> GateProcess:
        return self

    def __exit__(self, *fault: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(40)

    def figures(self) -> dict[str, float]:
        """The metrics without labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=20)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.findall(r"(?m)^tidegate_(\w+) ([-+.e0-9]+|NaN)$", text)
        return {name: float(value) for name, value in found}

    def usage(self) -> tuple[int, int]:
        """Whole downloads and delivered bytes; the gate must have stopped."""
        with closing(sqlite3.connect(self.folder / "state" / "tidegate.db")) as database:
            whole, sent = database.execute(
                "SELECT sum(complete), sum(sent_bytes) FROM usage"
            ).fetchone()
            return whole, sent

    def snippet(self, *words: str, mover: str = "nginx") -> str:
        release = str(self.folder / "release")
        command = ("gate", "snippet", mover, "--root", release, "--gate", self.place)
        code, text = run_forked(*command, *words)
        assert code == 0, text
        return text


class Nginx:
    """A real nginx that runs a complete configuration as it was printed."""

    has_lua = False

    def __init__(self, folder: Path, configuration: str, port: int, lua: str = "") -> None:
        self.folder = folder
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(parents=True)
        (folder / "tidegate.lua").write_text(lua)
        # Envoy takes a file of another name for JSON.
        self.file = folder / "mover.yaml"
        self.file.write_text(configuration)
        self.start()

    def command(self) -> list[str]:
        # The suite may run as root, whose folders nginx's own user may not read.
        user = "user root; " if os.geteuid() == 0 else ""
        return ["nginx", "-p", str(self.folder), "-c", str(self.file), "-g", f"{user}daemon off;"]

    def start(self) -> None:
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "HOME": str(self.folder)},
            )
        wait_for(lambda: listens(self.port) or self.process.poll() is not None)
        assert self.process.poll() is None, (self.folder / "log").read_text()

    def __enter__(self) -> Nginx:
        return self

    def __exit__(self, *fault: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self, number: int = signal.SIGTERM) -> None:
        workers = self.workers() if number == signal.SIGKILL else []
        # The master first: it would replace its workers.
        self.process.send_signal(number)
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, number)
        self.process.wait(40)
        if workers:
            # One that is not gone yet would pass for the next server.
            wait_for(lambda: not listens(self.port))

    def workers(self) -> list[int]:
        """The processes that move bytes."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    def sending(self, folder: Path) -> set[str]:
        """The clients that got more than a header, and have not yet all of the largest file."""
        command = ("ss", "-tniHO", "state", "established", f"sport = :{self.port}")
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        size = max(file.stat().st_size for file in folder.iterdir())
        rows = re.findall(r"(?m)^\d+ +\d+ +\S+ +(\S+) .*\bbytes_acked:(\d+)", told)
        return {client for client, acked in rows if 65_536 < int(acked) < size}


class Caddy(Nginx):
    """The same of Caddy."""

    def command(self) -> list[str]:
        return ["caddy", "run", "--adapter", "caddyfile", "--config", str(self.file)]


class Apache(Nginx):
    """The same of Apache, which refuses to send files as root."""

    def command(self) -> list[str]:
        user = ["-C", "User nobody", "-C", "Group nogroup"] if os.geteuid() == 0 else []
        words = ["apache2", "-DFOREGROUND", *user, "-d", str(self.folder), "-f", str(self.file)]
        return words


class Lighttpd(Nginx):
    """The same of lighttpd."""

    has_lua = True

    def command(self) -> list[str]:
        return ["lighttpd", "-D", "-f", str(self.file)]


#: An nginx that has the files, for a mover that has none.
FILES = """\
pid nginx.pid; error_log stderr; events {{}}
http {{
    access_log off; client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c;
    uwsgi_temp_path d; scgi_temp_path e;
    server {{ listen 127.0.0.1:{port}; root "{root}"; {more} }}
}}
"""


class HAProxy(Nginx):
    """The same of HAProxy, which sends the files of another server."""

    has_lua = True
    at_files = r"server files 127.0.0.1:(\d+)"

    def command(self) -> list[str]:
        return ["haproxy", "-f", str(self.file)]

    def start(self) -> None:
        places = re.findall(self.at_files, self.file.read_text())
        text = FILES.format(port=places[0], root=self.folder.parent / "release", more="")
        self.files = Nginx(self.folder / "files", text, int(places[0]))
        try:
            super().start()
        except BaseException:
            self.files.stop()
            raise

    def stop(self, number: int = signal.SIGTERM) -> None:
        super().stop(number)
        self.files.stop(number)


class Envoy(HAProxy):
    """The same of Envoy, a program of PyPI."""

    has_lua = False
    at_files = r"port_value: (\d+)}}}"

    def command(self) -> list[str]:
        # Its own ports and shared memory would be those of another test, too.
        own = ("--use-dynamic-base-id", "--concurrency", "2", "--log-level", "warning")
        return [f"{sys.prefix}/bin/envoy", "-c", str(self.file), *own]


@contextmanager
def bucket(folder: Path) -> Iterator[str]:
    """The URL of the bucket in `folder/release` at a real S3 server, which verifies signatures."""
    port, (key, secret) = free_port(), S3_KEYS
    words = ["--port", str(port), "--access-key", key, "--secret-key", secret]
    process = subprocess.Popen(
        [f"{sys.prefix}/bin/hadro", str(folder), *words, "--log-level", "warning"]
    )
    try:
        wait_for(lambda: listens(port) or process.poll() is not None)
        yield f"http://127.0.0.1:{port}/release/"
    finally:
        process.terminate()
        process.wait(20)


class Sampler:
    """Looks ten times a second at the sockets that a mover sends to, and keeps the most.

    A client counts from its second look on: another may have begun while the kernel was asked.
    """

    def __init__(self, nginx: Nginx, folder: Path) -> None:
        self.most = 0
        self.looks = 0
        self._over = threading.Event()

        def look() -> None:
            before: set[str] = set()
            while not self._over.wait(0.1):
                now = nginx.sending(folder)
                self.most = max(self.most, len(now & before))
                self.looks += 1
                before = now

        self._thread = threading.Thread(target=look)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


#: By the name of a mover: how it runs, and whether it sends without the gate.
MOVERS = {
    "apache": (Apache, False),
    "caddy": (Caddy, True),
    "envoy": (Envoy, True),
    "haproxy": (HAProxy, True),
    "lighttpd": (Lighttpd, False),
    "nginx": (Nginx, True),
}


@contextmanager
def gate_and_nginx(
    folder: Path,
    *words: str,
    snippet: tuple[str, ...] = (),
    mover: str = "nginx",
    environ: Mapping[str, str] = {},
    change: Callable[[str], str] = str,
) -> Iterator[tuple[GateProcess, Nginx]]:
    """Both, for the release in `folder/release`; or another mover. `change` its configuration."""
    kind, sends_alone = MOVERS[mover]
    with GateProcess(folder, *words, environ=environ) as gate:
        port = free_port()
        own = ["--complete", "--listen", f"127.0.0.1:{port}"]
        own += [] if sends_alone else ["--if-absent", "closed"]
        own += ["--files", f"127.0.0.1:{free_port()}"] if issubclass(kind, HAProxy) else []
        text = change(gate.snippet(*own, *snippet, mover=mover))
        lua = gate.snippet("--part", "lua", *snippet, mover=mover) if kind.has_lua else ""
        with kind(folder / mover, text, port, lua) as nginx:
            yield gate, nginx

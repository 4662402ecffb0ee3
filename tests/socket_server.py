"""A real server process for tests that need sockets: `python -m tests.socket_server DIR [JSON]`.

Options: limits (a mapping for HttpLimits), bandwidth_bytes_s, tls ([certificate, key]), unix (a
path). Prints one line of JSON with the ports; writes the ends of transfers to standard error.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.installed import PYTHON

#: What `/-/long` answers from memory, as a long listing is.
LONG = bytes(range(256)) * 16384


class Running:
    """A server process that was started for a test."""

    def __init__(self, process: subprocess.Popen[str], told: dict[str, Any]) -> None:
        self.process = process
        self.pid = process.pid
        self.port: int = told["port"]
        self.tls_port: int = told.get("tls_port", 0)


@contextmanager
def running(root: Path, **options: Any) -> Generator[Running, None, None]:
    """Start a server over `root` and stop it afterwards."""
    process = subprocess.Popen(
        [PYTHON, "-m", "tests.socket_server", str(root), json.dumps(options)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server did not start"
        yield Running(process, json.loads(line))
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Serve until terminated."""
    from twisted.internet import reactor as reactor_module

    from tests.http_bench import bound
    from tests.open_files import AdmitAll, MemoryDigestCache, Visible
    from tidegate.server.files.digests import DigestService
    from tidegate.server.files.pacer import Pacer
    from tidegate.server.files.pages import Pages
    from tidegate.server.files.site import Site
    from tidegate.server.files.tree import Tree
    from tidegate.server.http.factory import HttpFactory
    from tidegate.server.http.front import Front
    from tidegate.server.http.limits import HttpLimits
    from tidegate.server.http.tls import TlsServer

    reactor: Any = reactor_module
    options: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    catalog = DigestService(reactor, MemoryDigestCache())
    pacer = Pacer(reactor, options.get("bandwidth_bytes_s"))
    site = Site(Tree(sys.argv[1]), catalog, AdmitAll(), Visible(), pacer, Pages(), reactor)
    site.add_route("/-/long", lambda request: request.respond(200, (), LONG))
    factory = HttpFactory(
        site,
        reactor,
        limits=HttpLimits(**options.get("limits", {})),
        charge=pacer.charge if pacer.capped else None,
    )
    front = Front(reactor, factory, shortcuts=options.get("shortcuts", True))
    told = {"port": front.listen_on(bound("127.0.0.1")).number}
    if "tls" in options:
        certificate, key = options["tls"]
        tls = TlsServer(Path(certificate), Path(key))
        told["tls_port"] = front.listen_on(bound("127.0.0.1"), tls).number
    if "unix" in options:
        at = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        at.bind(options["unix"])
        front.listen_on(at)
    reactor.addSystemEventTrigger("before", "shutdown", catalog.stop)
    print(json.dumps(told), flush=True)  # noqa: T201
    reactor.run()


if __name__ == "__main__":
    main()

"""Programs that know nothing of queues, through a proxy to a full server: each gets its file."""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from pathlib import Path

import pytest

from tests import real_clients as clients
from tests.attacks.server import occupy
from tests.attacks.test_proxies import RECIPE_OF, proxying
from tests.running import make_release, serving

pytestmark = pytest.mark.e2e

#: Of each way to wait behind a proxy: in silence, by redirects.
PROGRAMS = ("curl", "wget", "wget2", "axel", "aria2", "apt", "pip", "Python: urllib")
#: How long the server is full: a program with the least patience is redirected once.
FULL_S = 10.0


def test_programs_behind_each_proxy_wait_and_get_their_file(tmp_path: Path) -> None:
    said = behind_proxies(tmp_path, [name for name in PROGRAMS if name in clients.there()])
    assert {proxy for proxy, _ in said} == set(RECIPE_OF)
    assert {one: text for one, (good, text) in said.items() if not good} == {}


def behind_proxies(
    folder: Path, tools: list[str], full_s: float = FULL_S
) -> dict[tuple[str, str], tuple[bool, str]]:
    """By proxy and program: whether it has its file, and what it said."""
    release = folder / "release"
    for proxy in RECIPE_OF:
        (release / proxy).mkdir(parents=True)
        clients.lay_out(release / proxy, tools)
    # It takes as long, and then some.
    make_release(release, big_iso=int(4_000_000 * (full_s + 20.0)))
    words = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "4MB/s")
    log = folder / "access.log"
    logged = ("--access-log", str(log), "--trusted-proxy", "127.0.0.1")
    idle = {"TIDEGATE_LEASE_IDLE_S": "1"}
    said: dict[str, dict[str, tuple[int, str]]] = {}
    with (
        serving(release, folder / "state", *words, *logged, **idle) as server,
        contextlib.ExitStack() as stack,
        tempfile.TemporaryDirectory() as scratch,
    ):
        behind = int(server.url.rpartition(":")[2])

        def fetch(proxy: str, port: int) -> None:
            url = f"http://127.0.0.1:{port}/{proxy}"
            said[proxy] = clients.all_at_once(url, tools, work / proxy, full_s + 90)

        work = Path(scratch)
        work.chmod(0o755)
        fetching = []
        with occupy(server):
            for proxy in RECIPE_OF:
                port = stack.enter_context(proxying(proxy, folder / proxy, behind))
                (work / proxy).mkdir(mode=0o755)
                fetching.append(threading.Thread(target=fetch, args=(proxy, port)))
                fetching[-1].start()
            threading.Event().wait(full_s)
            assert not said
        for one in fetching:
            one.join()
        # Its last lines are in the access log then.
        server.stop()
        found = {}
        for proxy, ends in said.items():
            for tool, (code, text) in ends.items():
                place = clients.place_of(tool)
                outs = {out.read_bytes() for out in (work / proxy / place).glob("out*")}
                sent = re.findall(rf'"GET /{proxy}/{place}/\S+ \S+" 20[06] (\d+)', log.read_text())
                good = clients.got_it(tool, code, sum(map(int, sent)))
                found[proxy, tool] = (good and outs <= {clients.PAYLOAD}, text)
    return found

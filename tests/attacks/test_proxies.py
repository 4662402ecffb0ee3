"""Behind a proxy a client is who the proxy says, whatever it says itself: every recipe is run."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.shared.ports import free_port
from tests import real_clients as clients
from tests.attacks.server import occupy, one_slot
from tests.installed import PYTHON
from tests.running import make_release, serving, sha256, wait_for

pytestmark = pytest.mark.e2e

RECIPES = Path(__file__).parents[2] / "deploy" / "proxy"
RECIPE_OF = {
    "apache": "apache.conf",
    "caddy": "Caddyfile",
    "haproxy": "haproxy.cfg",
    "nginx": "nginx.conf",
}
NGINX_FRAME = (
    "daemon off; error_log stderr; pid {folder}/pid; events {{}} http {{ access_log off; "
    "client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; "
    "uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; include {folder}/recipe; }}"
)
#: A virtual host is a part of a configuration, too.
APACHE_FRAME = """\
ServerName x
Listen {port}
PidFile {folder}/pid
ErrorLog {folder}/errors
DefaultRuntimeDir {folder}
Mutex file:{folder}
{modules}
Include {folder}/recipe
"""
APACHE_MODULES = ("authz_core", "headers", "mpm_event", "proxy", "proxy_http")


def apache(folder: Path, port: int) -> list[str]:
    """The program of Debian with the recipe in this folder."""
    modules = "\n".join(
        f"LoadModule {one}_module /usr/lib/apache2/modules/mod_{one}.so" for one in APACHE_MODULES
    )
    frame = APACHE_FRAME.format(folder=folder, port=port, modules=modules)
    (folder / "frame").write_text(frame)
    # As root it needs another user.
    user = ["-C", "User nobody", "-C", "Group nogroup"] if os.geteuid() == 0 else []
    return ["apache2", "-DFOREGROUND", *user, "-f", str(folder / "frame")]


def command(proxy: str, folder: Path, listen: int, behind: int, more: str) -> list[str]:
    """Run a recipe as it stands, but for its two ports."""
    name = RECIPE_OF[proxy]
    text = (RECIPES / name).read_text().replace("127.0.0.1:8080", f"127.0.0.1:{behind}{more}")
    text = re.sub(r"(?m)(listen |bind :|^:|VirtualHost \*:)80\b", rf"\g<1>{listen}", text)
    assert str(listen) in text
    recipe = folder / "recipe"
    if proxy == "caddy":
        text = "{\n\tadmin off\n}\n" + text
    recipe.write_text(text)
    if proxy == "nginx":
        (folder / "frame").write_text(NGINX_FRAME.format(folder=folder))
        return ["nginx", "-p", str(folder), "-c", str(folder / "frame")]
    if proxy == "apache":
        return apache(folder, listen)
    if proxy == "haproxy":
        return ["haproxy", "-db", "-f", str(recipe)]
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(recipe)]


@contextlib.contextmanager
def proxying(proxy: str, folder: Path, behind: int, more: str = "") -> Iterator[int]:
    folder.mkdir()
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command(proxy, folder, port, behind, more),
            stdout=log,
            stderr=log,
            env={"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

        def up() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", port)) == 0 or process.poll() is not None

        try:
            wait_for(up)
            assert process.poll() is None, (folder / "log").read_text()
            yield port
        finally:
            process.terminate()
            process.wait(20)


def place(port: int, source: str, **fields: str) -> str:
    """The place that a client from `source` is told."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, 20, source_address=(source, 0))
    connection.request("GET", "/big.iso", headers={"Tidegate-Wait": "ticket", **headers})
    found = connection.getresponse().headers["Tidegate-Place"]
    connection.close()
    assert found is not None
    return found


@pytest.mark.parametrize("proxy", RECIPE_OF)
def test_nobody_is_somebody_else_by_a_header(proxy: str, tmp_path: Path) -> None:
    with one_slot(tmp_path, "--trusted-proxy", "127.0.0.1") as server, occupy(server):
        behind = int(server.url.rpartition(":")[2])
        with proxying(proxy, tmp_path / "proxy", behind) as port:
            names = ("X_Forwarded_For", "X_Real_IP", "X_Other")
            # Three times each: the answer to a fourth early question is kept back.
            told = {
                place(port, "127.0.0.2", **{name: f"9.9.9.{number}"})
                for number, name in enumerate(names)
            }
            assert told == {"1"}
            told = {
                place(port, "127.0.0.3", Forwarded=f"for=9.9.9.{number};proto=https")
                for number in range(3)
            }
            assert told == {"2"}
            assert place(port, "127.0.0.4") == "3"


#: Below 10 s, the shortest time-out that programs have of themselves.
PATIENCE_S = "9.5"
FETCH = (
    "import urllib.request as u, shutil; "
    f"shutil.copyfileobj(u.urlopen('URL', timeout={PATIENCE_S}), open('OUT', 'wb'))"
)


def test_impatient_programs_wait_behind_a_proxy(tmp_path: Path) -> None:
    """A proxy passes no header line: each gave up before its turn came."""
    clients.lay_out(make_folder(tmp_path / "release"), ["pip"])
    make_release(tmp_path / "release", big_iso=60_000_000)
    slot = ("--policy", "ticket", "--slots", "1", "--reserve-small", "0", "--bandwidth", "400kB/s")
    log = tmp_path / "requests"
    words = (*slot, "--trusted-proxy", "127.0.0.1", "--access-log", str(log))
    idle = {"TIDEGATE_LEASE_IDLE_S": "1"}
    with (
        serving(tmp_path / "release", tmp_path / "state", *words, **idle) as server,
        contextlib.ExitStack() as stack,
    ):
        behind = int(server.url.rpartition(":")[2])
        started: dict[str, list[subprocess.Popen[bytes]]] = {}
        with occupy(server):
            for proxy in RECIPE_OF:
                port = stack.enter_context(proxying(proxy, tmp_path / proxy, behind))
                folder = make_folder(tmp_path / f"client of {proxy}")
                origin = f"http://127.0.0.1:{port}/pip"
                pip = clients.TOOLS["pip"].command(origin, folder)
                fetch = FETCH.replace("URL", f"{origin}/payload.wav").replace(
                    "OUT", f"{folder}/out"
                )
                started[proxy] = [
                    subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                    for one in (
                        [*pip, "--timeout", PATIENCE_S, "--retries", "0"],
                        [PYTHON, "-c", fetch],
                    )
                ]
            # Each is sent on once, before its patience ends, and waits again.
            wait_for(lambda: log.read_text().count('" 302 ') >= 2 * len(RECIPE_OF))
            running = {proxy: [one.poll() for one in both] for proxy, both in started.items()}
            assert running == {proxy: [None, None] for proxy in started}
        said = {
            proxy: [one.communicate(timeout=60)[0] for one in both]
            for proxy, both in started.items()
        }
    for proxy in started:
        assert (tmp_path / f"client of {proxy}" / "out").read_bytes() == clients.PAYLOAD
        # pip has its file, and finds then that it is no package.
        assert b"not a gzip file" in said[proxy][0], said[proxy]


#: A certificate authority of one's own, as `{home}/ca`, and Caddy before Tidegate with a name in
#: the place of `:80`, in a network of their own, where the authority finds that name.
ACME = """\
set -e
echo 127.0.0.1 localhost release.test >{home}/hosts
mount --bind {home}/hosts /etc/hosts
ip link set lo up
root={home}/ca/.local/share/caddy/pki/authorities/local/root.crt
HOME={home}/ca caddy run --adapter caddyfile --config {home}/authority >{home}/ca.log 2>&1 &
until [ -s $root ] && curl -s --cacert $root https://127.0.0.1:9000/ >/dev/null; do sleep 0.1; done
HOME={home} caddy run --adapter caddyfile --config {home}/recipe >{home}/log 2>&1 &
curl -s --retry 99 --retry-delay 1 --retry-all-errors --max-time 90 --http2 --cacert $root \\
    -w '%{{http_version}}' -o {home}/got https://release.test/big.iso
"""
AUTHORITY = """\
{
	admin off
	skip_install_trust
	auto_https disable_redirects
}
https://127.0.0.1:9000 {
	tls internal
	acme_server
}
"""
CLIENT_OF_AUTHORITY = """\
{
	admin off
	skip_install_trust
	cert_issuer acme {
		dir https://127.0.0.1:9000/acme/local/directory
		trusted_roots %s/ca/.local/share/caddy/pki/authorities/local/root.crt
	}
}
"""


def test_caddy_gets_a_certificate_by_acme_and_speaks_http_2(tmp_path: Path) -> None:
    home, behind = make_folder(tmp_path / "proxy"), tmp_path / "socket"
    recipe = (RECIPES / "Caddyfile").read_text()
    recipe = recipe.replace("127.0.0.1:8080", f"unix/{behind}").replace(
        "\n:80 {", "\nrelease.test {"
    )
    (home / "recipe").write_text(CLIENT_OF_AUTHORITY % home + recipe)
    (home / "authority").write_text(AUTHORITY)
    digests = make_release(tmp_path / "release", big_iso=3_000_000)
    words = ("--listen", f"unix:{behind}", "--trusted-proxy", "unix")
    with serving(tmp_path / "release", tmp_path / "state", *words):
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c"]
        script = ACME.format(home=home)
        done = subprocess.run([*apart, script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "2", (done.stderr, (home / "log").read_text())
    assert sha256(home / "got") == digests["big.iso"]


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("workers", ["1", "2"])
def test_haproxy_says_who_the_client_is_before_its_first_byte(tmp_path: Path, workers: str) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text("proxy_protocol = true\n")
    arguments = ("--trusted-proxy", "127.0.0.1", "--config", str(config), "--workers", workers)
    with one_slot(tmp_path, *arguments) as server:
        behind = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", behind), 20) as bare:
            bare.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert bare.recv(4096).startswith(b"HTTP/1.1 400 ")
        with proxying("haproxy", tmp_path / "proxy", behind, " send-proxy-v2") as port:
            with occupy(server, port, "127.0.0.9"):
                first = {
                    place(port, "127.0.0.2", X_Forwarded_For=f"9.9.9.{number}")
                    for number in range(3)
                }
                assert first == {"1"}
                assert place(port, "127.0.0.3") == "2"

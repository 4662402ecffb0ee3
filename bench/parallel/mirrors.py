"""Rate-limited nginx mirrors and one client as network namespaces. Needs root.

Each mirror's egress and optionally the client's ingress is a token bucket. A relay that delays the
client's frames makes longer round trips. The packet filter counts the bytes that reach the client
from each mirror: waste is measured on the wire.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.shared import namespaces
from bench.shared.namespaces import LabFailed, inside, run, shape


@dataclass
class Mirrors:
    """`with Mirrors(rates, data) as lab:`; mirrors are numbered from 0."""

    rates_mbit: tuple[float, ...]
    data: bytes
    rtt_ms: float = 0.0
    client_mbit: float | None = None
    corrupt: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    retry_after_s: int = 5
    #: Lines of nginx's configuration for the file, by mirror.
    directives: Mapping[int, str] = field(default_factory=dict)
    prefix: str = "tgp"
    root: Path = field(init=False)

    def __enter__(self) -> Mirrors:
        self.root = Path(tempfile.mkdtemp(prefix=f"{self.prefix}."))
        self.root.chmod(0o755)
        self._relay: subprocess.Popen[str] | None = None
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self.rates_mbit)):
            self.kill(number)
        namespaces.remove(self._names())
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    # -- names ---------------------------------------------------------------------------------

    @property
    def client(self) -> str:
        return f"{self.prefix}-c"

    def space(self, number: int) -> str:
        return f"{self.prefix}-m{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.78.0.{number + 1}"

    def url(self, number: int) -> str:
        return f"http://{self.address(number)}/file.bin"

    def _names(self) -> list[str]:
        spaces = [self.space(number) for number in range(len(self.rates_mbit))]
        return [self.client, f"{self.prefix}-b", *spaces]

    # -- building ------------------------------------------------------------------------------

    def _build(self) -> None:
        bridge = f"{self.prefix}-b"
        namespaces.make(self._names(), bridge)
        for name in self._names():
            for setting in ("ipv4.tcp_no_metrics_save=1", "ipv6.conf.all.disable_ipv6=1"):
                run(*inside(name, "sysctl", "-qw", f"net.{setting}"), check=False)
        self._client_port(bridge)
        self._files()
        for number, rate in enumerate(self.rates_mbit):
            namespaces.plug(self.space(number), bridge, f"p{number}", self.address(number))
            self._rate("add", number, rate)
            self._serve(number)
        rules = "".join(
            f"add rule ip count in ip saddr {self.address(n)} counter; "
            for n in range(len(self.rates_mbit))
        )
        chain = "add chain ip count in { type filter hook input priority 0; }; "
        run(*inside(self.client, "nft", f"add table ip count; {chain}{rules}"))
        for number in range(len(self.rates_mbit)):
            self._wait_for(number)

    def _client_port(self, bridge: str) -> None:
        address = "10.78.0.100"
        if self.rtt_ms:
            relay = self.root / "relay"
            run("cc", "-O2", "-o", str(relay), str(Path(__file__).with_name("relay.c")))
            words = [str(relay), self.client, "eth0", bridge, "pc", str(int(self.rtt_ms * 1000))]
            self._relay = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert self._relay.stdout is not None
            if self._relay.stdout.readline() != "ready\n":
                raise LabFailed("the relay does not start")
            for name, device in ((self.client, "eth0"), (bridge, "pc")):
                run("ip", "-n", name, "link", "set", device, "gso_max_segs", "1", check=False)
            namespaces.join_bridge(bridge, "pc")
            namespaces.address(self.client, f"{address}/24")
        else:
            namespaces.plug(self.client, bridge, "pc", address)
        if self.client_mbit is not None:
            rest = "burst 32kb latency 50ms" if self.client_mbit >= 1 else "burst 2kb latency 2s"
            shape(bridge, "pc", self.client_mbit, rest)

    def _files(self) -> None:
        (self.root / "file.bin").write_bytes(self.data)
        if self.corrupt:
            wrong = hashlib.shake_128(self.data[:64]).digest(len(self.data))
            (self.root / "wrong.bin").write_bytes(wrong)
        length = 256 << 10
        parts = [self.data[at : at + length] for at in range(0, len(self.data), length)]
        hashes = "".join(f"<hash>{hashlib.sha256(part).hexdigest()}</hash>" for part in parts)
        urls = "".join(
            f'<url priority="1">{self.url(n)}</url>' for n in range(len(self.rates_mbit))
        )
        digest = hashlib.sha256(self.data).hexdigest()
        (self.root / "file.meta4").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="out.bin">'
            f"<size>{len(self.data)}</size>"
            f'<hash type="sha-256">{digest}</hash>'
            f'<pieces length="{length}" type="sha-256">{hashes}</pieces>{urls}'
            "</file></metalink>"
        )

    def _serve(self, number: int) -> None:
        root = self.root / f"m{number}"
        (root / "www").mkdir(parents=True)
        (root / "tmp").mkdir()
        file = "wrong.bin" if number in self.corrupt else "file.bin"
        (root / "www" / "file.bin").symlink_to(self.root / file)
        if number in self.busy:
            (root / "busy").touch()
        config = root / "nginx.conf"
        config.write_text(f"""
user root; worker_processes 1; daemon on; pid {root}/pid; error_log {root}/error.log;
events {{ worker_connections 512; }}
http {{
  log_format l '$connection $status $body_bytes_sent'; access_log {root}/access.log l;
  sendfile on; keepalive_requests 100000; types {{ application/octet-stream bin; }}
  client_body_temp_path {root}/tmp; proxy_temp_path {root}/tmp; fastcgi_temp_path {root}/tmp;
  uwsgi_temp_path {root}/tmp; scgi_temp_path {root}/tmp;
  server {{
    listen {self.address(number)}:80; root {root}/www;
    location @busy {{ add_header Retry-After {self.retry_after_s} always; return 503; }}
    location = /file.bin {{
      error_page 503 @busy; {self.directives.get(number, "")}
      if (-f {root}/busy) {{ return 503; }}
    }}
  }}
}}
""")
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        run(*inside(self.space(number), nginx, "-c", str(config)))

    def _wait_for(self, number: int) -> None:
        for _ in range(50):
            words = ["curl", "-s", "-o", "/dev/null", "-m", "5", "-r", "0-0"]
            words.append(f"http://{self.address(number)}/")
            done = subprocess.run(inside(self.client, *words), check=False)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        raise LabFailed(f"mirror {number} does not answer")

    # -- what happens to mirrors ---------------------------------------------------------------

    def _rate(self, verb: str, number: int, mbit: float) -> None:
        # A slow line must hold a few packets, and not give much away at once.
        rest = "burst 16kb latency 50ms" if mbit >= 1 else "burst 2kb latency 1s"
        shape(self.space(number), "eth0", mbit, rest, verb)

    def set_rate(self, number: int, mbit: float) -> None:
        """From now on the mirror sends at this rate."""
        self._rate("change", number, mbit)

    def silence(self, number: int) -> None:
        """From now on the mirror drops all packets in both directions."""
        hooks = "".join(
            f"add chain ip quiet {hook} {{ type filter hook {hook} priority 0; policy drop; }}; "
            for hook in ("input", "output")
        )
        run(*inside(self.space(number), "nft", f"add table ip quiet; {hooks}"))

    def ready(self, number: int) -> None:
        """From now on the mirror is not busy."""
        (self.root / f"m{number}" / "busy").unlink(missing_ok=True)

    def kill(self, number: int) -> None:
        pid = self.root / f"m{number}" / "pid"
        if pid.exists() and pid.read_text().strip():
            run("kill", "-TERM", pid.read_text().strip(), check=False)

    # -- what reached the client ---------------------------------------------------------------

    def received(self) -> list[int]:
        """TCP payload from each mirror so far, in bytes."""
        text = run(*inside(self.client, *["nft", "-j", "list", "table", "ip", "count"]))
        counts = []
        for row in json.loads(text)["nftables"]:
            for part in row.get("rule", {}).get("expr", []):
                if "counter" in part:
                    counter = part["counter"]
                    counts.append(counter["bytes"] - 52 * counter["packets"])
        return counts

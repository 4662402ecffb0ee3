"""A composition as processes: docker-compose.cluster.yml, or another file, without Docker.

Each service has a network namespace on the composition's subnet, its names by DNS as in Docker, its
secrets, volumes and read-only root, and the command that the file gives it; where it leaves that to
the image, the image's own: HAProxy with its configuration, PostgreSQL made from its environment.
Services of our own image run the installed tidegate in a view of this machine, or in `images`.
Needs root, docker-compose
(to read the file), haproxy and PostgreSQL.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tidegate
from bench.shared.namespaces import inside, remove, run
from tests.postgres import tool

#: Where the composition lies.
ROOT = Path(__file__).resolve().parent.parent
FILE = "docker-compose.cluster.yml"
_START_S = 120.0
#: docker-compose is a Python program of the system, whose YAML reader this is.
_TO_JSON = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"


class BuiltImage(Protocol):
    """A target of the Dockerfile: its layers, the uppermost first, and how its container starts."""

    @property
    def layers(self) -> Sequence[Path]: ...
    @property
    def environ(self) -> Mapping[str, str]: ...
    @property
    def user(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def entrypoint(self) -> Sequence[str]: ...
    @property
    def command(self) -> Sequence[str]: ...
    @property
    def volumes(self) -> Sequence[str]: ...


def read_composition(folder: Path, file: str = FILE) -> dict[str, Any]:
    """The composition in `folder`, as docker-compose understands it. Raises CalledProcessError."""
    told = subprocess.run(
        ["docker-compose", "-f", file, "config"], cwd=folder, check=True, stdout=subprocess.PIPE
    )
    # Dollars are doubled in its output, as in the file.
    text = told.stdout.decode().replace("$$", "$")
    found = subprocess.run(
        ["/usr/bin/python3", "-c", _TO_JSON],
        input=text.encode(),
        check=True,
        stdout=subprocess.PIPE,
    )
    composition: dict[str, Any] = json.loads(found.stdout)
    return composition


class Composition:
    """The services of a composition. `images` has the targets of the Dockerfile that are built."""

    def __init__(
        self, root: Path, file: str = FILE, images: Mapping[str, BuiltImage] | None = None
    ) -> None:
        self.root = root
        self.images = images or {}
        (root / "deploy" / "proxy").mkdir(parents=True)
        for name in (file, "deploy/proxy/haproxy-cluster.cfg"):
            (root / name).write_bytes((ROOT / name).read_bytes())
        for name in ("postgres", "grafana"):
            (root / "deploy" / f"{name}-password").write_text(secrets.token_hex(16))
        (root / "release").mkdir()
        self.told = read_composition(root, file)
        subnet = self.told["networks"]["default"]["ipam"]["config"][0]
        self.gateway = subnet["gateway"]
        self.prefix = ipaddress.ip_network(subnet["subnet"]).prefixlen
        addresses = ipaddress.ip_network(subnet["ip_range"]).hosts()
        self.services: dict[str, Any] = self.told["services"]
        self.address = {name: str(next(addresses)) for name in self.services}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def name(self, service: str) -> str:
        """Of its namespace."""
        return f"tgk{os.getpid()}-{service}"

    def log(self, service: str) -> str:
        """What it has said."""
        return (self.root / f"{service}.log").read_text("utf-8", "replace")

    def network(self) -> None:
        """The bridge with its gateway in a namespace of its own, where we speak from, and DNS."""
        remove([self.name(one) for one in (*self.services, "host")])
        host = self.name("host")
        run("ip", "netns", "add", host)
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "add", "br0", "type", "bridge"),
            ("addr", "add", f"{self.gateway}/{self.prefix}", "dev", "br0"),
            ("link", "set", "br0", "up"),
        ):
            run("ip", "-n", host, *words)
        for index, (service, address) in enumerate(self.address.items()):
            name = self.name(service)
            run("ip", "netns", "add", name)
            ends = ["link", "add", f"p{index}", "type", "veth", "peer", "eth0", "netns", name]
            run("ip", "-n", host, *ends)
            run("ip", "-n", host, "link", "set", f"p{index}", "master", "br0", "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{address}/{self.prefix}", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("route", "add", "default", "via", self.gateway),
            ):
                run("ip", "-n", name, *words)
        zone = self.root / "zone"
        zone.write_text("".join(f"{a} {n}\n" for n, a in self.address.items()))
        self.running["dns"] = subprocess.Popen(
            inside(host, sys.executable, "-c", _DNS, str(zone), self.gateway),
            stdout=subprocess.DEVNULL,
        )

    def image(self, service: str) -> BuiltImage | None:
        """The built image of a service, if it has one."""
        build = self.services[service].get("build")
        return self.images.get(build["target"]) if build else None

    def start(self, service: str) -> None:
        """Run its command in a root of its own: read-only, with its mounts and its names."""
        told = self.services[service]
        image = self.image(service)
        lower = ":".join(map(str, image.layers)) if image else "/"
        base = self.root / "roots" / service
        upper, work, view = base / "upper", base / "work", base / "view"
        for one in (upper, work, view):
            one.mkdir(parents=True, exist_ok=True)
        shim = f"{view}/opt/tidegate/bin/tidegate"
        runs = f'exec {sys.executable} -m tidegate "$@"'
        script = [
            "set -e",
            f"mount -t tmpfs none {base}",
            f"mkdir {upper} {work} {view}",
            f"mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work} {view}",
            f"mkdir -p {view}/run/secrets",
            f"printf '%s\\n' 'nameserver {self.gateway}' > {view}/etc/resolv.conf",
        ]
        if image is None:
            script += [
                f"mkdir -p {view}/opt/tidegate/bin",
                f"printf '%s\\n' '#!/bin/sh' {shlex.quote(runs)} > {shlex.quote(shim)}",
                f"chmod 755 {shim}",
            ]
        mounts: list[tuple[str, str]] = []
        for secret in told.get("secrets", ()):
            source = secret["source"] if isinstance(secret, dict) else secret
            mounts.append((self.told["secrets"][source]["file"], f"/run/secrets/{source}"))
        volumes = [volume.split(":")[:2] for volume in told.get("volumes", ())]
        named = {target for _, target in volumes}
        for target in image.volumes if image else ():
            if target not in named:
                volumes.append([f"{service}-{target.strip('/')}", target])
        for source, target in volumes:
            if not source.startswith("/"):
                kept = self.root / "volumes" / source
                kept.mkdir(parents=True, exist_ok=True)
                source = str(kept)
                # A new volume gets the owner that its folder has in the image.
                script.append(f"[ ! -e {view}{target} ] || chown --reference={view}{target} {kept}")
            mounts.append((source, target))
        for source, target in mounts:
            is_folder = Path(source).is_dir()
            made = target if is_folder else Path(target).parent
            script.append(f"mkdir -p {view}{made}")
            if not is_folder:
                script.append(f"touch {view}{target}")
        for target in told.get("tmpfs", ()):
            script.append(f"mkdir -p {view}{target}; mount -t tmpfs none {view}{target}")
            script.append(f"chmod 1777 {view}{target}")
        # What stands for the image lies below /tmp here.
        for program in () if image else _program_folders():
            script.append(f"mkdir -p {view}{program}; mount --rbind {program} {view}{program}")
        if told.get("read_only"):
            script.append(f"mount -o remount,ro {view}")
        for source, target in mounts:
            script.append(f"mount --bind {source} {view}{target}")
        script += [f"mount --rbind /{one} {view}/{one}" for one in ("proc", "dev")]
        words = self.command(service)
        user = told.get("user", image.user if image else "root")
        variables: dict[str, object] = {
            "PATH": f"/opt/tidegate/bin:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            **({"TIDEGATE_USER": "root"} if user == "root" else {}),
            **(image.environ if image else {}),
            **(told.get("environment") or {}),
        }
        pairs = [f"{name}={value}" for name, value in variables.items()]
        become = [] if user == "root" else [f"--userspec={user}:{user}"]
        enter = ["setpriv", "--no-new-privs", "chroot", *become, str(view)]
        enter += ["env", "-i", f"--chdir={image.folder if image else '/'}", *pairs]
        script.append(f"cd /; exec {shlex.join([*enter, *words])}")
        with (self.root / f"{service}.log").open("ab") as log:
            self.running[service] = subprocess.Popen(
                inside(self.name(service), "unshare", "-m", "sh", "-c", "\n".join(script)),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def command(self, service: str) -> list[str]:
        """What the file says, or else what its image does."""
        told = self.services[service]
        image, built = told.get("image", ""), self.image(service)
        if "entrypoint" in told:
            return [*told["entrypoint"], *told["command"]]
        if built:
            return [*built.entrypoint, *(told.get("command") or built.command)]
        if image.startswith("haproxy:"):
            return ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
        assert image.startswith("postgres:"), image
        data = "/var/lib/postgresql/data"
        as_user = "setpriv --reuid=postgres --regid=postgres --clear-groups"
        steps = f"""
            chown -R postgres {data} /run/postgresql
            chmod 700 {data}
            cp $POSTGRES_PASSWORD_FILE /tmp/pw
            chown postgres /tmp/pw
            if [ ! -s {data}/PG_VERSION ]; then
              {as_user} {tool("initdb")} -U $POSTGRES_USER --pwfile=/tmp/pw -E UTF8 --locale=C \\
                -A scram-sha-256 --auth-local=trust -D {data} >/dev/null
              echo host all all all scram-sha-256 >> {data}/pg_hba.conf
              {as_user} {tool("pg_ctl")} -w -D {data} -o '-c listen_addresses=' start >/dev/null
              {as_user} {tool("createdb")} -U $POSTGRES_USER $POSTGRES_DB
              {as_user} {tool("pg_ctl")} -w -D {data} stop >/dev/null
            fi
            exec {as_user} {tool("postgres")} -D {data} -c listen_addresses='*'
        """
        return ["sh", "-ec", steps]

    def healthy(self, service: str) -> bool:
        """What its healthcheck says, asked in its namespace."""
        test = self.services[service]["healthcheck"]["test"]
        words = ["sh", "-c", test[1]] if test[0] == "CMD-SHELL" else [*test[1:]]
        if test[0] == "CMD-SHELL":
            words = ["sh", "-c", f"{test[1]} -h {self.address[service]}"]
        built = self.image(service)
        if built:
            target = f"--target={self.running[service].pid}"
            path = f"PATH={built.environ['PATH']}"
            words = ["nsenter", target, "--mount", "--net", "--root", "env", path, *words]
            return not subprocess.run(words, check=False, capture_output=True).returncode
        if words[0] == "python":
            words[0] = sys.executable
        done = subprocess.run(inside(self.name(service), *words), check=False, capture_output=True)
        return not done.returncode

    def wait_for(self, service: str) -> None:
        """Wait until it is healthy. Raises AssertionError."""
        end_s = time.monotonic() + _START_S
        while not self.healthy(service):
            if time.monotonic() > end_s or self.running[service].poll() is not None:
                raise AssertionError(f"{service} is not healthy\n{self.log(service)[-3000:]}")
            time.sleep(0.2)

    def lose(self, service: str) -> None:
        """Kill all of it."""
        pids = run("ip", "netns", "pids", self.name(service)).split()
        assert pids, f"{service} was to be lost, but no process of it ran."
        for pid in pids:
            run("kill", "-KILL", pid, check=False)
        self.running.pop(service).wait()

    def close(self) -> None:
        """End all that runs."""
        remove([self.name(one) for one in (*self.services, "host")])
        for process in self.running.values():
            process.wait()

    def get(self, path: str, client: str) -> tuple[int, bytes]:
        """Status and body of a download through the balancer, from the host's side."""
        url = f"http://{self.address['balancer']}:8080{path}"
        words = ["curl", "-s", "-w", "%{stderr}%{http_code}", "--max-time", "60", "-A", client, url]
        done = subprocess.run(inside(self.name("host"), *words), check=False, capture_output=True)
        return int(done.stderr[-3:]), done.stdout


_DNS = """
import sys
from twisted.internet import reactor
from twisted.names import dns, error, server
from twisted.internet.defer import succeed, fail
hosts = dict(reversed(line.split()) for line in open(sys.argv[1]))
class Zone:
    def query(self, query, timeout=None):
        name = query.name.name.decode()
        if name in hosts and query.type == dns.A:
            record = dns.RRHeader(name, dns.A, dns.IN, 5, dns.Record_A(hosts[name], 5))
            return succeed(([record], [], []))
        if name in hosts:
            return succeed(([], [], []))
        return fail(error.DomainError())
factory = server.DNSServerFactory(clients=[Zone()])
reactor.listenUDP(53, dns.DNSDatagramProtocol(factory), interface=sys.argv[2])
reactor.run()
"""


def _program_folders() -> list[str]:
    """The folders that hold the interpreter, the installed program and its dependencies."""
    folders = {sys.prefix, sys.base_prefix, str(Path(tidegate.__file__).parent)}
    return sorted(folders | {path for path in sys.path if path.endswith("-packages")})


def downloads(composition: Composition, content: bytes, count: int, name: str) -> int:
    """How many of so many downloads through the balancer bring this content, each within time."""
    whole = 0
    for number in range(count):
        end_s = time.monotonic() + _START_S
        body = b""
        while body != content and time.monotonic() < end_s:
            status, body = composition.get("/big.iso", f"{name}-{number}/1")
            if status != 200:
                # Nobody leads yet, or again.
                time.sleep(0.5)
        whole += body == content
    return whole

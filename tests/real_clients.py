"""Real programs that download, each in its own way, and what some of them ask a registry first.

Programs that are not installed are left out (Debian: curl wget wget2 aria2 axel ffmpeg skopeo
podman git-lfs nodejs npm golang cargo default-jdk dnf zypper pacman-package-manager lftp rclone
yt-dlp httpie; PyPI: libtorrent).
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import socketserver
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def _sound() -> bytes:
    """What players play: silence would be recognised, so it is noise."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(random.Random(7).randbytes(400_000))
    return out.getvalue()


PAYLOAD = _sound()
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            while self._one():
                pass
        except OSError:
            # The program hung up.
            return

    def _one(self) -> bool:
        first = self.rfile.readline()
        if first.count(b" ") < 2:
            return False
        method, target, _ = first.decode("latin-1").split(" ", 2)
        fields = {}
        while (line := self.rfile.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.strip().lower()] = value.strip()
        body = self.rfile.read(int(fields.get("content-length", 0)))
        if DIGEST not in target and "payload" not in target and not target.endswith(".zip"):
            self._registry(method, target, body)
        else:
            self._say(f"Location: {self.server.elsewhere}/payload.wav\r\n")
        return True

    def _say(self, where: str) -> None:
        head = f"HTTP/1.1 307 Temporary Redirect\r\n{where}Content-Length: 0\r\n\r\n"
        self.wfile.write(head.encode())
        self.wfile.flush()

    def _registry(self, method: str, target: str, body: bytes) -> None:
        """Just enough of a container registry, a Git LFS store, a crate index and a Go proxy."""
        origin = f"http://127.0.0.1:{self.server.server_address[1]}"
        if target.endswith("/objects/batch"):
            action = {"download": {"href": f"{origin}/payload"}}
            found = {"oid": DIGEST, "size": len(PAYLOAD), "actions": action}
            kind = b"Content-Type: application/vnd.git-lfs+json\r\n"
            self._json({"transfer": "basic", "objects": [found]}, kind)
        elif "/manifests/" in target:
            layer = {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "size": len(PAYLOAD),
                "digest": f"sha256:{DIGEST}",
            }
            config = {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "size": 2,
                "digest": f"sha256:{hashlib.sha256(b'{}').hexdigest()}",
            }
            oci = "application/vnd.oci.image.manifest.v1+json"
            manifest = {"schemaVersion": 2, "mediaType": oci, "config": config, "layers": [layer]}
            self._json(manifest, f"Content-Type: {oci}\r\n".encode())
        elif target.endswith("/config.json"):
            self._json({"dl": f"{origin}/payload"}, b"")
        elif target.endswith("/wa/ve/waves"):
            crate = {"name": "waves", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
            self._json({**crate, "cksum": DIGEST}, b"")
        elif target.endswith(".info"):
            self._json({"Version": "v1.0.0"}, b"")
        elif target.endswith(".mod"):
            self._body(b"module waves.invalid/waves\n", b"")
        else:
            self._json({}, b"Content-Type: application/json\r\n")

    def _json(self, found: object, kind: bytes) -> None:
        self._body(json.dumps(found, separators=(",", ":")).encode(), kind)

    def _body(self, body: bytes, kind: bytes) -> None:
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + kind + length + body)
        self.wfile.flush()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, elsewhere: str) -> None:
        #: Where the file itself lies, as registries send clients to a server of files.
        self.elsewhere = elsewhere
        super().__init__(("127.0.0.1", 0), _Handler)


def _script(*command: str) -> Callable[[str, Path], list[str]]:
    return lambda origin, folder: [
        word.replace("URL", f"{origin}/payload.wav").replace("OUT", str(folder / "out"))
        for word in command
    ]


def _skopeo(origin: str, folder: Path) -> list[str]:
    image = origin.replace("http:", "docker:") + "/pub/image:1"
    return [
        *("skopeo", "copy", "-q", "--src-tls-verify=false", "--insecure-policy", image),
        f"dir:{folder / 'image'}",
    ]


def _podman(origin: str, folder: Path) -> list[str]:
    alone = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
    image = origin.removeprefix("http://") + "/pub/image:1"
    return ["podman", *alone, "--storage-driver=vfs", "pull", "-q", "--tls-verify=false", image]


def _git_lfs(origin: str, folder: Path) -> list[str]:
    work = folder / "work"
    pointer = "version https://git-lfs.github.com/spec/v1\n"
    pointer += f"oid sha256:{DIGEST}\nsize {len(PAYLOAD)}\n"
    git = ("git", "-C", str(work), "-c", "user.name=b", "-c", "user.email=b@b.invalid")
    subprocess.run(["git", "init", "-q", str(work)], check=True, capture_output=True)
    (work / ".gitattributes").write_text("*.wav filter=lfs diff=lfs merge=lfs -text\n")
    (work / "payload.wav").write_text(pointer)
    (work / ".lfsconfig").write_text(f"[lfs]\n\turl = {origin}/lfs\n")
    for words in (("add", "."), ("commit", "-qm", "x")):
        subprocess.run(
            [*git, "-c", "filter.lfs.clean=cat", *words], check=True, capture_output=True
        )
    return [*git, "lfs", "fetch"]


_TORRENT = """
import libtorrent as lt, os, sys, time
url, folder = sys.argv[1:]
os.makedirs(folder + "/seed"); os.makedirs(folder + "/got")
open(folder + "/seed/payload.wav", "wb").write(open(folder + "/payload.wav", "rb").read())
files = lt.file_storage(); lt.add_files(files, folder + "/seed/payload.wav")
made = lt.create_torrent(files); made.add_url_seed(url); lt.set_piece_hashes(made, folder + "/seed")
info = lt.torrent_info(lt.bdecode(lt.bencode(made.generate())))
session = lt.session({"listen_interfaces": "127.0.0.1:0", "enable_dht": False, "enable_lsd": False})
handle = session.add_torrent({"ti": info, "save_path": folder + "/got"})
end = time.time() + 200
while time.time() < end and not handle.status().is_seeding:
    time.sleep(0.2)
sys.exit(not handle.status().is_seeding)
"""


def _libtorrent(origin: str, folder: Path) -> list[str]:
    (folder / "payload.wav").write_bytes(PAYLOAD)
    return [sys.executable, "-c", _TORRENT, f"{origin}/payload.wav", str(folder)]


def _cargo(origin: str, folder: Path) -> list[str]:
    work = folder / "crate"
    (work / "src").mkdir(parents=True)
    (work / "src" / "lib.rs").touch()
    (work / "Cargo.toml").write_text(
        '[package]\nname = "reader"\nversion = "1.0.0"\nedition = "2021"\n'
        '[dependencies]\nwaves = { version = "1", registry = "here" }\n'
    )
    (work / ".cargo").mkdir()
    index = f'[registries.here]\nindex = "sparse+{origin}/index/"\n'
    (work / ".cargo" / "config.toml").write_text(index)
    home = f"CARGO_HOME={folder / 'cargo-home'}"
    return ["env", "-C", str(work), home, "cargo", "fetch"]


_JAVA = """import java.io.*; import java.net.*;
public class Fetch {
    public static void main(String[] words) throws Exception {
        new URL(words[0]).openStream().transferTo(OutputStream.nullOutputStream());
    }
}
"""


def _source(name: str, text: str, *command: str) -> Callable[[str, Path], list[str]]:
    """A program of a few lines, run from its source."""

    def made(origin: str, folder: Path) -> list[str]:
        (folder / name).write_text(text)
        return [*command, str(folder / name), f"{origin}/payload.wav"]

    return made


def _go(origin: str, folder: Path) -> list[str]:
    """A module, fetched as `go` fetches what a program needs: nothing is compiled."""
    alone = (f"GOPROXY={origin}", "GOSUMDB=off", "GOTOOLCHAIN=local", f"GOMODCACHE={folder}/go")
    return ["env", *alone, "go", "mod", "download", "-modcacherw", "waves.invalid/waves@v1.0.0"]


def _dnf(origin: str, folder: Path) -> list[str]:
    places = (f"--installroot={folder}/dnf", f"--setopt=cachedir={folder}/cache")
    (folder / "repos").mkdir()
    alone = ("--releasever=1", f"--setopt=reposdir={folder}/repos", "--downloadonly")
    return ["dnf", "-q", "-y", *places, *alone, "install", f"{origin}/payload.rpm"]


def _zypper(origin: str, folder: Path) -> list[str]:
    zypper = ["zypper", "-q", "--root", str(folder / "zypper"), "--non-interactive"]
    return [*zypper, "--no-gpg-checks", "install", f"{origin}/payload.rpm"]


def _pacman(origin: str, folder: Path) -> list[str]:
    for name in ("db", "got"):
        (folder / name).mkdir()
    (folder / "pacman.conf").write_text("[options]\nArchitecture = auto\nSigLevel = Never\n")
    places = ("--dbpath", f"{folder}/db", "--cachedir", f"{folder}/got", "--noconfirm")
    told = ("--config", f"{folder}/pacman.conf", "-U", f"{origin}/payload-1-1-any.pkg.tar.zst")
    return ["pacman", *places, *told]


def _npm(origin: str, folder: Path) -> list[str]:
    alone = ("--cache", f"{folder}/npm", "--no-update-notifier", "--ignore-scripts")
    return ["npm", "pack", *alone, f"{origin}/payload.tgz"]


def _pip(origin: str, folder: Path) -> list[str]:
    alone = ("--isolated", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q")
    pip = [sys.executable, "-m", "pip", "download", *alone, "-d", str(folder / "pip")]
    return [*pip, f"{origin}/payload-1.0.tar.gz"]


_NODE = "fetch('URL').then(async r => { if (!r.ok) process.exit(1); await r.arrayBuffer(); })"
_URLLIB = "import urllib.request as u; u.urlretrieve('URL', 'OUT')"
_REQUESTS = "import requests as r; a = r.get('URL'); a.raise_for_status(); a.content"
_AIOHTTP = """
import aiohttp, asyncio
async def main():
    async with aiohttp.request('GET', 'URL', raise_for_status=True) as a: await a.read()
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """How a program is made to fetch the file."""

    #: What must be there for it.
    program: str
    #: The command, by the server's origin and an empty folder.
    command: Callable[[str, Path], list[str]]
    #: It wants a package of its own kind: once it has the file whole, it fails.
    opens: bool = False
    #: It asks a registry first, which names the place of the file.
    registry: bool = False


TOOLS: dict[str, Tool] = {
    "curl": Tool("curl", _script("curl", "-sSf", "-o", "OUT", "URL")),
    "curl --retry": Tool("curl", _script("curl", "-sSf", "--retry", "5", "-o", "OUT", "URL")),
    "wget": Tool("wget", _script("wget", "-q", "-O", "OUT", "URL")),
    "wget2": Tool("wget2", _script("wget2", "-q", "-O", "OUT", "URL")),
    "aria2": Tool("aria2c", _script("aria2c", "-q", "-d", ".", "-o", "out", "URL")),
    "axel": Tool("axel", _script("axel", "-q", "-o", "OUT", "URL")),
    "apt": Tool(
        "apt-get",
        _script(
            "/usr/lib/apt/apt-helper", "-o", "APT::Sandbox::User=", "download-file", "URL", "OUT"
        ),
    ),
    "zypper": Tool("zypper", _zypper, opens=True),
    "dnf": Tool("dnf", _dnf, opens=True),
    "cargo": Tool("cargo", _cargo, opens=True, registry=True),
    "pacman": Tool("pacman", _pacman, opens=True),
    "pip": Tool(sys.executable, _pip, opens=True),
    "npm": Tool("npm", _npm, opens=True),
    "Go": Tool("go", _go, opens=True, registry=True),
    "Java": Tool("javac", _source("Fetch.java", _JAVA, "java")),
    "Python: urllib": Tool(sys.executable, _script(sys.executable, "-c", _URLLIB)),
    "Python: requests": Tool(sys.executable, _script(sys.executable, "-c", _REQUESTS)),
    "Python: aiohttp": Tool(sys.executable, _script(sys.executable, "-c", _AIOHTTP)),
    "Node": Tool("node", _script("node", "-e", _NODE)),
    "rclone": Tool("rclone", _script("rclone", "copyurl", "URL", "OUT")),
    # Stands for docker: the same HTTP client.
    "skopeo": Tool("skopeo", _skopeo, registry=True),
    "podman": Tool("podman", _podman, opens=True, registry=True),
    # Stands for mamba and micromamba: libcurl with their name and their limits.
    "mamba": Tool(
        "curl",
        _script(
            *("curl", "-sSf", "-A", "mamba/2.0.5 libcurl/8.9.1", "-o", "OUT", "URL"),
            *("--speed-limit", "30", "--speed-time", "60", "--connect-timeout", "10"),
        ),
    ),
    "git-lfs": Tool("git-lfs", _git_lfs, registry=True),
    "ffmpeg": Tool("ffmpeg", _script("ffmpeg", "-v", "error", "-i", "URL", "-f", "null", "-")),
    "libtorrent": Tool(sys.executable, _libtorrent),
    "lftp": Tool("lftp", _script("lftp", "-c", "get URL -o OUT")),
    "HTTPie": Tool(
        "http", _script("http", "--ignore-stdin", "--check-status", "-do", "OUT", "GET", "URL")
    ),
    "yt-dlp": Tool("yt-dlp", _script("yt-dlp", "-q", "-o", "OUT", "URL")),
}


def there() -> list[str]:
    """The programs that are installed here."""
    return [name for name, tool in TOOLS.items() if shutil.which(tool.program)]


#: What the programs may ask for.
_NAMES = ("wav", "rpm", "tgz")
_NAMES_OF_PACKAGES = ("-1-1-any.pkg.tar.zst", "-1.0.tar.gz", "-1.0-0.conda")


def place_of(tool: str) -> str:
    """The folder of a program's own copy of the file at a real server."""
    return "".join(letter if letter.isalnum() else "-" for letter in tool)


def lay_out(release: Path, tools: Sequence[str]) -> None:
    """The file under every name that the programs ask for, in a folder for each."""
    whole = release / "payload"
    whole.write_bytes(PAYLOAD)
    for tool in tools:
        folder = release / place_of(tool)
        folder.mkdir()
        for end in (*(f".{name}" for name in _NAMES), *_NAMES_OF_PACKAGES):
            (folder / f"payload{end}").hardlink_to(whole)


def all_at_once(
    url: str, tools: Sequence[str], work: Path, limit_s: float
) -> dict[str, tuple[int, str]]:
    """Every program fetches its file of a real server; its exit code, and what it said."""
    running: dict[str, subprocess.Popen[str]] = {}
    fronts: list[_Server] = []
    try:
        for tool in tools:
            origin = f"{url}/{place_of(tool)}"
            if TOOLS[tool].registry:
                fronts.append(_Server(origin))
                threading.Thread(target=fronts[-1].serve_forever, daemon=True).start()
                origin = f"http://127.0.0.1:{fronts[-1].server_address[1]}"
            folder = work / place_of(tool)
            folder.mkdir(parents=True)
            folder.chmod(0o755)
            command = TOOLS[tool].command(origin, folder)
            running[tool] = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        end_s = time.monotonic() + limit_s
        said = {}
        for tool, process in running.items():
            try:
                text = process.communicate(timeout=max(0.1, end_s - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                text = "not done in time: " + process.communicate()[0]
            said[tool] = (process.returncode, text)
        return said
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.communicate()
        for front in fronts:
            front.shutdown()
            front.server_close()


def got_it(tool: str, code: int, sent_bytes: int) -> bool:
    """Whether a program that ended so, and was sent so much, has what it came for."""
    return sent_bytes >= len(PAYLOAD) and (code == 0 or TOOLS[tool].opens)

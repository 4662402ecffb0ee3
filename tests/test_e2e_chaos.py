"""Faults at random under sixty mixed clients: at the end everybody has the right bytes.

The invariants, each with a name that its failure shows: BYTES, OWNERS (no number is given to two
clients, no valid ticket is called foreign or forged), PLACES (who came first stands first), SLOTS
(none leaks), MEMORY, FAULTS (no traceback, nobody forgotten), STARTS (whatever it was killed in).

A failure names the seed, which may be given: TIDEGATE_CHAOS_SEED. TIDEGATE_CHAOS_S is how long
faults go on, in seconds.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.shared.subject import Suppressed, require
from tests.faulty_disk import faulty_disk
from tests.installed import TIDEGATE
from tests.running import RunningServer, make_release, wait_for
from tests.test_e2e_clock import faketime_library

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(0)]

SIZES = {"big.bin": 4_000_000, "mid.bin": 1_500_000, "page.bin": 9_000}
SLOTS = 3
#: Exit status of `tidegate get`: the network failed.
GAVE_UP = 5
#: So many at a time: people with `tidegate get`, programs that wait inside their request, and those
#: who hold a ticket and look in now and then.
MOST_GETS, MOST_TOOLS, MOST_HOLDERS = 5, 30, 25
#: What lies in a socket when its file is cut short in place may become zeros there: at most so much
#: for each client, of a file that comes back with the same bytes.
ON_ITS_WAY_BYTES = 512 << 10
#: A file that is cut short keeps one part of so many.
CUT_TO = 3
#: A server of this size starts with about 100 MB.
MOST_RESIDENT_BYTES = 400_000_000
_UNANSWERED = Suppressed("requests without an answer", OSError)
_GONE = Suppressed("helpers that ended before they were killed", ProcessLookupError)


class Chaos:
    """A server that is hurt, and clients that want their files all the same."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        make_release(
            folder / "release", **{name.replace(".", "_"): size for name, size in SIZES.items()}
        )
        self.clock = folder / "clock"
        self.clock.write_text("+0\n")
        self.config = folder / "tidegate.toml"
        self.disk = faulty_disk()
        self.tls = self.random.random() < 0.5
        self.renewals = 0
        #: What clients trust: every certificate that the server ever had.
        self.trusted = folder / "trusted.pem"
        self.renew_certificate()
        self.environ = {
            **os.environ,
            "TIDEGATE_DATA": str(folder / "data"),
            "SSL_CERT_FILE": str(self.trusted),
            "CURL_CA_BUNDLE": str(self.trusted),
        }
        self.configure("ticket")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        #: Who was given which number, and with which token.
        self.owners: dict[int, str] = {}
        self.tokens: dict[str, str] = {}
        self.holders = 0
        self.numbers: dict[str, int] = {}
        #: Holders that were given bytes: the server knows them, so they may pass strangers.
        self.served: set[str] = set()
        self.errors: list[str] = []
        #: Faults that hit nothing, as there was no file or process for them.
        self.without_effect: Counter[str] = Counter()
        #: How often files were cut short, and whose: so short, they are whole files of their time.
        self.cuts = 0
        self.cut: set[str] = set()
        self.server = self.start()
        #: Processes that must end well, and those that a fault may break off.
        self.gets: dict[Path, subprocess.Popen[bytes]] = {}
        self.curls: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, *, ready: bool = True) -> RunningServer:
        return RunningServer(
            self.folder / "release",
            self.folder / "state",
            *("--config", str(self.config), "--listen", f"127.0.0.1:{self.port}"),
            LD_PRELOAD=f"{faketime_library()}:{self.disk.environ['LD_PRELOAD']}",
            FAULTY_DISK=self.disk.environ["FAULTY_DISK"],
            FAKETIME_TIMESTAMP_FILE=str(self.clock),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
            DONT_FAKE_MONOTONIC="1",
            ready=ready,
        )

    # -- clients ---------------------------------------------------------------------------------

    def a_client_comes(self) -> None:
        name = self.random.choice(list(SIZES))
        number = len(self.gets) + len(self.curls)
        if self.random.random() < 0.3 and self.running(self.gets) < MOST_GETS:
            to = self.folder / f"get-{number}-{name}"
            self.gets[to] = self.get(to, name)
        elif self.running(self.curls) < MOST_TOOLS:
            to = self.folder / f"tool-{number}-{name}"
            url = f"{self.url}/{name}"
            tools = [
                ["curl", "-sf", "-A", f"curl/{self.random.randrange(9)}", "-o", to, url],
                ["curl", "-sf", "--retry", "3", "-C", "-", "-o", to, url],
                ["wget", "-q", "-t", "3", "--ca-certificate", self.trusted, "-O", to, url],
            ]
            command = self.random.choice([one for one in tools if shutil.which(str(one[0]))])
            self.curls[to] = subprocess.Popen(command, env=self.environ)

    def get(self, to: Path, name: str) -> subprocess.Popen[bytes]:
        command = [TIDEGATE, "get", "--quiet", "-o", to]
        with self.said(to).open("wb") as said:
            return subprocess.Popen([*command, f"{self.url}/{name}"], env=self.environ, stderr=said)

    def said(self, to: Path) -> Path:
        """What the program that fetches this file had to say."""
        return self.folder / f"said-{to.name}"

    def ask(self, client: str, token: str | None = None) -> tuple[int, dict[str, object]]:
        """A client that takes a ticket and looks in now and then; 0 while nobody answers."""
        headers = {"Tidegate-Client": client, "Tidegate-Wait": "ticket"}
        if token is not None:
            headers["Tidegate-Ticket"] = token
        request = urllib.request.Request(f"{self.url}/big.bin", headers=headers)
        trust = ssl.create_default_context(cafile=str(self.trusted)) if self.tls else None
        with _UNANSWERED:
            try:
                with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
                    return answer.status, {}
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)
        return 0, {}

    def ticket_holders_look_in(self) -> None:
        """One more comes; and those who have a number keep it, whatever happened."""
        known = self.random.sample(sorted(self.tokens), min(2, len(self.tokens)))
        self.holders += len(known) < 2 or len(self.tokens) < MOST_HOLDERS
        for client in [f"holder-{self.holders}", *known]:
            self.looks_in(client)

    def looks_in(self, client: str) -> int | None:
        """Somebody asks with his ticket; the place he is told, None where he has no ticket now."""
        status, told = self.ask(client, self.tokens.get(client))
        problem = str(told.get("type", "")).rpartition("/")[2]
        assert problem not in ("ticket-foreign", "ticket-forged"), ("OWNERS", client, told)
        token = told.get("ticket")
        if status == 503 and isinstance(token, str):
            payload = token.split(".")[2]
            raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
            number = int.from_bytes(raw[:8], "big")
            owner = self.owners.setdefault(number, client)
            assert owner == client, ("OWNERS: one number for two clients", number)
            self.tokens[client], self.numbers[client] = token, number
            place = told.get("place")
            return place if isinstance(place, int) else None
        if status == 200:
            self.served.add(client)
        if status in (200, 403):
            self.tokens.pop(client, None)
        return None

    def places_keep_their_order(self) -> None:
        """Strangers of one network start in the order of their numbers.

        They are asked from the last to the first, so that a start meanwhile only helps the law.
        """
        if self.policy != "ticket" or time.monotonic() < self.settled_s:
            return
        strangers = sorted(self.tokens.keys() - self.served)
        known = self.random.sample(strangers, min(4, len(strangers)))
        last: tuple[int, int, str] | None = None
        for client in sorted(known, key=lambda one: -self.numbers[one]):
            before = self.numbers[client]
            place = self.looks_in(client)
            if place is None or self.numbers[client] != before:
                continue
            if last is not None and place > last[0]:
                # Older numbers that come back after a kill count from then on: ask both again.
                others = self.looks_in(last[2])
                place = self.looks_in(client)
                if others is None or place is None:
                    continue
                assert place <= others, ("PLACES", (place, before, client), (others, *last[1:]))
            last = (place, before, client)

    def resident_bytes(self) -> int:
        """What the server occupies."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])

    def get_again(self) -> None:
        """A program gives up when the network fails too often; a person then starts it again."""
        for to, one in self.gets.items():
            if one.wait() == GAVE_UP:
                self.gets[to] = self.get(to, to.name.rpartition("-")[2])

    @staticmethod
    def running(processes: dict[Path, subprocess.Popen[bytes]]) -> int:
        return sum(one.poll() is None for one in processes.values())

    # -- faults ----------------------------------------------------------------------------------

    def killed(self) -> None:
        self.errors += self.server.errors
        self.server.kill()
        self.server = self.start()

    def stopped_for_a_while(self) -> None:
        self.server.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 5.0))
        self.server.signal(signal.SIGCONT)

    def clock_is_set(self) -> None:
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{self.random.choice([-3600, -30, 0, 30, 3600]):+d}\n")
        os.replace(fresh, self.clock)

    def configuration_is_read_again(self) -> None:
        self.configure(self.random.choice(["ticket", "ticket", "fair", "adaptive", "reserve"]))
        self.server.signal(signal.SIGHUP)

    def configuration_is_broken(self) -> None:
        good = self.config.read_text()
        self.config.write_text("[admission]\nslots = nonsense\n")
        self.server.signal(signal.SIGHUP)
        time.sleep(0.5)
        self.config.write_text(good)

    def database_is_lost(self) -> None:
        files = [*(self.folder / "state").glob("tidegate.db*")]
        for file in files:
            file.unlink(missing_ok=True)
        self.took_effect("database_is_lost", len(files))

    def disk_is_full(self) -> None:
        self.disk.set(f"write enospc 0 {self.folder / 'state'}/")
        time.sleep(self.random.uniform(0.5, 4.0))
        self.disk.heal()

    def disk_is_slow(self) -> None:
        state = self.folder / "state"
        self.disk.set(f"write delay 300 {state}/", f"sync delay 1000 {state}/")
        time.sleep(self.random.uniform(0.5, 4.0))
        self.disk.heal()

    def disk_has_a_bad_sector(self) -> None:
        self.disk.set(f"read eio 2000000 {self.folder / 'release' / 'big.bin'}")
        time.sleep(self.random.uniform(0.2, 1.0))
        self.disk.heal()

    def certificate_is_renewed(self) -> None:
        self.renew_certificate()
        self.server.signal(signal.SIGHUP)

    def renew_certificate(self) -> None:
        self.renewals += 1
        cert, key = self.folder / "new.pem", self.folder / "new.key"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"),
                *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", f"/CN=chaos {self.renewals}"),
                *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert),
            ],
            check=True,
            capture_output=True,
        )
        with self.trusted.open("ab") as trusted:
            trusted.write(cert.read_bytes())
        os.replace(key, self.folder / "server.key")
        os.replace(cert, self.folder / "server.pem")

    def the_state_folder_cannot_be_read(self) -> None:
        state = self.folder / "state"
        self.disk.set(f"read eio 0 {state}/", f"write eio 0 {state}/", f"open eio 0 {state}/")
        time.sleep(self.random.uniform(0.2, 2.0))
        self.disk.heal()

    def certificate_is_garbage(self) -> None:
        good = self.folder.joinpath("server.pem").read_bytes()
        self.folder.joinpath("server.pem").write_bytes(good[: self.random.randrange(len(good))])
        self.server.signal(signal.SIGHUP)
        time.sleep(0.5)
        self.folder.joinpath("server.pem").write_bytes(good)

    def a_file_is_cut_and_comes_back(self) -> None:
        """Running transfers of it are cut off after right bytes, but for those on their way."""
        name = self.random.choice(list(SIZES))
        whole = (self.folder / "release" / name).read_bytes()
        self.cuts += 1
        self.cut.add(name)
        os.truncate(self.folder / "release" / name, len(whole) // CUT_TO)
        time.sleep(self.random.uniform(0.0, 0.5))
        fresh = self.folder / name
        fresh.write_bytes(whole)
        os.replace(fresh, self.folder / "release" / name)

    def a_helper_is_killed(self) -> None:
        """Child processes of the server, where it has any."""
        children = Path(f"/proc/{self.server.process.pid}/task/{self.server.process.pid}/children")
        killed = 0
        for child in children.read_text().split():
            with _GONE:
                os.kill(int(child), signal.SIGKILL)
                killed += 1
        self.took_effect("a_helper_is_killed", killed)

    def took_effect(self, fault: str, count: int) -> None:
        """Note a fault for which there was nothing to hit."""
        if not count:
            self.without_effect[fault] += 1

    def killed_while_it_starts(self) -> None:
        self.errors += self.server.errors
        self.server.kill()
        early = self.start(ready=False)
        time.sleep(self.random.uniform(0.2, 3.0))
        early.kill()
        self.errors += early.errors
        self.server = self.start()

    def release_is_touched(self) -> None:
        for name in SIZES:
            os.utime(self.folder / "release" / name)

    def release_is_replaced_by_itself(self) -> None:
        for name in SIZES:
            fresh = self.folder / name
            fresh.write_bytes((self.folder / "release" / name).read_bytes())
            os.replace(fresh, self.folder / "release" / name)

    def configure(self, policy: str) -> None:
        cert, key = self.folder / "server.pem", self.folder / "server.key"
        tls = f'tls_cert = "{cert}"\ntls_key = "{key}"\n' if self.tls else ""
        #: Under which policy, and from when on it has surely been taken over.
        self.policy, self.settled_s = policy, time.monotonic() + 5.0
        self.config.write_text(
            f'policy = "{policy}"\nbandwidth = "32Mbit"\n{tls}'
            f"[admission]\nslots = {SLOTS + 1}\nreserve_small = 1\nlease_idle_s = 3\n"
        )

    # -- the end ---------------------------------------------------------------------------------

    def whole(self, name: str, got: bytes) -> bool:
        """Whether these are all the bytes that the file had when somebody began with it."""
        right = (self.folder / "release" / name).read_bytes()
        return got == right or (name in self.cut and got == right[: len(right) // CUT_TO])

    def every_slot_starts_one(self) -> bool:
        """As many newcomers as there are slots wait inside their request, behind those who hold a
        ticket still, until all of them are being served at the same time."""
        with contextlib.ExitStack() as opened, ThreadPoolExecutor(SLOTS) as newcomers:
            asked = [newcomers.submit(self._newcomer, opened, n) for n in range(SLOTS)]
            answers = [one.result() for one in asked]
            if any(answer is None or answer.status != 200 for answer in answers):
                return False
            read = newcomers.map(lambda answer: len(answer.read()), filter(None, answers))
            return all(size == SIZES["big.bin"] for size in read)

    def readiness(self) -> str:
        """What the server says of itself."""
        trust = ssl.create_default_context(cafile=str(self.trusted)) if self.tls else None
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=30, context=trust) as answer:
                return str(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read())

    def _newcomer(
        self, opened: contextlib.ExitStack, number: int
    ) -> http.client.HTTPResponse | None:
        """His answer, of which so little is taken that he is served until it is read."""
        raw = opened.enter_context(socket.socket())
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        raw.settimeout(60.0)
        request = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            raw.connect(("127.0.0.1", self.port))
            trust = ssl.create_default_context(cafile=str(self.trusted)) if self.tls else None
            request.sock = (
                opened.enter_context(trust.wrap_socket(raw, server_hostname="127.0.0.1"))
                if trust
                else raw
            )
            request.request("GET", "/big.bin", headers={"Tidegate-Client": f"newcomer {number}"})
            return request.getresponse()
        except OSError:
            return None


def require_subject(
    happened: Sequence[str], without_effect: Counter[str], given: Mapping[str, int]
) -> None:
    """Raise NothingMeasured unless faults hit the server and each kind of client was served."""
    hits = Counter(happened) - without_effect
    require(hits, f"No fault hit anything; without effect: {dict(without_effect)}.")
    for what, count in given.items():
        require(count, f"Under these faults there were no {what}.")


def mended(got: bytes, whole: bytes, most_bytes: int) -> bytes:
    """With what became zeros on its way, `most_bytes` of it at most, as it was."""
    parts: list[bytes] = []
    for at in range(0, len(got), 4096):
        part = got[at : at + 4096]
        right = whole[at : at + len(part)]
        pairs = enumerate(zip(part, right, strict=True))
        same = next((place for place, (one, other) in pairs if one != other), len(part))
        if same < len(part) <= most_bytes and not any(part[same:]):
            most_bytes -= len(part)
            part = right
        parts.append(part)
    return b"".join(parts)


def test_after_faults_at_random_everybody_has_the_right_bytes(tmp_path: Path) -> None:
    seed = os.environ.get("TIDEGATE_CHAOS_SEED") or f"{random.randrange(1 << 32)}"
    limit_s = float(os.environ.get("TIDEGATE_CHAOS_S", "15"))
    happened: list[str] = [f"TIDEGATE_CHAOS_SEED={seed}"]
    chaos = Chaos(tmp_path, seed)
    faults = [
        chaos.killed,
        chaos.stopped_for_a_while,
        chaos.clock_is_set,
        chaos.stopped_for_a_while,
        chaos.clock_is_set,
        chaos.configuration_is_read_again,
        chaos.configuration_is_broken,
        chaos.database_is_lost,
        chaos.release_is_replaced_by_itself,
        chaos.release_is_touched,
        chaos.disk_is_full,
        chaos.disk_is_slow,
        chaos.disk_has_a_bad_sector,
        chaos.certificate_is_renewed,
        chaos.certificate_is_garbage,
        chaos.the_state_folder_cannot_be_read,
        chaos.a_file_is_cut_and_comes_back,
        chaos.a_helper_is_killed,
        chaos.killed_while_it_starts,
    ]
    try:
        end_s = time.monotonic() + limit_s
        # On a busy machine clients come late. Some client must have had to wait for a slot.
        while (now := time.monotonic()) < end_s or (not chaos.owners and now < end_s + 60.0):
            for _ in range(chaos.random.randrange(1, 7)):
                chaos.a_client_comes()
            chaos.ticket_holders_look_in()
            chaos.places_keep_their_order()
            time.sleep(chaos.random.uniform(0.2, 2.0))
            fault = chaos.random.choice(faults)
            happened.append(fault.__name__)
            fault()
            assert chaos.resident_bytes() < MOST_RESIDENT_BYTES, "MEMORY"
        chaos.configure("ticket")
        chaos.server.signal(signal.SIGHUP)
        for _ in range(2):
            everybody = {**chaos.gets, **chaos.curls}
            wait_for(lambda: not chaos.running({**chaos.gets, **chaos.curls}), 120)
            late = [one.args for one in everybody.values() if one.poll() is None]
            assert late == [], ("who waits still is forgotten", chaos.readiness())
            chaos.get_again()
        for to, one in chaos.gets.items():
            assert one.wait() == 0, (to.name, chaos.said(to).read_text())
            assert chaos.whole(to.name.rpartition("-")[2], to.read_bytes()), ("BYTES", to)
        for to, one in chaos.curls.items():
            name = to.name.rpartition("-")[2]
            got = to.read_bytes() if to.exists() else b""
            whole = (tmp_path / "release" / name).read_bytes()
            got = mended(got, whole, chaos.cuts * ON_ITS_WAY_BYTES)
            assert whole.startswith(got), ("BYTES: not the file's", to)
            assert one.returncode != 0 or chaos.whole(name, got), ("BYTES", to)
        given = {
            "whole files by tidegate get": len(chaos.gets),
            "whole files by other programs": sum(
                not one.returncode for one in chaos.curls.values()
            ),
            "ticket numbers": len(chaos.owners),
        }
        require_subject(happened[1:], chaos.without_effect, given)
        assert chaos.every_slot_starts_one(), ("SLOTS: one leaked", chaos.readiness())
        lines = chaos.errors + chaos.server.errors
        signs = ("Traceback", "forgotten", "Nothing ran")
        bad = [n for n, line in enumerate(lines) if any(sign in line for sign in signs)]
        assert not bad, ("FAULTS", "".join(lines[bad[0] - 3 : bad[0] + 30]))
    finally:
        happened.append(f"without effect: {dict(chaos.without_effect)}")
        sys.stdout.write(" ".join(happened) + "\n" + "".join(chaos.server.errors[-30:]))
        for one in {**chaos.gets, **chaos.curls}.values():
            if one.poll() is None:
                one.kill()
            one.wait()
        chaos.server.stop()
        chaos.disk.heal()

"""Bodies that a mover sends: each ends once, by its report or by its socket."""

from __future__ import annotations

import json
import math
import random
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.fakes import Asked, FakeConnection, FakeFactory, House, representation
from tests.gate_site import answering
from tidegate.commands import cli
from tidegate.protocol.errors import ProtocolError
from tidegate.server.admission.downloads import LeasedDownload
from tidegate.server.control.problems import Problem
from tidegate.server.control.revisions import Revisions
from tidegate.server.files.body_start import FileStart
from tidegate.server.files.pacer import Pacer
from tidegate.server.files.transfer import (
    BodyPlan,
    FileKey,
    Representation,
    StartBody,
    Transfer,
    TransferListener,
)
from tidegate.server.gate.check import check
from tidegate.server.gate.found_again import KeptBody, MovesJournal, kept_body, request_of
from tidegate.server.gate.handover import MoverAdmission
from tidegate.server.gate.inet_diag import (
    GONE,
    InetDiag,
    SocketName,
    SocketState,
    question,
    read_named,
    read_socket_name,
    read_state,
)
from tidegate.server.gate.line import MoverLine
from tidegate.server.gate.movers import mover_tag, read_mover
from tidegate.server.gate.moves import TUNING, MoveCounts, MovedBody, MovedOn, Moves
from tidegate.server.gate.posted_log import PostedLog, read_secret
from tidegate.server.gate.reports import (
    EndReport,
    ReportSocket,
    read_log,
    read_posted,
    read_report,
)
from tidegate.server.gate.room import GateRoom
from tidegate.server.gate.snippets import CONFIGURED, SnippetTerms, snippet
from tidegate.server.http.answers import Header
from tidegate.server.http.proxies import TrustedProxies
from tidegate.server.http.request import Request
from tidegate.server.store.records import RevisionRecord

CLAIM_S = 15.0
ONE = SocketName("192.0.2.1", 5000, "198.51.100.1", 443)


class Kernel:
    """The sockets of this machine: what their peers have acknowledged."""

    def __init__(self) -> None:
        self.sockets: dict[SocketName, SocketState] = {}

    def look(self, name: SocketName) -> SocketState | None:
        return self.sockets.get(name)

    def send(self, name: SocketName, count: int) -> None:
        state = self.sockets[name]
        queued = max(0, state.queued_bytes - count)
        self.sockets[name] = SocketState(state.acked_bytes + count, queued)


class Listener:
    """Hears of the end of one body."""

    share = None

    def __init__(self) -> None:
        self.ends: list[tuple[int, bool]] = []

    def may_end(self, go_on: Any) -> bool:
        return True

    def moves(self) -> None:
        pass

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        self.ends.append((transfer.delivered_bytes(), complete))


class Scene:
    """`Moves` with a clock and a kernel of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.kernel = Kernel()
        self.counted = 0
        self.moves = Moves(self.clock, self.kernel.look, self.count, random.Random(1), CLAIM_S)
        self.moves.start()

    def count(self, count: int) -> None:
        assert count >= 0
        self.counted += count

    def begin(
        self, size: int, name: SocketName | None = ONE, *, multiplexed: bool = False
    ) -> tuple[MovedBody, Listener]:
        if name is not None:
            self.kernel.sockets.setdefault(name, SocketState(0, 0))
        listener = Listener()
        body = self.moves.prepare(listener, size, "/big.iso?tidegate-ticket=SECRET")
        self.moves.hand_over(body, MovedOn("nginx", name, multiplexed))
        return body, listener

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TUNING.turn_s)):
            self.clock.advance(TUNING.turn_s)


def test_a_report_ends_a_body_with_what_the_mover_sent() -> None:
    scene = Scene()
    body, listener = scene.begin(1000)
    for _ in range(2):
        scene.moves.receive(EndReport(body.lease, 206, 1000, True))
        scene.wait(0.25)
        assert listener.ends == [(1000, True)]
    assert scene.counted == 1000
    assert scene.moves.counts.reported == 1


def reported(scene: Scene, size: int = 1000, **more: bool) -> tuple[MovedBody, Listener]:
    """A body of which the kernel has all and the client about a half."""
    body, listener = scene.begin(size, **more)
    scene.kernel.sockets[ONE] = SocketState(500, size - 200)
    for _ in range(2):
        scene.moves.receive(EndReport(body.lease, 200, size, True))
    scene.wait(1)
    assert not listener.ends
    return body, listener


def test_a_reported_body_ends_when_its_client_has_it() -> None:
    scene = Scene()
    _, listener = reported(scene)
    scene.kernel.send(ONE, 799)
    scene.wait(1)
    assert not listener.ends
    scene.kernel.send(ONE, 1)
    scene.wait(0.25)
    assert listener.ends == [(1000, True)]
    assert (scene.counted, scene.moves.counts.reported) == (1000, 1)


def test_a_reported_body_ends_when_its_mover_has_sent_what_it_had_in_its_own_buffers() -> None:
    scene = Scene()
    _, listener = reported(scene)
    # Envoy gives the kernel more than it had at the report.
    scene.kernel.sockets[ONE] = SocketState(1300, 64)
    scene.wait(1)
    assert not listener.ends
    scene.kernel.send(ONE, 64)
    scene.wait(0.25)
    assert listener.ends == [(1000, True)]


def test_a_client_that_takes_nothing_holds_a_reported_body_for_seconds_alone() -> None:
    scene = Scene()
    _, listener = reported(scene)
    scene.wait(TUNING.held_s - 1.5)
    assert not listener.ends
    scene.wait(1)
    assert listener.ends == [(1000, True)]


def test_a_reported_body_of_which_nothing_arrives_was_not_delivered() -> None:
    """The way to its client broke: with the ticket used it was refused as it came back."""
    scene = Scene()
    body, listener = scene.begin(1000)
    scene.kernel.sockets[ONE] = SocketState(0, 1300)
    scene.moves.receive(EndReport(body.lease, 200, 1000, True))
    scene.wait(TUNING.held_s - 0.5)
    assert not listener.ends
    scene.wait(1)
    assert listener.ends == [(0, False)]


@pytest.mark.parametrize(("acked", "ends"), [(1300, (1000, True)), (1299, (999, False))])
def test_a_client_that_leaves_has_a_reported_body_or_not(acked: int, ends: object) -> None:
    scene = Scene()
    _, listener = reported(scene, multiplexed=True)
    scene.moves.destroyed(ONE, SocketState(acked - 1, 0, True))
    assert listener.ends == [ends]


def test_a_client_that_leaves_before_the_first_look_may_miss_the_rest() -> None:
    for acked, multiplexed, ends in ((999, False, False), (1000, False, True), (999, True, True)):
        scene = Scene()
        body, listener = scene.begin(1000, multiplexed=multiplexed)
        scene.moves.receive(EndReport(body.lease, 200, 1000, True))
        scene.moves.destroyed(ONE, SocketState(acked, 1001, True))
        assert [whole for _, whole in listener.ends] == [ends]


def test_a_mover_that_has_closed_its_socket_is_looked_at_until_it_is_empty() -> None:
    scene = Scene()
    _, listener = reported(scene)
    scene.kernel.sockets[ONE] = SocketState(900, 401, True)
    scene.wait(1.5)
    assert not listener.ends
    scene.kernel.sockets[ONE] = SocketState(1301, 0, True)
    scene.wait(0.25)
    assert listener.ends == [(1000, True)]


def test_a_client_that_asks_for_another_file_has_the_one_before() -> None:
    for name in (ONE, SocketName("192.0.2.1", 5000, "::", 0)):
        scene = Scene()
        _, listener = reported(scene)
        for port in (0, ONE.mover_port):
            other = SocketName("192.0.2.1", 5001, "::", port)
            scene.moves.next_asked(MovedOn("nginx", other, False))
        scene.moves.next_asked(MovedOn("nginx", ONE, True))
        scene.moves.next_asked(MovedOn("nginx", None, False))
        assert not listener.ends
        scene.moves.next_asked(MovedOn("nginx", name, False))
        assert listener.ends == [(1000, True)]


def test_a_flood_of_ends_is_believed_beyond_a_bound() -> None:
    scene = Scene()
    listeners = []
    for _ in range(TUNING.most_held + 1):
        body, listener = scene.begin(1000, multiplexed=True)
        scene.moves.receive(EndReport(body.lease, 200, 1000, True))
        listeners.append(listener)
    assert [len(one.ends) for one in listeners] == [1] + [0] * TUNING.most_held


@pytest.mark.parametrize(
    ("status", "sent", "whole"), [(200, 400, True), (200, 1000, False), (404, 1000, True)]
)
def test_what_was_not_sent_whole_is_not_complete(status: int, sent: int, whole: bool) -> None:
    scene = Scene()
    body, listener = scene.begin(1000, multiplexed=True)
    with capturedLogs() as logged:
        scene.moves.receive(EndReport(body.lease, status, sent, whole))
    assert [formatEvent(one).count("/big.iso?") for one in logged] == [1] * (status == 404)
    assert "SECRET" not in "".join(map(str, map(formatEvent, logged)))
    assert listener.ends == [(0 if status == 404 else sent, False)]


def test_of_a_body_that_was_cut_short_counts_what_its_client_has() -> None:
    """A client that lost its answer lost its ticket: the kernel had taken a part of the file."""
    for told in (True, False):
        scene = Scene()
        body, listener = scene.begin(1000)
        scene.kernel.send(ONE, 100)
        scene.moves.receive(EndReport(body.lease, 200, 400, whole=False))
        if told:
            scene.moves.destroyed(ONE, SocketState(250, 0, True))
        else:
            scene.kernel.send(ONE, 200)
            scene.wait(0.25)
        assert listener.ends == [(250 if told else 300, False)]
        assert len(scene.moves) == 0


def test_progress_is_read_from_the_socket_and_the_last_byte_waits_for_the_end() -> None:
    scene = Scene()
    body, listener = scene.begin(1000)
    scene.kernel.send(ONE, 300)
    scene.clock.advance(0.2)
    assert body.delivered_bytes() == 300
    scene.kernel.send(ONE, 5000)
    scene.clock.advance(0.2)
    assert body.delivered_bytes() == 999
    assert not listener.ends


def test_a_lost_report_ends_by_the_socket_within_five_seconds() -> None:
    scene = Scene()
    _, listener = scene.begin(1000)
    scene.wait(1)
    scene.moves.destroyed(ONE, SocketState(1300, 0))
    del scene.kernel.sockets[ONE]
    scene.wait(TUNING.gone_s + 1.5)
    assert listener.ends == [(1000, True)]
    assert scene.moves.counts.unreported == 1


def test_a_lost_report_ends_in_five_seconds_on_a_connection_that_stays_open() -> None:
    scene = Scene()
    body, listener = scene.begin(1000)
    scene.kernel.send(ONE, 900)
    scene.wait(TUNING.gone_s + 1.5)
    assert not listener.ends, "its client has not all"
    scene.kernel.send(ONE, 400)
    scene.wait(TUNING.gone_s + 1.5)
    assert listener.ends == [(1000, True)]
    scene.moves.receive(EndReport(body.lease, 200, 1000, True))
    assert (scene.moves.counts.reported, scene.moves.counts.unreported) == (0, 1)


def test_a_gate_that_is_killed_finds_a_reported_body_until_its_client_has_it() -> None:
    scene = Scene()
    ended: list[str] = []
    scene.moves._ended = ended.append
    body, _ = reported(scene)
    assert not ended
    scene.kernel.send(ONE, 800)
    scene.wait(0.25)
    assert ended == [body.lease]


def test_what_a_socket_had_at_its_end_counts_also_after_it_was_missed() -> None:
    scene = Scene()
    _, listener = scene.begin(1000)
    scene.kernel.send(ONE, 400)
    scene.wait(1)
    del scene.kernel.sockets[ONE]
    scene.wait(1)
    scene.moves.destroyed(ONE, SocketState(1300, 0, True))
    scene.wait(TUNING.gone_s + 1)
    assert listener.ends == [(1000, True)]


def test_a_socket_that_ends_early_leaves_an_incomplete_body() -> None:
    scene = Scene()
    _, listener = scene.begin(1000)
    scene.kernel.send(ONE, 400)
    scene.wait(1.5)
    del scene.kernel.sockets[ONE]
    scene.wait(TUNING.gone_s + 2)
    assert listener.ends == [(400, False)]


def test_the_next_answer_on_a_connection_ends_the_one_before() -> None:
    scene = Scene()
    _, first = scene.begin(1000)
    scene.kernel.send(ONE, 1300)
    _, second = scene.begin(500)
    scene.wait(TUNING.gone_s + 1.5)
    assert first.ends == [(1000, True)]
    assert not second.ends


def test_an_answer_is_over_soon_after_the_next_one_however_many_follow() -> None:
    """A client that asks for one small file after another would keep the slot of a large one."""
    scene = Scene()
    _, first = scene.begin(1000)
    scene.kernel.send(ONE, 1300)
    for _ in range(8):
        scene.begin(500)
        scene.wait((TUNING.gone_s + 1.5) / 8)
    assert first.ends == [(1000, True)]


def test_streams_of_a_connection_share_its_progress_and_reports_tell_them_apart() -> None:
    scene = Scene()
    short, ended = scene.begin(100, multiplexed=True)
    long, running = scene.begin(10_000, multiplexed=True)
    scene.kernel.send(ONE, 2000)
    scene.clock.advance(0.2)
    assert (short.delivered_bytes(), long.delivered_bytes()) == (99, 1901)
    scene.moves.receive(EndReport(short.lease, 200, 100, True))
    scene.wait(0.25)
    assert ended.ends == [(100, True)]
    assert not running.ends


def test_a_body_that_nobody_begins_gives_its_slot_back() -> None:
    scene = Scene()
    _, listener = scene.begin(1000)
    scene.wait(CLAIM_S + 1.5)
    assert listener.ends == [(0, False)]
    assert scene.moves.counts.unclaimed == 1


def test_a_slow_client_keeps_its_slot() -> None:
    scene = Scene()
    _, listener = scene.begin(1_000_000)
    scene.kernel.sockets[ONE] = SocketState(500, 400_000)
    scene.wait(TUNING.silent_s * 2)
    assert not listener.ends


def test_a_mover_that_fell_silent_is_given_up() -> None:
    scene = Scene()
    _, listener = scene.begin(1_000_000)
    scene.kernel.send(ONE, 500)
    scene.wait(TUNING.silent_s - 5)
    assert not listener.ends
    scene.wait(10)
    assert listener.ends == [(500, False)]


def test_a_socket_of_another_machine_ends_by_its_report_or_when_it_must_be_over() -> None:
    scene = Scene()
    body, listener = scene.begin(100_000, None)
    scene.wait(CLAIM_S + 5)
    assert not listener.ends
    scene.moves.receive(EndReport(body.lease, 200, 100_000, True))
    assert listener.ends == [(100_000, True)]
    _, lost = scene.begin(100_000, None)
    scene.wait(CLAIM_S + 15)
    assert lost.ends == [(0, False)]


def test_a_body_of_which_nobody_reports_counts_as_sent_at_the_assumed_rate() -> None:
    scene = Scene()
    listener = Listener()
    body = scene.moves.prepare(listener, 100_000, "/big.iso")
    scene.moves.hand_over(body, MovedOn("", None, False, assumed_bytes_s=10_000))
    scene.wait(5)
    assert 30_000 <= body.delivered_bytes() <= 50_000
    assert not listener.ends
    scene.wait(7)
    assert listener.ends == [(100_000, True)]
    assert scene.counted == 100_000
    assert scene.moves.counts.unreported == 0


def test_a_posted_log_ends_a_body_with_all_its_bytes_and_not_by_a_word_of_its_client() -> None:
    scene = Scene()
    listener = Listener()
    body = scene.moves.prepare(listener, 100_000, "/big.iso")
    scene.moves.hand_over(body, MovedOn("", None, False, assumed_bytes_s=1))
    # Its client knows the lease. A mover's report of it counts nothing.
    scene.moves.receive(EndReport(body.lease, 200, 100_000, True))
    for _ in range(3):
        # The client fetches a part, which is logged.
        scene.moves.logged(body.lease, 30_000)
    scene.wait(2)
    assert not listener.ends
    assert body.delivered_bytes() == 90_000
    scene.moves.logged(body.lease, 10_500)
    assert listener.ends == [(100_000, True)]
    assert scene.counted == 100_000
    other, _ = scene.begin(100)
    for lease in (body.lease, "0" * 32, other.lease):
        scene.moves.logged(lease, 100)
    assert (scene.moves.counts.reported, scene.moves.counts.unknown) == (1, 3)


def test_a_log_is_posted_by_those_who_know_the_secret_and_others_are_braked(tmp_path: Path) -> None:
    scene = Scene()
    body = scene.moves.prepare(listener := Listener(), 700, "/big.iso")
    scene.moves.hand_over(body, MovedOn("", None, False, assumed_bytes_s=1))
    file = tmp_path / "secret"
    file.write_text("short\n")
    with pytest.raises(ValueError, match="needs a line of 16 characters"):
        read_secret(file)
    file.write_text("a secret of the CDN\n")
    log = PostedLog(scene.clock, scene.moves, read_secret(file))
    url = f"https://cdn.example/big.iso?Expires=1&tidegate-lease={body.lease}&Signature=x"
    lines = "\n".join(
        json.dumps(one)
        for one in (
            {"url": url, "status": 403, "bytes": 700},
            {"url": url, "status": 200, "bytes": -700},
            {"url": url.replace("lease=", "lease=0"), "status": 200, "bytes": 700},
            {"status": 200},
            # The query alone, numbers as texts, and a member more.
            {"url": url.partition("?")[2], "status": "206", "bytes": "700", "host": "h"},
        )
    )

    def post(secret: str, address: str) -> int:
        connection = FakeConnection(address)
        fields = {b"authorization": f"Bearer {secret}".encode()} if secret else {}
        log.answer(Request(connection, b"POST", b"/-/gate/log", fields, f"{lines}\nno".encode()))
        return connection.status

    right = "a secret of the CDN"
    assert [post(secret, "192.0.2.9") for secret in ("wrong", right, "")] == [403, 429, 429]
    assert not listener.ends
    scene.clock.advance(1)
    assert post("", "192.0.2.9") == 403
    # Another address is not held back.
    assert post(right, "192.0.2.1") == 204
    assert listener.ends == [(700, True)]
    assert scene.moves.counts.unknown == 0


class AnyOrder(RuleBasedStateMachine):
    """Bodies, sockets and reports in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.bodies: list[tuple[MovedBody, Listener]] = []
        #: When a socket ended.
        self.gone: dict[SocketName, float] = {}
        self.ports = 1000
        self.reported = 0

    @rule(size=st.integers(1, 10_000), multiplexed=st.booleans(), fresh=st.booleans())
    def begin(self, size: int, multiplexed: bool, fresh: bool) -> None:
        alive = [
            name for name in self.scene.kernel.sockets if (name.client_port % 2) == multiplexed
        ]
        if fresh or not alive:
            self.ports += 2
            alive = [SocketName("192.0.2.1", self.ports + multiplexed, "198.51.100.1", 443)]
        body = self.scene.begin(size, alive[-1], multiplexed=multiplexed)
        self.bodies.append(body)

    @precondition(lambda self: self.scene.kernel.sockets)
    @rule(data=st.data(), count=st.integers(0, 20_000))
    def send(self, data: st.DataObject, count: int) -> None:
        self.scene.kernel.send(data.draw(st.sampled_from(list(self.scene.kernel.sockets))), count)

    @precondition(lambda self: self.scene.kernel.sockets)
    @rule(data=st.data(), count=st.integers(1, 20_000))
    def queue(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(list(self.scene.kernel.sockets)))
        acked = self.scene.kernel.sockets[name].acked_bytes
        self.scene.kernel.sockets[name] = SocketState(acked, count)

    @precondition(lambda self: self.scene.kernel.sockets)
    @rule(data=st.data(), told=st.booleans())
    def close(self, data: st.DataObject, told: bool) -> None:
        name = data.draw(st.sampled_from(list(self.scene.kernel.sockets)))
        state = self.scene.kernel.sockets.pop(name)
        self.gone[name] = self.scene.clock.seconds()
        if told:
            self.scene.moves.destroyed(name, state)

    @precondition(lambda self: self.bodies)
    @rule(data=st.data(), part=st.floats(0, 1), whole=st.booleans())
    def report(self, data: st.DataObject, part: float, whole: bool) -> None:
        body, _ = data.draw(st.sampled_from(self.bodies))
        count = int(body.total_bytes * part)
        self.scene.moves.receive(EndReport(body.lease, 200, count, whole))

    @rule(seconds=st.floats(0.25, 10))
    def wait(self, seconds: float) -> None:
        self.scene.wait(seconds)

    @invariant()
    def each_ends_once_and_none_outlives_its_socket(self) -> None:
        now = self.scene.clock.seconds()
        for body, listener in self.bodies:
            since_s = self.scene.moves._held.get(body, now)
            assert now - since_s <= TUNING.held_s + 0.25
            assert len(listener.ends) == body.over
            assert 0 <= body.sent_bytes <= body.total_bytes
            name = body.connection.where.socket if body.connection is not None else None
            if name in self.gone:
                assert now <= self.gone[name] + 5
        running = sum(not body.over for body, _ in self.bodies)
        assert len(self.scene.moves) == running
        assert self.scene.counted >= sum(body.sent_bytes for body, one in self.bodies if one.ends)


TestAnyOrder = AnyOrder.TestCase


# -- what is read ----------------------------------------------------------------------------------


def test_a_report_of_nginx_is_read() -> None:
    lease = "0123456789abcdef" * 2
    line = f"<190>Nov 26 20:00:00 tidegate: {lease} 206 1048576 OK".encode()
    assert read_report(line) == EndReport(lease, 206, 1_048_576, True)
    assert read_report(line[:-2]) == EndReport(lease, 206, 1_048_576, False)
    for wrong in (b"", line + b" x", line.replace(b"0123", b"0G23"), b"tidegate: - 200 1 OK"):
        assert read_report(wrong) is None


def test_reports_of_other_movers_are_read() -> None:
    lease = "0123456789abcdef" * 2
    words = {"+": True, "-": True, "X": False, "--": True, "CD": False, "sD": False, "SH": False}
    for word, whole in words.items():
        line = f"<13>Nov 26 20:00:00 tidegate: {lease} 200 7 {word}\n".encode()
        assert read_report(line) == EndReport(lease, 200, 7, whole)
    # What Envoy posts: protobuf, with the texts of several ends in it.
    ends = [f"tidegate: {lease} 200 {sent} {word};" for sent, word in ((7, "-"), (6, "DC,UPE"))]
    posted = list(read_posted(b"\n\x11\x17" + b"\x08\x8f\n".join(map(str.encode, ends)) + b"\x01"))
    assert posted == [EndReport(lease, 200, 7, True), EndReport(lease, 200, 6, False)]
    # What a log shipper posts: an array, or lines, of JSON.
    for lines in (json.dumps([{"message": end} for end in ends]), "\n".join(map(json.dumps, ends))):
        assert list(read_posted(lines.encode())) == posted
    entry = {"resp_headers": {"Tidegate-Lease": [lease]}, "size": 7, "status": 206}
    assert read_report(json.dumps(entry).encode()) == EndReport(lease, 206, 7, True)
    wrong: list[object] = [{**entry, name: value} for name in entry for value in (None, -1, "x")]
    wrong += [{**entry, "resp_headers": {"Tidegate-Lease": [lease + "0"]}}, {}]
    for one in wrong:
        assert read_report(json.dumps(one).encode()) is None, one


@given(st.binary(max_size=300))
def test_any_datagram_is_a_report_or_none(data: bytes) -> None:
    read_report(data)
    list(read_posted(data))
    list(read_log(data))
    read_state(data)
    read_named(data)
    read_mover(data)


def test_where_a_mover_sends_is_read_from_one_field() -> None:
    told = read_mover(b"nginx HTTP/1.1 192.0.2.1 5000 198.51.100.1 443")
    assert told == MovedOn("nginx", ONE, False)
    told = read_mover(b"nginx HTTP/2.0 2001:db8::1 5000 2001:db8::2 443")
    name = SocketName("2001:db8::1", 5000, "2001:db8::2", 443)
    assert told == MovedOn("nginx", name, True)
    assert read_mover(b"nginx HTTP/1.1 unix: - -") == MovedOn("nginx", None, False)
    assert read_mover(b"other HTTP/1.1") is None
    assert read_socket_name(["192.0.2.1", "5000", "2001:db8::2", "443"]) is None
    assert read_socket_name(["192.0.2.1", "70000", "198.51.100.1", "443"]) is None


def test_the_kernel_tells_of_a_real_socket_to_the_byte() -> None:
    class Watching:
        def __init__(self) -> None:
            self.reader: Any = None

        def addReader(self, reader: Any) -> None:
            self.reader = reader

        def removeReader(self, reader: Any) -> None:
            self.reader = None

    reactor, ended = Watching(), list[tuple[SocketName, SocketState]]()
    diag = InetDiag(reactor, lambda name, state: ended.append((name, state)))  # type: ignore[arg-type]
    diag.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            mover, _ = server.accept()
        name = SocketName(*client.getsockname(), *mover.getsockname())
        mover.sendall(b"x" * 100_000)
        received = 0
        while received < 100_000:
            received += len(client.recv(1 << 20))
        assert diag.look(name) == SocketState(100_000, 0)
        known = read_socket_name([name.client, str(name.client_port)])
        assert known is not None
        assert diag.find(known) == name
        assert diag.find(name) == name
        mover.setblocking(False)
        sent = received
        with suppress(BlockingIOError):
            while True:
                sent += mover.send(b"x" * 65_536)
        mover.close()
        state = diag.look(name)
        assert state is not None
        assert state.closing
        assert state.acked_bytes < sent
        # The end of a connection counts as one byte.
        assert state.acked_bytes + state.queued_bytes == sent + 1
        while got := client.recv(1 << 20):
            received += len(got)
        assert received == sent
        client.close()
        assert diag.look(name) is None
        while name not in [one for one, _ in ended]:
            reactor.reader.doRead()
        assert dict(ended)[name].acked_bytes in (sent, sent + 1)
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            mover, _ = server.accept()
            name = SocketName(*client.getsockname(), *mover.getsockname())
            for one in (client, mover):
                one.close()
            # The kernel answers with the socket that listens there.
            assert diag.look(name) == GONE
        assert diag.look(name) is None
    finally:
        diag.close()
    assert reactor.reader is None
    assert len(question(name)) == 72


# -- the seam --------------------------------------------------------------------------------------


class Behind:
    """A gate whose admitted bodies are handed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(FakeFactory, "proxies", TrustedProxies(["192.0.2.0/24"]))
        self.house = House("ticket", slots=1, **settings)
        self.kernel = Kernel()
        clock = self.house.clock
        self.moves = Moves(clock, self.kernel.look, lambda n: None, random.Random(1), CLAIM_S)
        self.current = True
        self.again: list[Any] = []
        self.rate: float | None = None
        self.house.entrance = MoverAdmission(
            clock,
            self.house.gate,
            self.moves,
            lambda rep: self.current,
            self.again.append,
            lambda: self.rate,
        )

    def ask(self, address: str = "192.0.2.1", **more: Any) -> Asked:
        mover = "nginx HTTP/1.1 192.0.2.1 5000 198.51.100.1 443"
        return self.house.ask(address, **{"tidegate_mover": mover, **more})


def test_an_admitted_body_is_handed_over_and_its_end_frees_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    behind.rate = 125_000.0
    first = behind.ask(file="/a b.iso".replace(" ", "%20"), tidegate_client="one")
    assert not first.transfers
    fields = first.connection.fields
    assert fields["x-accel-redirect"] == "/-/moved/a%20b.iso"
    assert fields["x-accel-limit-rate"] == "125000"
    second = behind.ask(tidegate_client="two")
    assert second.connection.status == 503
    behind.moves.receive(EndReport(fields["tidegate-lease"], 200, 10_000_000, True))
    behind.house.clock.advance(1)
    third = behind.ask(tidegate_client="two", token=second.token)
    assert "x-accel-redirect" in third.connection.fields


def test_a_part_is_handed_over_to_a_client_that_got_header_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    first = behind.ask(tidegate_client="one")
    part = behind.ask(agent="axel/2.17", range="bytes=10-", ranges=(10, 9_000_000))
    behind.house.clock.pump([1.0] * 60)
    assert part.connection.drips
    lease = first.connection.fields["tidegate-lease"]
    behind.moves.receive(EndReport(lease, 200, 10_000_000, True))
    behind.house.clock.pump([1.0] * 2)
    assert not part.connection.aborted
    assert part.connection.fields["tidegate-range"] == "bytes=10-8999999"


def test_leases_of_movers_are_secrets_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Behind(monkeypatch)
    leases = {behind.moves.prepare(Listener(), 1, "/").lease for _ in range(1000)}
    assert len(leases) == 1000
    assert {len(lease) for lease in leases} == {32}


@pytest.mark.parametrize(
    "more",
    [
        {"address": "203.0.113.9"},
        {"tidegate_mover": "other"},
        {"range": "bytes=0-1,5-9", "ranges": (0, 10)},
    ],
)
def test_what_no_trusted_mover_can_send_is_sent_here(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    behind = Behind(monkeypatch)
    asked = behind.ask(**more)
    assert asked.transfers
    assert not asked.connection.fields
    assert len(behind.moves) == 0


def test_a_file_that_was_replaced_meanwhile_is_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    behind.current = False
    asked = behind.ask()
    behind.house.clock.advance(0)
    assert behind.again == [asked.request]
    assert asked.connection.status == 0
    assert len(behind.moves) == 0


def test_a_file_that_was_just_compared_is_not_compared_again_unless_it_had_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    enter = behind.house.entrance.enter
    unused = cast(Any, None)

    def compared(request: Request, rep: Representation, plan: BodyPlan, start: StartBody) -> None:
        parts = unused, request, unused, plan, unused, unused, unused, unused
        enter(request, rep, plan, FileStart(*parts, just_compared=True))

    monkeypatch.setattr(behind.house.entrance, "enter", compared)
    behind.current = False
    first = behind.ask(tidegate_client="one")
    assert "x-accel-redirect" in first.connection.fields
    waits = behind.ask(agent="axel/2.17")
    assert not waits.connection.status
    lease = first.connection.fields["tidegate-lease"]
    behind.moves.receive(EndReport(lease, 200, 10_000_000, True))
    behind.house.clock.pump([1.0] * 2)
    assert behind.again == [waits.request]


def test_an_operator_fills_a_line_that_is_told_alone() -> None:
    gate = House("ticket").gate
    revision = RevisionRecord(0.0, "file", "ticket", {})
    store = SimpleNamespace(must=lambda act: None)
    events = SimpleNamespace(add=lambda *words, **more: None)
    revisions = Revisions(gate, store, events, lambda: 0.0, revision, revision)  # type: ignore[arg-type]
    gate.parts.can_pause = False
    with pytest.raises(Problem, match="A gate with fair needs bandwidth_bytes_s"):
        revisions.apply("fair", gate.settings, "anna")
    assert gate.policy.name == "ticket"
    assert gate.policy.line_shares() == gate.settings.slots
    told = gate.settings.model_copy(update={"bandwidth_bytes_s": 1e6})
    revisions.apply("fair", told, "anna")
    assert gate.policy.line_shares() == 4


def test_the_line_of_a_gate_is_full_by_what_movers_send() -> None:
    clock = Clock()
    pacer, nothing = Pacer(clock, 1e6), cast(LeasedDownload, SimpleNamespace(deliveries=()))
    line = MoverLine(pacer)
    seen = []
    for sent in (500_000, 950_000, 100_000):
        for _ in range(8):
            clock.advance(0.25)
            pacer.sent_bytes_total += sent // 4
            line.tick(clock.seconds(), (), 0)
        seen.append((line.busy, line.held_back(nothing)))
    assert seen == [(False, False), (True, True), (False, False)]
    line.set_ceiling(None)
    line.tick(clock.seconds(), (), 0)
    assert line.line_bytes_s == math.inf
    assert not line.busy


def test_bytes_that_come_before_their_time_count_at_the_told_rate() -> None:
    scene = Scene()
    body, listener = scene.begin(10_000)
    body.rate_bytes_s = 1_000.0
    # nginx sends what is for a whole second at once.
    counted = []
    for _ in range(4):
        scene.kernel.send(ONE, 1_000)
        for _ in range(4):
            scene.wait(0.25)
            counted.append(body.delivered_bytes())
    assert counted == pytest.approx([250 * (at + 1) for at in range(16)], abs=1)
    # A client that takes less counts with what it took.
    scene.wait(3.0)
    assert body.delivered_bytes() == scene.counted == 4_000
    # Of one that breaks off it counts what has come.
    other, told = scene.begin(10_000, two := SocketName("192.0.2.9", 5000, "198.51.100.1", 443))
    other.rate_bytes_s = 1_000.0
    scene.kernel.send(two, 2_000)
    scene.moves.receive(EndReport(other.lease, 200, 2_000, False))
    scene.wait(1.0)
    assert told.ends == [(2_000, False)]
    scene.moves.receive(EndReport(body.lease, 200, 10_000, True))
    scene.kernel.send(ONE, 6_000)
    scene.wait(1.0)
    assert listener.ends == [(10_000, True)]
    assert scene.counted == 12_000


def test_a_body_that_has_just_begun_tells_nothing_of_its_client() -> None:
    scene = Scene()
    line = MoverLine(Pacer(scene.clock, 1e6))
    body, _ = scene.begin(10_000)
    download = cast(LeasedDownload, SimpleNamespace(deliveries=[SimpleNamespace(transfer=body)]))
    assert line.held_back(download)
    scene.wait(1.0)
    assert not line.held_back(download)


def test_the_tag_is_that_of_nginx() -> None:
    assert mover_tag(-1, FileKey(7, 0x1C9C380, 0x6B08A34A * 10**9 + 5, 9)) == '"6b08a34a-1c9c380"'


# -- what an operator types ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["snippet", "nginx"], "Give --root DIR or --origin URL, and --gate ADDRESS."),
        (["snippet", "nginx", "--root", "x", "--gate", "unix:/a"], "must be an absolute path"),
        (["snippet", "nginx", "--root", "/a$b", "--gate", "unix:/a"], "cannot have '$' in it"),
        (["snippet", "nginx", "--root", "/a", "--gate", "unix:a"], "needs an absolute path"),
        (["snippet", "nginx", "--root", "/a", "--gate", "localhost"], "unix:PATH or HOST:PORT"),
        (["snippet", "nginx", "--root", "/a", "--gate", "h:0"], "unix:PATH or HOST:PORT"),
        (["snippet", "nginx", "--root", "/a", "--gate", "a;b:80"], "unix:PATH or HOST:PORT"),
        (["snippet", "nginx", "--root", "/a", "--gate", "h:80", "--complete"], "belong together"),
        (["snippet", "other"], "is not one of 'apache', 'caddy', 'envoy', 'haproxy', 'lighttpd'"),
        (["snippet", "apache", "--root", "/a", "--gate", "h:80"], "give --if-absent closed"),
        (["snippet", "caddy", "--root", "/a", "--gate", "192.0.2.1:80"], "Caddy shows leases"),
        (["snippet", "caddy", "--part", "http", "--gate", "h:80"], "caddy has no part http"),
        (["snippet", "lighttpd", "--root", "/a", "--gate", "h:80"], "give --if-absent closed"),
        (["snippet", "haproxy", "--root", "/a", "--gate", "h:80"], "give --files HOST:PORT"),
        (["snippet", "envoy", "--root", "/a", "--gate", "h:80"], "envoy has no files: give"),
        (
            ["snippet", "nginx", "--origin", "https://x/", "--gate", "h:80"],
            "nginx sends no files of an origin without the gate: give --if-absent closed",
        ),
        (
            ["snippet", "caddy", "--origin", "https://x/", "--gate", "h:80"],
            "caddy sends no files of an origin: nginx does",
        ),
        (["snippet", "nginx", "--origin", "ftp://x/", "--gate", "h:80"], "is no http or https URL"),
        (["snippet", "nginx", "--origin", "http://x/;", "--gate", "h:80"], "cannot have ';' in it"),
        (["snippet", "nginx", "--origin", "http://x/ y", "--gate", "h:80"], "is no http or https"),
        (["snippet", "s3", "--origin", "https://x/"], "must be https://BUCKET.s3.REGION"),
        (["snippet", "cloudfront", "--gate", "h:80"], "Give --root DIR or --origin URL"),
        (["DIR", "--origin", "ftp://x"], "is no http or https URL without a query"),
        (["DIR", "--origin", "https://x", "--sign", "s4"], "gate.sign"),
        (["snippet", "haproxy", "--files", "h", "--gate", "h:80"], "--files is unix:PATH or"),
        (
            [*("snippet", "haproxy", "--files", "h:1", "--gate", "h:80"), "--small-below", "1kB"],
            "--small-below needs the files here: give --root DIR",
        ),
        (["DIR", "--policy", "fair"], "a gate with the policy fair needs bandwidth"),
        (["DIR", "--listen", "127.0.0.1:0"], "gate.report needs a port"),
        (["DIR", "--report", "x"], "is not HOST:PORT"),
        (["DIR", "--bandwidth", "40"], "bandwidth"),
        (["DIR", "--workers", "2"], "No such option"),
    ],
)
def test_wrong_words_are_told_in_a_sentence(words: list[str], text: str, tmp_path: Path) -> None:
    words = [str(tmp_path) if word == "DIR" else word for word in words]
    told = CliRunner().invoke(cli, ["gate", *words])
    assert told.exit_code == 2, told.output
    assert text in told.output
    assert "Traceback" not in told.output


def test_a_store_lets_the_keys_of_the_gate_read_this_folder_alone() -> None:
    of = SnippetTerms("", origin="https://my-files.s3.eu-central-1.amazonaws.com/a/release/")
    (allowed,) = json.loads(snippet("s3", of))["Statement"]
    assert (allowed["Effect"], allowed["Action"]) == ("Allow", "s3:GetObject")
    assert allowed["Resource"] == "arn:aws:s3:::my-files/a/release/*"
    made = json.loads(snippet("cloudfront", of))["Resources"]
    sends = made["Distribution"]["Properties"]["DistributionConfig"]
    (bucket,) = sends["Origins"]
    assert bucket["DomainName"] == "my-files.s3.eu-central-1.amazonaws.com"
    assert bucket["OriginPath"] == "/a/release"
    # Without them everybody may read.
    assert sends["DefaultCacheBehavior"]["TrustedKeyGroups"] == [{"Ref": "Keys"}]
    (allowed,) = made["Policy"]["Properties"]["PolicyDocument"]["Statement"]
    assert allowed["Resource"] == "arn:aws:s3:::my-files/a/release/*"
    assert "AWS:SourceArn" in allowed["Condition"]["StringEquals"]


GATE = {
    "reported": 0,
    "report": "unix:/run/gate.end",
    "client": "192.0.2.1",
    "mover": "nginx",
    "trusted": True,
    "seen": True,
    "origin": False,
}
LEASED = {"Tidegate-Lease-Connections": "1"}
REFUSED = {"Content-Type": "application/problem+json"}


@pytest.mark.parametrize(
    ("gate", "file", "said"),
    [
        (404, (200, {}, b""), "No gate answers at /-/gate, but a status 404"),
        ({"trusted": False}, (200, {}, b""), "does not trust the program in front"),
        ({"mover": ""}, (200, {}, b""), "without the field Tidegate-Mover"),
        ({}, (404, REFUSED, b'{"detail": "Nothing."}'), "The gate answers 404: Nothing. Name"),
        ({}, (503, REFUSED, b"[]"), "503 without a ticket: it says no reason."),
        ({}, (403, LEASED, b""), "nginx answers 403 for an admitted file: its root must be"),
        ({"origin": True}, (502, {}, b""), "an admitted file: it must reach the origin"),
        ({"mover": "haproxy"}, (503, {}, b""), "haproxy answers 503 for an admitted file: the ser"),
        ({}, (200, {}, b"x"), "without a lease"),
        ({}, (200, LEASED, b"x"), "access_log must name the gate's report address, unix:/run/gate"),
        ({"mover": "envoy"}, (200, LEASED, b"x"), "its http_service, must post to /-/gate of the"),
        ({"mover": "caddy"}, (200, LEASED, b"x"), "the log of the site, which is opened after"),
        ({"mover": "apache", "seen": False}, (200, LEASED, b"x"), "CustomLog, with /usr/bin/logg"),
    ],
)
def test_a_walk_names_what_is_missing_and_what_to_do(
    gate: int | dict[str, Any], file: tuple[int, dict[str, str], bytes], said: str
) -> None:
    told = json.dumps({**GATE, **gate}).encode() if isinstance(gate, dict) else b"no"
    pages = {
        "/-/gate": (200 if isinstance(gate, dict) else gate, {}, told),
        "/big.iso": file,
    }
    with answering(pages) as url:
        steps = list(check(f"{url}/big.iso", 60, sleep=lambda seconds: None))
    assert [step.good for step in steps[:-1]] == [True] * (len(steps) - 1)
    assert not steps[-1].good
    assert said in steps[-1].text
    if isinstance(gate, dict) and "seen" in gate:
        assert "does not see the sockets of apache" in steps[1].text


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=40))
def test_no_folder_breaks_out_of_a_configuration(name: str) -> None:
    try:
        of = SnippetTerms(
            "unix:/run/gate.sock", Path("/srv") / name, if_absent="closed", files="f:80"
        )
    except ProtocolError:
        return
    lines = {
        "apache": f'XSendFilePath "{of.root}"',
        "caddy": f'root * "{of.root}"',
        "envoy": "cluster: tidegate_files",
        "haproxy": "server files f:80\n",
        "lighttpd": f'"x-sendfile-docroot" => ("{of.root}")',
        "nginx": f'alias "{of.root}/";',
    }
    for mover in CONFIGURED:
        assert lines[mover] in snippet(mover, of)
    assert not set(str(of.root)) & set("$\"'\\;{}")


def test_a_report_socket_of_an_earlier_run_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    readers: list[Any] = []
    reactor: Any = SimpleNamespace(addReader=readers.append, removeReader=readers.remove)
    path = tmp_path / "end"
    reports: list[EndReport] = []
    left = ReportSocket(reactor, reports.append, path=path)
    left.open()
    one = ReportSocket(reactor, reports.append, path=path)
    one.open()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender:
        sender.sendto(b"<190>x tidegate: " + b"a" * 32 + b" 200 5 OK", str(path))
        sender.sendto(b"noise", str(path))
    readers[-1].doRead()
    assert reports == [EndReport("a" * 32, 200, 5, True)]
    one.close()
    left.close()
    assert not readers
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        ReportSocket(reactor, reports.append, path=path).open()
    assert path.read_text() == "mine"


# -- a restart -------------------------------------------------------------------------------------


def kept(number: int) -> KeptBody:
    name = SocketName("192.0.2.1", number + 1, "198.51.100.1", 443)
    return KeptBody(f"{number:032x}", "/ä.iso", "", {"range": "bytes=5-"}, name, number)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60), st.integers(0, 200))
def test_what_is_on_its_way_is_found_again(steps: list[tuple[bool, int]], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "moves"
        journal = MovesJournal(path)
        assert journal.open() == []
        live: dict[str, KeptBody] = {}
        for begins, number in steps:
            body = kept(number)
            if begins and body.lease not in live:
                journal.begin(body)
                live[body.lease] = body
            else:
                journal.end(body.lease)
                live.pop(body.lease, None)
        journal.close()
        assert MovesJournal(path).open() == list(live.values())
        # What stood there is over, unless it is handed over again.
        again = MovesJournal(path)
        assert again.open() == []
        again.begin(kept(1))
        again.begin(kept(2))
        again.close()
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - min(cut, len(data))])
        assert MovesJournal(path).open() in ([], [kept(1)], [kept(1), kept(2)])


def test_who_asks_and_with_which_proof_is_written_down() -> None:
    proofs = {
        b"tidegate-ticket": b"t",
        b"tidegate-pass": b"p",
        b"cookie": b"c",
        b"user-agent": b"u",
    }
    fields = {**proofs, b"authorization": b"Basic c2VjcmV0"}
    asked = Request(FakeConnection(), b"GET", b"/a", fields)  # type: ignore[arg-type]
    body = kept_body(asked, "a" * 32, ONE, 0)
    request = request_of(body, FakeFactory())  # type: ignore[arg-type]
    assert dict(request.headers) == proofs


def test_the_file_of_bodies_on_their_way_stays_small_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "moves"
    journal = MovesJournal(path)
    journal.open()
    journal.begin(kept(0))
    for number in range(1, 5_000):
        journal.begin(kept(number))
        journal.end(kept(number).lease)
    journal.close()
    assert len(path.read_bytes().splitlines()) < 2_500
    assert MovesJournal(path).open() == [kept(0)]


def test_a_body_that_is_found_again_has_its_slot_and_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    written: list[KeptBody] = []
    assert isinstance(behind.house.entrance, MoverAdmission)
    behind.house.entrance.write_down = written.append
    behind.kernel.sockets[ONE] = SocketState(700, 0)
    behind.ask(tidegate_client="one", authorization="Basic c2VjcmV0", range="bytes=0-")
    (body,) = written
    assert body.acked_bytes == 700
    assert "authorization" not in body.headers

    after = Behind(monkeypatch)
    after.moves.start()
    after.kernel.sockets[ONE] = SocketState(5700, 0)
    request = request_of(body, FakeFactory())  # type: ignore[arg-type]
    rep = representation()
    plan = BodyPlan(200, (), ((0, rep.size_bytes),), rep.size_bytes)

    def sent_here(listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        pytest.fail("sent here")

    after.house.entrance.enter(request, rep, plan, sent_here)
    assert len(after.moves) == 1
    after.house.clock.advance(1)
    assert after.ask(tidegate_client="two").connection.status == 503
    (download,) = after.house.gate.downloads.values()
    assert download.taken_bytes() == 5000
    # What came while there was no gate says nothing of its client's speed.
    assert download.rate_bytes_s == 0.0
    after.kernel.send(ONE, 250)
    after.house.clock.advance(0.25)
    assert 0.0 < download.rate_bytes_s <= 1000.0
    after.moves.receive(EndReport(body.lease, 200, rep.size_bytes, True))
    after.house.clock.advance(1)
    assert not after.house.gate.downloads


@pytest.mark.parametrize(("address", "told"), [("127.0.0.1", "unix:/run/x"), ("192.0.2.1", "")])
def test_only_this_machine_is_told_where_a_mover_reports(address: str, told: str) -> None:
    class NoMoves(list[str]):
        counts = MoveCounts()

    room: Any = SimpleNamespace(moves=NoMoves(), place="unix:/run/x", _origin=None, _diag=None)
    connection = FakeConnection(address)
    GateRoom.answer(room, Request(connection, b"GET", b"/-/gate", {}))  # type: ignore[arg-type]
    assert json.loads(connection.body)["report"] == told

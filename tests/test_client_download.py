from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faulty_mirrors import Behaviour, certificate, running
from hypothesis import given
from hypothesis import strategies as st
from virtual_network import VirtualRun

from tests.multicast_link import make_offer
from tidegate.client.api import Options, Result, fetch, fetch_blocking, fetch_bytes
from tidegate.client.cli.show import summary
from tidegate.client.fetch.download import Download
from tidegate.client.fetch.metalink import Metalink
from tidegate.client.net.errors import (
    AccessRefused,
    Corrupt,
    DownloadFailed,
    LocalProblem,
    NetworkProblem,
    NoRoom,
    NotFound,
    UsageProblem,
    WaitedTooLong,
)
from tidegate.client.net.near import is_near, may_lead
from tidegate.client.net.urls import parse
from tidegate.client.storage.piece_writer import FileStorage, Pieces
from tidegate.protocol.fec import FecParameters
from tidegate.protocol.session import (
    HASH_BYTES,
    HEADER_NAME,
    INLINE_HASHES,
    OFFER_TYPE,
    encode_offer,
)

DATA = Random(3).randbytes(2_000_000)
WRONG = DATA.translate(bytes(range(255, -1, -1)))
SHA = ("sha256", hashlib.sha256(DATA).digest())
RATE = 3e6


def pieces(length: int = 100_000) -> Pieces:
    parts = [DATA[at : at + length] for at in range(0, len(DATA), length)]
    return Pieces(length, "sha256", tuple(hashlib.sha256(part).digest() for part in parts))


class Run:
    """One download into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "out.bin"
        self.events: list[tuple[str, Mapping[str, object]]] = []

    def get(self, *urls: str, metalink: Metalink | None = None, **wishes: object) -> Result:
        wishes = {"data_folder": self.folder / "data", "environ": {}, "seed": 1} | wishes
        options = Options(**wishes)  # type: ignore[arg-type]
        return fetch_blocking(
            list(urls), self.path, options, lambda e, d: self.events.append((e, d)), metalink
        )

    def right(self) -> bool:
        return self.path.read_bytes() == DATA and sorted(
            path.name for path in self.folder.iterdir()
        ) in (["data", "out.bin"], ["out.bin"])


@pytest.fixture
def one(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def virtual(tmp_path: Path) -> VirtualRun:
    return VirtualRun(tmp_path)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(DATA),
        Behaviour(DATA, etag=None),
        Behaviour(DATA, ranges=False),
        Behaviour(DATA, chunked=True),
        Behaviour(DATA, chunked=True, reset_after=200_000),
        Behaviour(DATA, no_length=True),
        Behaviour(DATA, close_each=True),
        Behaviour(DATA, interim=True),
        Behaviour(DATA, busy_times=2, retry_after="0"),
        Behaviour(DATA, busy_times=1, busy_status=429, retry_after="0"),
        Behaviour(DATA, ticket_first=True),
    ],
    ids=lambda b: "",
)
def test_one_server_however_it_answers(virtual: VirtualRun, behaviour: Behaviour) -> None:
    with virtual.playing(behaviour) as (mirror,):
        result = virtual.get(mirror.url)
    assert virtual.right(DATA)
    assert result.size_bytes == len(DATA)


@pytest.mark.parametrize(
    ("behaviour", "verified"),
    [(Behaviour(DATA, no_length=True), "nothing"), (Behaviour(DATA, chunked=True), "length")],
    ids=["closed", "chunked"],
)
def test_a_length_that_was_never_told_is_not_called_right(
    virtual: VirtualRun, behaviour: Behaviour, verified: str
) -> None:
    """An answer that ends with its connection may have been cut. Its end is no failure either."""
    with virtual.playing(behaviour) as (mirror,):
        result = virtual.get(mirror.url, max_failures=1)
    assert virtual.right(DATA)
    assert result.verified == verified
    assert ("it may be cut short" in summary(result)[0]) == (verified == "nothing")
    assert [one.retries for one in result.sources] == [0]


def test_after_an_answer_without_a_size_broke_off_the_other_mirror_is_asked(
    virtual: VirtualRun,
) -> None:
    """One that stood only after such an answer had begun was never asked, and nobody else."""
    untold = Behaviour(DATA, chunked=True, reset_after=200_000)
    with virtual.playing(untold, Behaviour(DATA)) as (first, second):
        virtual.get(first.url, second.url)
    assert virtual.right(DATA)


def test_a_mirror_that_refuses_what_it_has_is_left_out(virtual: VirtualRun) -> None:
    """Its 416 named the size that all had told; the download began anew, four times, and failed."""
    refusing = Behaviour(DATA, status=416, told_range=f"bytes */{len(DATA)}")
    with virtual.playing(refusing, Behaviour(DATA)) as (first, second):
        virtual.get(first.url, second.url)
    assert virtual.right(DATA)


def test_an_empty_file_is_a_file(one: Run) -> None:
    with running(Behaviour(b"")) as (mirror,):
        assert one.get(mirror.url).size_bytes == 0
    assert "retry" not in [name for name, _ in one.events]
    assert one.path.read_bytes() == b""


@pytest.mark.parametrize("count", [2, 4])
def test_several_mirrors_bring_every_byte(virtual: VirtualRun, count: int) -> None:
    behaviours = [Behaviour(DATA, rate=RATE * (n + 1)) for n in range(count)]
    with virtual.playing(*behaviours) as mirrors:
        result = virtual.get(*(m.url for m in mirrors), checksum=SHA)
    assert virtual.right(DATA)
    assert result.verified == "checksum"
    assert sum(report.bytes > 0 for report in result.sources) >= 2


@pytest.mark.parametrize(
    "fault",
    [
        Behaviour(DATA, rate=RATE, stall_after=200_000),
        Behaviour(DATA, rate=RATE, stall_after=0),
        Behaviour(DATA, rate=RATE, reset_after=200_000),
        Behaviour(DATA, rate=RATE, new_etag_after=200_000),
        Behaviour(DATA, rate=RATE, short_by=5),
        Behaviour(DATA, rate=RATE, wrong_start=True),
        Behaviour(DATA, rate=RATE, ranges=False),
        Behaviour(DATA, rate=RATE, close_each=True),
        Behaviour(DATA[:-7], rate=RATE),
        Behaviour(DATA, rate=2000),
        Behaviour(DATA, status=404),
        Behaviour(DATA, status=500),
        Behaviour(DATA, status=403),
        Behaviour(DATA, busy_times=10**6, retry_after="3600"),
        Behaviour(DATA, redirect="/file.bin"),
        Behaviour(DATA, redirect="gopher://x/"),
        Behaviour(DATA, huge_head=True),
    ],
    ids=lambda b: "",
)
@pytest.mark.parametrize("place", [0, 2])
def test_a_mirror_that_misbehaves_harms_nothing(
    virtual: VirtualRun, fault: Behaviour, place: int
) -> None:
    behaviours = [Behaviour(DATA, rate=RATE) for _ in range(2)]
    behaviours.insert(place, fault)
    with virtual.playing(*behaviours) as mirrors:
        result = virtual.get(*(m.url for m in mirrors), checksum=SHA, stall_s=0.3)
    assert virtual.right(DATA)
    assert result.wasted_bytes < 0.25 * len(DATA)


def test_a_wrong_piece_names_its_mirror(virtual: VirtualRun) -> None:
    known = Metalink("out.bin", len(DATA), SHA, pieces(), ())
    good = [Behaviour(DATA, rate=RATE) for _ in range(2)]
    with virtual.playing(good[0], Behaviour(WRONG, rate=RATE), good[1]) as mirrors:
        result = virtual.get(*(m.url for m in mirrors), metalink=known)
        assert result.culprits == (mirrors[1].url,)
    assert virtual.right(DATA)
    assert result.verified == "pieces"


def test_a_mirror_with_another_copy_is_found_by_comparing(virtual: VirtualRun) -> None:
    good = [Behaviour(DATA, rate=RATE) for _ in range(3)]
    with virtual.playing(Behaviour(WRONG, rate=RATE), *good) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
        assert result.culprits == (mirrors[0].url,)
    assert virtual.right(DATA)


@pytest.mark.parametrize("spots", [range(0, 2_000_000, 3000), range(200_000, 1_800_000)])
def test_without_pieces_the_culprit_is_found_by_reading_again(
    virtual: VirtualRun, spots: range
) -> None:
    bent = bytearray(DATA)
    for at in spots:
        bent[at] ^= 1
    good = [Behaviour(DATA, rate=RATE) for _ in range(2)]
    with virtual.playing(good[0], Behaviour(bytes(bent), rate=RATE), good[1]) as mirrors:
        result = virtual.get(*(m.url for m in mirrors), checksum=SHA)
        assert result.culprits == (mirrors[1].url,)
    assert virtual.right(DATA)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("third", [[], [Behaviour(DATA, status=404)]], ids=len)
def test_an_older_copy_of_the_same_size_is_not_mixed_in(
    virtual: VirtualRun, turned: bool, third: list[Behaviour]
) -> None:
    # A quarter is another: one random place would miss that three times in four.
    old = DATA[:900_000] + WRONG[900_000:1_400_000] + DATA[1_400_000:]
    copies = [
        Behaviour(data, rate=RATE, etag=f'"{year}"', headers=(("Last-Modified", year),))
        for data, year in ((DATA, "2025"), (old, "2020"))
    ]
    copies.sort(key=lambda copy: copy.data is old, reverse=turned)
    with virtual.playing(*third, *copies) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
    assert virtual.path.read_bytes() == copies[0].data
    assert any("different dates" in note for note in result.notes)
    assert result.sources[-1].dropped == "its copy differs from the others'"


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2, 0.4])
def test_pieces_of_a_mirror_that_was_left_out_convict_no_other(
    virtual: VirtualRun, delay_s: float
) -> None:
    """The first mirror's copy or, once its pieces are known, the second's; never neither."""
    parts = [
        hashlib.sha256(WRONG[at : at + 100_000]).hexdigest() for at in range(0, 2_000_000, 100_000)
    ]
    text = (
        '<metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="file.bin">'
        f"<size>{len(WRONG)}</size><pieces length='100000' type='sha-256'>"
        + "".join(f"<hash>{part}</hash>" for part in parts)
        + "</pieces><url>http://nowhere.example/file.bin</url></file></metalink>"
    )
    beside = Behaviour(text.encode(), path="/file.bin.meta4", delay_s=delay_s)
    with virtual.playing(beside) as (metalink,):
        link = f'<{metalink.url}>; rel=describedby; type="application/metalink4+xml"'
        copies = (
            Behaviour(DATA, rate=RATE, ranges=False, etag='"a"'),
            Behaviour(WRONG, rate=RATE, etag='"b"', headers=(("Link", link),)),
        )
        with virtual.playing(*copies) as mirrors:
            virtual.get(*(mirror.url for mirror in mirrors))
    assert virtual.path.read_bytes() in (DATA, WRONG)


@pytest.mark.parametrize("size", [140_000, 600_000])
def test_of_two_small_copies_that_differ_and_say_they_do_not_one_is_taken_whole(
    virtual: VirtualRun, size: int
) -> None:
    copies = [Behaviour(data[:size], rate=RATE) for data in (DATA, WRONG)]
    with virtual.playing(*copies) as mirrors:
        virtual.get(*(m.url for m in mirrors))
    assert virtual.path.read_bytes() == DATA[:size]


def test_two_mirrors_that_disagree_are_settled_by_the_digest(virtual: VirtualRun) -> None:
    for order in ([WRONG, DATA], [DATA, WRONG]):
        with virtual.playing(*(Behaviour(data, rate=RATE) for data in order)) as mirrors:
            result = virtual.get(*(m.url for m in mirrors), checksum=SHA)
            assert result.culprits == (mirrors[order.index(WRONG)].url,)
        assert virtual.right(DATA)


@pytest.mark.parametrize("wrong", [[WRONG[:-5]], [WRONG] * 2, [WRONG[:-5]] * 2, [WRONG + b"x"] * 2])
def test_the_digest_finds_a_copy_that_was_left_out_for_the_others_word(
    virtual: VirtualRun, wrong: list[bytes]
) -> None:
    with virtual.playing(*(Behaviour(data, rate=RATE) for data in [*wrong, DATA])) as mirrors:
        result = virtual.get(*(m.url for m in mirrors), checksum=SHA)
        dropped = [note for note in result.notes if mirrors[-1].url in note and "expected" in note]
        assert (dropped, mirrors[-1].url in result.culprits) == ([], False)
    assert virtual.right(DATA)


def test_when_all_are_wrong_nothing_is_left_behind(virtual: VirtualRun) -> None:
    with virtual.playing(*(Behaviour(WRONG) for _ in range(2))) as mirrors:
        for urls in ([mirrors[0].url], [m.url for m in mirrors]):
            with pytest.raises(Corrupt):
                virtual.get(*urls, checksum=SHA)
    assert not virtual.path.exists()
    assert [p.name for p in virtual.folder.iterdir()] in ([], ["data"])


@pytest.mark.parametrize(
    ("behaviour", "kind", "wishes"),
    [
        (Behaviour(DATA, status=404), NotFound, {}),
        (Behaviour(DATA, status=401), AccessRefused, {}),
        (Behaviour(DATA, status=500), NetworkProblem, {"max_failures": 1}),
        (Behaviour(DATA, redirect="/file.bin"), NetworkProblem, {}),
        (Behaviour(DATA, busy_times=9, retry_after="99"), WaitedTooLong, {"max_wait_s": 5.0}),
        (Behaviour(DATA, stall_after=1000), NetworkProblem, {"timeout_s": 0.2, "max_failures": 1}),
        (Behaviour(DATA, huge_head=True), NetworkProblem, {"max_failures": 1}),
    ],
)
def test_what_cannot_be_is_said_plainly(
    virtual: VirtualRun, behaviour: Behaviour, kind: type[DownloadFailed], wishes: dict[str, object]
) -> None:
    with virtual.playing(behaviour) as (mirror,), pytest.raises(kind) as found:
        virtual.get(mirror.url, **wishes)
    assert "\n" not in str(found.value)
    assert mirror.url in str(found.value)


def test_nobody_there(virtual: VirtualRun) -> None:
    with virtual.playing(Behaviour(DATA)) as (mirror,):
        url = mirror.url
    with pytest.raises(NetworkProblem, match="refused"):
        virtual.get(url, max_failures=1)


def test_what_arrived_is_kept_where_there_is_no_room_for_the_rest(
    virtual: VirtualRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that had filled up meanwhile used to cost what had arrived before."""
    with virtual.playing(Behaviour(DATA, rate=6e6, reset_after=800_000)) as (mirror,):
        with pytest.raises(NetworkProblem):
            virtual.get(mirror.url, max_failures=1)
        with monkeypatch.context() as full:
            full.setattr(FileStorage, "room_bytes", lambda _: 4096)
            with pytest.raises(NoRoom, match=r"are needed and 4\.1 kB are free"):
                virtual.get(mirror.url)
        assert virtual.get(mirror.url).resumed_bytes >= 300_000
    assert virtual.right(DATA)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(
    "fault",
    [{"busy_times": 99, "retry_after": "60"}, {"stall_after": 0}, {"status": 404}, {"status": 500}],
    ids=str,
)
def test_a_small_file_comes_from_the_mirrors_that_were_asked_past_its_end(
    virtual: VirtualRun, size: int, fault: dict[str, object]
) -> None:
    data = DATA[:size]
    first = Behaviour(data, **fault)  # type: ignore[arg-type]
    with virtual.playing(first, Behaviour(data), Behaviour(data)) as mirrors:
        virtual.get(*(m.url for m in mirrors), stall_s=0.1)
    assert virtual.path.read_bytes() == data


def test_most_mirrors_of_a_small_file_decide_its_size(virtual: VirtualRun) -> None:
    data = DATA[:1000]
    slow = Behaviour(data + b"x", rate=5e3)
    with virtual.playing(slow, Behaviour(data), Behaviour(data)) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
        assert result.sources[0].dropped == "its copy has another size"
    assert virtual.path.read_bytes() == data


def test_of_two_sizes_that_of_the_mirror_named_first_counts_not_of_who_answers_first(
    virtual: VirtualRun,
) -> None:
    """A mirror that lied about the size and was fast used to have its file saved."""
    first = Behaviour(DATA, rate=RATE, delay_s=0.1)
    with virtual.playing(first, Behaviour(DATA + DATA, rate=RATE)) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
        assert result.sources[1].dropped == "its copy has another size"
    assert virtual.right(DATA)


@pytest.mark.parametrize("size", [1000, 100_000, 2_000_000])
@pytest.mark.parametrize("other", ["longer", "shorter", "as long"])
@pytest.mark.parametrize("ranges", [True, False])
def test_the_mirror_named_first_decides_though_the_other_is_done_before_it_answers(
    virtual: VirtualRun, size: int, other: str, ranges: bool
) -> None:
    copies = {"longer": WRONG + WRONG, "shorter": WRONG[: size // 2], "as long": WRONG[:size]}
    first = Behaviour(DATA[:size], delay_s=0.5, etag=None)
    second = Behaviour(copies[other], ranges=ranges, etag=None)
    with virtual.playing(first, second) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
    assert virtual.path.read_bytes() == DATA[:size]
    assert result.sources[1].dropped or not result.sources[1].bytes


@pytest.mark.parametrize(
    ("checksum", "size"), [(None, len(WRONG)), (None, len(WRONG) - 5), (SHA, len(WRONG))]
)
def test_a_file_that_the_first_mirror_has_renewed_is_resumed_only_where_a_digest_proves_it(
    virtual: VirtualRun, checksum: object, size: int
) -> None:
    """The second mirror's old copy was completed, and the first mirror left out."""
    with virtual.playing(Behaviour(DATA, rate=RATE, reset_after=800_000)) as (first,):
        with pytest.raises(NetworkProblem):
            virtual.get(first.url, max_failures=1)
        renewed = Behaviour(WRONG[:size], rate=RATE, etag='"two"')
    with virtual.playing(renewed, Behaviour(DATA, rate=RATE)) as mirrors:
        virtual.get(*(m.url for m in mirrors), checksum=checksum)
    assert virtual.path.read_bytes() == (DATA if checksum else WRONG[:size])


@pytest.mark.parametrize("ranges", [True, False])
def test_a_first_mirror_without_an_answer_is_waited_for_a_second_and_named(
    virtual: VirtualRun, ranges: bool
) -> None:
    with virtual.playing(Behaviour(DATA, delay_s=20), Behaviour(DATA, ranges=ranges)) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
        assert f"{mirrors[0].url} sent nothing of its copy" in result.notes[0]
    assert virtual.right(DATA)
    assert result.seconds < 1.5
    # Once it has answered, nothing more is waited for.
    with virtual.playing(Behaviour(DATA, delay_s=0.2), Behaviour(DATA, ranges=ranges)) as mirrors:
        virtual.path.unlink()
        result = virtual.get(*(m.url for m in mirrors))
    assert (result.notes, result.seconds < 0.5) == ((), True)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_size_that_no_disk_could_hold_does_not_end_the_download(
    virtual: VirtualRun, place: int
) -> None:
    """The first to answer, wherever it was named, could end what the others had."""
    mirrors = [Behaviour(DATA, rate=RATE, delay_s=0.1) for _ in range(2)]
    mirrors.insert(place, Behaviour(DATA, rate=RATE, told_bytes=10**18 - 1))
    with virtual.playing(*mirrors) as running_mirrors:
        result = virtual.get(*(m.url for m in running_mirrors))
    assert "for which there is no room here" in (result.sources[place].dropped or "")
    assert virtual.right(DATA)


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return (stat.f_bavail + stat.f_blocks) // 2 * stat.f_frsize


def test_what_finds_no_room_now_is_said_where_the_first_mirror_tells_it(
    virtual: VirtualRun,
) -> None:
    """A smaller copy, perhaps an older one, is not taken for it because the disk is full."""
    large = Behaviour(DATA, rate=RATE, told_bytes=_free_bytes(virtual.folder))
    late = Behaviour(DATA, rate=RATE, delay_s=0.1)
    with virtual.playing(large, late) as mirrors:
        urls = [mirror.url for mirror in mirrors]
        with pytest.raises(NoRoom, match="are needed and"):
            virtual.get(*urls)
        virtual.get(*reversed(urls))
    assert virtual.right(DATA)
    with virtual.playing(large, large) as mirrors:
        with pytest.raises(NoRoom, match="are needed and"):
            virtual.get(*(m.url for m in mirrors))


@pytest.mark.parametrize("ways", [{}, {"ranges": False}, {"chunked": True}], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_an_empty_copy_is_not_believed_where_another_mirror_has_bytes(
    virtual: VirtualRun, ways: dict[str, bool], count: int
) -> None:
    """A mirror that was filled only in name, and named first, used to make the file empty."""
    empty = Behaviour(b"", etag=None, **ways)  # type: ignore[arg-type]
    late = Behaviour(DATA, delay_s=0.1, busy_times=1, retry_after="0")
    with virtual.playing(*[empty] * count, late) as mirrors:
        urls = [mirror.url for mirror in mirrors]
        result = virtual.get(*urls)
        assert {report.dropped for report in result.sources[:count]} == {"its copy is empty"}
        assert virtual.right(DATA)
        nothing = ("sha256", hashlib.sha256().digest())
        assert virtual.get(*urls, checksum=nothing).size_bytes == 0


@pytest.mark.parametrize("ways", [{}, {"ranges": False}, {"chunked": True}], ids=str)
def test_a_file_is_empty_where_all_mirrors_that_can_be_asked_say_so(
    virtual: VirtualRun, ways: dict[str, bool]
) -> None:
    empty = Behaviour(b"", **ways)  # type: ignore[arg-type]
    with virtual.playing(empty, empty, empty) as mirrors:
        urls = [mirror.url for mirror in mirrors]
        assert virtual.get(*urls).notes == ()
    assert virtual.path.read_bytes() == b""
    with virtual.playing(Behaviour(b""), Behaviour(DATA, status=404)) as mirrors:
        (note,) = virtual.get(*(m.url for m in mirrors)).notes
    assert "could not be asked" in note


def test_a_mirror_that_packs_the_file_is_left_out(virtual: VirtualRun) -> None:
    packing = Behaviour(WRONG, rate=RATE, headers=(("Content-Encoding", "gzip"),))
    with virtual.playing(packing, Behaviour(DATA, rate=RATE)) as mirrors:
        result = virtual.get(*(m.url for m in mirrors))
        assert result.sources[0].dropped == "it sends the file packed (gzip)"
    assert virtual.right(DATA)


def test_the_size_of_a_packed_copy_is_no_word_against_the_right_one(virtual: VirtualRun) -> None:
    packing = Behaviour(WRONG[:900_000], ranges=False, headers=(("Content-Encoding", "gzip"),))
    with virtual.playing(packing, Behaviour(DATA, rate=RATE, delay_s=0.02)) as mirrors:
        virtual.get(*(m.url for m in mirrors))
        with virtual.playing(Behaviour(DATA, rate=RATE), packing) as turned:
            virtual.get(*(m.url for m in turned))
    assert virtual.right(DATA)


def test_a_slow_mirror_is_compared_though_the_other_has_brought_nearly_all(
    virtual: VirtualRun,
) -> None:
    headers = [(("Last-Modified", year),) for year in ("2025", "2020")]
    fast = Behaviour(WRONG, etag='"a"', headers=headers[0])
    slow = Behaviour(DATA, etag='"b"', headers=headers[1], rate=2e6)
    with virtual.playing(fast, slow) as mirrors:
        virtual.get(*(m.url for m in mirrors))
    assert virtual.path.read_bytes() == WRONG


def test_a_server_that_packs_whatever_it_is_told_is_not_taken_for_the_file(
    virtual: VirtualRun,
) -> None:
    with virtual.playing(Behaviour(DATA, headers=(("Content-Encoding", "gzip"),))) as (mirror,):
        assert virtual.get(mirror.url).notes == (
            "the server sent it packed (gzip), and so it was saved",
        )
        fields = (("Accept-Encoding", "gzip"),)
        assert virtual.get(mirror.url, headers=fields).notes == ()


def test_a_port_that_never_answers_to_tls_is_given_up(one: Run) -> None:
    with running(Behaviour(DATA)) as (mirror,):
        with pytest.raises(NetworkProblem, match="does not answer"):
            one.get(mirror.url.replace("http:", "https:"), timeout_s=0.2, max_failures=1)


def test_a_certificate_that_nobody_vouches_for_is_refused_unless_the_user_says_so(
    one: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tls")
    own, other = certificate(folder), certificate(tmp_path_factory.mktemp("other"))
    with running(Behaviour(DATA, tls=own)) as (mirror,):
        for wishes in ({}, {"ca_file": str(other)}):
            with pytest.raises(NetworkProblem, match="certificate is not trusted"):
                one.get(mirror.url, **wishes)
        with pytest.raises(NetworkProblem, match="self-signed certificate; --ca FILE trusts"):
            one.get(mirror.url)
        with pytest.raises(NetworkProblem, match="cannot be used as a file of certificates"):
            one.get(mirror.url, ca_file=str(folder / "none.pem"))
        one.get(mirror.url, ca_file=str(own), checksum=SHA)
        assert one.right()
        # A name that the certificate does not hold.
        with pytest.raises(NetworkProblem, match=r"certificate is not trusted.*'127\.0\.0\.1'\.$"):
            one.get(mirror.url.replace("localhost", "127.0.0.1"), ca_file=str(own))
        one.get(mirror.url.replace("localhost", "127.0.0.1"), insecure=True)
        assert one.right()


def test_a_redirect_never_leads_from_https_to_http(
    one: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = certificate(tmp_path_factory.mktemp("tls"))
    with running(Behaviour(DATA)) as (plain,):
        with running(Behaviour(DATA, tls=own, redirect=plain.url)) as (secure,):
            with pytest.raises(NetworkProblem, match="from https to http"):
                one.get(secure.url, ca_file=str(own))
        assert plain.requests == []
        with running(Behaviour(DATA, tls=own)) as (secure,):
            with running(Behaviour(DATA, redirect=secure.url)) as (start,):
                one.get(start.url, ca_file=str(own))
    assert one.right()


def test_inside_a_running_loop_a_cancelled_download_keeps_what_arrived(one: Run) -> None:
    options = Options(data_folder=one.folder / "data", environ={})

    async def broken_off(url: str) -> None:
        task = asyncio.create_task(fetch([url], one.path, options))
        part = one.folder / "out.bin.tidegate-part"
        while not part.exists() or part.stat().st_size < 500_000:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with running(Behaviour(DATA, rate=RATE)) as (mirror,):
        asyncio.run(broken_off(mirror.url))
        mirror.behaviour.rate = 0
        result = asyncio.run(fetch([mirror.url], one.path, options))
    assert result.resumed_bytes > 0
    assert one.right()


@pytest.mark.parametrize("etag", ['"one"', None])
def test_another_file_of_the_same_size_is_not_mixed_with_what_is_there(
    virtual: VirtualRun, etag: str | None
) -> None:
    other = Behaviour(WRONG, rate=6e6, reset_after=800_000, path="/other.bin", etag=etag)
    with virtual.playing(other, Behaviour(DATA, etag=etag)) as (first, second):
        with pytest.raises(NetworkProblem):
            virtual.get(first.url, max_failures=1)
        assert virtual.get(second.url).resumed_bytes == 0
    assert virtual.right(DATA)


def test_a_file_that_changed_meanwhile_is_fetched_afresh(virtual: VirtualRun) -> None:
    told = Behaviour(WRONG, rate=6e6, reset_after=800_000, etag='"old"')
    with virtual.playing(told) as (mirror,):
        with pytest.raises(NetworkProblem):
            virtual.get(mirror.url, max_failures=1)
        mirror.behaviour.data, mirror.behaviour.etag = DATA, '"new"'
        virtual.get(mirror.url)
    assert virtual.right(DATA)


def test_a_file_that_changes_under_way_is_never_mixed(one: Run) -> None:
    told = Behaviour(WRONG, rate=6e6, reset_after=800_000, etag='"old"')
    with running(told) as (mirror,):

        def swap(event: str, data: Mapping[str, object]) -> None:
            if event == "retry":
                mirror.behaviour.data, mirror.behaviour.etag = DATA, '"new"'

        fetch_blocking([mirror.url], one.path, Options(data_folder=one.folder / "data"), swap)
    assert one.right()


def test_checked_pieces_are_not_read_again_after_a_crash(virtual: VirtualRun) -> None:
    known = Metalink("out.bin", len(DATA), SHA, pieces(), ())
    with virtual.playing(Behaviour(DATA, rate=6e6, reset_after=800_000)) as (mirror,):
        with pytest.raises(NetworkProblem):
            virtual.get(mirror.url, max_failures=1, metalink=known)
        result = virtual.get(mirror.url, metalink=known)
    assert result.resumed_bytes >= 300_000
    assert virtual.right(DATA)


def test_a_server_with_another_size_than_promised_sends_no_more_than_that(
    virtual: VirtualRun,
) -> None:
    known = Metalink("out.bin", 500_000, SHA, None, ())
    with virtual.playing(Behaviour(DATA, rate=RATE)) as (mirror,):
        with pytest.raises(Corrupt, match="2000000 bytes where 500000 are promised"):
            virtual.get(mirror.url, metalink=known)
    assert not virtual.path.exists()


def test_mirrors_and_digest_told_by_the_server_are_used(virtual: VirtualRun) -> None:
    digest = base64.b64encode(SHA[1]).decode()
    with virtual.playing(Behaviour(DATA, rate=RATE)) as (second,):
        told = (
            ("Link", f"<{second.url}>; rel=duplicate; pri=1"),
            ("Repr-Digest", f"sha-256=:{digest}:"),
        )
        with virtual.playing(Behaviour(DATA, rate=RATE, headers=told)) as (first,):
            result = virtual.get(first.url)
            assert [s.url for s in result.sources] == [first.url, second.url]
            assert result.sources[1].bytes > 0
            assert result.verified == "digest"
            assert len(virtual.get(first.url, mirrors=False).sources) == 1
    assert virtual.right(DATA)


def test_a_ticket_is_kept_for_every_request(virtual: VirtualRun) -> None:
    lease = (("Tidegate-Ticket", "lease-9"), ("Tidegate-Lease-Connections", "2"))
    told = Behaviour(DATA, ticket_first=True, headers=lease, reset_after=900_000)
    with virtual.playing(told) as (mirror,):
        virtual.get(mirror.url, pass_token="gold", client_id="abc")
    assert virtual.right(DATA)
    assert "Tidegate-Wait: ticket" in mirror.requests[0]
    assert "Tidegate-Client: abc" in mirror.requests[0]
    assert "Tidegate-Pass: gold" in mirror.requests[0]
    assert "Tidegate-Ticket: place-1" in mirror.requests[1]
    assert "Tidegate-Ticket: lease-9" in mirror.requests[2]
    # A server that was restarted meanwhile would take a last range for all that is wanted.
    start = int(mirror.requests[2].partition("Range: bytes=")[2].partition("-")[0])
    assert f"Tidegate-Remaining: {len(DATA) - start}" in mirror.requests[2]
    assert any(event == "wait" and data["place"] == 1 for event, data in virtual.events)


@pytest.mark.parametrize("ways", [{}, {"ranges": False}], ids=str)
@pytest.mark.parametrize("first", ["wait", "redirect"])
def test_several_connections_open_once_an_answer_is_taken(
    virtual: VirtualRun, first: str, ways: dict[str, bool]
) -> None:
    """Each would ask for the whole file, and all answers of the only mirror but one be left out."""
    told: dict[str, Any] = {"ticket_first": True, "ticket_retry": "1"} if first == "wait" else {}
    with virtual.playing(Behaviour(DATA, rate=RATE, **told, **ways)) as (mirror,):  # type: ignore[arg-type]
        elsewhere = Behaviour(DATA, redirect=mirror.url)
        with virtual.playing(elsewhere) as (start,):
            virtual.get(start.url if first == "redirect" else mirror.url, connections=4)
    assert virtual.right(DATA)


def test_a_mirror_that_leads_to_another_one_is_left_out(virtual: VirtualRun) -> None:
    """Its server took one download for two clients: no name of ours follows a redirect."""
    with virtual.playing(Behaviour(DATA, rate=RATE)) as (mirror,):
        with virtual.playing(Behaviour(DATA, redirect=mirror.url)) as (round_about,):
            result = virtual.get(mirror.url, round_about.url)
    assert virtual.right(DATA)
    assert mirror.connections == 1
    assert result.sources[1].dropped == "it leads to another of the mirrors"


def test_no_more_connections_are_used_than_the_lease_allows(virtual: VirtualRun) -> None:
    lease = (("Tidegate-Ticket", "lease-9"), ("Tidegate-Lease-Connections", "2"))
    with virtual.playing(Behaviour(DATA, headers=lease, rate=RATE)) as (mirror,):
        virtual.get(mirror.url, connections=6)
    assert virtual.right(DATA)
    # First requests are on their way before anything is told, and one connection may take the place
    # of another that stalled; without a limit four or five go on asking.
    went_on = [times for times in Counter(mirror.asked_by).values() if times >= 3]
    assert len(went_on) <= 3


def test_secrets_do_not_follow_a_redirect_to_another_host(one: Run) -> None:
    with running(Behaviour(DATA)) as (aim,):
        with running(Behaviour(DATA, redirect=aim.url)) as (start,):
            url = start.url.replace("127.0.0.1", "me:secret@127.0.0.1")
            one.get(url, pass_token="gold", headers=(("Cookie", "c"),))
            assert "Authorization: Basic" in start.requests[0]
        assert "Authorization" not in aim.requests[0]
        assert "gold" not in aim.requests[0]
        assert "Cookie" not in aim.requests[0]
    assert one.right()


@pytest.fixture
def _examples_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names under .example lead to this machine."""
    look_up = socket.getaddrinfo

    def found(name: str, *rest: Any, **named: Any) -> Any:
        return look_up("127.0.0.1" if name.endswith(".example") else name, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.usefixtures("_examples_here")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "127.1",
        "0x7f000001",
        "rebound.example",
    ],
)
def test_a_server_elsewhere_leads_to_no_service_of_this_machine(one: Run, host: str) -> None:
    """A redirect had whatever listens on the loopback asked, and its answer saved."""
    with running(Behaviour(DATA)) as (inner,):
        aim = inner.url.replace("127.0.0.1", host)
        with running(Behaviour(DATA, redirect=aim)) as (outer,):
            with pytest.raises(NetworkProblem, match="services of this machine"):
                one.get(outer.url.replace("127.0.0.1", "origin.example"))
        assert inner.requests == []
        # Where the user's own server leads, and what the user names, is asked.
        with running(Behaviour(DATA, redirect=inner.url)) as (own,):
            one.get(own.url)
    assert one.right()


@pytest.mark.parametrize(
    ("base", "aim", "foreign"),
    [
        ("http://a.example/x", "http://127.0.0.1/y", True),
        ("http://127.a.example/x", "http://127.0.0.1/y", True),
        ("http://192.0.2.1/x", "http://b.example/y", True),
        ("http://a.example/x", "/y", False),
        ("http://127.0.0.1.example/x", "http://127.0.0.1/y", True),
        ("http://127.1/x", "http://127.0.0.1/y", False),
        ("http://0x7f000001/x", "http://127.0.0.1/y", False),
        ("http://017700000001/x", "http://127.0.0.1/y", False),
        ("http://0177.0.0.1/x", "http://127.0.0.1/y", False),
        ("http://[fe80::1%25eth0]/x", "http://127.0.0.1/y", False),
        ("http://[::ffff:127.0.0.1]/x", "http://127.0.0.1/y", False),
        ("http://127.0.0.1/x", "http://127.0.0.2:8080/y", False),
        ("http://[::1]/x", "http://localhost/y", False),
        ("http://dev.localhost/x", "http://127.0.0.1/y", False),
    ],
)
def test_who_named_a_place_is_remembered(base: str, aim: str, foreign: bool) -> None:
    found = parse(base).join(aim)
    assert bool(found.led_by) is foreign
    assert bool(found.join("/z").led_by) is foreign


@pytest.mark.usefixtures("_examples_here")
def test_a_mirror_that_a_server_elsewhere_names_is_no_service_of_this_machine(one: Run) -> None:
    with running(Behaviour(DATA)) as (inner,):
        links = (("Link", f"<{inner.url}>; rel=duplicate; pri=1"),)
        with running(Behaviour(DATA, rate=RATE, headers=links)) as (outer,):
            one.get(outer.url.replace("127.0.0.1", "origin.example"))
        assert inner.requests == []
    assert one.right()


def test_a_rate_limit_is_kept(virtual: VirtualRun) -> None:
    with virtual.playing(Behaviour(DATA)) as (mirror,):
        result = virtual.get(mirror.url, limit_bytes_s=2e6)
    assert virtual.right(DATA)
    assert result.seconds > 0.7 * len(DATA) / 2e6


def test_a_proxy_from_the_environment_is_asked(one: Run) -> None:
    with running(Behaviour(DATA, path="http://elsewhere.invalid/file.bin")) as (proxy,):
        environ = {"http_proxy": f"http://u:p@127.0.0.1:{proxy.port}"}
        one.get("http://elsewhere.invalid/file.bin", environ=environ)
        assert "Proxy-Authorization: Basic" in proxy.requests[0]
    assert one.right()


def test_netrc_logs_in(one: Run) -> None:
    (one.folder / "data").mkdir()
    netrc = one.folder / "data" / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    with running(Behaviour(DATA)) as (mirror,):
        one.get(mirror.url, environ={"NETRC": str(netrc)})
        assert "Authorization: Basic bWU6c2VjcmV0" in mirror.requests[0]


def test_in_order_output_from_several_mirrors(one: Run) -> None:
    read, write = os.pipe()
    with (
        open(read, "rb") as reader,
        running(Behaviour(DATA, rate=RATE), Behaviour(DATA, rate=RATE)) as mirrors,
    ):
        import threading

        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(reader.read()))
        thread.start()
        options = Options(data_folder=one.folder, checksum=SHA, window_bytes=3 << 20, environ={})
        fetch_blocking([m.url for m in mirrors], write, options)
        os.close(write)
        thread.join()
    assert got == [DATA]


def test_a_reader_that_leaves_ends_the_download(one: Run) -> None:
    read, write = os.pipe()
    os.close(read)
    with running(Behaviour(DATA, rate=RATE)) as (mirror,):
        with pytest.raises(LocalProblem, match=r"cannot write pipe:\[\d+\]: Broken pipe"):
            fetch_blocking([mirror.url], write, Options(data_folder=one.folder, environ={}))
    os.close(write)


def test_small_things_fit_in_memory(one: Run) -> None:
    with running(Behaviour(b"hello")) as (mirror,):
        assert fetch_bytes(mirror.url, Options(data_folder=one.folder, environ={})) == b"hello"
        with pytest.raises(LocalProblem, match="too much"):
            fetch_bytes(mirror.url, Options(data_folder=one.folder, environ={}), limit_bytes=3)


@pytest.mark.parametrize("url", ["ftp://x/y", "http://", "nonsense", "http://h:99999/x"])
def test_what_is_no_url_is_said(one: Run, url: str) -> None:
    with pytest.raises(UsageProblem):
        one.get(url)


def test_a_header_cannot_smuggle_another(one: Run) -> None:
    with pytest.raises(UsageProblem, match="header"):
        one.get("http://127.0.0.1:1/x", headers=(("X", "a\r\nHost: b"),))


@pytest.mark.parametrize("where", ["_woken", "_due", "_look_after", "connected", "took"])
def test_a_fault_in_a_callback_ends_its_download_and_no_other(
    one: Run, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Timers and sockets: what they call has failed, and nobody would look after it any more."""
    real = getattr(Download, where)

    def step(download: Download, *words: Any, **named: Any) -> Any:
        if download.state.options.seed == 2:
            raise RuntimeError("boom")
        return real(download, *words, **named)

    async def both(url: str) -> tuple[BaseException | Result, ...]:
        each = [
            fetch([url], one.folder / name, replace(options, seed=seed))
            for name, seed in (("whole", 1), ("broken", 2))
        ]
        return tuple(await asyncio.gather(*each, return_exceptions=True))

    options = Options(data_folder=one.folder / "data", environ={})
    # Busy first, so that it comes again by a timer, and not over before a late one. On a busy
    # machine a tick ends the download before it is woken; one that is told to wait is woken.
    busy_times = 2 if where in ("_due", "_woken") else 0
    behaviour = Behaviour(DATA, rate=RATE, busy_times=busy_times)
    monkeypatch.setattr(Download, where, step)
    with running(behaviour) as (mirror,):
        whole, broken = asyncio.run(asyncio.wait_for(both(mirror.url), 20))
    assert isinstance(broken, LocalProblem)
    assert "RuntimeError: boom" in str(broken)
    assert isinstance(whole, Result)
    assert (one.folder / "whole").read_bytes() == DATA


@given(
    st.lists(
        st.sampled_from(
            [
                "0",
                "1",
                "08",
                "010",
                "0x7f",
                "127",
                "169",
                "254",
                "255",
                "256",
                "0x7f000001",
                "0x",
                "x",
            ]
        )
    )
)
def test_short_forms_of_addresses_are_read_as_a_look_up_reads_them(parts: list[str]) -> None:
    text = ".".join(parts)
    try:
        full = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        full = "no address"
    assert is_near(text) == is_near(full) == full.startswith(("0.", "127.", "169.254."))


@pytest.mark.parametrize(
    "aim",
    [
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:fffe::6464:64c8",
        "::169.254.169.254",
        "::ffff:0:168.63.129.16",
    ],
)
@pytest.mark.parametrize("leader", ["8.8.8.8", "10.0.0.1"])
def test_no_server_leads_to_what_a_cloud_tells_its_machines(leader: str, aim: str) -> None:
    assert not may_lead([leader], aim)


def test_only_a_private_network_leads_to_a_private_network() -> None:
    for aim in (
        *("10.1.2.3", "192.168.1.1", "172.16.0.1", "100.64.0.1", "fd12::1", "224.0.0.1"),
        *("fec0::1", "5f00::1", "64:ff9b::10.1.2.3", "2002:a01:203::1", "::10.1.2.3"),
        # A translator may read the IPv4 address elsewhere: here 169.254.169.254 behind 64 bits.
        *("64:ff9b:1::8.8.8.8", "64:ff9b:1:0:a9:fea9:fe08:808"),
    ):
        assert may_lead(["192.168.7.7"], aim)
        assert not may_lead(["8.8.8.8"], aim)
        assert not may_lead(["192.168.7.7", "8.8.8.8"], aim)
    assert may_lead(["10.0.0.1"], "8.8.8.8")
    for aim in ("2606:4700::1", "64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8"):
        assert may_lead(["8.8.8.8"], aim)


#: What IANA's registries of special addresses (RFC 6890) do not call global, and Azure's service.
SPECIAL_IPV4 = [
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/29", "192.0.0.192/32", "192.0.2.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",
    )
]
SPECIAL_IPV6 = [
    IPv6Network(text)
    for text in (
        *("::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "2001:2::/48", "2001:db8::/32"),
        *("5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
]
#: Networks whose addresses have an IPv4 address this many bits from the right.
CARRIERS = [("::ffff:0:0", 0), ("64:ff9b::", 0), ("2002::", 80), ("::ffff:0:0:0", 0), ("::", 0)]


@given(st.data())
def test_no_public_server_leads_to_a_special_address_in_any_form(data: st.DataObject) -> None:
    network = data.draw(st.sampled_from([*SPECIAL_IPV4, *SPECIAL_IPV6]))
    address = network[data.draw(st.integers(0, network.num_addresses - 1))]
    forms = [str(address)]
    if address.version == 4:
        forms += [
            str(IPv6Address(int(IPv6Address(of)) + (int(address) << at))) for of, at in CARRIERS
        ]
    for form in forms:
        assert not may_lead(["8.8.8.8"], form), form


def test_a_public_server_leads_to_no_private_one_live(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the leader means this machine first, and a public address afterwards."""
    look_up = socket.getaddrinfo
    asked: list[str] = []

    def found(name: str, *rest: Any, **named: Any) -> Any:
        asked.append(name)
        here = {"public.example": "8.8.8.8" if "inner.example" in asked else "127.0.0.1"}
        return look_up(here.get(name, "10.9.8.7" if name == "inner.example" else name), *rest)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with running(Behaviour(DATA, redirect="http://inner.example:9/x")) as (outer,):
        with pytest.raises(NetworkProblem, match="private network"):
            one.get(outer.url.replace("127.0.0.1", "public.example"))


@pytest.mark.parametrize(
    ("version", "blocks", "reason"),
    [
        (9, 1, "a version this client does not speak"),
        (1, 1, "the erasure code 'rs' is unknown"),
        # Block hashes come by URL for more than 256 blocks, after the group is joined.
        (1, 300, "the erasure code 'rs' is unknown"),
    ],
)
def test_a_file_is_fetched_after_an_offer_that_cannot_be_used(
    one: Run, version: int, blocks: int, reason: str
) -> None:
    """The download asked for nothing more, and never ended."""
    data = DATA[: 800 * blocks]
    fec = FecParameters("rs", 800, 1, 64)
    offer = make_offer(data, fec, report_window_s=0.0)
    if blocks > INLINE_HASHES:
        offer = replace(offer, hashes=(), hashes_url="/hashes")

    class Older(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fields, body = {"Content-Type": "application/octet-stream", "ETag": '"e"'}, data
            if self.path == "/hashes":
                body = b"h" * (HASH_BYTES * blocks)
            elif HEADER_NAME in self.headers:
                fields = {"Content-Type": OFFER_TYPE}
                body = encode_offer(offer).replace(b'"v":1', b'"v":%d' % version)
            self.send_response(200)
            for name, value in (fields | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Older) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        one.get(f"http://127.0.0.1:{server.server_port}/x", multicast=True)
        server.shutdown()
    assert one.path.read_bytes() == data
    told = [str(detail) for event, detail in one.events if event == "multicast"]
    assert len(told) == 1
    assert reason in told[0]

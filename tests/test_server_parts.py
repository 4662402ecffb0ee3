"""The small parts of the gate: keys, numbers, phrases, rules, tools."""

from __future__ import annotations

import datetime
import html
import json
import re
import stat
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from tests.fakes import representation
from tidegate.policies.contract import Estimate, Wait
from tidegate.protocol.errors import BadToken
from tidegate.protocol.manifest import Source
from tidegate.protocol.ticket import KeyRing, Ticket
from tidegate.server.admission.client_keys import find_pass, find_remaining, find_ticket
from tidegate.server.admission.client_programs import DEFAULT_TOOLS, ToolRule, ToolTable
from tidegate.server.admission.denylist import BlockList
from tidegate.server.admission.identify import wanted_bytes
from tidegate.server.admission.number_allocator import BLOCK, Numbers
from tidegate.server.admission.page_patterns import PagePatterns, Pattern, blank
from tidegate.server.admission.responses import (
    Notice,
    RetryResponder,
    Wording,
    Words,
)
from tidegate.server.admission.rules import NOTHING, Rule, RuleBook, Verdict
from tidegate.server.app.cli.serve import make_sample
from tidegate.server.app.config import CannotStart
from tidegate.server.app.keys import OVERLAP_S, KeyKeeper, load_keys
from tidegate.server.files.pages import Pages
from tidegate.server.files.paths import COMPANIONS
from tidegate.server.files.transfer import BodyPlan
from tidegate.server.http.phrases import FOLDER, LANGUAGES, Phrases, phrases_for

DAY_S = 86_400.0
#: With what was rendered for other pages before.
_PAGES = Pages()


# -- tokens ------------------------------------------------------------------------------------


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_finding_tokens_never_crashes(field: bytes, query: bytes) -> None:
    for name in (b"tidegate-ticket", b"cookie", b"tidegate-pass", b"tidegate-remaining"):
        find_ticket({name: field}, query)
        find_pass({name: field}, b"tidegate-pass=" + query)
        remaining = find_remaining({name: field}, 1000)
        assert remaining is None or 0 <= remaining <= 1000


def test_a_client_that_says_it_wants_less_than_it_asks_for_wants_what_it_asks_for() -> None:
    """Else 1 000 files of 300 kB with `Tidegate-Remaining: 1` were charged as 1 000 bytes."""
    rep = representation("/f", 1000)
    half = BodyPlan(206, (), ((0, 500),), 500)
    for stated, wanted in ((1, 500), (700, 700), (5000, 1000)):
        fields = {b"tidegate-remaining": b"%d" % stated}
        assert wanted_bytes(fields, rep, half) == wanted


# -- keys --------------------------------------------------------------------------------------


def ticket(issued_s: float) -> Ticket:
    return Ticket(1, "a", "c", "/f", 10, 10, 1.0, issued_s)


def test_keys_are_private_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token = load_keys(path, 0.0).write_ticket(ticket(0.0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_keys(path, 10.0).read_ticket(token, "a", "/f", 10.0).number == 1


def test_rotation_overlaps_and_then_forgets(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = load_keys(path, 0.0).write_ticket(ticket(0.0))
    ring = load_keys(path, DAY_S, rotate_after_s=0.0)
    assert ring.write_ticket(ticket(0.0)).split(".")[1] != old.split(".")[1]
    assert ring.read_ticket(old, "a", "/f", DAY_S).number == 1
    assert len(json.loads(path.read_text())) == 2
    assert load_keys(path, 2 * DAY_S, rotate_after_s=30 * DAY_S).read_ticket(old, "a", "/f", 1.0)
    late = load_keys(path, DAY_S + OVERLAP_S, rotate_after_s=0.0)
    assert len(json.loads(path.read_text())) == 2
    with pytest.raises(BadToken):
        late.read_ticket(old, "a", "/f", 1.0)


@pytest.mark.parametrize("text", ["", "[", "[{}]", '[{"name": "a", "secret": "zz", "made_s": 0}]'])
def test_damaged_keys_say_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(CannotStart, match="put a backup in its place"):
        load_keys(path, 0.0)


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    load_keys(path, 0.0)
    path.chmod(0o644)
    with pytest.raises(CannotStart, match="chmod 600"):
        load_keys(path, 0.0)


def test_keys_are_rotated_while_the_server_runs_and_a_fault_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, seen = tmp_path / "keys.json", Clock(), list[KeyRing]()
    ticket_of_old = load_keys(path, 0.0).write_ticket(ticket(0.0))
    keeper = KeyKeeper(clock, clock.seconds, path, 7200.0, seen.append)
    keeper.start()
    clock.pump([3600.0, 3600.0])
    (ring,) = seen
    assert ring.write_ticket(ticket(0.0)).split(".")[1] != ticket_of_old.split(".")[1]
    assert ring.read_ticket(ticket_of_old, "a", "/f", 1.0)
    path.write_text("damaged")
    with capturedLogs() as said:
        clock.pump([30.0, 30.0])
    assert len(seen) == 1
    assert ["The keys stay as they were" in (formatEvent(one) or "") for one in said] == [True]

    def refused(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", "keys.json")

    path.unlink()
    monkeypatch.setattr("tidegate.server.app.keys._write", refused)
    with capturedLogs() as said:
        clock.pump([30.0, 30.0])
    told = [formatEvent(one) for one in said]
    assert told == ["The keys stay as they were: keys.json: Permission denied."]
    keeper.timer.stop()
    assert clock.getDelayedCalls() == []


def test_keys_that_are_removed_under_the_server_are_written_again(tmp_path: Path) -> None:
    path, clock, seen = tmp_path / "state" / "keys.json", Clock(), list[KeyRing]()
    token = load_keys(path, 0.0).write_ticket(ticket(0.0))
    lost: list[bool] = []
    keeper = KeyKeeper(
        clock, clock.seconds, path, None, seen.append, lambda: lost.append(path.exists())
    )
    keeper.start()
    for gone in (path, path.parent):
        path.unlink()
        if gone is path.parent:
            gone.rmdir()
        clock.advance(30.0)
        assert load_keys(path, 60.0).read_ticket(token, "a", "/f", 1.0)
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 & ~0o077 == 0
    assert lost == [True, True]
    assert not seen
    keeper.timer.stop()


# -- numbers -----------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 100_000), max_size=50), st.sets(st.integers(0, 100_000), max_size=50))
def test_over_numbers_are_remembered_exactly(over: set[int], others: set[int]) -> None:
    numbers = Numbers(1, over, lambda mark: None)
    for number in over | others:
        assert numbers.is_over(number) == (number in over)


def test_the_mark_is_always_promised_ahead() -> None:
    marks: list[int] = []
    numbers = Numbers(10, (), marks.append)
    for number in (10, 11, BLOCK, 5 * BLOCK):
        numbers.issued(number)
        assert marks[-1] > number
    assert marks == sorted(marks)
    assert numbers.highest == 5 * BLOCK


# -- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "language"),
    [
        (None, "en"),
        (b"de", "de"),
        (b"de-AT,de;q=0.9,en;q=0.8", "de"),
        (b"en;q=0.5, de;q=0.9", "de"),
        (b"tlh, en;q=0.1", "en"),
        (b"fr-CH, en;q=0.5", "fr"),
        (b"zh-Hant-HK,zh;q=0.5", "zh_TW"),
        (b"zh-CN", "zh"),
        (b"pt-BR", "pt"),
        (b"de;q=0", "en"),
        (b"*;q=x,,;;", "en"),
    ],
)
def test_the_best_language_is_chosen(accept: bytes | None, language: str) -> None:
    assert phrases_for(accept).language == language


def test_every_language_has_every_phrase_with_the_same_blanks() -> None:
    assert len(LANGUAGES) > 16
    in_english = json.loads((FOLDER / "en.json").read_bytes())["phrases"]
    assert len(in_english) > 70
    for language in LANGUAGES:
        phrases = Phrases(language)
        assert phrases.direction == ("rtl" if language in ("ar", "fa", "he") else "ltr")
        for key, english in in_english.items():
            text = phrases.plain(key)
            assert sorted(_blanks(text)) == sorted(_blanks(english)), (language, key)
            if language != "en" and key not in _SHARED:
                assert text != english, (language, key)
            # A sentence that grew threefold was translated twice, or with a note.
            assert len(text) < 2 * len(english) + 12, (language, key)
            assert text == text.strip(), (language, key)


#: What some languages write as English does.
_SHARED = ("name", "date", "signature", "page_of")


def _blanks(text: str) -> list[str]:
    return [part.split("}")[0] for part in text.split("{")[1:]]


def test_durations_are_written_as_the_language_writes_them() -> None:
    english = phrases_for(b"en")
    told = [english.time(s) for s in (0, 45, 840, 7500)]
    # A line ends between two units only.
    assert told == [
        t.replace("_", "\N{NO-BREAK SPACE}") for t in ("0_sec", "45_sec", "14_min", "2_hr 5_min")
    ]
    days = {
        language: phrases_for(language.encode()).time(172_800 * times)
        for language, times in (("de", 1), ("ar", 1), ("cs", 3), ("pl", 1), ("zh-TW", 1))
    }
    spaced = {"de": "2 Tg.", "ar": "يومان", "cs": "6 dnů", "pl": "2 dni", "zh-TW": "2 天"}
    assert days == {one: text.replace(" ", "\N{NO-BREAK SPACE}") for one, text in spaced.items()}


@pytest.mark.parametrize(
    ("wait", "title"),
    [
        (Wait(5), "Every place is taken right now"),
        (Wait(5, 1, 1, True), "You are next"),
        (Wait(5, 1, 7, True), "You are number 7 in the queue"),
        (Wait(5, 1, 1234), "You are number 1,234 in the queue"),
        (Wait(5, 1, 1, estimate=Estimate(60.0, 90.0)), "You are next"),
        (Wait(5, 1, 1, estimate=Estimate(540.0, 600.0)), "You are number 1 in the queue"),
        (Wait(5, 1, 7, True, Estimate(540.0, 600.0)), "You are number 7 in the queue"),
    ],
)
def test_the_page_says_where_one_stands(wait: Wait, title: str) -> None:
    room = RetryResponder(Pages())
    page = room.page(Notice("/a%20b.iso", 5, wait, None), phrases_for(None)).decode()
    assert f'<h1 data-live="title">{title}</h1>' in page
    assert "a b.iso" in page


def test_the_page_says_when_it_starts_at_the_latest() -> None:
    wait = Wait(30, 1, 5, estimate=Estimate(300.0, 400.0))
    page = (
        RetryResponder(Pages()).page(Notice("/a", 5, wait, "t", 100.0), phrases_for(None)).decode()
    )
    assert "about 5\N{NO-BREAK SPACE}min" in page
    assert "very likely within 7\N{NO-BREAK SPACE}min" in page, "6 min 40 s are not within 6"


def test_the_page_names_other_ways_and_how_to_check_who_signed() -> None:
    room = RetryResponder(
        Pages(),
        lambda path: [Source("https://mirror.example/a", 1)],
        has_torrent=lambda path, size: True,
        has_mirrors=lambda path: True,
        signatures=lambda path: [".asc", ".minisig", ".sigstore.json"],
    )
    free = [Source("https://mirror.example/a%20b.iso", 1)]
    notice = Notice("/a%20b.iso", 5, Wait(5, 1, 7), "t")
    page = room.page(notice, phrases_for(None), "https://origin.example", free).decode()
    assert 'href="https://mirror.example/a%20b.iso"' in page
    assert 'href="/-/magnet/a%20b.iso"' in page
    assert 'href="/a%20b.iso.meta4"' in page
    # Below both parts: the one for waiting goes when the download starts.
    assert page.rindex("</pre>") < page.index("/-/magnet/")
    text = html.unescape(page)
    fetched = "curl -fo 'a b.iso.asc' https://origin.example/a%20b.iso.asc"
    assert f"{fetched}\ngpg --verify 'a b.iso.asc' 'a b.iso'" in text
    assert "minisign -V -p minisign.pub -x 'a b.iso.minisig' -m 'a b.iso'" in text
    assert "cosign verify-blob --bundle 'a b.iso.sigstore.json'" in text
    bare = (
        RetryResponder(Pages()).page(notice, phrases_for(None), "https://origin.example").decode()
    )
    assert "meta4" not in bare
    assert "magnet" not in bare
    assert "Then check who signed it" not in bare


def test_a_screen_reader_is_not_read_the_digest_again_when_the_download_is_complete() -> None:
    notice = Notice("/a", 5, Wait(5, 1, 7), "t")
    page = RetryResponder(Pages()).page(notice, phrases_for(None), "https://a.example").decode()
    # A status is read as a whole after each change unless it says otherwise.
    (region,) = re.findall(r"<div[^>]*role=.status.[^>]*>", page)
    assert 'aria-atomic="false"' in region


@pytest.mark.parametrize(("closed", "while_"), [(True, ' data-while="waiting"'), (False, "")])
def test_what_was_said_of_closed_doors_goes_when_the_download_starts(
    closed: bool, while_: str
) -> None:
    room = RetryResponder(Pages())
    text = "New disks."
    room.wording = Wording(announcement=text) if closed else Wording((Words(text=text),))
    notice = Notice("/a", 5, Wait(5, 1, 7), "t")
    page = room.page(notice, phrases_for(None), "https://origin.example").decode()
    assert f'<p dir="auto"{while_}>New disks.</p>' in page


class WholePattern(Pattern):
    """A page that is rendered with its values."""

    def __init__(self, render: Callable[[Mapping[str, bytes]], bytes]) -> None:
        self._render = render

    def bound(self, values: Mapping[str, bytes]) -> Pattern:
        return WholePattern(lambda others: self._render({**others, **values}))

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        return self._render(values)


class WholePages(PagePatterns):
    """Renders the template for each page instead of filling the blanks of one rendered before."""

    def pattern(
        self, template: str, shape: Hashable, fixed: Callable[[], Mapping[str, Any]]
    ) -> Pattern:
        def render(values: Mapping[str, bytes]) -> bytes:
            def filled(found: Any) -> Any:
                if isinstance(found, dict):
                    return {key: filled(value) for key, value in found.items()}
                if not isinstance(found, str):
                    return found
                for name, value in values.items():
                    found = found.replace(blank(name), html.unescape(value.decode()))
                return found

            return self.pages.render(template, **filled(dict(fixed())))

        return WholePattern(render)


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["<b>&'\"", "{t}"])
_ESTIMATES = st.none() | st.builds(Estimate, st.floats(0.0, 2e5), st.floats(0.0, 4e5))
_WAITS = st.builds(
    Wait,
    st.floats(0.5, 900.0),
    st.just(1),
    st.none() | st.integers(1, 3000),
    st.booleans(),
    _ESTIMATES,
)
_NOTICES = st.builds(
    Notice,
    _TEXTS.map(lambda name: f"/f/{name}"),
    st.integers(0, 10**10),
    _WAITS,
    st.none() | st.just("t2.k<1"),
    st.floats(0.0, 2e4),
    st.booleans(),
    st.none() | st.floats(0.0, 1e5),
    _TEXTS,
)


@given(
    asked=st.lists(
        st.tuples(
            _NOTICES,
            st.sampled_from(LANGUAGES),
            st.sampled_from(["", "https://o.example"]),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    text=_TEXTS,
)
def test_a_page_by_its_pieces_is_the_page_that_the_template_makes(
    asked: list[tuple[Notice, str, str, bool, bool]], text: str
) -> None:
    rooms = [
        RetryResponder(
            _PAGES,
            has_torrent=lambda path, size: size % 2 == 0,
            has_mirrors=lambda path: len(path) % 2 == 0,
            signatures=lambda path: [".asc"] if len(path) % 3 == 0 else [],
        )
        for _ in range(2)
    ]
    rooms[1]._page_patterns = WholePages(_PAGES)
    for notice, language, origin, elsewhere, says in asked:
        free = [Source("https://m.example/a&b", 1)] if elsewhere else []
        for room in rooms:
            room.wording = Wording((Words("", "", text, text),)) if says else Wording()
        one, other = (room.page(notice, Phrases(language), origin, free) for room in rooms)
        assert one == other


def test_an_empty_message_of_the_waiting_page_indents_nothing() -> None:
    """It is a flex item even while it is empty, so it stands behind the others."""
    html = (Path(__file__).parent.parent / "templates" / "waiting.html").read_text()
    assert html.index('data-live="notify"') < html.index('id="sound"') < html.index('live="told"')


# -- rules and tools ---------------------------------------------------------------------------


def test_the_last_rule_that_speaks_wins_and_silence_changes_nothing() -> None:
    book = RuleBook(
        [
            Rule(path="*.iso", require_class="silver", treat_as="large"),
            Rule(path="/free/", require_class="gold"),
            Rule(path="/free/a.iso", treat_as="small"),
        ]
    )
    assert book.verdict("/x.iso").require_class == "silver"
    verdict = book.verdict("/free/a.iso")
    assert (verdict.require_class, verdict.treat_as) == ("gold", "small")
    assert book.verdict("/x.txt") is NOTHING
    assert book.verdict("/%66ree/b").require_class == "gold"
    assert RuleBook().verdict("/x.iso") is NOTHING


def test_a_rule_whose_hour_has_come_stands_between_nobody_and_a_file() -> None:
    at = datetime.datetime.fromtimestamp
    opens, registers = at(200, datetime.UTC), at(100, datetime.UTC)
    book = RuleBook(
        [
            Rule(path="/*", hidden_until=opens),
            Rule(path="/drawn", prequeue_from=registers),
            Rule(path="/gold", require_class="gold"),
            Rule(path="/small", treat_as="small"),
            Rule(path="/sent", multicast=True),
            Rule(path="/unsent", multicast=False),
        ]
    )
    kinds = ("drawn", "gold", "small", "sent")
    for name, plain in (("/a", True), ("/unsent", True), *((f"/{kind}", False) for kind in kinds)):
        assert not book.verdict(name).is_plain(199.5)
        assert book.verdict(name).is_plain(200.0) == plain, name
    assert NOTHING.is_plain(0.0)


def test_the_links_of_a_file_are_looked_at_once_for_a_verdict() -> None:
    seen: list[str] = []

    def resolve(path: str) -> str:
        seen.append(path)
        return path

    book = RuleBook([Rule(path="/gold/", require_class="gold")], resolve)
    assert book.verdict("/a.iso") is NOTHING
    assert book.verdict("/gold/a.iso").require_class == "gold"
    assert seen == ["/a.iso", "/gold/a.iso"]
    RuleBook((), resolve).verdict("/b.iso")
    assert len(seen) == 2


def test_a_rule_hides_until_its_time_in_any_time_zone() -> None:
    book = RuleBook([Rule(path="/a", hidden_until="1970-01-01T02:00:00+01:00")])  # type: ignore[arg-type]
    assert book.verdict("/a").hidden(3599.0)
    assert not book.verdict("/a").hidden(3600.0)


def test_a_coming_file_is_told_from_the_moment_of_registration_and_not_where_a_pass_is_needed() -> (
    None
):
    opens, registers = (
        datetime.datetime.fromtimestamp(second, datetime.UTC) for second in (200, 100)
    )
    rule = Rule(path="/a", hidden_until=opens, prequeue_from=registers)
    told = RuleBook([rule]).verdict("/a")
    assert [told.opens_in_s(at) for at in (99.5, 100.0, 199.5, 200.0)] == [None, 100.0, 0.5, None]
    secret = RuleBook([rule, Rule(path="/a", require_class="gold")]).verdict("/a")
    assert secret.opens_in_s(100.0) is None


def test_a_block_ends_at_its_time_and_covers_what_its_network_holds() -> None:
    now = [0.0]
    blocked = BlockList(lambda: now[0])
    assert not blocked.blocks("192.0.2.1")
    blocked.add("192.0.2.0/30", 10.0)
    blocked.add("2001:db8::5")
    now[0] = 9.9
    assert [blocked.blocks(f"192.0.2.{last}") for last in (0, 3, 4)] == [True, True, False]
    assert blocked.blocks("2001:db8::6"), "one IPv6 /64 is one address"
    assert "2001:db8::5" in blocked
    assert "2001:db8::/64" in blocked, "the block of a client key holds the address"
    assert "2001:db8::/48" not in BlockList(lambda: 0.0)
    assert not blocked.blocks("2001:db8:0:1::5")
    assert blocked.networks() == ("192.0.2.0/30", "2001:db8::5/128")
    now[0] = 10.0
    assert blocked.networks() == ("2001:db8::5/128",)
    assert not blocked.blocks("192.0.2.1")
    assert not blocked.discard("192.0.2.0/30")
    assert blocked.discard("2001:db8::5")
    assert not blocked


@pytest.mark.parametrize(
    ("agent", "manner"),
    [
        (b"curl/8.14.1", "hold"),
        (b"Wget/1.25.0", "hold"),
        (b"Wget2/2.2.0", "hold"),
        (b"aria2/1.37.0", "hold"),
        (b"Axel/2.17.14 (Linux)", "hold"),
        (b"Debian APT-HTTP/1.3 (3.0.3)", "hold"),
        (b'pip/25.1 {"ci":null}', "hold"),
        (b"python-requests/2.32", "hold"),
        (b"python-httpx/0.28.1", "hold"),
        (b"libdnf (Fedora Linux 41; server; Linux.x86_64)", "hold"),
        (b"pacman/6.0.2 (Linux x86_64) libalpm/13.0.2", "hold"),
        (b"tidegate/0.1", "come-back"),
        (b"Wget", "hold"),
        (b"Homebrew/4.6 (Linux; x86_64) curl/8.14.1", "hold"),
        (b"SomethingNew/1", "hold"),
        (b"notcurl/1", "hold"),
        (None, "hold"),
    ],
)
def test_which_tool_gets_what(agent: bytes | None, manner: str) -> None:
    assert ToolTable().rule_for(agent).manner == manner


def test_the_operators_rules_come_first() -> None:
    table = ToolTable([ToolRule(agent="^curl/", manner="come-back")])
    assert table.rule_for(b"curl/8").manner == "come-back"
    assert table.rule_for(b"Wget/1").manner == "hold"
    for agent in (b"Wget/1", b"mamba/2.0.5 libcurl/8.9.1"):
        assert table.rule_for(agent).counts_body
    assert not table.unknown.counts_body
    assert table.rule_for(b"zzz") is table.unknown
    assert ToolTable(unknown="come-back").rule_for(b"zzz").manner == "come-back"


def test_no_default_is_silent_for_longer_than_the_most_impatient_tool() -> None:
    """Where header lines are sent at all: some programs do not count them."""
    table = ToolTable()
    for rule in (*DEFAULT_TOOLS, table.unknown):
        assert rule.drip_lines == 0 or rule.silent_s <= 25
        assert rule.drip_s <= 25
    for rule in (table.unknown, table.rule_for(b"curl/8.5"), table.rule_for(b"Wget/1.21")):
        # `wget --read-timeout=15 --tries=1` and the like give up as their user told them.
        assert rule.silent_s < 10 > rule.drip_s
    # httpx waits 5 s for each byte by default.
    httpx = table.rule_for(b"python-httpx/0.28.1")
    assert httpx.silent_s < 5 > httpx.drip_s
    # 100 lines is where many parsers stop; an answer has some twenty of its own.
    assert table.unknown.drip_lines <= 80


# -- the sample --------------------------------------------------------------------------------


def test_the_sample_release_is_the_same_every_time(tmp_path: Path) -> None:
    make_sample(tmp_path / "a")
    make_sample(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "RELEASE-NOTES.txt" in names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


# -- rules and links ---------------------------------------------------------------------------


def test_of_two_names_the_stricter_counts() -> None:
    def at(second: int) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(second, datetime.UTC)

    book = RuleBook(
        [
            Rule(path="/link/", hidden_until=at(10), treat_as="small", multicast=True),
            Rule(path="/real/", hidden_until=at(20), prequeue_from=at(5), require_class="gold"),
            Rule(path="/real/", multicast=False, treat_as="large"),
            Rule(path="/other/", require_class="silver", hidden_until=at(30)),
        ],
        lambda path: path.replace("/link/", "/real/").replace("/other/", "/link/"),
    )
    found = book.verdict("/link/a")
    assert (found.hidden_until_s, found.prequeue_from_s) == (20, 5)
    assert (found.require_class, found.treat_as, found.multicast) == ("gold", "small", False)
    found = book.verdict("/other/a")
    assert (found.hidden_until_s, found.require_class) == (30, "silver")
    assert book.verdict("/elsewhere") is NOTHING
    both = RuleBook(
        [Rule(path="/link/", require_class="silver"), Rule(path="/real/", require_class="gold")],
        lambda path: path.replace("/link/", "/real/"),
    )
    assert both.verdict("/link/a").require_class == "gold", "that of the place where it lies"


@pytest.mark.parametrize("ending", COMPANIONS)
def test_what_goes_with_a_file_tells_no_more_than_the_file(ending: str) -> None:
    opens, registers = (
        datetime.datetime.fromtimestamp(second, datetime.UTC) for second in (200, 100)
    )
    book = RuleBook(
        [
            Rule(path="/notes", require_class="gold", treat_as="small", multicast=True),
            Rule(path="/soon", hidden_until=opens, prequeue_from=registers),
            Rule(path="/big", treat_as="large"),
        ],
        lambda path: path.replace("/link", "/notes").replace("/key", "/notes.asc"),
    )
    for name in (f"/notes{ending}", f"/notes.SHA256{ending}", f"/link{ending}", "/key"):
        assert book.verdict(name) == Verdict(require_class="gold"), name
    soon = book.verdict(f"/soon{ending}")
    assert soon.hidden(199.5)
    assert not soon.hidden(200.0)
    assert soon.opens_in_s(150.0) is None, "one registers for the file"
    assert not soon.registers(150.0)
    for name in (f"/big{ending}", f"/other{ending}", f"/notes/{ending}", f"/{ending}"):
        assert book.verdict(name) is NOTHING, name
    assert book.matching(f"/notes{ending}") == [book.rules[0]]
    assert RuleBook([Rule(path="*.iso")]).verdict("/a" + ending * 2000) is NOTHING

"""What people see of a folder: their language, README, signatures, search, feed, and what comes."""

from __future__ import annotations

import datetime
import html
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.http_bench import Bench
from tests.running import make_release, serving
from tidegate.protocol.problems import PROBLEMS
from tidegate.server.files import listing
from tidegate.server.files.readme import render_readme
from tidegate.server.http.answers import problem_page
from tidegate.server.http.phrases import LANGUAGES, PROBLEMS_FOR_PEOPLE, Phrases, told_size

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    for name in ("tool-1.0.tar.gz", "tool-1.0.tar.gz.asc", "tool-1.0.tar.gz.minisig", "notes"):
        made.write(f"r/{name}", b"x" * 1000)
    made.write("r/README.md", b"# Tool\n\nRead [this](notes). <script>alert(1)</script>\n")
    return made


def page(bench: Bench, target: str, **headers: str) -> str:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return bench.connect().get(target, {"Accept": "text/html", **fields}).body.decode()


def test_the_page_speaks_the_visitors_language(bench: Bench) -> None:
    german = page(bench, "/r/", Accept_Language="de-AT")
    assert '<html lang="de" dir="ltr">' in german
    assert "Wählen Sie einen Namen" in german
    assert 'dir="rtl"' in page(bench, "/r/", Accept_Language="ar")
    english = page(bench, "/r/")
    assert "Choose a name to download it" in english
    assert re.search(r'<time datetime="\d{4}-\d\d-\d\dT[^"]*Z">\d{1,2} [A-Z][a-z]+ \d{4}<', english)
    answer = bench.connect().get("/r/", {"Accept": "text/html", "Accept-Language": "de"})
    assert answer.text("content-language") == "de"
    assert answer.text("vary") == "Accept, Accept-Language"


def test_files_are_counted_only_where_there_are_some(bench: Bench) -> None:
    """An empty folder told its visitor to choose a name."""
    bench.write("only/folders/inside", b"")
    (bench.root / "only" / "empty").mkdir()
    for folder in ("/only/", "/only/empty/"):
        assert "Choose a name" not in page(bench, folder)
    assert "Nothing has been put here yet" in page(bench, "/only/empty/")
    assert "Choose a name" in page(bench, "/only/folders/")


def test_an_error_speaks_it_too(bench: Bench) -> None:
    german = page(bench, "/none", Accept_Language="de")
    assert "Unter diesem Namen gibt es hier nichts." in german
    assert '<html lang="de"' in german
    assert "<main>" in german
    refused = bench.connect().get("/r/", {"Accept": "text/html", "Accept-Language": "he"}, "POST")
    assert 'lang="he" dir="rtl"' in refused.body.decode()
    assert "<p>הדפדפן שלח" in refused.body.decode()


def test_what_may_stop_a_browser_is_said_in_every_language() -> None:
    """Codes that are left out are met by programs and in the administration only."""
    assert set(PROBLEMS_FOR_PEOPLE) < set(PROBLEMS)
    for language in LANGUAGES:
        for code, key in PROBLEMS_FOR_PEOPLE.items():
            shown = problem_page(403, code, "Exactly so.", language.replace("_", "-").encode())
            may_not = html.escape(Phrases(language)("error_403")).encode() in shown
            assert may_not == (key != "problem_ticket"), code
            assert b"Exactly so." not in shown
            assert b'lang="en"' not in shown or language == "en", (language, code)
    # The rest stands in English, marked as such.
    assert b'<p lang="en" dir="ltr">Exactly so.' in problem_page(
        409, "conflict", "Exactly so.", b"de"
    )


def test_a_signature_is_named_beside_what_it_signs(bench: Bench) -> None:
    found = page(bench, "/r/")
    assert 'Signature: <a href="tool-1.0.tar.gz.asc">asc</a>' in found
    assert '<a href="tool-1.0.tar.gz.minisig">minisig</a>' in found


def test_a_readme_is_rendered_once_for_all_visitors() -> None:
    """Every request for the folder used to cost the server what the text costs to render."""
    first = render_readme(b"readme.md", "[" * 1000)
    assert render_readme(b"readme.md", "[" * 1000) is first


def test_a_readme_is_shown_and_harmless(bench: Bench) -> None:
    found = page(bench, "/r/")
    assert "<h2>Tool</h2>" in found
    assert '<a href="notes">this</a>' in found
    assert "&lt;script&gt;alert" in found
    assert "<script" not in found
    assert "Tool</h2>" not in page(bench, "/r/?q=notes")


@pytest.mark.parametrize(
    "text",
    [
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,eA==)",
        "![x](http://else.where/p.png)",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        "[x]: javascript:alert(1)\n\n[x]",
        "<javascript:alert(1)>",
        "|a|\n|:-:|\n|b|\n",
    ],
)
def test_nothing_in_a_readme_runs_or_is_fetched(text: str) -> None:
    html = render_readme(b"readme.md", text)
    assert not re.search(r"<(script|img|svg|iframe|style)|href=\"(javascript|data):| style=", html)
    assert "<" not in render_readme(b"readme", text).removeprefix("<pre>").removesuffix("</pre>")


def test_a_search_needs_no_script(bench: Bench) -> None:
    found = page(bench, "/r/?q=TOOL")
    assert "tool-1.0.tar.gz.asc" in found
    assert ">notes<" not in found
    assert 'value="TOOL"' in found
    assert "sort=size&amp;order=desc" in found
    assert "q=TOOL" in found
    nothing = page(bench, "/r/?q=%3Cb%3E%22")
    assert "No name contains &lt;b&gt;&#34;." in nothing


def test_searching_has_a_bounded_price(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = listing._Searches()
    assert searches.may(100.0)
    searches.took(3.0)
    assert not searches.may(100.1)
    assert searches.may(100.0 + 1.1 * listing.REUSE_FACTOR)
    monkeypatch.setattr(listing._Searches, "may", lambda self, now: False)
    answer = bench.connect().get("/r/?q=a")
    assert (answer.status, answer.text("retry-after")) == (503, "2")


def test_a_name_that_xml_cannot_hold_does_not_break_the_feed(bench: Bench) -> None:
    """One such file used to make the folder's feed unreadable for all."""
    bench.write("r\x01/a\x1b[31m\ufffe]]>.iso", b"x")
    feed = ET.fromstring(bench.connect().get("/r%01/?format=atom").body)
    assert [entry.findtext(f"{ATOM}title") for entry in feed.iter(f"{ATOM}entry")] == [
        "a\ufffd[31m\ufffd]]>.iso"
    ]


def test_a_feed_has_the_newest_files_first(bench: Bench) -> None:
    bench.write("r/newest & best.iso", b"x", mtime_s=2_000_000_200)
    bench.write("r/older.iso", b"x", mtime_s=2_000_000_100)
    answer = bench.connect().get("/r/?format=atom")
    assert answer.text("content-type") == "application/atom+xml"
    feed = ET.fromstring(answer.body)
    titles = [entry.findtext(f"{ATOM}title") for entry in feed.iter(f"{ATOM}entry")]
    assert titles[:2] == ["newest & best.iso", "older.iso"]
    link = feed.find(f"{ATOM}entry/{ATOM}link")
    assert link is not None
    assert link.get("href") == "http://h/r/newest%20&%20best.iso"
    assert feed.findtext(f"{ATOM}updated") == "2033-05-18T03:36:40Z"


@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_opens_soon_can_be_found_and_registered_for(tmp_path: Path, workers: str) -> None:
    import requests

    release = tmp_path / "release"
    make_release(release, a_txt=10)
    make_release(release / "43", big_iso=1000)
    make_release(release / "44", secret_iso=1000)
    for name in ("notes", "soon"):
        for ending in ("", ".asc", ".sha256"):
            (release / (name + ending)).write_text(name)
    now = datetime.datetime.now(datetime.UTC)
    later = (now + datetime.timedelta(hours=3)).isoformat()
    earlier = (now - datetime.timedelta(hours=1)).isoformat()
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'[[rules]]\npath = "/43/*"\nhidden_until = "{later}"\nprequeue_from = "{earlier}"\n'
        f'[[rules]]\npath = "/44/*"\nhidden_until = "{later}"\n'
        f'[[rules]]\npath = "/soon"\nhidden_until = "{later}"\n'
        '[[rules]]\npath = "/notes"\nrequire_class = "member"\n'
    )
    arguments = ("--config", str(config), "--workers", workers)
    with serving(release, tmp_path / "state", *arguments) as server:

        def ask(path: str) -> requests.Response:
            return requests.get(server.url + path, headers={"Accept": "text/html"}, timeout=60)

        front = ask("/").text
        assert '<a href="43/"><bdi dir="ltr">43/</bdi></a>' in front
        assert re.search(r"This opens in (3\sh|2\sh \d+\smin)", front)
        searched = requests.get(f"{server.url}/?q=zz", timeout=60).text
        assert "No name contains zz." in searched
        assert "44/" not in front
        folder = ask("/43/")
        assert folder.status_code == 200
        assert '<a href="big.iso"><bdi>big.iso</bdi></a>' in folder.text
        assert "take part in the draw" in folder.text
        assert "Nothing has been put here" not in folder.text
        # What is to come is told of above: there is no row for a table.
        assert "<table" not in folder.text
        assert ask("/44/").status_code == 404
        assert "big.iso" not in ask("/43/SHA256SUMS").text
        (coming,) = requests.get(f"{server.url}/43/?format=json", timeout=60).json()["entries"]
        assert coming["opens_in_s"] > 0
        assert coming["sha256"] is None
        registered = ask("/43/big.iso")
        assert registered.status_code == 503
        assert registered.headers["Tidegate-Entry"]
        for page in ("", "?format=json", "?format=atom", "?q=o", "SHA256SUMS", "index.meta4"):
            told = requests.get(f"{server.url}/{page}", timeout=60)
            assert told.status_code == 200, page
            assert "a.txt" in told.text or page == "?q=o"
            # What goes with a file that is kept back is kept back, too.
            assert "notes" not in told.text, page
            assert "soon" not in told.text, page
        for name, status in (("notes", 403), ("soon", 404)):
            for ending in ("", ".asc", ".sha256", ".asc.manifest.json", ".asc.meta4"):
                told = requests.head(f"{server.url}/{name}{ending}", timeout=60)
                assert told.status_code == status, name + ending


def test_names_and_sizes_keep_their_own_order_where_the_page_runs_from_right_to_left() -> None:
    said = Phrases("ar")("lead", file="a (1).iso", size=told_size(3e6))
    for whole in ("a (1).iso", "3.0\N{NO-BREAK SPACE}MB"):
        isolated = f"\N{FIRST STRONG ISOLATE}{whole}\N{POP DIRECTIONAL ISOLATE}"
        assert isolated in said
    assert "\N{FIRST STRONG ISOLATE}" not in Phrases("de")("lead", file="a.iso", size="3 MB")


def test_no_shared_cache_keeps_a_page_that_may_carry_a_cookie(bench: Bench) -> None:
    answer = bench.connect().get("/r/", {"Accept": "text/html"})
    assert answer.text("cache-control") == "private, no-cache"

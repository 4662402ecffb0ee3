"""Files of an origin: signed URLs, what it says of them, and how they are answered with."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.gate_site import answering
from tidegate.server.files.transfer import Representation
from tidegate.server.gate.origin import (
    TUNING,
    OriginFault,
    OriginStore,
    ask,
)
from tidegate.server.gate.settings import GateSettings
from tidegate.server.gate.signing import (
    SIGNED_S,
    cloudfront_signer,
    s3_signer,
    secure_link_signer,
    signer_of,
    unsigned,
)

BASE = "https://examplebucket.s3.amazonaws.com/"
#: 2013-05-24, 00:00 UTC.
THEN = 1_369_353_600.0
#: 2026-11-28, 05:06:07 UTC.
MORNING = 1_795_842_367.0
CREDENTIALS = "[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = %s\n"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def test_s3_signs_as_its_documentation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of "Authenticating Requests: Using Query Parameters"."""
    monkeypatch.setattr("tidegate.server.gate.signing.SIGNED_S", 86_400)
    sign = s3_signer(BASE, "us-east-1", "AKIAIOSFODNN7EXAMPLE", SECRET)
    query = parse_qs(urlsplit(sign("GET", b"test.txt", THEN)).query)
    assert query["X-Amz-Signature"] == [
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    ]
    assert query["X-Amz-Credential"] == ["AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"]
    assert sign("HEAD", b"test.txt", THEN) != sign("GET", b"test.txt", THEN)
    odd = sign("GET", 'ä b%20?#"$+x.iso'.encode(), THEN)
    assert urlsplit(odd).path == "/%C3%A4%20b%2520%3F%23%22%24%2Bx.iso"


@pytest.mark.parametrize(
    ("base", "method", "signature"),
    [
        (
            *("https://bucket.s3.eu-central-1.amazonaws.com/release/", "GET"),
            "a947e32926a964b30ca4773cf9784b2643cb641fc98c5ff314677c64252c3c11",
        ),
        (
            *("https://Bucket.s3.eu-central-1.amazonaws.com:443/release/", "HEAD"),
            "1d815629b16f5ea608a566139bbc19ad2b66a7d46c465f4caf9a6c32bd2e6dd1",
        ),
        (
            *("http://127.0.0.1:9000/bucket/", "GET"),
            "2e84ff293815cc1c0501659c665c315c42237ecc97fe89ab942efe6417b374bf",
        ),
    ],
)
def test_s3_signs_odd_names_and_ports_as_botocore_does(
    base: str, method: str, signature: str
) -> None:
    """`S3SigV4QueryAuth`. A client names no default port in its field `Host`, which is signed."""
    name = "ä/100%#?&;:@,'()*!$[].iso".encode()
    url = GateSettings(origin=base).origin
    sign = s3_signer(url, "eu-central-1", "AKIAIOSFODNN7EXAMPLE", SECRET)
    query = parse_qs(urlsplit(sign(method, name, MORNING)).query)
    assert query["X-Amz-Signature"] == [signature]


@pytest.mark.parametrize(
    ("base", "signature"),
    [
        (
            "https://bucket.s3.eu-central-1.amazonaws.com/release/",
            "19e201e8999cdf5f83d39a0d3611d3dad124fdd4bed26f14398c5ee87f9cbed1",
        ),
        (
            "http://127.0.0.1:9000/bucket/",
            "cfc83c01e3231e481e65b034688a7986bb89105b5226ea6df33e5375511f05ac",
        ),
    ],
)
def test_s3_signs_for_a_session_as_botocore_does(base: str, signature: str) -> None:
    token = "FwoGZXIvYXdzEBYaD+odd/token=="
    sign = s3_signer(base, "eu-central-1", "AKIAIOSFODNN7EXAMPLE", SECRET, token)
    query = parse_qs(urlsplit(sign("GET", "ä/100%#?&;:@,'()*!$[].iso".encode(), MORNING)).query)
    assert query["X-Amz-Security-Token"] == [token]
    assert query["X-Amz-Signature"] == [signature]


def test_keys_of_a_session_are_read_anew_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "keys"

    def write(text: str, at_s: int) -> None:
        file.write_text(text)
        os.utime(file, (at_s, at_s))

    write(CREDENTIALS % "first" + "aws_session_token = one\n", 1)
    sign = signer_of(BASE, "s3:us-east-1", file)
    assert "Security-Token=one&" in sign("GET", b"x", THEN)
    # Half of the next one.
    write("[default]\naws_access", 2)
    assert "Security-Token=one&" in sign("GET", b"x", THEN)
    write(CREDENTIALS % "second" + "aws_session_token = two\n", 3)
    assert "Security-Token=two&" in sign("GET", b"x", THEN)
    file.unlink()
    assert "Security-Token=two&" in sign("GET", b"x", THEN)


def test_cloudfront_gets_a_canned_policy_with_its_own_alphabet(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    file = tmp_path / "key.pem"
    none = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
    sign = signer_of("https://d111111abcdef8.cloudfront.net/", "cloudfront:K2JCJMDEHXQW5F", file)
    url = sign("GET", b"image.iso", THEN)
    assert cloudfront_signer(BASE, "K", key)("GET", b"x", THEN).startswith(BASE)
    query = parse_qs(urlsplit(url).query)
    assert query["Key-Pair-Id"] == ["K2JCJMDEHXQW5F"]
    expires = int(query["Expires"][0])
    (text,) = query["Signature"]
    assert not set(text) & set("+=/")
    signature = base64.b64decode(text.translate(str.maketrans("-_~", "+=/")))
    # The form that its documentation prescribes: no blanks, in this order.
    policy = (
        '{"Statement":[{"Resource":"https://d111111abcdef8.cloudfront.net/image.iso",'
        f'"Condition":{{"DateLessThan":{{"AWS:EpochTime":{expires}}}}}}}]}}'
    )
    key.public_key().verify(signature, policy.encode(), padding.PKCS1v15(), hashes.SHA1())
    assert json.loads(policy)


def test_fastly_gets_a_token_over_the_path_as_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(base64.b64encode(b"tidal key").decode() + "\n")
    sign = signer_of("https://cdn.example/rel/", "fastly", tmp_path / "key")
    expires = int(THEN) + SIGNED_S
    # What the VCL of its manual computes: the URL without its query, then the time.
    signed = hmac.new(b"tidal key", f"/rel/a%20b.iso{expires}".encode(), "sha1").hexdigest()
    assert sign("GET", b"a b.iso", THEN) == (
        f"https://cdn.example/rel/a%20b.iso?token={expires}_{signed}"
    )


def test_a_lease_in_a_signed_url_is_signed_where_the_query_is(tmp_path: Path) -> None:
    mark = f"tidegate-lease={'ab' * 16}"
    url = s3_signer(BASE, "us-east-1", "AKIAIOSFODNN7EXAMPLE", SECRET)("GET", b"x", THEN, mark)
    names = [part.partition("=")[0] for part in urlsplit(url).query.split("&")]
    # The canonical order, which is signed; the signature comes last.
    assert names[:-1] == sorted(names[:-1])
    assert names[-2:] == ["tidegate-lease", "X-Amz-Signature"]
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    url = cloudfront_signer(BASE, "K", key)("GET", b"x", THEN, mark)
    assert url.startswith(f"{BASE}x?{mark}&Expires=")
    query = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
    signature = base64.b64decode(query["Signature"].translate(str.maketrans("-_~", "+=/")))
    policy = (
        f'{{"Statement":[{{"Resource":"{BASE}x?{mark}",'
        f'"Condition":{{"DateLessThan":{{"AWS:EpochTime":{query["Expires"]}}}}}}}]}}'
    )
    key.public_key().verify(signature, policy.encode(), padding.PKCS1v15(), hashes.SHA1())
    # These sign the path.
    assert unsigned(BASE)("GET", b"x", THEN, mark) == f"{BASE}x?{mark}"
    for way, text in (("fastly", "a2V5"), ("secure-link", "secret")):
        (tmp_path / way).write_text(text)
        sign = signer_of(BASE, way, tmp_path / way)
        assert sign("GET", b"x", THEN, mark) == f"{sign('GET', b'x', THEN)}&{mark}"


def test_a_signer_without_its_secret_says_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ValueError, match="s3 needs a file with its secret"):
        signer_of(BASE, "s3:us-east-1", None)
    for way, text, fault in (
        ("s3:us-east-1", "nothing", "needs a section with aws_access_key_id"),
        ("s3:us-east-1", "[default]\n", "needs a section with aws_access_key_id"),
        ("cloudfront:K", "no key", "has no private RSA key without a password"),
        ("fastly", "no key", "has no key in Base64"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=fault):
            signer_of(BASE, way, file)
    file.write_text(CREDENTIALS % SECRET)
    signed = signer_of(BASE, "s3:us-east-1", file)("GET", b"test.txt", THEN)
    assert signed == s3_signer(BASE, "us-east-1", "AKIAIOSFODNN7EXAMPLE", SECRET)(
        "GET", b"test.txt", THEN
    )
    assert "md5=" in secure_link_signer(BASE, "x")("GET", b"test.txt", THEN)


def test_a_signed_link_is_valid_for_its_time() -> None:
    url = secure_link_signer("http://m.example/s/", "x y")("GET", b"a b.txt", THEN)
    query = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
    expires = int(THEN) + SIGNED_S
    digest = hashlib.md5(f"{expires}/s/a b.txt x y".encode()).digest()
    signed = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert query == {"md5": signed, "expires": str(expires)}


def test_an_origin_is_an_http_url_without_a_query() -> None:
    for url in ("ftp://x/", "https://", "https://x/?a=b", "x"):
        with pytest.raises(ValueError, match="is no http or https URL without a query"):
            GateSettings(origin=url)
    assert GateSettings(origin="https://x/release").origin == "https://x/release/"
    assert GateSettings(origin="https://x/").ports() == {443}
    assert GateSettings().ports() == frozenset()


class Asked:
    """An origin whose answers a test gives, one after the other."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.asked: list[Deferred[Representation | None]] = []
        self.origin = OriginStore(self.clock, unsigned(BASE), lambda: THEN, self._head)

    def _head(self, url: str, path: bytes) -> Deferred[Representation | None]:
        assert url == f"{BASE}{path.decode()}"
        self.asked.append(Deferred())
        return self.asked[-1]

    def look(self, path: bytes = b"a.iso") -> list[object]:
        """What was told; empty while the origin is asked."""
        told: list[object] = []
        self.origin.look(path).addBoth(lambda one: told.append(getattr(one, "value", one)))
        return told


def content(mark: int = 1) -> Representation:
    from tests.fakes import representation

    rep = representation()
    return Representation(b"a.iso", "/a.iso", rep.size_bytes, 5.0, f'"{mark}"', rep.key)


def test_an_answer_is_remembered_for_a_while_and_all_who_ask_meanwhile_get_it() -> None:
    scene = Asked()
    first, second = scene.look(), scene.look()
    assert (first, second, len(scene.asked)) == ([], [], 1)
    scene.asked[0].callback(content())
    assert first == second == scene.look() == [content()]
    assert scene.origin.is_current(content())
    assert not scene.origin.is_current(content(2))
    scene.clock.advance(TUNING.fresh_s + 1)
    # It counts no longer: a client that waited is planned anew.
    assert not scene.origin.is_current(content())
    assert scene.look() == []
    scene.asked[1].callback(None)
    assert scene.look() == [None]
    scene.clock.advance(TUNING.missing_s + 1)
    assert scene.look() == []
    assert len(scene.asked) == 3


def test_a_body_starts_by_an_answer_of_the_moment() -> None:
    scene = Asked()
    scene.look()
    scene.asked[0].callback(content())
    scene.clock.advance(TUNING.start_fresh_s - 0.1)
    assert scene.origin.is_current(content())
    scene.clock.advance(0.2)
    # Its client is told what the file is, but waits for a word of the origin before it starts.
    assert scene.look() == [content()]
    assert not scene.origin.is_current(content())
    told = scene.look()
    assert told == []
    scene.asked[1].callback(content(2))
    assert told == [content(2)]
    assert scene.origin.is_current(content(2))
    assert scene.origin.tag_of(content(2)) == '"2"'


def test_what_an_origin_said_outlasts_its_faults_for_an_hour() -> None:
    scene = Asked()
    told = scene.look()
    scene.asked[0].errback(OriginFault("it answers 500"))
    assert isinstance(told[0], OriginFault)
    assert "come back soon" in str(told[0])
    told = scene.look()
    scene.asked[1].callback(content())
    assert told == [content()]
    for _ in range(int(TUNING.stale_s / (TUNING.fresh_s + 1)) - 1):
        scene.clock.advance(TUNING.fresh_s + 1)
        told = scene.look()
        scene.asked[-1].errback(OriginFault("it answers 500"))
        assert told == [content()]
        assert scene.origin.is_current(content())
    scene.clock.advance(2 * (TUNING.fresh_s + 1))
    told = scene.look()
    scene.asked[-1].errback(OriginFault("it answers 500"))
    assert isinstance(told[0], OriginFault)


def test_no_flood_of_names_asks_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.server.gate.origin.TUNING", TUNING._replace(most_waiting=3))
    scene = Asked()
    told = [scene.look(b"%d" % number) for number in range(4)]
    assert told[:3] == [[], [], []]
    assert "too many files" in str(told[3][0])
    assert len(scene.asked) == 3


@contextmanager
def heads(status: int, **fields: str) -> Iterator[str]:
    """The URL of a file of which a real server tells this."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    with answering({"/a.iso": (status, named, b"")}) as url:
        yield f"{url}/a.iso"


@pytest.mark.parametrize(
    ("status", "fields", "fault"),
    [
        (302, {"Location": "http://169.254.169.254/secret"}, "it redirects, which is not followed"),
        (500, {}, "it answers 500"),
        (200, {}, "it does not tell how long the file is"),
        (200, {"Content_Length": "-5"}, "it does not tell how long the file is"),
        (200, {"Content_Length": "5", "Content_Encoding": "gzip"}, "does not tell how long"),
    ],
)
def test_what_an_origin_may_not_say(status: int, fields: dict[str, str], fault: str) -> None:
    with heads(status, **fields) as url, pytest.raises(OriginFault, match=fault):
        ask(url, b"a.iso")


def test_size_tag_and_time_are_the_origins() -> None:
    date = "Fri, 24 May 2013 00:00:00 GMT"
    with heads(200, Content_Length="7", ETag='"abc"', Last_Modified=date) as url:
        rep = ask(url, b"a.iso")
    assert rep is not None
    assert (rep.size_bytes, rep.etag, rep.mtime_s) == (7, '"abc"', THEN)
    with heads(200, Content_Length="7", ETag='W/"abc"', Last_Modified=date) as url:
        weak = ask(url, b"a.iso")
    assert weak is not None
    assert weak.etag == '"519ead80-7-w"'
    assert weak.key != rep.key
    for status in (403, 404, 410):
        with heads(status) as url:
            assert ask(url, b"a.iso") is None
    with pytest.raises(OriginFault, match="it cannot be asked"):
        ask("http://127.0.0.1:1/a.iso", b"a.iso")

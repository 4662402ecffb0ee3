"""What an answer's fields tell about the file elsewhere, and what it should be called."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tidegate.client.fetch.acceptance import read_findings
from tidegate.client.net.answers import Fields
from tidegate.client.net.urls import BadUrl, parse

BASE = parse("http://example.test/a/file.iso")
SHA256, SHA512 = hashlib.sha256(b"x").digest(), hashlib.sha512(b"x").digest()


def digests(**told: bytes) -> tuple[str, str]:
    parts = (
        f"{name.replace('_', '-')}=:{base64.b64encode(raw).decode()}:" for name, raw in told.items()
    )
    return "Repr-Digest", ", ".join(parts)


def test_a_digest_proposes_no_name() -> None:
    found = read_findings(BASE, Fields([digests(sha_256=SHA256)]))
    assert found.digest == ("sha256", SHA256)
    assert found.name is None


def test_a_proposed_name_is_kept_beside_a_digest() -> None:
    proposed = ("Content-Disposition", 'attachment; filename="other.iso"')
    found = read_findings(BASE, Fields([digests(sha_256=SHA256, sha_512=SHA512), proposed]))
    assert found.digest == ("sha512", SHA512)
    assert found.name == "other.iso"


def test_what_cannot_be_read_is_not_there() -> None:
    found = read_findings(
        BASE,
        Fields([digests(sha_256=b"short"), ("Link", "<http://[>; rel=duplicate, <<>; rel")]),
    )
    assert (found.mirrors, found.metalink, found.digest, found.name) == ((), None, None, None)


@pytest.mark.parametrize(
    ("at", "location", "count", "leads"),
    [
        ("http://a/x", "https://b/y", 1, "https://b/y"),
        ("http://a/x", "http://b/y", 10, "http://b/y"),
        ("https://a/x", "/y", 1, "https://a/y"),
        ("https://a/x", "http://a/x", 1, "from https to http"),
        ("https://a/x", "HTTP://a/x", 1, "from https to http"),
        ("http://a/x", "http://b/y", 11, "in circles"),
        ("http://a/x", "ftp://b/y", 1, "not an http or https URL"),
    ],
)
def test_a_redirect_leads_on_but_never_into_the_open_or_in_circles(
    at: str, location: str, count: int, leads: str
) -> None:
    if "://" in leads:
        assert parse(at).redirected(location, count, 10).text == leads
    else:
        with pytest.raises(BadUrl, match=leads):
            parse(at).redirected(location, count, 10)

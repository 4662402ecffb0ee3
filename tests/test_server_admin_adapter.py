"""Between the HTTP room and the administration: forms of both encodings, streams, the client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3.filepost import encode_multipart_formdata

from protocol.errors import ProtocolError
from server.admin.adapter import read_form

NAMES = st.text("abcdefghij_", min_size=1, max_size=12)


@given(st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=6))
def test_multipart_forms_arrive_byte_by_byte(fields: dict[str, bytes]) -> None:
    files = {name: ("logo.png", value, "image/png") for name, value in fields.items()}
    body, kind = encode_multipart_formdata(files)
    assert read_form(kind, body) == {name: [value] for name, value in fields.items()}


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader_of_forms(body: bytes) -> None:
    for kind in ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "a/b"):
        try:
            found = read_form(kind, body)
        except ProtocolError:
            continue
        assert all(isinstance(value, bytes) for values in found.values() for value in values)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"a=1&" * 600),
        ("multipart/form-data; boundary=x", b"nothing like a form"),
        ("multipart/form-data", b"--x\r\n\r\n--x--"),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_form(kind, body)


def test_other_bodies_are_no_forms() -> None:
    assert read_form("application/json", b"{}") == {}
    assert read_form("", b"a=1") == {}

"""Between the HTTP room and the administration: forms of both encodings, and tables."""

from __future__ import annotations

import csv
import io
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from urllib3.filepost import encode_multipart_formdata

from tidegate.protocol.errors import ProtocolError
from tidegate.server.admin.adapter import read_form
from tidegate.server.admin.web import csv_answer

NAMES = st.text("abcdefghij_", min_size=1, max_size=12)
PART = b"--x\r\nContent-Disposition: form-data; name=a\r\nX"


@given(st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=6))
def test_multipart_forms_arrive_byte_by_byte(fields: dict[str, bytes]) -> None:
    files = {name: ("logo.png", value, "image/png") for name, value in fields.items()}
    body, kind = encode_multipart_formdata(files)
    assert read_form(kind, body) == {name: [value] for name, value in fields.items()}


@given(st.dictionaries(st.text(max_size=12), st.binary(max_size=300), max_size=6))
def test_fields_in_one_line_arrive_byte_by_byte(fields: dict[str, bytes]) -> None:
    kind = "application/x-www-form-urlencoded;charset=UTF-8"
    body = urlencode(fields).encode("ascii")
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
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n" * 600 + b"--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"a: b\r\n" * 2000 + b"\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nit never ends"),
        ("multipart/form-data; boundary=" + "x" * 71, b"--" + b"x" * 71 + b"--"),
        ("multipart/form-data; boundary=x", PART + b": a\r\n" + b" b\r\n" * 9 + b"\r\n\r\n--x--"),
    ],
)
def test_a_form_that_cannot_be_read_is_refused(kind: str, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_form(kind, body)


def test_other_bodies_are_no_forms() -> None:
    assert read_form("application/json", b"{}") == {}
    assert read_form("", b"a=1") == {}


@given(st.lists(st.tuples(st.sampled_from("=+-@\t\r|a "), st.text(max_size=9)), min_size=1))
def test_no_cell_of_an_exported_table_is_a_formula(cells: list[tuple[str, str]]) -> None:
    """The names of files and clients are what others chose."""
    texts = ["".join(cell) for cell in cells]
    body = csv_answer("a.csv", ["head"] * len(texts), [texts]).body.decode()
    (_, found) = csv.reader(io.StringIO(body, newline=""))
    assert not any(cell.startswith(tuple("=+-@\t\r")) for cell in found)
    assert [cell.removeprefix("'") for cell in found] == [text.removeprefix("'") for text in texts]

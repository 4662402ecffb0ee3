"""The messages of a cluster: there and back, as written down, and from other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectError
from twisted.internet.testing import MemoryReactorClock, StringTransport

from tidegate.server.app.meeting import Meeting, MeetingEndpoint, write_meeting
from tidegate.server.cluster import messages as cluster
from tidegate.server.cluster.link import LinkFactory, Peer
from tidegate.server.cluster.messages import (
    BadFrame,
    BodyState,
    Ended,
    Hello,
    Pause,
    ProgressReport,
    Start,
    Terms,
    decode_from_leader,
    decode_from_node,
    encode_frame,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "cluster.json").read_text("ascii"))


def _built(kind: type) -> st.SearchStrategy[object]:
    hints = msgspec.inspect.type_info(kind)
    assert isinstance(
        hints,
        msgspec.inspect.StructType | msgspec.inspect.DataclassType | msgspec.inspect.NamedTupleType,
    )
    return st.builds(kind, **{field.name: _value(field.type) for field in hints.fields})


def _value(kind: msgspec.inspect.Type) -> st.SearchStrategy[object]:
    match kind:
        case msgspec.inspect.IntType():
            return st.integers(0, 2**63)
        case msgspec.inspect.FloatType():
            return st.floats(allow_nan=False)
        case msgspec.inspect.BytesType():
            return st.binary(max_size=30)
        case msgspec.inspect.StrType():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*[_value(one) for one in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_value(item), max_size=3).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*[_value(one) for one in items])
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_value(key), _value(value), max_size=3)
        case msgspec.inspect.StructType(cls=cls):
            return _built(cls)
        case msgspec.inspect.DataclassType(cls=cls) | msgspec.inspect.NamedTupleType(cls=cls):
            return _built(cls)
    raise AssertionError(kind)


@given(st.lists(st.one_of(*[_built(kind) for kind in cluster.FromNode.__args__])))
def test_what_a_node_says_arrives_as_it_was_said(messages: list[cluster.FromNode]) -> None:
    assert decode_from_node(encode_frame(messages)) == messages


@given(st.lists(st.one_of(*[_built(kind) for kind in cluster.FromLeader.__args__])))
def test_what_a_leader_says_arrives_as_it_was_said(messages: list[cluster.FromLeader]) -> None:
    assert decode_from_leader(encode_frame(messages)) == messages


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(data: bytes) -> None:
    for decode in (decode_from_node, decode_from_leader):
        try:
            found = decode(data)
        except BadFrame:
            continue
        assert isinstance(found, list)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_frames_stand_as_they_are_written_down(vector: dict[str, str]) -> None:
    frame = bytes.fromhex(vector["frame"])
    decode = decode_from_node if vector["from"] == "node" else decode_from_leader
    messages = decode(frame)
    assert encode_frame(messages) == frame
    assert repr(messages) == vector["messages"]


def test_every_message_is_in_a_vector() -> None:
    written = " ".join(vector["messages"] for vector in VECTORS)
    for kind in (*cluster.FromNode.__args__, *cluster.FromLeader.__args__):
        assert f"{kind.__name__}(" in written


def test_a_newer_peer_may_add_fields_and_messages() -> None:
    body = [1, 2, 3, False, True, "more"]
    newer = [
        ["hello", "n", 2, 7, "m", False, "more"],
        ["sing", "a", "song"],
        ["ended", 4, 0, False, None],
    ]
    newer.insert(1, ["progress", [body]])
    assert decode_from_node(msgspec.msgpack.encode(newer)) == [
        Hello("n", 2, 7, "m", False),
        ProgressReport((BodyState(1, 2, 3, False, shut=True),)),
        Ended(4),
    ]
    newer = [["pause", 1, "gently"], ["hum"], ["start", 2, [], 3, 0.5, "gold", True, 4]]
    assert decode_from_leader(msgspec.msgpack.encode(newer)) == [
        Pause(1),
        Start(2, (), 3, 0.5, "gold", True),
    ]


def test_an_older_peer_leaves_fields_out() -> None:
    older = [["hello", "n"], ["progress", [[1, 2, 3, False]]], ["ended", 3, 10, True, 5]]
    assert decode_from_node(msgspec.msgpack.encode(older)) == [
        Hello("n"),
        ProgressReport((BodyState(1, 2, 3, False, shut=False),)),
        Ended(3, 10, True),
    ]
    older = [["terms", 5, True, b"[]", None, True]]
    [terms] = decode_from_leader(msgspec.msgpack.encode(older))
    assert terms == Terms(5, True, b"[]", None, brief_free=True)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc0",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode([None]),
        msgspec.msgpack.encode([[1, 2]]),
        msgspec.msgpack.encode([["ended", "one"]]),
        msgspec.msgpack.encode([["ended"]]),
    ],
)
def test_a_frame_that_is_none_is_refused_in_one_sentence(frame: bytes) -> None:
    with pytest.raises(BadFrame, match=r"\.$"):
        decode_from_node(frame)


def test_a_leader_of_another_version_is_left_alone_until_another_one_leads(tmp_path: Path) -> None:
    # A leader whose terms had other fields was connected to ten times a second.
    reactor = MemoryReactorClock()
    endpoint = MeetingEndpoint(reactor, tmp_path, tmp_path / "socket", lambda: 0.0)
    ignored = Peer(lambda link: None, lambda link, messages: None, lambda link: None)
    links = LinkFactory(reactor, decode_from_leader, ignored, unread=endpoint.leave_leader)
    write_meeting(tmp_path, Meeting(1, "", 0, ()))
    link = links.buildProtocol(None)
    link.makeConnection(StringTransport())
    link.stringReceived(msgspec.msgpack.encode([["terms", 1, True, b"", None, True, True]]))
    assert link.transport.disconnecting
    refused: list[Any] = []
    endpoint.connect(links).addErrback(lambda failure: refused.append(failure.type))
    assert (refused, reactor.unixClients) == ([ConnectError], [])
    write_meeting(tmp_path, Meeting(2, "", 0, ()))
    endpoint.connect(links)
    assert len(reactor.unixClients) == 1

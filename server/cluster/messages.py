"""The messages between a node and its leader (docs/cluster.md).

A *node* has the connection to the client, reads the file and sends it. The *leader* has the queue.
A node reports each request that needs a decision under a number that it never reuses; the leader
sends the decision. A frame is a list of messages in MessagePack; a message is a list that begins
with its tag. New fields are added at the end with a default: an older reader skips fields and
messages that it does not know, a newer one fills in the defaults.

The transport prefixes a frame with its length in four bytes (`Int32StringReceiver`), in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from ...policies.contract import TicketRow, TicketState
from ...protocol.errors import ProtocolError
from ...protocol.manifest import FileDigests
from ..files.transfer import BodyPlan, Representation
from ..http.request import Request

#: The version of this program: raised when an older one would read a message wrongly, and when a
#: named tuple in a message (`files.transfer.FileKey`) gets a field.
VERSION = 4
#: The oldest version that it understands.
OLDEST = 4
#: Bounds a frame. The largest message is a generated answer of the leader.
MOST_BYTES = 64 * 1024 * 1024

_Kind = TypeVar("_Kind")
Fields = tuple[tuple[bytes, bytes], ...]


class BadFrame(ProtocolError):
    """A frame that is not a list of messages."""


class WireRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request; header names are in lower case."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    http10: bool
    peer_address: str
    is_tls: bool
    #: The status that was sent already with keep-alive header lines; 0 for none.
    dripped: int = 0
    #: `peer_address` and `is_tls` come from a PROXY protocol preface; header fields do not count.
    prefaced: bool = False


class WireTicket(msgspec.Struct, frozen=True, array_like=True):
    """Fields of the `TicketRow` of a waiting ticket that the leader may not know, in Unix time."""

    number: int
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float
    priority_class: str = ""
    #: The crowd of the ticket's network. It keeps its place there: the client may know it.
    network: str = ""


def wire_request(request: Request) -> WireRequest:
    """A request for the leader; its peer as the node's own socket or a proxy's preface has it."""
    connection = request.connection
    prefaced = connection.forwarded is not None
    return WireRequest(
        method=request.method,
        target=request.target,
        headers=dict(request.headers),
        body=request.body,
        http10=request.http10,
        peer_address=request.client_address if prefaced else connection.peer_address,
        is_tls=request.is_tls if prefaced else connection.is_tls,
        dripped=request.dripped,
        prefaced=prefaced,
    )


def wire_ticket(row: TicketRow) -> WireTicket:
    """A ticket for a leader that may not know it."""
    return WireTicket(*(getattr(row, name) for name in WireTicket.__struct_fields__))


def ticket_row(ticket: WireTicket, now: float) -> TicketRow:
    """A node's ticket, at the leader; `now` is Unix time."""
    return TicketRow(**msgspec.structs.asdict(ticket), state=TicketState.WAITING, changed_s=now)


# -- messages of a node -------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a node. `name` is unique, also after a restart.

    `serves` is false for a machine's candidate, which forwards requests of its admin page only.
    """

    name: str
    version: int = VERSION
    pid: int = 0
    machine: str = ""
    serves: bool = True


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A request that the leader decides about, or answers by one of its routes.

    With `plan`, a body of `file` asks to start. `running`: it started under an earlier leader, and
    `delivered_bytes` of it have arrived. A `file` without a plan is hidden, and the client may
    register for its release. Only some clients may see the URL path `judged`: the leader sends
    `Allow`, or answers itself. `administers`: it came to the admin page of another machine.
    """

    number: int
    request: WireRequest
    file: Representation | None = None
    plan: BodyPlan | None = None
    running: bool = False
    delivered_bytes: int = 0
    judged: str | None = None
    administers: bool = False


class Ending(msgspec.Struct, frozen=True, array_like=True, tag="ending"):
    """A body is about to end. Its last bytes wait for `MayEnd`, for 0.5 s at most."""

    number: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """This request is over: its client has left, or its body has ended.

    `complete`: every byte of the body was handed over; some may be under way.
    """

    number: int
    delivered_bytes: int = 0
    complete: bool = False


class BodyState(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a body. `blocked`: its client accepts no more bytes now.

    `shut`: the client's receive window was closed nearly all the time since the last report, so
    that its program limits the rate.
    """

    number: int
    sent_bytes: int
    delivered_bytes: int
    blocked: bool
    shut: bool = False


class ProgressReport(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Sent four times a second: the bodies that moved, and the node's totals.

    `small` counts the files served without a decision since the last report: URL path, times,
    whole files among these, bytes. `flying_bytes` of `sent_bytes_total` are unacknowledged, those
    of ended bodies included. `at_s` is the time of the report on the machine's monotonic clock.
    """

    bodies: tuple[BodyState, ...] = ()
    goodput_bytes_s: float = 0.0
    link_busy: bool = False
    small: tuple[tuple[str, int, int, int], ...] = ()
    connections: int = 0
    connections_total: int = 0
    sent_bytes_total: int = 0
    flying_bytes: int = 0
    at_s: float = 0.0


class Parting(msgspec.Struct, frozen=True, array_like=True, tag="parting"):
    """This node finishes its bodies, accepts no new requests, and then ends."""


class Handover(msgspec.Struct, frozen=True, array_like=True, tag="handover"):
    """The waiting tickets that this node issued, or was shown, while it had no leader.

    They get their places before their clients ask. Otherwise later clients would see their own
    places grow.
    """

    tickets: tuple[WireTicket, ...]


class FindDigests(msgspec.Struct, frozen=True, array_like=True, tag="find-digests"):
    """A node wants a file's digests."""

    number: int
    file: Representation


# -- messages of the leader ---------------------------------------------------------------------


class Terms(msgspec.Struct, frozen=True, array_like=True, tag="terms"):
    """What a node may do without a decision, until the next `Terms`. The first answer to Hello.

    Each leader has a higher `epoch` than the one before.
    It serves files below `small_below_bytes` while `small_free`, and larger ones that leave in one
    write while `brief_free`. `rules` are the rules for files as JSON. `bandwidth_bytes_s` is the
    cap that all nodes of the machine share (None: no cap). `blocked` are the networks whose
    requests the leader judges (None: it judges all).
    """

    small_below_bytes: int
    small_free: bool
    rules: bytes
    bandwidth_bytes_s: float | None
    brief_free: bool = False
    blocked: tuple[str, ...] | None = ()
    #: What a node issues tickets with while there is no leader: the keys of tickets, newest first
    #: (name and derived secret), the policy, and its settings as JSON.
    keys: tuple[tuple[str, bytes], ...] = ()
    policy: str = ""
    settings: bytes = b""
    epoch: int = 0
    #: What a request to another machine's admin page needs to have a large body: the SHA-256 of all
    #: valid API tokens and logins, in hexadecimal. None: not known, and every client may have one.
    proofs: tuple[str, ...] | None = None


class Respond(msgspec.Struct, frozen=True, array_like=True, tag="respond"):
    """Send this answer."""

    number: int
    status: int
    headers: Fields
    body: bytes
    close: bool = False


class Allow(msgspec.Struct, frozen=True, array_like=True, tag="allow"):
    """The node may answer the request that it sent to be judged."""

    number: int


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Send the header of an answer whose body follows in `Write`s."""

    number: int
    status: int
    headers: Fields
    length: int | None
    more: bool = True


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """A piece of that body. An empty one ends it."""

    number: int
    data: bytes


class Drip(msgspec.Struct, frozen=True, array_like=True, tag="drip"):
    """Send one keep-alive header line to the client."""

    number: int
    status: int
    name: bytes
    value: bytes


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Cut the connection of this request; `reason` is for the log."""

    number: int
    reason: str = ""


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start the planned body with these additional header fields.

    Bodies of one download have the same number as their `share` of the line. `waited_s` and
    `priority_class` are for the access log. `counts_body`: the client's program enforces a minimum
    body rate, so that a paused body needs keep-alive bytes of its body.
    """

    number: int
    headers: Fields
    share: int = 0
    waited_s: float = 0.0
    priority_class: str = ""
    counts_body: bool = False


class Called(msgspec.Struct, frozen=True, array_like=True, tag="called"):
    """A client is told to come now; see `admission.wait_status.CalledTickets`."""

    token: str
    for_s: float


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Pause this body."""

    number: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Resume this body; in the `background` it gets what the other bodies leave of the line."""

    number: int
    background: bool = False


class MayEnd(msgspec.Struct, frozen=True, array_like=True, tag="may_end"):
    """The last bytes of a body may leave: its ticket is recorded as used."""

    number: int


class Digests(msgspec.Struct, frozen=True, array_like=True, tag="digests"):
    """The answer to FindDigests. None: the leader does not know them, and the node hashes."""

    number: int
    digests: FileDigests | None


FromNode = Hello | Ask | Ending | Ended | Parting | ProgressReport | Handover | FindDigests
#: What becomes of one request.
OfRequest = Respond | Allow | Begin | Write | Drip | Cut | Start | Pause | Resume | MayEnd
FromLeader = OfRequest | Terms | Called | Digests


class _Head(msgspec.Struct, array_like=True):
    """What every message begins with."""

    tag: str


_encoder = msgspec.msgpack.Encoder()
_split = msgspec.msgpack.Decoder(list[msgspec.Raw])
_head = msgspec.msgpack.Decoder(_Head)


def encode_frame(messages: Iterable[FromNode | FromLeader]) -> bytes:
    """A frame of these messages in order, without its length."""
    return _encoder.encode(list(messages))


class FrameDecoder(Generic[_Kind]):
    """The messages of one side's frames; unknown kinds are left out. Raises BadFrame."""

    def __init__(self, kinds: Any) -> None:
        self._all: msgspec.msgpack.Decoder[list[_Kind]] = msgspec.msgpack.Decoder(list[kinds])
        self._one: msgspec.msgpack.Decoder[_Kind] = msgspec.msgpack.Decoder(kinds)
        self._tags = {kind.__struct_config__.tag for kind in kinds.__args__}

    def __call__(self, frame: bytes) -> list[_Kind]:
        try:
            return self._all.decode(frame)
        except msgspec.DecodeError:
            pass
        try:
            known = [raw for raw in _split.decode(frame) if _head.decode(raw).tag in self._tags]
            return [self._one.decode(raw) for raw in known]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFrame(f"A frame of the cluster cannot be read: {error}.") from error


decode_from_node: FrameDecoder[FromNode] = FrameDecoder(FromNode)
decode_from_leader: FrameDecoder[FromLeader] = FrameDecoder(FromLeader)

"""What a node and its leader tell each other: one frame is a list of messages (docs/cluster.md).

A *node* has the connection to the client, reads the file and sends it; the *leader* has the queue.
A node tells of each request that needs a decision, by a number of its own that it never uses
twice, and the leader tells what becomes of it. Frames are MessagePack: a list of lists, each led by
the message's tag. Fields are added at the end and have defaults, so a reader that is older skips
what it does not know, whole messages included, and one that is newer fills in the defaults.

The transport frames by a length of four bytes (`Int32StringReceiver`) and keeps the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from .errors import ProtocolError

#: What this program speaks, and the oldest it still understands.
VERSION = 2
OLDEST = 1
#: From this version on the nodes of a machine share the cap that each is told; before, each is told
#: its part.
SHARING = 2
#: A frame is never longer. The largest message is a generated answer that a leader gives.
MOST_BYTES = 64 * 1024 * 1024

_Kind = TypeVar("_Kind")
Fields = tuple[tuple[bytes, bytes], ...]
Ranges = tuple[tuple[int, int], ...]


class BadFrame(ProtocolError):
    """A frame that is no list of messages."""


class WireRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as its node read it; header names in lower case."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    http10: bool
    peer_address: str
    is_tls: bool
    #: The status whose line has been sent already with lines that hold the client; 0 for none.
    dripped: int = 0
    #: A proxy's preface (PROXY protocol) named the peer and `is_tls`: header fields do not.
    prefaced: bool = False


class WireFile(msgspec.Struct, frozen=True, array_like=True):
    """A representation: its path below the served directory, and what tells its content."""

    path: bytes
    url_path: str
    size_bytes: int
    mtime_s: float
    etag: str
    inode: int
    mtime_ns: int
    ctime_ns: int


class WirePlan(msgspec.Struct, frozen=True, array_like=True):
    """An answer that is decided and not sent: status, half-open ranges, length of the body."""

    status: int
    ranges: Ranges
    body_bytes: int


class WireDigests(msgspec.Struct, frozen=True, array_like=True):
    """The digests of a file: SHA-256 of the whole and of its pieces."""

    size_bytes: int
    sha256: bytes
    piece_bytes: int
    pieces: bytes


class WireTicket(msgspec.Struct, frozen=True, array_like=True):
    """A ticket that waits, for a leader that does not know it; `issued_s` is Unix time."""

    number: int
    client: str
    file: str
    size_bytes: int
    remaining_bytes: int
    weight: float
    issued_s: float
    priority_class: str = ""
    #: The crowd that it counts with: in front, as its client may have been told a place since.
    network: str = ""


# -- what a node says ---------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a node. `name` tells it from all others, also after a new start.

    `serves` is false for a machine's candidate, which passes on requests of its admin page only.
    """

    name: str
    version: int = VERSION
    pid: int = 0
    machine: str = ""
    serves: bool = True


class Enter(msgspec.Struct, frozen=True, array_like=True, tag="enter"):
    """A planned body asks to start.

    `running` says that it runs already, since the time of an earlier leader, and that
    `delivered_bytes` of it have arrived.
    """

    number: int
    request: WireRequest
    file: WireFile
    plan: WirePlan
    running: bool = False
    delivered_bytes: int = 0


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A request that only the leader can answer: one of its routes."""

    number: int
    request: WireRequest


class Administer(msgspec.Struct, frozen=True, array_like=True, tag="administer"):
    """A request that came to the admin page of a machine that does not lead."""

    number: int
    request: WireRequest


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """A request for a file that is hidden as yet, which its client may register for."""

    number: int
    request: WireRequest
    file: WireFile


class Judge(msgspec.Struct, frozen=True, array_like=True, tag="judge"):
    """A request about a path that not everybody may learn of: may this one?

    The leader says Allow, and the node answers; or it answers itself.
    """

    number: int
    request: WireRequest
    url_path: str


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The client of this request has left."""

    number: int


class Ending(msgspec.Struct, frozen=True, array_like=True, tag="ending"):
    """A body is about to end; its last bytes wait for `MayEnd`, half a second at most."""

    number: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A body that was started has ended; `complete` when every byte was handed over."""

    number: int
    delivered_bytes: int
    complete: bool


class BodyState(msgspec.Struct, frozen=True, array_like=True):
    """How far a body is. `blocked`: its client takes nothing more at present.

    `shut`: its client's receive window was shut nearly all the time since the last look, so that
    what arrives is what its program reads.
    """

    number: int
    sent_bytes: int
    delivered_bytes: int
    blocked: bool
    shut: bool = False


class ProgressReport(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Told four times a second: the bodies that moved, and what left the node.

    `small` counts what was served without asking since the last time: URL path, times, bytes.
    `small_whole` says of each how many were whole files; an older node leaves it out.
    `flying_bytes` of `sent_bytes_total` have not arrived yet, those of bodies that are over
    included; None from a node that does not tell. `at_s` is when all this was so by the machine's
    clock, which is good for differences only; 0: as it is heard.
    """

    bodies: tuple[BodyState, ...] = ()
    goodput_bytes_s: float = 0.0
    link_busy: bool = False
    small: tuple[tuple[str, int, int], ...] = ()
    connections: int = 0
    connections_total: int = 0
    sent_bytes_total: int = 0
    flying_bytes: int | None = None
    at_s: float = 0.0
    small_whole: tuple[int, ...] = ()


class Parting(msgspec.Struct, frozen=True, array_like=True, tag="parting"):
    """This node finishes what it sends and takes nothing new: it will not be back."""


class Handover(msgspec.Struct, frozen=True, array_like=True, tag="handover"):
    """The tickets that wait of those which this node gave while it led itself.

    They have their places before their clients ask, so nobody is told one that grows by them.
    """

    tickets: tuple[WireTicket, ...]


class FindDigests(msgspec.Struct, frozen=True, array_like=True, tag="find-digests"):
    """A node wants a file's digests."""

    number: int
    file: WireFile


# -- what the leader says -----------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The leader's answer to Hello. Leaders follow each other with growing epochs."""

    epoch: int
    version: int = VERSION


class Terms(msgspec.Struct, frozen=True, array_like=True, tag="terms"):
    """What a node may do by itself, until told otherwise.

    Files below `small_below_bytes` are served without asking while `small_free`, and larger ones
    that leave in one write while `brief_free`; `rules` are the rules for files as JSON;
    `bandwidth_bytes_s` is the cap that all nodes of the machine share (None: no cap).
    """

    small_below_bytes: int
    small_free: bool
    rules: bytes
    bandwidth_bytes_s: float | None
    brief_free: bool = False
    #: Whether every request is to be judged, by a node that does not know who is blocked.
    judge_all: bool = False
    #: The networks that are blocked: their requests are to be judged, and no others.
    blocked: tuple[str, ...] = ()
    #: How many large downloads this node may run while there is no leader.
    alone: int = 0
    #: What it then decides with: the keys of tickets, newest first (name and derived secret), and
    #: the policy with its settings as JSON. Empty from a leader of before.
    keys: tuple[tuple[str, bytes], ...] = ()
    policy: str = ""
    settings: bytes = b""


class Proofs(msgspec.Struct, frozen=True, array_like=True, tag="proofs"):
    """For a machine that passes on requests of its admin page: who may send a large body.

    SHA-256, in hexadecimal digits, of every API token and login that holds; None: it is not known.
    """

    digests: tuple[str, ...] | None


class Respond(msgspec.Struct, frozen=True, array_like=True, tag="respond"):
    """Answer the request whole."""

    number: int
    status: int
    headers: Fields
    body: bytes
    close: bool = False


class Allow(msgspec.Struct, frozen=True, array_like=True, tag="allow"):
    """The request that was to be judged may be answered."""

    number: int


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Send the header of an answer whose body follows in pieces."""

    number: int
    status: int
    headers: Fields
    length: int | None
    more: bool = True


class Write(msgspec.Struct, frozen=True, array_like=True, tag="write"):
    """A piece of that body."""

    number: int
    data: bytes


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """The end of that body."""

    number: int


class Drip(msgspec.Struct, frozen=True, array_like=True, tag="drip"):
    """Hold the client with one header line."""

    number: int
    status: int
    name: bytes
    value: bytes


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Cut the connection of this request; `reason` is for the log."""

    number: int
    reason: str = ""


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start the planned body, with these fields added to its header.

    Bodies of one download bear the same number as their `share` of the line. For the access log:
    how long it waited, and as which priority class. `counts_body`: while it is paused, only bytes
    of the body keep its program from giving up.
    """

    number: int
    headers: Fields
    share: int = 0
    waited_s: float = 0.0
    priority_class: str = ""
    counts_body: bool = False


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Send nothing more of this body for now."""

    number: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Go on with it; in the `background`, with what the others leave of the line, or in front."""

    number: int
    background: bool = False


class MayEnd(msgspec.Struct, frozen=True, array_like=True, tag="may_end"):
    """The last bytes of a body may leave: it is on record that its ticket is used."""

    number: int


class Digests(msgspec.Struct, frozen=True, array_like=True, tag="digests"):
    """The answer to FindDigests; None: the leader does not know them, hash it yourself."""

    number: int
    digests: WireDigests | None


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """All is finished: the node may stop."""


FromNode = (
    Hello
    | Enter
    | Ask
    | Administer
    | Register
    | Judge
    | Gone
    | Ending
    | Ended
    | Parting
    | ProgressReport
    | Handover
    | FindDigests
)
FromLeader = (
    Welcome
    | Terms
    | Proofs
    | Respond
    | Allow
    | Begin
    | Write
    | Finish
    | Drip
    | Cut
    | Start
    | Pause
    | Resume
    | MayEnd
    | Digests
    | Leave
)

_encoder = msgspec.msgpack.Encoder()
_split = msgspec.msgpack.Decoder(list[msgspec.Raw])
_look = msgspec.msgpack.Decoder()
_node_frame: msgspec.msgpack.Decoder[list[FromNode]] = msgspec.msgpack.Decoder(list[FromNode])
_node_one: msgspec.msgpack.Decoder[FromNode] = msgspec.msgpack.Decoder(FromNode)
_leader_frame: msgspec.msgpack.Decoder[list[FromLeader]] = msgspec.msgpack.Decoder(list[FromLeader])
_leader_one: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)
_NODE_TAGS = frozenset(kind.__struct_config__.tag for kind in FromNode.__args__)
_LEADER_TAGS = frozenset(kind.__struct_config__.tag for kind in FromLeader.__args__)


def encode_frame(messages: Iterable[FromNode | FromLeader]) -> bytes:
    """A frame of these messages, in their order, without its length."""
    return _encoder.encode(list(messages))


def decode_from_node(frame: bytes) -> list[FromNode]:
    """The messages of a node's frame; unknown kinds are left out. Raises BadFrame."""
    try:
        return _node_frame.decode(frame)
    except msgspec.DecodeError:
        return [_one(_node_one, raw) for raw in _known(frame, _NODE_TAGS)]


def decode_from_leader(frame: bytes) -> list[FromLeader]:
    """The messages of a leader's frame; unknown kinds are left out. Raises BadFrame."""
    try:
        return _leader_frame.decode(frame)
    except msgspec.DecodeError:
        return [_one(_leader_one, raw) for raw in _known(frame, _LEADER_TAGS)]


def _known(frame: bytes, tags: frozenset[object]) -> list[msgspec.Raw]:
    """The messages of kinds that this version knows, each still encoded."""
    try:
        messages = _split.decode(frame)
        found = []
        for raw in messages:
            message = _look.decode(raw)
            if not isinstance(message, list) or not message or not isinstance(message[0], str):
                raise BadFrame("A message of the cluster does not begin with its kind.")
            if message[0] in tags:
                found.append(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"A frame of the cluster cannot be read: {error}.") from error
    return found


def _one(decoder: msgspec.msgpack.Decoder[_Kind], raw: msgspec.Raw) -> _Kind:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"A message of the cluster cannot be read: {error}.") from error

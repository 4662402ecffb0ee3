"""The seam: an admitted body is handed to the mover, where a mover asked for it.

`MoverAdmission` stands before the gate of `server.admission`, which decides as always. What a mover
cannot send stays with the start that it was given: several ranges at once, and requests that came
by no trusted mover.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..files.body_start import FileStart
from ..files.transfer import (
    Admission,
    BodyPlan,
    Representation,
    StartBody,
    Transfer,
    TransferListener,
)
from ..http.answers import Header
from ..http.clock import Clock
from ..http.request import Request
from .authorize import AskingConnection
from .found_again import FoundConnection, KeptBody, kept_body
from .movers import FIELDS, orders, range_of, read_mover
from .moves import MovedOn, Moves
from .origin import OriginStore

#: The mover makes these itself, of the file that it sends. As `server.files` spells them.
_OF_THE_MOVER = frozenset({b"Accept-Ranges", b"Content-Range", b"Last-Modified"})


def one_range_only(request: Request) -> None:
    """No mover sends several ranges: the whole file is an answer, too (RFC 9110, 14.2)."""
    if b"," in request.headers.get(b"range", b""):
        without = {name: value for name, value in request.headers.items() if name != b"range"}
        request.headers = without


@dataclass
class MoverAdmission:
    """Implements `transfer.Admission` around `inner`.

    `is_current` says whether a file is still the one that was planned; `again` answers a request
    whose file was replaced. `rate_bytes_s` is what one body may take; None: no limit. `write_down`
    keeps a body that can be found again after a restart. `origin` has files besides.
    """

    clock: Clock
    inner: Admission
    moves: Moves
    is_current: Callable[[Representation], bool]
    again: Callable[[Request], None]
    rate_bytes_s: Callable[[], float | None]
    write_down: Callable[[KeptBody], None] = lambda body: None
    origin: OriginStore | None = None

    def __post_init__(self) -> None:
        self.is_plain = self.inner.is_plain
        self.admit_again = self.inner.admit_again
        self.count_again = self.inner.count_again
        self.has_lease = self.inner.has_lease

    def admit_small(self, request: Request, rep: Representation, body_bytes: int) -> bool:
        """See `transfer.Admission`. What the mover sends in any case has a lease."""
        moved = isinstance(request.connection, AskingConnection | FoundConnection)
        return not moved and self.inner.admit_small(request, rep, body_bytes)

    def enter(
        self, request: Request, rep: Representation, plan: BodyPlan, start: StartBody
    ) -> None:
        """See `transfer.Admission`."""
        where = self.mover_of(request, rep)
        if where is not None:
            self.moves.next_asked(where)
        if where is None or len(plan.ranges) != 1:
            self.inner.enter(request, rep, plan, start)
            return
        just_compared = isinstance(start, FileStart) and start.just_compared
        moved = MoverStart(self, request, rep, plan, where, just_compared)
        if plan.status == 206:
            # The mover makes 206 of it.
            plan = replace(plan, held_status=200)
        self.inner.enter(request, rep, plan, moved)
        moved.just_compared = False

    def mover_of(self, request: Request, rep: Representation) -> MovedOn | None:
        """The mover that passed this request on, if it can send what is asked for."""
        several = b"," in request.headers.get(b"range", b"")
        # A name with a control character would not be one line in a field.
        if several or not request.by_proxy or re.search(rb"[\x00-\x1f\x7f]", rep.path):
            return None
        return read_mover(request.header(FIELDS.mover))


@dataclass(slots=True)
class MoverStart:
    """Starts a body elsewhere; a `transfer.StartBody`. `just_compared`: see `FileStart`.

    The mover is told to send it, or the client to fetch it at the origin, which reports no end.

    The ticket of the download counts as used when the body has ended, not before: a body takes as
    long as its client, and a gate that is restarted meanwhile must not cost a client its place.
    """

    admission: MoverAdmission
    request: Request
    rep: Representation
    plan: BodyPlan
    where: MovedOn
    just_compared: bool = False

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """See `StartBody`."""
        admission, request, plan = self.admission, self.request, self.plan
        moves = admission.moves
        target = request.path.decode("latin-1")
        connection = request.connection
        found = connection.body if isinstance(connection, FoundConnection) else None
        body = moves.prepare(listener, plan.body_bytes, target, found.lease if found else "")
        if not (found or self.just_compared or admission.is_current(self.rep)):
            # The mover sends what is there now: the request is planned anew, under its lease.
            moves.end(body, 0, complete=False)
            admission.clock.callLater(0, admission.again, request)
            return body
        acked_bytes = moves.hand_over(body, self.where, found.acked_bytes if found else None)
        rate_bytes_s = admission.rate_bytes_s()
        if rate_bytes_s is not None and self.where.mover == "nginx":
            body.rate_bytes_s = rate_bytes_s
        name = body.connection.where.socket if body.connection is not None else None
        if acked_bytes is not None and name is not None:
            admission.write_down(kept_body(request, body.lease, name, acked_bytes))
        place, tag, origin = self.rep.url_path, "", admission.origin
        if origin is not None:
            if self.where.assumed_bytes_s:
                url = (b"Location", origin.url_of(self.rep, body.lease).encode("ascii"))
                request.respond(302, (*headers, url, (b"Cache-Control", b"no-store")))
                return body
            place, tag = origin.place_of(self.rep), origin.tag_of(self.rep)
        fields = [field for field in plan.headers if field[0] not in _OF_THE_MOVER]
        fields += [*headers, *orders(self.rep, self.where, rate_bytes_s, place)]
        fields += [(FIELDS.range, range_of(plan)), (FIELDS.lease, body.lease.encode("ascii"))]
        if tag:
            fields.append((FIELDS.range_tag, tag.encode("latin-1")))
        request.respond(200, fields, b"")
        return body

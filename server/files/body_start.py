"""From a plan to bytes: how a body begins once the admission says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...policies.contract import BRIEF_BYTES
from ..http.answers import Header
from ..http.request import Request
from .disk import Disk
from .openfile import OpenFile, Piece, Unreadable
from .pacer import Pacer, Share
from .sender import BodySender
from .touched import Touched
from .transfer import BodyPlan, Transfer, TransferListener


class WholeTransfer(Transfer):
    """A body that was sent in one write: it is over before it could be paused."""

    def __init__(self, total_bytes: int) -> None:
        self.sent_bytes = self.total_bytes = total_bytes
        self.blocked = False

    def abort(self, reason: str) -> None:
        """Over already."""


class OnNoLease:
    """A short body that goes without a lease: only what is on its way is of interest."""

    def __init__(self, request: Request) -> None:
        self._connection = request.connection
        self.share: Share | None = Share(address=request.client_address)

    def may_end(self, go_on: Callable[[], None]) -> bool:
        """See `TransferListener`."""
        return True

    def moves(self) -> None:
        """See `TransferListener`."""

    def transfer_done(self, transfer: Transfer, complete: bool) -> None:
        """See `TransferListener`."""
        self._connection.factory.answers.add_body(self._connection, transfer.flying_bytes)


def _nothing() -> None:
    """A sender is about to ask for itself."""


@dataclass(slots=True)
class FileStart:
    """Starts a body from a file; see `transfer.StartBody`.

    Where the file was written over in place while the request waited, the request is planned anew
    by `plan_anew`. It is refused if that happens again.
    """

    pacer: Pacer
    request: Request
    file: OpenFile
    plan: BodyPlan
    pieces: Sequence[Piece]
    touched: Touched
    disk: Disk
    plan_anew: Callable[[Request], None] | None
    #: The file was compared in this very turn; not so once the body had to wait.
    just_compared: bool = False

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send the header, then let a sender have the connection."""
        plan = self.plan
        unchanged = self.just_compared or self.file.unchanged()
        if unchanged and plan.body_bytes <= BRIEF_BYTES:
            body = unreadable = None
            try:
                body = self.file.read_pieces_at_hand(self.pieces)
            except Unreadable as error:
                unreadable = error
            if body is None and unreadable is None:
                # It would have to wait for the disk, or was written to while it was read.
                unchanged = self.file.unchanged()
            elif listener.may_end(_nothing):
                return self._send_at_once(listener, headers, body, unreadable)
        if not unchanged:
            return self._start_anew(listener)
        sender = BodySender(
            self.request,
            self.file,
            self.pieces,
            plan.body_bytes,
            listener,
            self.pacer,
            self.touched.still,
            self.disk,
        )
        self.request.begin(plan.status, (*plan.headers, *headers), plan.body_bytes)
        sender.start()
        return sender

    def _start_anew(self, listener: TransferListener) -> Transfer:
        """Give the start back, then plan the present content: the request joins its own lease."""
        transfer = WholeTransfer(0)
        listener.transfer_done(transfer, False)
        if self.plan_anew is None:
            self._refuse()
        else:
            self.plan_anew(self.request)
        return transfer

    def _send_at_once(
        self,
        listener: TransferListener,
        headers: Sequence[Header],
        body: bytes | None,
        unreadable: Unreadable | None,
    ) -> Transfer:
        """A short body goes with its header in one write: cheaper than any sender."""
        if body is None:
            self._refuse(unreadable)
        else:
            self.request.respond(self.plan.status, (*self.plan.headers, *headers), body)
        transfer = WholeTransfer(len(body or b""))
        listener.transfer_done(transfer, body is not None)
        return transfer

    def _refuse(self, unreadable: Unreadable | None = None) -> None:
        """What was planned is gone."""
        if self.request.dripped:
            self.request.abort()
        elif unreadable is not None:
            self.request.refuse(
                unreadable.status, unreadable.code, str(unreadable), [(b"Retry-After", b"60")]
            )
        else:
            self.request.refuse(
                503,
                "file-changing",
                "The file was replaced while you waited; ask again for the new one.",
                [(b"Retry-After", b"1")],
            )

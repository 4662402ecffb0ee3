"""From a plan to bytes: how a body begins once the admission says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...policies.contract import BRIEF_BYTES
from ..http.answers import Header
from ..http.request import Request
from .disk import Disk
from .openfile import OpenFile, Unreadable
from .pacer import Pacer, Share
from .sender import BodySender, Piece
from .touched import Touched
from .transfer import BodyPlan, Transfer, TransferListener


class WholeTransfer(Transfer):
    """A body that was sent in one write: it is over before it could be paused."""

    __slots__ = ("blocked", "sent_bytes", "total_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.sent_bytes = total_bytes
        self.total_bytes = total_bytes
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
        self._connection.factory.answers.add_body(self._connection, transfer)


def _nothing() -> None:
    """A sender is about to ask for itself."""


class FileStart:
    """Starts a body from a file; see `transfer.StartBody`.

    Where the file was written over in place while the request waited, the request is planned anew.
    It is refused if that happens again.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_pacer",
        "_pieces",
        "_plan",
        "_plan_anew",
        "_request",
        "_touched",
        "just_compared",
    )

    def __init__(
        self,
        pacer: Pacer,
        request: Request,
        file: OpenFile,
        plan: BodyPlan,
        pieces: list[Piece],
        touched: Touched,
        disk: Disk,
        plan_anew: Callable[[Request], None] | None,
    ) -> None:
        self._pacer = pacer
        self._request = request
        self._file = file
        self._plan = plan
        self._pieces = pieces
        self._touched = touched
        self._disk = disk
        self._plan_anew = plan_anew
        #: The file was compared in this very turn; not so once the body had to wait.
        self.just_compared = False

    def __call__(self, listener: TransferListener, headers: Sequence[Header] = ()) -> Transfer:
        """Send the header, then let a sender have the connection."""
        plan = self._plan
        unchanged = self.just_compared or self._file.unchanged()
        if unchanged and plan.body_bytes <= BRIEF_BYTES:
            body = unreadable = None
            try:
                body = self._file.read_pieces_at_hand(self._pieces)
            except Unreadable as error:
                unreadable = error
            if body is None and unreadable is None:
                # It would have to wait for the disk, or was written to while it was read.
                unchanged = self._file.unchanged()
            elif listener.may_end(_nothing):
                return self._send_at_once(listener, headers, body, unreadable)
        if not unchanged:
            return self._start_anew(listener)
        sender = BodySender(
            self._request,
            self._file,
            self._pieces,
            plan.body_bytes,
            listener,
            self._pacer,
            self._touched.still,
            self._disk,
        )
        self._request.begin(plan.status, (*plan.headers, *headers), plan.body_bytes)
        sender.start()
        return sender

    def _start_anew(self, listener: TransferListener) -> Transfer:
        """Give the start back, then plan the present content: the request joins its own lease."""
        transfer = WholeTransfer(0)
        listener.transfer_done(transfer, False)
        if self._plan_anew is None:
            self._refuse()
        else:
            self._plan_anew(self._request)
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
            self._request.respond(self._plan.status, (*self._plan.headers, *headers), body)
        transfer = WholeTransfer(len(body or b""))
        listener.transfer_done(transfer, body is not None)
        return transfer

    def _refuse(self, unreadable: Unreadable | None = None) -> None:
        """What was planned is gone."""
        if self._request.dripped:
            self._request.abort()
        elif unreadable is not None:
            self._request.refuse(
                unreadable.status, unreadable.code, str(unreadable), [(b"Retry-After", b"60")]
            )
        else:
            self._request.refuse(
                503,
                "file-changing",
                "The file was replaced while you waited; ask again for the new one.",
                [(b"Retry-After", b"1")],
            )

"""A download's way into a multicast session, and back to unicast.

The first mirror is asked for the whole file with the capability in a header field; the server
either answers as ever, or with an offer. While a session is received that mirror is asked for
nothing, other mirrors go on (from the far end); what is missing afterwards the download fetches as
ranges, under its one lease. No request is sent that a plain download would not send.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from client.fetch.options import Emit, SourceReport
from client.fetch.sources import Source
from client.fetch.workers import Opening, Worker
from client.net import answers as session
from client.net.answers import Body, Fields
from client.net.errors import DownloadFailed, LocalProblem
from client.schedule.meter import Meter
from client.storage.output import UNKNOWN_SIZE
from protocol.errors import ProtocolError
from protocol.fec import available_schemes
from protocol.session import HEADER_NAME, Capability, Offer, decode_offer, format_capability

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.multicast.reception import Outcome, Reception
    from client.net.http import Connection

_MOST_OFFER_BYTES = 1 << 20
#: How long a server may hold the request: its window is 15 s by default.
_PATIENCE_S = 30.0
#: How long a finished download waits until it could tell the sender that it is done.
_FAREWELL_S = 1.0


class MulticastJoin:
    """One download's `source` as a multicast sender. `folder` is where the file goes.

    `set_up(size_bytes)` makes the download's sink and board; `tell` takes its events.
    """

    def __init__(
        self,
        download: Download,
        source: Source,
        folder: Path,
        set_up: Callable[[int], None],
        tell: Emit,
    ) -> None:
        self._download = download
        self._set_up = set_up
        self._emit = tell
        self._source = source
        self._folder = folder if folder.is_dir() else Path(tempfile.gettempdir())
        self._asked_on: Connection | None = None
        self._over = False
        self._offer: Offer | None = None
        self._reception: Reception | None = None
        self._meter = Meter()
        self._seconds = 0.0
        self._began_s = 0.0
        self._closing_until: float | None = None
        self.received_bytes = 0

    # -- asking --------------------------------------------------------------------------------

    def takes(self, worker: Worker) -> bool:
        """Whether this worker is ours for now; asks when it is time."""
        if self._over or worker.source is not self._source or worker.source.last_resort:
            return False
        connection = worker.connection
        if worker.lane != worker.source.lanes[0]:
            return self._offer is None
        if connection is None or connection is self._asked_on:
            return True
        if self._download.asking.proxy(worker.source.at) is not None:
            # Groups do not reach through proxies.
            self.give_up()
            return False
        if not connection.busy:
            self._asked_on = connection
            worker.ask_offer(OfferTaker(worker, self), (HEADER_NAME, self._capability()))
        return True

    def _capability(self) -> str:
        options = self._download.options
        interface = options.multicast_interface or ""
        families = ("4", "6") if not interface else ("6",) if ":" in interface else ("4",)
        rate = options.limit_bytes_s or float("inf")
        return format_capability(
            Capability((*available_schemes(), "paper"), rate, "organisation", families)
        )

    def patient(self, worker: Worker) -> bool:
        """Whether silence on this connection means that the server holds our request."""
        return worker.connection is not None and worker.connection is self._asked_on

    @property
    def patience_s(self) -> float:
        """How long the server may hold the request."""
        return max(_PATIENCE_S, self._download.options.timeout_s)

    def give_up(self) -> None:
        """No (more) multicast for this download."""
        self._over = True
        self._asked_on = None

    # -- receiving -----------------------------------------------------------------------------

    def offered(self, worker: Worker, body: bytes) -> None:
        """An offer came: join, or say why not and go on as ever."""
        download, source = self._download, self._source
        self._asked_on = None
        try:
            offer = decode_offer(body)
            self._check(offer)
            source.validator = source.validator or offer.etag
            source.size_bytes = offer.size_bytes
            if download.board is None:
                self._set_up(offer.size_bytes)
            self._join(worker, offer)
        except ProtocolError as error:
            self._decline(worker, str(error))
        except LocalProblem as problem:
            if download.sink is None:
                download.fail(problem)
            else:
                self._decline(worker, str(problem))
        except DownloadFailed as problem:
            download.fail(problem)

    def _check(self, offer: Offer) -> None:
        download = self._download
        known = download.sink.size_bytes if download.sink is not None else UNKNOWN_SIZE
        if known not in (UNKNOWN_SIZE, offer.size_bytes):
            raise ProtocolError("the multicast offer is for a file of another size")
        if self._source.validator is not None and self._source.validator != offer.etag:
            raise ProtocolError("the multicast offer is for another version of the file")

    def _decline(self, worker: Worker, text: str) -> None:
        self.give_up()
        self._tell("declined", f"not used, {text}")
        worker.pump()

    def _join(self, worker: Worker, offer: Offer) -> None:
        from client.multicast.channel import HttpChannel
        from client.multicast.reception import Reception

        download, layout = self._download, offer.layout()
        sink = download.sink
        assert sink is not None
        self._reception = Reception(
            download.network,
            offer,
            HttpChannel(download.network, download.asking, worker.source.at),
            self._write,
            self._folder,
            download.options.multicast_interface or "",
            self._ended,
            have=lambda block: sink.have.covers(
                layout.offset(block), layout.offset(block) + layout.length(block)
            ),
        )
        self._offer = offer
        self._source.receiving = True
        self._began_s = download.network.now()
        self._meter.start(self._began_s)
        self._tell(
            "joined", f"joined group {offer.group} port {offer.port}, code {offer.fec.scheme}"
        )
        self._reception.start()

    def _write(self, offset: int, data: memoryview) -> None:
        download = self._download
        assert download.sink is not None
        assert download.board is not None
        now = download.network.now()
        # The offer came from the source: should its hashes be wrong, it is the one to blame.
        download.sink.write_at(offset, data, self._source.number)
        if download.first_byte_s is None:
            download.first_byte_s = now
        self.received_bytes += len(data)
        self._meter.add(len(data), now)
        download.board.filled(offset, offset + len(data))
        if download.board.done:
            download.wake()

    def tick(self, now: float) -> None:
        """Send the other mirrors where the session will not have come by the time they end."""
        board, reception, offer = self._download.board, self._reception, self._offer
        if board is None or reception is None or offer is None:
            return
        rates = [lane.rate(now) or 0.0 for lane in board.lanes.values() if lane.present]
        others = sum(rates)
        if not others or not hasattr(reception, "receiver"):
            return
        share = offer.rate_bytes_s / (offer.rate_bytes_s + others)
        front = reception.receiver.front_bytes
        board.floor = front + int((offer.size_bytes - front) * share)

    def rate_bytes_s(self, now: float) -> float:
        """What comes by multicast now."""
        return (self._meter.rate(now) or 0.0) if self._reception is not None else 0.0

    # -- the end -------------------------------------------------------------------------------

    def closing(self, now: float) -> bool:
        """All bytes are here: whether the sender is still to be told, for a moment."""
        if self._reception is None:
            return False
        if self._closing_until is None:
            self._closing_until = now + _FAREWELL_S
            self._reception.settle()
        return self._reception is not None and now < self._closing_until

    def stop(self) -> None:
        """The download is over, or begins anew."""
        self.give_up()
        reception, self._reception = self._reception, None
        self._source.receiving = False
        if reception is not None:
            reception.stop()

    def _ended(self, outcome: Outcome) -> None:
        self._seconds = outcome.seconds
        if self._reception is None:
            return
        self._reception = None
        self.give_up()
        self._source.receiving = False
        download = self._download
        if download.board is not None:
            download.board.floor = 0
        if outcome.problem is not None:
            problem = outcome.problem
            if not isinstance(problem, DownloadFailed):
                problem = LocalProblem(str(problem))
            download.fail(problem)
            return
        counters = outcome.counters
        facts = f"{counters.datagrams} datagrams"
        for count, what in (
            (counters.overruns, "lost here"),
            (counters.bad_blocks, "blocks that did not verify"),
            (counters.forged, "forged"),
        ):
            if count:
                facts += f", {count} {what}"
        if outcome.repaired_bytes:
            facts += f", {outcome.repaired_bytes} bytes repaired"
        if outcome.reason is None:
            self._tell("done", f"complete, {facts}")
        else:
            self._tell("ended", f"{outcome.reason} ({facts}); the rest comes by unicast")
        for lane in self._source.lanes:
            worker = download.workers[lane]
            worker.connect()
            worker.pump()
        download.wake()

    def _tell(self, state: str, text: str) -> None:
        self._emit("multicast", {"state": state, "text": text})
        if state != "joined":
            self._download.notes.append(f"multicast: {text}")

    def report(self) -> tuple[SourceReport, ...]:
        """A line of the result, when something came."""
        offer = self._offer
        if offer is None or not self.received_bytes:
            return ()
        host = f"[{offer.group}]" if ":" in offer.group else offer.group
        seconds = self._seconds or self._download.network.now() - self._began_s
        rate = self.received_bytes / seconds if seconds > 0 else 0.0
        url = f"udp://{host}:{offer.port}"
        return (SourceReport(url, self.received_bytes, rate, 0.0, 1, 0, 0, 0.0, None),)


class OfferTaker(Opening):
    """Takes the answer to a request that allowed an offer: the offer, or what a mirror says."""

    def __init__(self, worker: Worker, joining: MulticastJoin) -> None:
        super().__init__(worker, None, None)
        self._joining = joining
        self._offer: bytearray | None = None

    def head(self, status: int, fields: Fields) -> None:
        """Called by the connection."""
        if session.is_offer(status, fields):
            self._offer = bytearray()
        else:
            super().head(status, fields)

    def begin(self, body: Body, fields: Fields) -> None:
        """No offer but the file: as ever."""
        self._joining.give_up()
        sink = self.worker.download.sink
        if sink is not None and sink.have.total:
            # Some of it is here: ranges are cheaper than all of it again.
            self.worker.download.broken_off(self.worker)
            return
        super().begin(body, fields)

    def body(self, data: memoryview) -> None:
        """Called by the connection."""
        if self._offer is None:
            super().body(data)
        elif len(self._offer) <= _MOST_OFFER_BYTES:
            self._offer += data

    def end(self) -> None:
        """Called by the connection."""
        if self._offer is None:
            super().end()
            return
        self._joining.offered(self.worker, bytes(self._offer))
        self.worker.answered()

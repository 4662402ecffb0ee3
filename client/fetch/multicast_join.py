"""A download's way into a multicast session, and back to unicast.

The first mirror is asked for the whole file with the capability in a header field; the server
either answers as usual, or with an offer. While a session gathers its members the file is fetched
as usual, from its far end; while it is received that mirror is asked for nothing, and other mirrors
go on from the far end. What is missing afterwards the download fetches as ranges, under its one
lease. Should the sender fall silent, the server is asked for multicast once more when it is back:
then a cohort forms again. No request is sent that a plain download would not send.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...protocol.errors import ProtocolError
from ...protocol.fec import available_schemes, scheme_for
from ...protocol.intervals import IntervalSet, Span
from ...protocol.session import HEADER_NAME, Capability, Offer, decode_offer, format_capability
from ..net import answers as session
from ..net.answers import Body, Fields
from ..net.errors import DownloadFailed, LocalProblem
from ..schedule.meter import Meter
from ..schedule.segments import UNKNOWN_SIZE
from .events import SessionJoined, SessionLeft, ValidatorsKnown
from .options import SourceReport
from .state import Mirror, MirrorState, Serves
from .workers import AnswerTaker, Driver, FileBytes, Worker

if TYPE_CHECKING:
    from ..multicast.reception import Reception, ReceptionOutcome
    from ..net.http import Connection


class MulticastJoin:
    """One download's `mirror` as a multicast sender. `folder` is where the file goes."""

    def __init__(self, host: Driver, mirror: Mirror, folder: Path) -> None:
        self._host = host
        self._mirror = mirror
        if not folder.is_dir():
            import tempfile  # loading it delays the first request

            folder = Path(tempfile.gettempdir())
        self._folder = folder
        self._asked_on: Connection | None = None
        self._over = False
        self._offer: Offer | None = None
        #: The session gathers its members: the mirror is asked for parts meanwhile.
        self._gathering = False
        self._again = 0
        self._reception: Reception | None = None
        self._choice: Callable[[IntervalSet], Span | None] | None = None
        self._meter = Meter()
        self._seconds = 0.0
        self._began_s = 0.0
        self._closing_until: float | None = None
        self.received_bytes = 0

    # -- asking ----------------------------------------------------------------------------------

    def takes(self, worker: Worker) -> bool:
        """Whether this worker is ours for now; asks when it is time."""
        mirror = self._mirror
        if self._over or worker.mirror is not mirror or mirror.serves is Serves.LAST_RESORT:
            return False
        if self._gathering:
            return False
        connection = worker.connection
        if worker.lane != mirror.lanes[0]:
            return self._offer is None
        if connection is None or connection is self._asked_on:
            return True
        if self._host.requests.proxy(worker.mirror.at) is not None:
            # Groups do not reach through proxies.
            self.give_up()
            return False
        if not connection.busy:
            self._asked_on = connection
            worker.ask_offer(OfferTaker(worker, self), (HEADER_NAME, self._capability()))
            # What a session needs is loaded while the server holds the request.
            try:
                from ..multicast import reception  # noqa: F401
            except ImportError as fault:
                raise LocalProblem(f"--multicast needs the package {fault.name}") from None
        return True

    def _capability(self) -> str:
        options = self._host.state.options
        interface = options.multicast_interface or ""
        families = ("4", "6") if not interface else ("6",) if ":" in interface else ("4",)
        rate = options.limit_bytes_s or float("inf")
        return format_capability(Capability(available_schemes(), rate, "organisation", families))

    def patient(self, worker: Worker) -> bool:
        """Whether silence on this connection means that the server holds our request."""
        return worker.connection is not None and worker.connection is self._asked_on

    @property
    def patience_s(self) -> float:
        """How long the server may hold the request; its window is 15 s by default."""
        return max(30.0, self._host.state.options.timeout_s)

    def give_up(self) -> None:
        """No (more) multicast for this download."""
        self._over = True
        self._asked_on = None

    # -- receiving -----------------------------------------------------------------------------

    def offered(self, worker: Worker, body: bytes) -> None:
        """An offer came: join, or say why not and go on as usual."""
        host, mirror = self._host, self._mirror
        self._asked_on = None
        try:
            offer = decode_offer(body)
            self._check(offer)
            validators = {mirror.number: mirror.validator or offer.etag}
            host.handle(ValidatorsKnown(validators, offer.size_bytes))
            if host.intake is None:
                host.set_up(offer.size_bytes)
            self._join(worker, offer)
        except ProtocolError as error:
            self._decline(worker, str(error))
        except LocalProblem as problem:
            if host.intake is None:
                host.fail(problem)
            else:
                self._decline(worker, str(problem))
        except DownloadFailed as problem:
            host.fail(problem)

    def _check(self, offer: Offer) -> None:
        # Raises before a group is joined: block hashes may come by URL, after that.
        scheme_for(offer.fec)
        if self._host.state.size_bytes not in (UNKNOWN_SIZE, offer.size_bytes):
            raise ProtocolError("the multicast offer is for a file of another size")
        if self._mirror.validator is not None and self._mirror.validator != offer.etag:
            raise ProtocolError("the multicast offer is for another version of the file")

    def _decline(self, worker: Worker, text: str) -> None:
        self.give_up()
        self._tell("declined", f"not used, {text}")
        worker.ask_anew()

    def _join(self, worker: Worker, offer: Offer) -> None:
        from ..multicast.reception import HttpChannel, Reception

        host, layout = self._host, offer.layout()
        assert host.intake is not None
        writer = host.intake.writer
        self._reception = Reception(
            host.network,
            offer,
            HttpChannel(host.network, host.requests, worker.mirror.at),
            self._write,
            self._folder,
            host.state.options.multicast_interface or "",
            self._ended,
            have=lambda block: writer.have.covers(
                layout.offset(block), layout.offset(block) + layout.length(block)
            ),
            limit_bytes_s=host.state.options.limit_bytes_s or float("inf"),
        )
        self._offer = offer
        self._gathering = offer.meanwhile
        if self._gathering:
            self._fetch_far_end()
        else:
            host.handle(SessionJoined(self._mirror.number))
        self._began_s = host.network.now()
        self._meter.start(self._began_s)
        self._tell(
            "joined", f"joined group {offer.group} port {offer.port}, code {offer.fec.scheme}"
        )
        self._reception.start()
        if self._gathering:
            worker.pump()

    def _fetch_far_end(self) -> None:
        """Have what is fetched meanwhile taken from where the session would come last."""
        segments, size = self._host.state.segments, self._host.state.size_bytes
        if segments is None or segments.choose is not None:
            return
        step = max(1 << 20, size // 16)

        def last(free: IntervalSet) -> Span | None:
            start, end = max(free, default=(0, 0))
            return (max(start, end - step), end) if end else None

        segments.choose = self._choice = last

    def _stay_no_more(self) -> None:
        self._gathering = False
        segments = self._host.state.segments
        if segments is not None and segments.choose is self._choice:
            segments.choose = None

    def _write(self, offset: int, data: memoryview) -> None:
        intake = self._host.intake
        assert intake is not None
        # The offer came from the mirror: should its hashes be wrong, it is the one to blame.
        intake.fill(self._mirror.number, offset, data)
        self.received_bytes += len(data)
        self._meter.add(len(data), self._host.network.now())

    def tick(self, now: float) -> None:
        """Send the other mirrors where the session will not have come by the time they end."""
        segments, reception, offer = self._host.state.segments, self._reception, self._offer
        if segments is None or reception is None or offer is None:
            return
        if self._gathering:
            if hasattr(reception, "receiver") and reception.receiver.has_received:
                # The cohort stands: what was under way by unicast comes by the session.
                self._stay_no_more()
                self._host.handle(SessionJoined(self._mirror.number))
            return
        others = sum(lane.rate(now) or 0.0 for lane in segments.lanes.values() if lane.present)
        if not others or not hasattr(reception, "receiver"):
            return
        share = offer.rate_bytes_s / (offer.rate_bytes_s + others)
        front = reception.receiver.front_bytes
        segments.floor = front + int((offer.size_bytes - front) * share)

    def rate_bytes_s(self, now: float) -> float:
        return (self._meter.rate(now) or 0.0) if self._reception is not None else 0.0

    # -- the end -------------------------------------------------------------------------------

    def closing(self, now: float) -> bool:
        """All bytes are here: whether the sender is still to be told, for a moment."""
        if self._reception is None:
            return False
        if self._closing_until is None:
            self._closing_until = now + 1.0
            self._reception.settle()
        return self._reception is not None and now < self._closing_until

    def stop(self) -> None:
        """The download is over, or begins anew."""
        self.give_up()
        reception, self._reception = self._reception, None
        self._stay_no_more()
        if self._mirror.state is MirrorState.RECEIVING:
            self._host.handle(SessionLeft(self._mirror.number))
        if reception is not None:
            reception.stop()

    def _ended(self, outcome: ReceptionOutcome) -> None:
        self._seconds = outcome.seconds
        if self._reception is None:
            return
        self._reception = None
        vain = self._gathering
        self._stay_no_more()
        self.give_up()
        host = self._host
        if outcome.problem is not None:
            problem = outcome.problem
            if not isinstance(problem, DownloadFailed):
                problem = LocalProblem(str(problem))
            host.fail(problem)
            return
        facts = outcome.counters.words()
        if outcome.repaired_bytes:
            facts += f", {outcome.repaired_bytes} bytes repaired"
        if vain:
            self._tell("ended", "too few wanted it at the same time; it comes by unicast")
        elif outcome.reason is None:
            self._tell("done", f"complete, {facts}")
        else:
            self._tell("ended", f"{outcome.reason} ({facts}); the rest comes by unicast")
            self._ask_again(outcome.reason)
        host.handle(SessionLeft(self._mirror.number))

    def _ask_again(self, reason: str) -> None:
        """Whether the next request to the server may be answered with another session."""
        segments, size = self._host.state.segments, self._host.state.size_bytes
        lacking = segments is not None and segments.wanted.total > size / 4
        # How a session ends whose sender is gone.
        if lacking and reason.startswith("datagrams stopped") and self._again < 2:
            self._again += 1
            self._over, self._offer, self._asked_on = False, None, None

    def _tell(self, state: str, text: str) -> None:
        self._host.emit("multicast", {"state": state, "text": text})
        if state != "joined":
            self._host.state.notes.append(f"multicast: {text}")

    def report(self) -> tuple[SourceReport, ...]:
        """A line of the result, when something came."""
        offer = self._offer
        if offer is None or not self.received_bytes:
            return ()
        host = f"[{offer.group}]" if ":" in offer.group else offer.group
        seconds = self._seconds or self._host.network.now() - self._began_s
        rate = self.received_bytes / seconds if seconds > 0 else 0.0
        url = f"udp://{host}:{offer.port}"
        return (SourceReport(url, self.received_bytes, rate, 0.0, 1, 0, 0, 0.0, None),)


class OfferTaker:
    """Takes the answer to a request that allowed an offer: the offer, or what a mirror says."""

    def __init__(self, worker: Worker, joining: MulticastJoin) -> None:
        self._worker = worker
        self._joining = joining
        self._offer: bytearray | None = None
        self._plain = AnswerTaker(worker, FileInstead(worker, joining), None, None)

    def head(self, status: int, fields: Fields) -> None:
        if session.is_offer(status, fields):
            self._offer = bytearray()
        else:
            self._plain.head(status, fields)

    def body(self, data: memoryview) -> None:
        if self._offer is None:
            self._plain.body(data)
        elif len(self._offer) <= 1 << 20:
            self._offer += data

    def end(self) -> None:
        if self._offer is None:
            self._plain.end()
            return
        self._joining.offered(self._worker, bytes(self._offer))
        self._worker.answered()


class FileInstead(FileBytes):
    """Reads the file itself, which came where an offer was allowed."""

    def __init__(self, worker: Worker, joining: MulticastJoin) -> None:
        super().__init__(worker, None)
        self._joining = joining

    def begin(self, body: Body) -> None:
        self._joining.give_up()
        intake = self._worker.driver.intake
        if intake is not None and intake.writer.have.total:
            # Some of it is here: ranges are cheaper than all of it again.
            self._worker.driver.break_off(self._worker)
            return
        super().begin(body)

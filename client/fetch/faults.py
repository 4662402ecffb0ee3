"""What a mirror's fault means for the download: wait, try again, drop it, or start over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from client.fetch.breaks import Break, Fault, judge
from client.fetch.sources import Source
from client.net.answers import OutOfRange, Redirect
from client.net.errors import (
    AccessRefused,
    Corrupt,
    DownloadFailed,
    NetworkProblem,
    NotFound,
    WaitedTooLong,
)
from client.net.retry import Answer, Ask, Failed, GiveUp, Granted, HoldOn, Reason, WaitUntil
from client.net.urls import BadUrl

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.fetch.workers import RangeTaker, Worker

_FAILURES: Mapping[Reason, type[DownloadFailed]] = {
    Reason.NOT_FOUND: NotFound,
    Reason.REFUSED: AccessRefused,
    Reason.NETWORK: NetworkProblem,
    Reason.PROTOCOL: NetworkProblem,
    Reason.WAITED_TOO_LONG: WaitedTooLong,
}
#: When mirrors failed for several reasons, the first of these is what the user is told.
_TELLING = (Reason.WAITED_TOO_LONG, Reason.REFUSED, Reason.NETWORK, Reason.PROTOCOL)
_MOST_RESTARTS = 3


class Troubles:
    """One download's book of faults."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._restarts = 0
        self._reasons: list[tuple[Reason, str]] = []

    # -- heard from the workers ----------------------------------------------------------------

    def broke(self, worker: Worker, ended: Break, text: str) -> None:
        """The connection ended by itself."""
        source, download = worker.source, self._download
        verdict = judge(ended, single=source.single, cut_before=source.cut_bytes)
        if isinstance(verdict, Fault) or (not ended.served and download.options.max_failures <= 1):
            self.failed(worker, text, ended.permanent)
            return
        if ended.served == 0 and not verdict.single:
            source.cut_bytes = ended.answer_bytes
            source.most_bytes = verdict.most_bytes or source.most_bytes
            source.retries += 1
            download.emit("retry", {"url": source.url.text, "text": text, "seconds": 0.0})
        source.single = source.single or verdict.single
        download.again(worker)

    def failed(self, worker: Worker, text: str, permanent: bool) -> None:
        """The connection broke, or never came."""
        source = worker.source
        if worker.lane != source.lanes[0]:
            self.without(worker)
            return
        if permanent:
            self._reasons.append((Reason.NETWORK, text))
            self.drop(source, text)
            return
        self.told(worker, Failed(text))

    def told(self, worker: Worker, answer: Answer) -> None:
        """A mirror said no, later, or nothing; or (Granted) yes."""
        download, source = self._download, worker.source
        if worker.lane != source.lanes[0] and not isinstance(answer, Granted):
            # It gives no further connection: no reason to disturb the one that works.
            self.without(worker)
            return
        connection = worker.connection
        # What was told counts from when it arrived.
        now = connection.last_s if connection is not None else download.network.now()
        action = source.visit.answered(now, answer)
        match action:
            case HoldOn(connections):
                self._keep_within(worker, connections)
            case Ask():
                worker.hang_up()
                download.again(worker)
            case WaitUntil():
                self._wait(source, action)
            case GiveUp(reason, text):
                self._reasons.append((reason, text))
                self.drop(source, text)

    def without(self, worker: Worker) -> None:
        """A further connection that is not to be had: the first one works on."""
        worker.hang_up()
        if worker.lane in worker.source.lanes:
            worker.source.lanes.remove(worker.lane)
        self._download.expect()
        self._download.wake()

    def _keep_within(self, worker: Worker, connections: int | None) -> None:
        """The lease allows so many connections: others than this one go first."""
        download, source = self._download, worker.source
        if connections is not None:
            source.lease_connections = connections
        if connections is None or len(source.lanes) <= max(1, connections):
            return
        for lane in [lane for lane in reversed(source.lanes) if lane != worker.lane]:
            if len(source.lanes) <= max(1, connections):
                break
            source.lanes.remove(lane)
            download.workers[lane].hang_up()
        download.expect()

    def _wait(self, source: Source, action: WaitUntil) -> None:
        download, told = self._download, action.told
        source.retries += 1
        source.wait_until = action.at
        source.waiting_text = action.text
        source.place = told.place if told is not None else None
        expected_s = told.expected_s if told is not None else None
        source.starts_at = None if expected_s is None else download.network.now() + expected_s
        for lane in source.lanes:
            download.workers[lane].hang_up()
        download.planning.call_all()
        wait_s = action.at - download.network.now()
        download.emit(
            "wait" if told is not None else "retry",
            {
                "url": source.url.text,
                "text": action.text,
                "seconds": round(wait_s, 3),
                "place": source.place,
                "expected_s": told.expected_s if told is not None else None,
                "p90_s": told.p90_s if told is not None else None,
                "ready": told.ready if told is not None else False,
            },
        )
        download.network.call_later(wait_s, lambda: self._due(source, action.at))
        self._small()
        download.wake()

    def _due(self, source: Source, at: float) -> None:
        download = self._download
        if download.over or source.wait_until != at:
            return
        source.wait_until = None
        source.visit.due(download.network.now())
        for lane in source.lanes:
            download.workers[lane].connect()

    def moved(self, worker: Worker, meaning: Redirect | OutOfRange, taker: RangeTaker) -> None:
        """A redirect, or a range outside the file."""
        download, source = self._download, worker.source
        if isinstance(meaning, OutOfRange):
            if download.board is None:
                # Asked in the dark for a part of a small file.
                source.beyond = True
                source.size_bytes = meaning.size_bytes
                self._small()
            elif taker.start is not None and (
                taker.start < download.size_limit
                or meaning.size_bytes not in (None, download.size_limit)
            ):
                self.disagrees(source, meaning.size_bytes)
            return
        source.redirects += 1
        try:
            if source.redirects > download.options.max_redirects:
                raise BadUrl("it redirects in circles")
            aim = source.at.join(meaning.location)
            if source.at.scheme == "https" and aim.scheme == "http":
                raise BadUrl("it redirects from https to http")
        except BadUrl as error:
            self._reasons.append((Reason.PROTOCOL, str(error)))
            self.drop(source, str(error))
            return
        source.at = aim
        for lane in source.lanes:
            download.workers[lane].hang_up()
            download.again(download.workers[lane])

    def outvoted(self, source: Source, size: int) -> bool:
        """Whether most mirrors, asked past the end, have told another size; then it is dropped."""
        told = [s.size_bytes for s in self._download.sources if s.beyond]
        common = max(told, key=told.count, default=None)
        if common in (None, size) or told.count(common) <= told.count(size) + 1:
            return False
        self.drop(source, "its copy has another size")
        return True

    def _small(self) -> None:
        """Mirrors were asked for parts past the end: the first one will tell more. But if it has
        not answered and will not now, those that did must do."""
        download = self._download
        if download.board is not None or download.over:
            return
        beyond = [s for s in download.sources if s.beyond and s.usable]
        if not beyond or any(s.usable and not s.beyond for s in download.sources):
            return
        sizes = [s.size_bytes for s in beyond if s.size_bytes is not None]
        if sizes:
            download.set_up(max(sizes, key=sizes.count))
            return
        for source in beyond:
            source.beyond = False
        download.workers[beyond[0].lanes[0]].ask_all()

    # -- mirrors that are dropped --------------------------------------------------------------

    def drop(self, source: Source, text: str) -> None:
        """The mirror is out of the game."""
        download = self._download
        if source.dropped is not None or download.over:
            return
        source.dropped = text
        source.wait_until = None
        for lane in source.lanes:
            download.workers[lane].hang_up()
        download.emit("mirror", {"url": source.url.text, "state": "dropped", "text": text})
        download.expect()
        if all(s.dropped is not None for s in download.sources):
            self._last_hope(text)
        else:
            download.planning.call_all()
            self._small()
            download.wake()

    def _last_hope(self, text: str) -> None:
        download = self._download
        if self.revive():
            return
        if self._reasons and len(download.sources) == 1:
            reason, text = self._reasons[-1]
        else:
            ranked = sorted(
                self._reasons,
                key=lambda r: _TELLING.index(r[0]) if r[0] in _TELLING else len(_TELLING),
            )
            reason, text = ranked[0] if ranked else (Reason.NETWORK, text)
        names = "every mirror failed"
        if len(download.sources) == 1:
            names = download.sources[0].url.text
        download.fail(_FAILURES[reason](f"{names}: {text}"))

    def revive(self) -> bool:
        """Call back the fastest of those that only send the whole file; False without one."""
        download = self._download
        aside = [s for s in download.sources if not s.parts and not s.last_resort]
        if not aside:
            return False
        source = max(aside, key=lambda s: s.received_bytes / s.busy_s if s.busy_s > 0 else 0.0)
        source.dropped, source.last_resort = None, True
        download.expect()
        download.again(download.workers[source.lanes[0]])
        return True

    def convict(self, source: Source, text: str) -> None:
        """The mirror gave wrong bytes: what it gave and nobody vouched for is missing again."""
        download = self._download
        sink, board = download.sink, download.board
        assert sink is not None
        assert board is not None
        pieces = sink.pieces
        for start, end, giver in sink.sources(0, sink.size_bytes):
            if giver != source.number:
                continue
            doubtful = [(start, end)]
            if pieces is not None:
                doubtful = [
                    (max(start, a), min(end, b))
                    for index in range(start // pieces.length, -(-end // pieces.length))
                    if index not in sink.checked
                    for a, b in [pieces.span(index, sink.size_bytes)]
                ]
            for a, b in doubtful:
                sink.forget(a, b)
                board.want(a, b)
        download.notes.append(f"{source.url.text} was dropped: {text}")
        sink.culprits.add(source.number)
        self._reasons.append((Reason.PROTOCOL, text))
        if all(s.dropped is not None or s is source for s in download.sources):
            download.fail(
                Corrupt(f"{source.url.text} gives wrong bytes, and no other mirror is left")
            )
            return
        self.drop(source, text)

    # -- copies that differ --------------------------------------------------------------------

    def changed(self, source: Source, text: str) -> None:
        """The mirror has another file under the name now."""
        if self._download.others(source):
            self.drop(source, text)
        else:
            self.start_over(source, text)

    def disagrees(self, source: Source, size: int | None) -> None:
        """A mirror has a copy of another size: the majority of those asked decides."""
        download = self._download
        source.size_bytes = size
        sizes = [s.size_bytes for s in download.sources if s.size_bytes is not None]
        ours = sizes.count(download.size_limit)
        if not download.size_is_certain and size is not None and sizes.count(size) > ours:
            for other in download.sources:
                if other.size_bytes == size and other.dropped is not None:
                    other.dropped = None
                elif other.size_bytes not in (size, None):
                    self.drop(other, "its copy has another size")
            self.start_over(source, "most mirrors have a copy of another size")
        elif not download.others(source):
            if download.size_is_certain:
                promised = f"where {download.size_limit} are promised"
                download.fail(Corrupt(f"{source.url.text} has {size} bytes {promised}"))
                return
            self.start_over(source, "the file has another size than before")
        else:
            self.drop(source, "its copy has another size")

    def start_over(self, source: Source, text: str) -> None:
        """Nothing of what arrived can be trusted."""
        download = self._download
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            download.fail(NetworkProblem(f"{source.url.text}: {text}, again and again"))
            return
        download.emit("retry", {"url": source.url.text, "text": f"{text}; starting over"})
        download.restart()

"""The end of a download: check what arrived, find the culprit if it is wrong, give it its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.fetch.options import Result, SourceReport
from client.fetch.repair import Repair
from client.net.errors import Corrupt, DownloadFailed
from client.storage.piece_writer import BadPiece

if TYPE_CHECKING:
    from client.fetch.download import Download

#: A rate is worth remembering after so much of work.
_TELLING_S = 0.05
_TELLING_BYTES = 16 << 10


class Ending:
    """What happens to wrong pieces, and once every byte is there."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._repair: Repair | None = None
        self._bad_pieces: dict[int, int] = {}

    def restart(self) -> None:
        """The download starts over."""
        self._repair = None

    def check(self) -> None:
        """Hash what has become ready; wrong pieces are wanted again."""
        sink = self._download.sink
        if sink is not None and sink.checks_due:
            self._bad(sink.check())

    def _bad(self, bad: list[BadPiece]) -> None:
        download = self._download
        sink, board = download.sink, download.board
        assert sink is not None
        assert board is not None
        for piece in bad:
            board.want(piece.start, piece.end)
            times = self._bad_pieces[piece.index] = self._bad_pieces.get(piece.index, 0) + 1
            if times > 2 * len(download.sources) + 1:
                download.fail(Corrupt(f"piece {piece.index} is wrong on every mirror"))
                return
        for number in sorted(sink.culprits):
            source = download.sources[number]
            if source.dropped is None and not download.over:
                download.troubles.convict(source, "it gives wrong bytes")

    def conclude(self) -> None:
        """Every byte is there: check, mend, finish."""
        download = self._download
        sink, board = download.sink, download.board
        assert sink is not None
        assert board is not None
        while sink.checks_due and not download.over:
            self._bad(sink.check())
        if download.over:
            return
        if not board.done or not sink.complete:
            download.wake()
            return
        if not sink.right():
            # A reader of in-order output has not had the last bytes yet, and will not get them.
            self._mend()
            return
        if not download.target.drained() or download.sampling.awaited(download.network.now()):
            return
        self._finish()

    def _mend(self) -> None:
        download = self._download
        sink, board = download.sink, download.board
        assert sink is not None
        assert board is not None
        if download.target.path is None or not download.others(download.sources[0]):
            digest = sink.digest[0] if sink.digest is not None else "digest"
            several = len(download.sources) > 1
            who = "; the mirrors agree on it, so the checksum may be wrong" if several else ""
            names = "the file" if several else download.sources[0].url.text
            text = f"{names} arrived whole but does not have the expected {digest}{who}"
            download.fail(Corrupt(text))
            return
        if self._repair is None:
            self._repair = Repair(download.sources, sink, download.troubles.convict)
            download.emit("retry", {"text": "the digest is wrong; looking for the culprit"})
        if not self._repair.next(board):
            download.fail(
                Corrupt("the mirrors agree, but the file does not have the expected digest")
            )
            return
        for source in download.sources:
            if source.excluded:
                for lane in source.lanes:
                    download.workers[lane].hang_up()
        download.expect()
        for worker in list(download.workers.values()):
            download.again(worker)
        download.wake()

    def _finish(self) -> None:
        download = self._download
        sink = download.sink
        assert sink is not None
        if self._repair is not None:
            self._repair.name_culprit()
        joining = download.joining
        for worker in download.workers.values():
            worker.let_go()
        try:
            note = download.target.finish(
                download.proposed_name if download.rename_freely else None
            )
        except DownloadFailed as problem:
            download.fail(problem)
            return
        if note is not None:
            download.notes.append(note)
        self._remember()
        verified = "length"
        if sink.digest is not None:
            verified = download.digest_from
        elif sink.pieces is not None:
            verified = "pieces"
        elif joining is not None and joining.received_bytes == sink.size_bytes:
            # Every block of the session was checked before it was written.
            verified = "pieces"
        download.result = Result(
            download.target.path,
            sink.size_bytes,
            sum(s.received_bytes for s in download.sources)
            + download.overhead_bytes
            + (joining.received_bytes if joining is not None else 0),
            download.resumed_bytes,
            download.network.now() - download.began_s,
            verified,
            self.report(),
            (download.first_byte_s or download.began_s) - download.began_s,
            download.predicted_s,
            tuple(download.sources[n].url.text for n in sorted(sink.culprits)),
            tuple(download.notes),
            (*download.planning.lines, *download.forecast.lines, *download.widening.lines),
        )
        self.part()

    def part(self) -> None:
        """The file has its name; a multicast sender may still have to hear so."""
        download = self._download
        joining = download.joining
        if download.over:
            return
        if joining is not None and joining.closing(download.network.now()):
            return
        download.over = True
        if joining is not None:
            joining.stop()
        if download.aside is not None:
            download.aside.stop()
        download.when_over()

    def _remember(self) -> None:
        download = self._download
        telling = [
            s
            for s in download.sources
            if s.busy_s > _TELLING_S and s.received_bytes >= _TELLING_BYTES
        ]
        for source in telling:
            rate = source.received_bytes / source.busy_s
            download.rates.learn(source.host, rate, source.rtt_s)
        if telling:
            download.rates.save()

    def report(self) -> tuple[SourceReport, ...]:
        """What each mirror has done so far, and multicast if it brought anything."""
        joining = self._download.joining
        joined = joining.report() if joining is not None else ()
        return joined + tuple(
            SourceReport(
                s.url.text,
                s.received_bytes,
                s.received_bytes / s.busy_s if s.busy_s > 0 else 0.0,
                s.rtt_s,
                s.requests,
                s.connections,
                s.retries,
                s.visit.waited_s,
                s.dropped,
            )
            for s in self._download.sources
        )

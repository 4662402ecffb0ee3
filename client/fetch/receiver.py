"""What the mirrors send: checked to be of our file, counted, and put in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.fetch.sources import Source
from client.net.answers import Body, Fields
from client.net.errors import DownloadFailed, LocalProblem
from client.schedule.segments import Block
from client.storage.output import UNKNOWN_SIZE

if TYPE_CHECKING:
    from client.fetch.download import Download
    from client.fetch.workers import Worker

#: The first pieces are checked the moment they are there, later ones a few times a second.
_NEW_PIECES = 64
#: Of such a name, servers often say "packed" and mean the file itself.
_PACKED = (".gz", ".tgz", ".z", ".bz2", ".xz", ".zst", ".br")


class Intake:
    """The way from a worker to the sink and the board."""

    def __init__(self, download: Download) -> None:
        self._download = download

    def accepts(self, worker: Worker, body: Body, fields: Fields, start: int | None) -> bool:
        """Whether these bytes belong to our file; if not, the mirror has been dealt with."""
        download, source = self._download, worker.source
        troubles = download.troubles
        if not body.whole and body.start != start:
            troubles.drop(source, "it sends another part than was asked for")
            return False
        if source.validator is not None and body.validator != source.validator:
            when = "during the download" if source.answered else "since the download was broken off"
            troubles.changed(source, f"the file changed on the server {when}")
            return False
        size = body.size_bytes
        if size is not None and download.sink is not None and download.size_limit == UNKNOWN_SIZE:
            self._settle(size)
        if size is not None and download.size_limit < UNKNOWN_SIZE and size != download.size_limit:
            troubles.disagrees(source, size)
            return False
        if not self._as_it_is(source, fields):
            return False
        if download.board is None and size is not None and troubles.outvoted(source, size):
            return False
        first = not source.answered
        source.answered, source.validator = True, body.validator
        source.size_bytes = size
        source.redirects = 0
        troubles.told(worker, body.granted)
        if first:
            download.learning.heard(source, fields, size)
            if download.over:
                return False
        said = (fields.get("accept-ranges") or "").strip().lower()
        source.ranged = not body.whole or (start is None and said == "bytes")
        if body.whole and start is not None and worker.lane != source.lanes[0]:
            # Its other connection brings the whole file already.
            troubles.without(worker)
            return False
        if body.whole and start is not None and len(download.sources) > 1:
            source.parts = False
            if not download.streams.welcome(source):
                troubles.drop(source, "it sends only the whole file")
                return False
        if download.board is None:
            try:
                download.set_up(size if size is not None else UNKNOWN_SIZE)
            except DownloadFailed as problem:
                download.fail(problem)
                return False
        if first:
            download.learning.apply()
        return not download.over

    def _as_it_is(self, source: Source, fields: Fields) -> bool:
        """Every request asks for the file as it is; some servers send it packed all the same."""
        download = self._download
        coding = (fields.get("content-encoding") or "identity").strip().lower()
        if coding == "identity" or source.answered or download.asking.takes_codings:
            return True
        if download.others(source):
            download.troubles.drop(source, f"it sends the file packed ({coding})")
            return False
        if not source.url.target.partition("?")[0].lower().endswith(_PACKED):
            download.notes.append(f"the server sent it packed ({coding}), and so it was saved")
        return True

    def claim(self, worker: Worker, start: int, end: int) -> Block:
        """The lane is being sent this already."""
        download = self._download
        assert download.board is not None
        return download.board.claim(worker.lane, start, end, download.network.now())

    def carry_on(self, block: Block) -> bool:
        """The answer goes on past its block: perhaps what follows is wanted after all."""
        board = self._download.board
        return board is not None and board.carry_on(block, self._download.network.now())

    def beside(self, worker: Worker, position: int, data: memoryview) -> None:
        """Bytes of a whole answer that runs beside the one that has the block."""
        download = self._download
        assert download.board is not None
        if self._write(worker, position, data):
            download.board.filled(position, position + len(data))
            download.break_stopped()
            if download.board.done:
                download.wake()

    def arrived(self, worker: Worker, block: Block, data: memoryview) -> bool:
        """Bytes at the block's position; False when the download is over because of them."""
        download = self._download
        sink = download.sink
        assert sink is not None
        assert download.board is not None
        now = download.network.now()
        count = len(data)
        if not self._write(worker, block.position, data):
            return False
        download.board.received(block, count, now)
        if sink.pieces is not None and len(sink.checked) < _NEW_PIECES and sink.checks_due:
            # A liar is best found with its first piece.
            download.ending.check()
        if download.options.limit_bytes_s is not None:
            download.watch.spend(count, now)
        if download.board.limit is not None:
            download.watch.near_edge(worker, block)
        if download.board.done:
            download.wake()
        return not download.over

    def _write(self, worker: Worker, position: int, data: memoryview) -> bool:
        download = self._download
        assert download.sink is not None
        try:
            download.sink.write_at(position, data, worker.source.number)
        except LocalProblem as problem:
            download.fail(problem)
            return False
        if download.first_byte_s is None:
            download.first_byte_s = download.network.now()
        count = len(data)
        worker.source.received_bytes += count
        worker.brought_bytes += count
        worker.answer_bytes += count
        return True

    def _settle(self, size_bytes: int) -> None:
        """The first answer did not tell the size; now it is known."""
        download = self._download
        assert download.sink is not None
        assert download.board is not None
        download.sink.settle(size_bytes)
        download.board.settle(size_bytes)

    def short(self, worker: Worker, block: Block) -> None:
        """An answer ended before its block did."""
        download = self._download
        assert download.board is not None
        assert download.sink is not None
        if download.size_limit == UNKNOWN_SIZE:
            self._settle(block.position)
            download.wake()
            return
        download.board.ended(block, download.network.now())

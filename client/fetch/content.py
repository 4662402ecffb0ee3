"""The file of a download: where it lies, what vouches for it, and the search for who spoilt it."""

from __future__ import annotations

from ..storage.journal import Identity
from ..storage.output import Output
from ..storage.piece_writer import Pieces, PieceWriter
from .metalink import Metalink
from .receiver import BodyReceiver
from .repair import CulpritSearch
from .state import State

_STRONG = ("sha256", "sha384", "sha512")


def _text(digest: tuple[str, bytes] | None) -> str | None:
    return f"{digest[0]}:{digest[1].hex()}" if digest is not None else None


class DownloadedFile:
    """`checksum` is the caller's own, `metalink` what the caller knows of the file."""

    def __init__(
        self,
        state: State,
        target: Output,
        checksum: tuple[str, bytes] | None,
        metalink: Metalink | None,
    ) -> None:
        self._state = state
        self._target = target
        self._checksum = checksum
        self._metalink = metalink
        self._repair: CulpritSearch | None = None
        #: What the digest that is checked comes from, for the report.
        self.digest_from = "checksum" if checksum is not None else "digest"
        self.resumed_bytes = 0

    @property
    def target(self) -> Output:
        """Where the file goes."""
        return self._target

    @property
    def _digest(self) -> tuple[str, bytes] | None:
        return self._checksum or (self._metalink.digest if self._metalink else None)

    def resume(self) -> int | None:
        """The size, where an earlier attempt or a Metalink tells; validators are then known."""
        left = self._target.resumable()
        mirrors = self._state.mirrors
        if left is not None:
            vouched = left.digest is not None and left.digest == _text(self._digest)
            if vouched or any(mirror.url.text in left.validators for mirror in mirrors):
                for mirror in mirrors:
                    mirror.validator = left.validators.get(mirror.url.text)
                return left.size_bytes
        return self._metalink.size_bytes if self._metalink is not None else None

    def open(self, size_bytes: int) -> PieceWriter:
        """A sink for a file of that size; raises DownloadFailed when there is no place for it."""
        pieces = self._metalink.pieces if self._metalink is not None else None
        if pieces is not None and not pieces.fits(size_bytes):
            pieces = None
        validators = {
            mirror.url.text: mirror.validator
            for mirror in self._state.mirrors
            if mirror.validator is not None
        }
        first_piece = pieces.digests[0].hex() if pieces is not None else None
        identity = Identity(size_bytes, validators, _text(self._digest), first_piece)
        sink = self._target.open(identity)
        checked = sorted(sink.checked)
        if pieces is not None:
            sink.use_pieces(pieces, checked)
        if self._digest is not None and not self._pieces_vouch(pieces):
            sink.use_digest(self._digest)
        self.resumed_bytes = sink.have.total
        return sink

    def start_over(self) -> None:
        """What was written is worth nothing."""
        self._repair = None
        self._target.restart()

    def _pieces_vouch(self, pieces: Pieces | None) -> bool:
        """Whether checked pieces make the digest of the whole superfluous: both come from one
        Metalink, and the caller gave no checksum of his own."""
        strong = pieces is not None and pieces.algorithm in _STRONG
        return strong and self._checksum is None

    def use_told_digest(self, sink: PieceWriter, digest: tuple[str, bytes]) -> None:
        """The first mirror told a digest: it is checked from the first byte on."""
        if sink.digest is None and not self._pieces_vouch(sink.pieces):
            sink.use_digest(digest)
            self.digest_from = "digest"
            self._state.vouched = True

    def use_pieces(self, sink: PieceWriter, metalink: Metalink) -> bool:
        """Piece digests learnt while the download runs; False if it is another file's Metalink."""
        if metalink.size_bytes != sink.size_bytes:
            return False
        wanted, told, pieces = sink.digest, metalink.digest, metalink.pieces
        if wanted is not None and told is not None and wanted[0] == told[0] and wanted != told:
            return False
        if pieces is not None and sink.pieces is None and pieces.fits(sink.size_bytes):
            sink.use_pieces(pieces)
        return True

    # -- wrong bytes ---------------------------------------------------------------------------

    def distrust(self, intake: BodyReceiver, number: int) -> None:
        """What that mirror gave and nobody vouched for is missing again."""
        sink, board = intake.sink, intake.board
        pieces = sink.pieces
        for start, end, giver in sink.sources(0, sink.size_bytes):
            if giver != number:
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
        sink.culprits.add(number)

    def begin_repair(self, sink: PieceWriter) -> bool:
        """Look for the culprit; False if that is being done."""
        if self._repair is not None:
            return False
        self._repair = CulpritSearch(self._state.mirrors, sink)
        return True

    def next_doubt(self, intake: BodyReceiver) -> int | None:
        """Whose bytes are to be replaced now; None when nothing is left to try."""
        assert self._repair is not None
        return self._repair.next(intake.board)

    def name_culprit(self) -> None:
        """The file is right: if it was mended, whose bytes were wrong?"""
        if self._repair is not None:
            self._repair.name_culprit()

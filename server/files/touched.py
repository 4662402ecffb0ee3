"""Files whose times were set although their content is the same: `touch`, `chown`, `rsync -a`.

A content is known by its inode, size and times, so such a file looks like another one. Where the
digest of the earlier content is known, the present one is hashed and compared before a download is
cut or a resume begun anew. Nothing is believed unread: never a mixture.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet import defer

from ...protocol.bounded_table import BoundedTable
from ...protocol.headers import parse_etag
from ...protocol.manifest import FileDigests
from .digests import DigestService
from .openfile import OpenFile
from .transfer import Representation


class Touched:
    """Remembers what was served under a path, and compares it with what is there now."""

    def __init__(self, catalog: DigestService) -> None:
        self._catalog = catalog
        self._served: BoundedTable[bytes, list[Representation]] = BoundedTable(4_096)

    def serves(self, rep: Representation) -> None:
        """This is what its path has now."""
        former = self._served[rep.path] = self._served.get(rep.path, [])
        if all(one.key != rep.key for one in former):
            former.append(rep)
            # Earlier contents of each.
            del former[:-8]

    def named(self, headers: Mapping[bytes, bytes], rep: Representation) -> Representation | None:
        """The earlier content of this size that a condition of the client names, by its tag."""
        value = headers.get(b"if-range") or headers.get(b"if-match")
        tag = None if value is None else parse_etag(value.decode("latin-1"))
        if tag is None or tag.weak or f'"{tag.tag}"' == rep.etag:
            return None
        for one in self._served.get(rep.path, ()):
            if one.etag == f'"{tag.tag}"' and one.size_bytes == rep.size_bytes:
                return one if self._catalog.known(one.key) is not None else None
        return None

    def same(self, former: Representation, file: OpenFile) -> defer.Deferred[bool]:
        """Whether the file has the earlier content; False also when that is unknown."""
        known = self._catalog.known(former.key)
        if known is None or former.size_bytes != file.rep.size_bytes:
            return defer.succeed(False)

        def compare(digests: FileDigests) -> bool:
            return digests.sha256 == known.sha256

        return self._catalog.want(file).addCallbacks(compare, lambda _: False)

    # A file whose times are set again and again is read this often once more.
    def still(self, file: OpenFile, tries: int = 8) -> defer.Deferred[bool]:
        """Whether a changed file has its content still; if so it counts as unchanged again.

        A status that changes again while the content is read is looked at again.
        """
        now = file.as_it_is()
        if now is None:
            return defer.succeed(False)

        def found(same: bool) -> bool | defer.Deferred[bool]:
            if same:
                file.accept(now)
                return True
            later = file.as_it_is()
            changed = later is not None and later.rep.key != now.rep.key
            return self.still(file, tries - 1) if changed and tries else False

        return self.same(file.rep, now).addCallback(found)

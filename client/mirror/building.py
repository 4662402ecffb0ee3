"""Build the next tree beside the live one: from updates, or again from the manifest.

Nothing of the live tree is written, ever: a new version or a repair is a new tree that shares
with the old one what has not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ...protocol.batch import Header, Update, UpdateWriter
from ...protocol.batch_apply import Application
from ...protocol.channel import Edge
from ...protocol.errors import BadManifest
from ...protocol.tree import Entry, first_clash, name_some
from .drift import Drift, KeptManifest
from .place import Place
from .problem import MirrorProblem
from .stage import DiskStage, ignores_case, remove_tree


class Builder:
    """Builds trees in `place`; `bring` gives a file with a content that is not here."""

    def __init__(self, place: Place, bring: Callable[[Entry], Path]) -> None:
        self._place = place
        self._bring = bring

    def chain(self, edges: Sequence[Edge], files: Sequence[Path], drift: Drift) -> tuple[Path, str]:
        """Apply updates one on the other; the last tree and its manifest's digest."""
        place = self._place
        old: Path | None = place.live_tree
        manifest = KeptManifest(place.manifest) if place.state.version else None
        between: list[Path] = []
        digest = ""
        for edge, path in zip(edges, files, strict=True):
            if edge.from_version == 0:
                old, manifest = None, None
            with path.open("rb") as file:
                update = Update(_reader(file.fileno()), path.stat().st_size, edge.window_bytes)
                header = update.header
                if (header.from_version, header.to_version) != (edge.from_version, edge.to_version):
                    raise BadManifest("An update is for other versions than its name says.")
                tree, digest = self._build(update, old, manifest, drift)
            if old is not None and old in between:
                remove_tree(old)
            between.append(tree)
            old, manifest, drift = tree, KeptManifest(place.manifests / digest), Drift.none()
        return between[-1], digest

    def again(self, drift: Drift) -> tuple[Path, str]:
        """The present version, with whole files for what drifted."""
        state = self._place.state
        digest = state.manifest_sha256
        out = bytearray()
        header = Header(state.channel, state.version, state.version, digest, digest, 0)
        UpdateWriter(out.extend, header).close()
        update = Update(lambda at, length: bytes(out[at : at + length]), len(out))
        return self._build(update, self._place.live, KeptManifest(self._place.manifest), drift)

    def _build(
        self, update: Update, old: Path | None, manifest: Iterable[Entry] | None, drift: Drift
    ) -> tuple[Path, str]:
        """Build one tree; its path and manifest digest. On any error the tree is removed."""
        tree = self._place.fresh(update.header.to_version)
        stage = DiskStage(tree, old, drift.lost, drift.touched)
        application = Application(update, lambda: manifest if manifest is not None else (), stage)
        if ignores_case(self._place.trees):
            clash = first_clash(application.entries())
            if clash is not None:
                raise MirrorProblem(
                    "case-clash",
                    f"{clash[0]!r} and {clash[1]!r} are one name to this file system; "
                    "put the mirror on one that tells upper from lower case.",
                )
        next_manifest = self._place.home / "next.manifest"
        try:
            with next_manifest.open("wb") as lines:
                application.build(lines.write)
            if stage.leading_out:
                raise MirrorProblem(
                    "links-out",
                    "The origin published links that lead out of the tree: "
                    f"{name_some(stage.leading_out)}. The mirror keeps its version; "
                    "tell the publisher.",
                )
            for entry in application.missing:
                self._fill(stage, entry)
            application.finish()
        except BaseException:
            remove_tree(tree)
            raise
        finally:
            stage.close()
        os.replace(next_manifest, self._place.manifests / update.header.after)
        return tree, update.header.after

    def _fill(self, stage: DiskStage, entry: Entry) -> None:
        path = self._bring(entry)
        with path.open("rb") as content:
            offset = 0
            while chunk := content.read(1 << 20):
                stage.write(entry.path, offset, chunk)
                offset += len(chunk)
        path.unlink()


def _reader(handle: int) -> Callable[[int, int], bytes]:
    def read(offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length and (part := os.pread(handle, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    return read

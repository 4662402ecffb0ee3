"""Generate: two trees in, one update out (step 1 of paper D), in bounded memory.

Two passes over the manifests find what changed; contents are then read, group by group, through
the caller's `read`. What is held at once is one group (the window) and the changed names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protocol.batch import Header, UpdateWriter
from protocol.batch_group import encode_group, plan_groups
from protocol.tree import Entry
from protocol.tree_diff import Difference, change_to_row

#: (whole file's entry, offset, length) -> exactly those bytes of it.
ReadContent = Callable[[Entry, int, int], bytes]


@dataclass(frozen=True, slots=True)
class GeneratedUpdate:
    """What went into an update; sizes in bytes, `content_bytes` before encoding.

    `window_bytes` is the most that one of its groups asks for, at most what the header allows.
    """

    length_bytes: int
    sha256: str
    changes: int
    deletions: int
    renames: int
    contents: int
    content_bytes: int
    window_bytes: int


def generate(
    header: Header,
    old: Iterable[Entry],
    new: Iterable[Entry],
    read_old: ReadContent,
    read_new: ReadContent,
    write: Callable[[bytes], object],
    *,
    delta: bool = True,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> GeneratedUpdate:
    """Write the update from `old` to `new` (both iterable repeatedly, in manifest order).

    `progress` hears (content bytes encoded, content bytes in all). Errors of the readers pass
    through; the caller must then throw away what was written.
    """
    writer = UpdateWriter(write, header)
    difference = Difference(old, new)
    for change in difference.changes():
        writer.row(change_to_row(change))
    total = difference.carried_bytes
    done = window = 0
    for group in plan_groups(difference.contents(), header.window_bytes, delta=delta):
        before = b"".join(read_old(entry, p.offset, p.length) for p, entry in group.refs)
        after = b"".join(read_new(entry, p.offset, p.length) for p, entry in group.outs)
        outs = tuple(part for part, _ in group.outs)
        refs = tuple(part for part, _ in group.refs)
        writer.group(encode_group(outs, refs, before, after))
        done += len(after)
        window = max(window, len(before) + len(after))
        progress(done, total)
    writer.close()
    return GeneratedUpdate(
        length_bytes=writer.length_bytes,
        sha256=writer.sha256,
        changes=difference.changed,
        deletions=difference.deletions,
        renames=difference.renames,
        contents=difference.carried,
        content_bytes=total,
        window_bytes=window,
    )

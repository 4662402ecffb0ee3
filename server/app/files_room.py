"""The served tree, its digests and the site that answers requests for files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...protocol.manifest import Source
from ..control.contact import security_txt
from ..files.digest_warmup import DigestWarmup
from ..files.digests import DigestService
from ..files.disk import DISK_THREADS, Disk
from ..files.openfile import local_tag, shared_tag
from ..files.pacer import Pacer
from ..files.pages import Pages
from ..files.precompressed import CODINGS
from ..files.site import Site
from ..files.tree import Tree
from ..gate.settings import NO_FILES
from ..http.clock import Reactor
from .config import CannotStart, LoadedConfig
from .parts import Part
from .resources import kept_files, raise_limit, small_files_bytes
from .settings import ServerConfig

if TYPE_CHECKING:
    from ..files.digests import DigestCache
    from ..files.transfer import Admission, Visibility


class FilesRoom:
    """The `ServerRoom` of the site and the tree under it, whose files start through `admission`.

    `more` goes to `Site` as it is.
    """

    def __init__(
        self,
        config: ServerConfig,
        reactor: Reactor,
        now: Callable[[], float],
        *,
        tree: Tree,
        kept: DigestCache,
        admission: Admission,
        visibility: Visibility,
        pacer: Pacer,
        pages: Pages,
        **more: Any,
    ) -> None:
        self.tree = tree
        self.digests = DigestService(reactor, kept)
        self.site = Site(
            tree,
            self.digests,
            admission,
            visibility,
            pacer,
            pages,
            reactor,
            mirrors=configured_mirrors(config),
            disk=Disk(reactor, DISK_THREADS),
            small_files_bytes=small_files_bytes(config.small_files_bytes, config.worker_count()),
            wall=now,
            # No mover passes the coding on with a file.
            codings={} if config.gate.enabled else CODINGS,
            **more,
        )
        self.site.add_maker(security_txt(config.security_contact, now))
        self._warmup = DigestWarmup(reactor, tree, self.digests)

    def parts(self) -> Iterator[Part]:
        yield Part("files", end=self.tree.close)
        yield Part("digests", end=self.digests.stop)

    def warmup(self) -> Part:
        return Part("digest warm-up", self._warmup.start, self._warmup.stop)

    def reconfigure(self, config: ServerConfig) -> None:
        self.site.use_mirrors(configured_mirrors(config))


def open_tree(loaded: LoadedConfig) -> Tree:
    """The served directory, without what must stay private in it. Raises CannotStart."""
    config = loaded.config
    try:
        tag_of = local_tag if config.cluster is None else shared_tag
        if config.gate.enabled:
            from ..gate.movers import mover_tag

            # The mover's own, for a client that asks it for one part and this server for another.
            tag_of = mover_tag
            if config.directory == config.state / NO_FILES:
                config.directory.mkdir(exist_ok=True)
        tree = Tree(
            str(config.directory),
            show_hidden=config.show_hidden,
            most_open=kept_files(raise_limit()),
            tag_of=tag_of,
        )
    except OSError as fault:
        may_make = isinstance(fault, FileNotFoundError) and not config.gate.enabled
        hint = ", or let --sample make one" if may_make else ""
        raise CannotStart(
            f"{config.directory} cannot be served: {fault.strerror}; give a directory that "
            f"this user can read{hint}."
        ) from fault
    tree.keep_private(private_paths(loaded))
    return tree


def private_paths(loaded: LoadedConfig) -> list[str]:
    """What must not be downloaded even if it lies in the served directory."""
    config = loaded.config
    own = (config.state, config.tls_key, config.gate.sign_file, loaded.file)
    paths = [str(path) for path in own if path is not None]
    if config.database is not None and config.database.startswith("sqlite:///"):
        database = config.database.removeprefix("sqlite:///")
        paths += [database + ending for ending in ("", "-wal", "-shm", "-journal")]
    return paths


def configured_mirrors(config: ServerConfig) -> tuple[Source, ...]:
    """The mirrors named by the configuration, best first."""
    return tuple(
        Source(url if url.endswith("/") else url + "/", priority)
        for priority, url in enumerate(config.mirrors, start=1)
    )

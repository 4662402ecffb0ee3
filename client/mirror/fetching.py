"""HTTP for a follower, blocking: it does file work, and one request at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tuf.api.exceptions import DownloadError

from ..net import errors as failures
from ..net.answers import Reply
from ..net.client import HttpClient, RequestParts
from ..net.retry import RetryPolicy
from ..net.sockets import CertificateTrust, run_blocking
from .transport import TooSlow

if TYPE_CHECKING:
    from ..fetch.options import Result


class HttpTransport:
    """A `transport.ChannelTransport`: small answers by `HttpClient`, files by `client.api`.

    `data_folder` is where the downloader keeps what it learns of servers; `multicast` lets it join
    a transmission the server offers, `pass_token` is a priority pass. `sleep` waits, `clock` never
    jumps. A server that queues is waited for as it says, for an hour at most; one that gives no
    sign of life for `gone_s`, or drips for `pace_window_s`, is given up. A login may stand in the
    URL. `ca_file` holds certificates (PEM) that are believed beside those of the system.
    """

    def __init__(
        self,
        data_folder: Path | None = None,
        *,
        multicast: bool = False,
        multicast_interface: str | None = None,
        pass_token: str | None = None,
        ca_file: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        pace_window_s: float = 120.0,
        gone_s: float = 90.0,
    ) -> None:
        self._pace_window_s = pace_window_s
        self._gone_s = gone_s
        self._data_folder = data_folder
        self._multicast = multicast
        self._multicast_interface = multicast_interface
        self._pass_token = pass_token
        self._ca_file = ca_file
        self._client = HttpClient(
            agent="tidegate-mirror",
            trust=CertificateTrust(ca_file),
            pass_token=pass_token,
            manners=RetryPolicy(max_wait_s=3600.0),
            sleep=sleep,
            clock=clock,
        )

    def request(self, method: str, url: str, **asked: Unpack[RequestParts]) -> Reply:
        try:
            return self._client.request(method, url, **asked)
        except failures.Interrupted as stop:
            raise KeyboardInterrupt from stop
        except failures.DownloadFailed as fault:
            raise DownloadError(str(fault)) from fault

    def download(self, url: str, path: Path, length_bytes: int, sha256: str) -> None:
        from ..api import Metalink, Options, build, finish, open_network, read_urls

        digest = ("sha256", bytes.fromhex(sha256))
        options = Options(
            checksum=digest,
            multicast=self._multicast,
            multicast_interface=self._multicast_interface,
            data_folder=self._data_folder,
            pass_token=self._pass_token,
            ca_file=self._ca_file,
            max_wait_s=3600.0,
        )
        # With the length given, no mirror's announcement brings a further byte.
        signed = Metalink(path.name, length_bytes, digest, None, ())

        async def bring() -> None:
            network = open_network(options)
            told_until_s = 0.0

            def note_event(event: str, data: Mapping[str, object]) -> None:
                nonlocal told_until_s
                if event == "wait":
                    told_until_s = network.now() + float(str(data["seconds"]))

            def came() -> int:
                joining = download.joining
                aside = joining.received_bytes if joining is not None else 0
                return download.state.received_bytes() + aside

            def gone() -> bool:
                done = download.segments is not None and download.segments.done
                return network.now() >= told_until_s and not done

            try:
                download = build(network, read_urls([url]), path, options, note_event, signed)
                work = asyncio.ensure_future(finish(download))
                await self._watched(work, came, download.state.received_bytes, gone)
            finally:
                await network.close()

        try:
            run_blocking(bring)
        except failures.Corrupt:
            # The caller checks what is there, and tries again or gives it its name.
            path.unlink(missing_ok=True)
        except failures.Interrupted as stop:
            raise KeyboardInterrupt from stop
        except (failures.LocalProblem, failures.NoRoom) as fault:
            if isinstance(fault.__cause__, OSError):
                raise fault.__cause__ from None
            raise DownloadError(str(fault)) from fault
        except failures.DownloadFailed as fault:
            raise DownloadError(str(fault)) from fault

    async def _watched(
        self,
        work: asyncio.Future[Result],
        came: Callable[[], int],
        received_bytes: Callable[[], int],
        may_be_gone: Callable[[], bool],
    ) -> None:
        """Wait for a download; raise DownloadError when its server is gone, TooSlow when it drips.

        Gone is a server without bytes and without a status. In a queue nothing comes.
        """
        before = paced = 0
        silent_s = window_s = 0.0
        step_s = min(self._gone_s, self._pace_window_s) / 10
        try:
            while not (await asyncio.wait([work], timeout=step_s))[0]:
                now = came()
                silent_s = silent_s + step_s if now == before and may_be_gone() else 0.0
                before = now
                if silent_s >= self._gone_s - step_s / 2:
                    raise DownloadError(
                        f"nothing came from it for {self._gone_s:.0f} s, and what came is kept"
                    )
                window_s += step_s
                if window_s >= self._pace_window_s - step_s / 2:
                    brought, paced, window_s = received_bytes() - paced, received_bytes(), 0.0
                    # It must bring a kilobyte a second.
                    if 0 < brought < 1_000 * self._pace_window_s:
                        raise TooSlow(
                            f"it brought {brought} bytes in {self._pace_window_s:.0f} s, "
                            "and what came is kept"
                        )
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
        await work

"""The aiohttp peer: its static route over one directory. Run by `http_peers.py`."""

from __future__ import annotations

import sys

from aiohttp import web


def main() -> None:
    """Serve `argv[1]` on port `argv[2]` of the address `argv[3]`."""
    application = web.Application()
    application.router.add_static("/", sys.argv[1])
    web.run_app(
        application,
        host=sys.argv[3],
        port=int(sys.argv[2]),
        access_log=None,
        print=lambda *_: None,
        backlog=4096,
    )


if __name__ == "__main__":
    main()

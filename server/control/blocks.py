"""Addresses and networks that operators refuse, remembered over restarts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..admission.actions import QueueActions
from .key_values import KeyValues
from .problems import wrong

_PAPER = "blocks"


@dataclass(frozen=True, slots=True)
class BlockedNetwork:
    """An address (or network) that is refused, until `until_s` or for good."""

    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str = ""


class BlockedNetworks:
    """The blocks in force."""

    def __init__(self, desk: QueueActions, papers: KeyValues, now: Callable[[], float]) -> None:
        self._desk = desk
        self._papers = papers
        self._now = now
        self._by_network = {
            row["network"]: BlockedNetwork(**row) for row in papers.read_list(_PAPER)
        }

    def open(self) -> None:
        """Put the remembered blocks in force."""
        for block in self.all():
            self._desk.block(block.network, block.until_s)

    def all(self) -> list[BlockedNetwork]:
        """Those that have not run out."""
        now = self._now()
        return [b for b in self._by_network.values() if b.until_s is None or b.until_s > now]

    def add(self, block: BlockedNetwork) -> None:
        """Refuse from now on, and cut what the address has."""
        self._by_network[block.network] = block
        self._desk.block(block.network, block.until_s)
        self._write()

    def remove(self, network: str) -> bool:
        """Serve it again; False when it was not blocked."""
        known = self._by_network.pop(network, None) is not None
        self._write()
        return self._desk.unblock(network) or known

    def _write(self) -> None:
        self._papers.write_list(_PAPER, [asdict(block) for block in self.all()])


def network_of(text: str) -> str:
    """An address or network in its canonical spelling. Raises Problem 422."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise wrong(
            "network", f"{text!r} is neither an address nor a network such as 192.0.2.0/24."
        ) from None

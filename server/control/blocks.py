"""Addresses and networks that operators have blocked, also after a restart."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..admission.actions import QueueActions
from .key_values import KeyValues
from .problems import wrong


@dataclass(frozen=True, slots=True)
class BlockedNetwork:
    """A blocked address or network, until `until_s` or for good."""

    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str = ""


class BlockedNetworks:
    """The blocks in force."""

    def __init__(
        self, actions: QueueActions, documents: KeyValues, now: Callable[[], float]
    ) -> None:
        self._actions = actions
        self._documents = documents
        self._now = now
        self._by_network = {
            row["network"]: BlockedNetwork(**row) for row in documents.read_list("blocks")
        }

    def open(self) -> None:
        """Apply the stored blocks."""
        for block in self.all():
            self._actions.block(block.network, block.until_s)

    def all(self) -> list[BlockedNetwork]:
        """Blocks that have not expired."""
        now = self._now()
        return [b for b in self._by_network.values() if b.until_s is None or b.until_s > now]

    def add(self, block: BlockedNetwork) -> None:
        """Block from now on, and cut the connections of the network."""
        self._by_network[block.network] = block
        self._actions.block(block.network, block.until_s)
        self._write()

    def remove(self, network: str) -> bool:
        """Serve the network again; False if it was not blocked."""
        known = self._by_network.pop(network, None) is not None
        self._write()
        return self._actions.unblock(network) or known

    def _write(self) -> None:
        self._documents.write_list("blocks", [asdict(block) for block in self.all()])


def network_of(text: str) -> str:
    """An address or network in its canonical spelling. Raises Problem 422."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise wrong(
            "network", f"{text!r} is neither an address nor a network such as 192.0.2.0/24."
        ) from None

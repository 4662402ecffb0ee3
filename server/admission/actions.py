"""Acts of operators on the queue: cancel, withdraw, promote, block."""

from __future__ import annotations

from .client_keys import address_of
from .gate import Gate


class QueueActions:
    """Acts on the live gate; every method takes effect at once."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def cancel(self, lease: int, reason: str) -> bool:
        """End a download and free its slot; False if there is no such lease."""
        gate = self._gate
        download = gate.downloads.get(lease)
        if download is None:
            return False
        gate.leases.end(download, reason)
        return True

    def withdraw(self, number: int) -> bool:
        """Remove a waiting ticket from the queue; False if it does not wait."""
        gate = self._gate
        row = gate.policy.ticket(number)
        if row is None or not row.state.is_queued:
            return False
        requests = gate.parked.with_ticket(number)
        gate.policy.withdraw(number, gate.now())
        gate.parts.passes.end(row.client, row.file)
        for request in requests:
            gate.parked.remove(request)
            if request.committed:
                request.visit.request.abort()
            else:
                request.visit.request.refuse(403, "withdrawn", "The operator has ended this wait.")
        gate.leases.settle()
        return True

    def promote(self, number: int) -> bool:
        """Move a waiting ticket to the head of the queue; False if it does not wait."""
        gate = self._gate
        done = gate.policy.promote(number, gate.now())
        gate.leases.settle()
        return done

    def block(self, network: str, until_s: float | None = None) -> None:
        """Refuse an address or network (see `blocks`) from now on, and end its downloads."""
        gate = self._gate
        gate.reception.blocked.add(network, until_s)
        for lease, download in tuple(gate.downloads.items()):
            if download.address in gate.reception.blocked:
                self.cancel(lease, "the operator has blocked this address")
        for row in tuple(gate.policy.tickets()):
            if address_of(row.client) in gate.reception.blocked:
                self.withdraw(row.number)

    def unblock(self, network: str) -> bool:
        """Serve a network again; False if exactly this one was not blocked."""
        return self._gate.reception.blocked.discard(network)

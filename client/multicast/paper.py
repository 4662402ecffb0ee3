"""Receiving in paper E's mode: its three packet fields instead of our header, no tag, no marks.

The pass is over when the packet with the last sequence number came, or when nothing comes any
more; what the k+1 packets of a block do not restore is fetched by TCP, as in the paper. Beyond the
paper, blocks are still checked against the offer's hashes before they are written.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.errors import BadPacket
from ...protocol.fec import FecParameters, Scheme, scheme_for
from ...protocol.packet import newer
from ...protocol.paper_mode import PaperOrder, parse_packet
from ...protocol.session import Offer
from .receiver import MulticastReceiver


class PaperReceiver(MulticastReceiver):
    """See `MulticastReceiver`; only what a datagram is differs."""

    @staticmethod
    def scheme_of(offer: Offer) -> Scheme:
        """One group of k and its parity in every block."""
        fec = offer.fec
        return scheme_for(
            FecParameters("xor", fec.symbol_bytes, fec.block_symbols, fec.block_symbols)
        )

    def take_all(self, datagrams: Iterable[memoryview], now: float) -> None:
        """Packets in the order in which they came."""
        for datagram in datagrams:
            self.take(datagram, now)

    def take(self, datagram: memoryview, now: float) -> None:
        """One packet as it came. Never raises for what is in it."""
        counters = self.counters
        try:
            header, payload = parse_packet(datagram)
        except BadPacket:
            counters.malformed += 1
            return
        order = PaperOrder(self.layout)
        if header.id_number != self.offer.session & 0xFFFFFFFF:
            # The group may not be unique (3.4): another server's packet.
            counters.foreign += 1
            return
        if header.total_number != order.total:
            counters.malformed += 1
            return
        counters.datagrams += 1
        self.silent_at = now + self.offer.silence_s
        if newer(header.sequence_number, self._last_sequence, 32):
            self._last_sequence = header.sequence_number
        if not self.has_received:
            self._first_received(header.sequence_number, now)
        block, symbol = order.place(header.sequence_number)
        self._take_symbol(self.layout.k(block), block, symbol, payload, now)
        last = header.sequence_number == order.total - 1
        if last and not self.finished and self.given_up is None:
            self.given_up = "the pass is over"

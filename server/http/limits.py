"""Every bound that a peer can run into, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on one listening server; times in seconds, 0 connections means no bound.

    `header_timeout_s` runs from the first byte of a request to the end of its header, and no byte
    in between extends it. `handshake_timeout_s` runs from the accept to the end of the TLS
    handshake, and counts where it is shorter. `max_handshakes` have begun TLS (46 kB each) and not
    ended their handshake. `idle_timeout_s` runs between requests. `body_timeout_s` bounds the whole
    request body. A response body must move on average `min_rate_bytes_s` over each
    `min_rate_window_s` in which it waits for its peer, counted in bytes that were acknowledged.
    """

    header_timeout_s: float = 20.0
    handshake_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    body_timeout_s: float = 30.0
    linger_timeout_s: float = 5.0
    min_rate_bytes_s: float = 100.0
    min_rate_window_s: float = 60.0
    max_target_bytes: int = 8192
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    max_body_bytes: int = 64 * 1024
    max_pipelined_bytes: int = 64 * 1024
    max_linger_bytes: int = 16 * 1024 * 1024
    max_connections: int = 10_000
    max_connections_per_address: int = 4_000
    max_handshakes: int = 1_000
    max_refusals: int = 200
    refusal_retry_after_s: int = 5

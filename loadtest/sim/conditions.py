"""What surrounds the policy in a run: the link, the cost of connections, the clients' manners."""

from __future__ import annotations

from dataclasses import dataclass

from ...client.net.retry import POLITE, RetryPolicy
from ...policies.contract import BRIEF_BYTES
from .network import NetworkPath

#: Asks again every second, whatever it was told.
RUDE = RetryPolicy(own_retry_s=1.0, jitter=0.0)
#: The paper's clients: they come back exactly when told.
PUNCTUAL = RetryPolicy(jitter=0.0)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What surrounds the policy. The two costs of a connection are the paper's.

    `hold`: clients wait inside their request instead of polling. `one_connection`: one connection
    carries all files of a client (the paper's FTP). `tick_s`: how often the policy is told the
    progress of transfers, as the live server does; `first_tick_s` after the first arrival (None:
    one tick; on a live server that is chance). `look_s`: what a transfer gets is told once it has
    run so long. `socket_bytes`: what a socket that is full goes on sending once its transfer is
    paused. `reader_bytes`: what a client's kernel takes before its program has read it, as with
    `--limit-rate`; 0 where its line is what makes it slow. `paced`: the server sends files of up to
    `brief_bytes` in one go, finds its line and caps itself, with `ceiling_bytes_s` configured or
    not. `limit_s`: give up on a run that has not ended by then (a policy that starves a client).
    `answer_bytes`: what an answer without a file takes of the link; who asks often takes some of it
    from those who download. `line`: from such a time on, in seconds, the link carries such a part
    of its bandwidth. `network`: the path to the clients; None: it takes no time. `can_pause`:
    whether the server sends the files itself; behind a gate what runs is not paused, no cap holds
    it back, and each download keeps to the rate that it was told at its start.
    """

    bandwidth_bytes_s: float
    hold: bool = False
    one_connection: bool = False
    attempt_s: float = 0.4
    accept_s: float = 0.1
    tick_s: float = 0.25
    first_tick_s: float | None = None
    look_s: float = 0.2
    socket_bytes: int = 64 * 1024
    reader_bytes: int = 0
    paced: bool = True
    brief_bytes: int = BRIEF_BYTES
    ceiling_bytes_s: float | None = None
    manners: RetryPolicy = POLITE
    rude_manners: RetryPolicy = RUDE
    answer_bytes: int = 0
    limit_s: float = 10_000_000.0
    line: tuple[tuple[float, float], ...] = ()
    network: NetworkPath | None = None
    can_pause: bool = True

    def line_bytes_s(self, now: float) -> float:
        """What the link carries at this time."""
        parts = [part for since_s, part in self.line if since_s <= now]
        return self.bandwidth_bytes_s * (parts[-1] if parts else 1.0)


class Starved(RuntimeError):
    """The run did not end: a client waits for ever."""

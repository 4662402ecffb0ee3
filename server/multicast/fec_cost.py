"""Predicts which erasure code costs least for a cohort.

The unit of cost is one pass of the source without loss. `receivers` lists the loss of each receiver
(0 to 1). Losses count as independent; bursts make RaptorQ even cheaper in comparison.

- none: a symbol is sent until the last receiver has it: the sum over n of the probability that a
  receiver still lacks it after n transmissions.
- xor, groups of k + 1: 1 + 1/k + R((k+1)p - 1 + (1-p)^(k+1))/k for R receivers: the losses of a
  group beyond its parity are repaired for each receiver.
- raptorq: the receiver with the highest loss p decides. K symbols reach it after about
  K/(1-p) + z sqrt(K p)/(1-p) transmissions; z depends on the number of receivers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

#: The loss while there are no reports: a quiet wired network with one weak receiver.
PRIOR_LOSS = 0.01
#: The most repair symbols of a block in an offer.
_PARITY_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Choice:
    """A code, its group (XOR's k), its parity in the first pass, and its predicted cost."""

    scheme: str
    group: int
    parity: int
    cost: float


def cost_of_none(receivers: Sequence[float]) -> float:
    """Transmissions of a symbol until the last receiver has it."""
    total, still = 1.0, list(receivers)
    for _ in range(200):
        lacking = 1 - math.prod(1 - p for p in still)
        if lacking < 1e-6:
            break
        total += lacking
        still = [left * p for left, p in zip(still, receivers, strict=True)]
    return total


def cost_of_xor(receivers: Sequence[float], k: int, *, lossy_repair: bool = False) -> float:
    """The cost with groups of k, one parity symbol each, and repair for each receiver.

    `lossy_repair`: repair symbols are lost as often as source symbols.
    """
    repair = 0.0
    for p in receivers:
        need = (k + 1) * p - 1 + (1 - p) ** (k + 1)
        repair += need / (1 - p) if lossy_repair else need
    return 1 + 1 / k + repair / k


def best_xor_group(receivers: Sequence[float]) -> int:
    """The group size of least cost."""
    # Candidates for k.
    return min(
        (4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128), key=lambda k: cost_of_xor(receivers, k)
    )


def cost_of_counting(receivers: Sequence[float], k: int) -> float:
    """The cost of RaptorQ with blocks of k and repair on demand."""
    z = NormalDist().inv_cdf(1 - 0.44 / len(receivers)) if len(receivers) > 1 else 0.0
    worst = 1.0
    for p in receivers:
        if p < 1:
            worst = max(worst, (1 + z * math.sqrt(p * (1 - p) / k)) / (1 - p))
    return worst


def fixed_parity(loss: float, k: int) -> int:
    """Parity symbols for k source symbols with which one receiver in 10 000 fails at that loss.

    It is for sessions without a return channel. Normal approximation with continuity correction.
    """
    loss = min(max(loss, 1e-4), 0.9)
    z = NormalDist().inv_cdf(1 - 1e-4)
    for parity in range(1, _PARITY_MOST):
        sent = k + parity
        lost = sent * loss + z * math.sqrt(sent * loss * (1 - loss)) + 0.5
        if lost <= parity:
            return parity
    return _PARITY_MOST


def choose(
    receivers: Sequence[float], allowed: Sequence[str], k: int, *, return_channel: bool = True
) -> Choice:
    """The code of least predicted cost among `allowed`; of equal ones the first.

    Without a return channel RaptorQ gets fixed parity.
    """
    losses = [min(max(p, 0.0), 0.95) for p in receivers] or [PRIOR_LOSS]
    if not return_channel and "raptorq" in allowed:
        # RaptorQ decodes K + 2 symbols all but once in a million (RFC 6330, 1).
        parity = fixed_parity(max(losses), k) + 2
        return Choice("raptorq", 0, parity, 1 + parity / k)
    choices: list[Choice] = []
    for name in allowed:
        if name == "none":
            choices.append(Choice(name, 0, 0, cost_of_none(losses)))
        elif name == "xor":
            group = best_xor_group(losses)
            cost = cost_of_xor(losses, group, lossy_repair=True)
            choices.append(Choice(name, group, -(-k // group), cost))
        elif name == "raptorq":
            choices.append(Choice(name, 0, 0, cost_of_counting(losses, k)))
    if not choices:
        return Choice("none", 0, 0, cost_of_none(losses))
    return min(choices, key=lambda choice: round(choice.cost, 3))

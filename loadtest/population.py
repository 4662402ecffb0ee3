"""A population as a load test replays it: faster, or thinner. Pure."""

from __future__ import annotations

from dataclasses import replace

from .workloads import Workload


def address_of(number: int) -> str:
    """An address of its own for each of 16 million clients, from the private range 10/8.

    The first 65 536 share no /24: a server that shares by network must not take them for one.
    """
    return f"10.{number & 255}.{number >> 8 & 255}.{number >> 16 & 255}"


def scaled(workload: Workload, *, time_scale: float, thin: float = 1.0) -> Workload:
    """The population as it is replayed: `time_scale` times faster, one visitor in `thin`.

    Rates and bandwidth grow as times shrink, so that every duration shrinks alike.
    """
    step = max(1.0, thin)
    kept = [
        visitor
        for index, visitor in enumerate(workload.visitors)
        if not index or int(index / step) != int((index - 1) / step)
    ]
    visitors = tuple(
        replace(
            v,
            arrival_s=v.arrival_s / time_scale,
            rate_bytes_s=v.rate_bytes_s * time_scale,
            patience_s=v.patience_s / time_scale,
        )
        for v in kept
    )
    bandwidth = workload.bandwidth_bytes_s * time_scale / step
    return replace(workload, visitors=visitors, bandwidth_bytes_s=bandwidth)

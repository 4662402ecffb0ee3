"""Populations of clients with their wishes: who comes when, how fast, for which files.

One `Workload` is run twice: in virtual time by `loadtest.sim` and in real time by Locust, so this
module knows neither. The same name and seed always give the same population.

Sources: Experiments 1 and 2 are those of S. Holmes à Court, *Admission Control Policies for
Internet File Transfer Protocols* (Dartmouth PCS-TR97-315, 1997). A release day is ours: Poisson
arrivals above capacity for ten minutes, then well below it, so that the queue can drain. The
parameters and why they are what they are: `docs/simulator.md`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

KB = 1_000
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class File:
    """Something to download, known by its name."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Visitor:
    """One client: arrives, fetches its files one after another, leaves.

    `rate_bytes_s` is the speed of its line. `patience_s` is how long it waits for the first byte
    of a file before it leaves for good. A `rude` visitor asks again every second, whatever it is
    told. One that `polls` comes back as it is told, as a browser does, where others wait in their
    request; one that `counts_body` leaves unless bytes of the body come, as curl may.
    `network` holds the prefixes around its address, as a policy is told them.
    """

    key: str
    arrival_s: float
    rate_bytes_s: float
    files: tuple[File, ...]
    patience_s: float = math.inf
    rude: bool = False
    network: tuple[str, ...] = ()
    polls: bool = False
    counts_body: bool = False

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Workload:
    """A population in the order of arrival, and the server bandwidth that is its 100 %.

    `small_below_bytes` is the bound between small and large files that fits this population.
    """

    name: str
    seed: int
    visitors: tuple[Visitor, ...]
    bandwidth_bytes_s: float
    small_below_bytes: int = 20 * KB

    @property
    def files(self) -> int:
        return sum(len(visitor.files) for visitor in self.visitors)


# --- Paper A ---------------------------------------------------------------------------------


def required_bandwidth(visitors: Iterable[Visitor], window_s: float) -> float:
    """The mean rate that moves everything which can be moved inside the window.

    A slow or late client can take only its speed times the time it has left; the paper says that
    this was taken into account and this reading fits its figures.
    """
    return (
        sum(
            min(visitor.total_bytes, visitor.rate_bytes_s * max(0.0, window_s - visitor.arrival_s))
            for visitor in visitors
        )
        / window_s
    )


def _paper(name: str, seed: int, clients: int, files: Sequence[File], most: int) -> Workload:
    rng = random.Random(f"{name}/{seed}")
    window_s = 600.0
    arrivals = sorted(rng.uniform(0.0, window_s) for _ in range(clients))
    visitors = tuple(
        Visitor(
            key=f"c{number}",
            arrival_s=arrival,
            rate_bytes_s=rng.uniform(1_600.0, 35_000.0),
            # Without replacement: only so do 60 % and 29 % of the clients ask for the 1 MB file.
            files=tuple(rng.sample(files, rng.randint(1, most))),
        )
        for number, arrival in enumerate(arrivals)
    )
    return Workload(name, seed, visitors, required_bandwidth(visitors, window_s))


def exp1(seed: int) -> Workload:
    """Experiment 1: 200 clients, one to four of four files from 1 KB to 1 MB."""
    files = File("1K", KB), File("10K", 10 * KB), File("100K", 100 * KB), File("1M", MB)
    return _paper("exp1", seed, 200, files, 4)


def exp2(seed: int) -> Workload:
    """Experiment 2: 400 clients, one to three of seven files, most of them tiny."""
    tiny = (File(f"1K-{letter}", KB) for letter in "abcd")
    files = *tiny, File("10K-a", 10 * KB), File("10K-b", 10 * KB), File("1M", MB)
    return _paper("exp2", seed, 400, files, 3)


# --- Release day -----------------------------------------------------------------------------

#: A release as it lies on a server: (name, bytes, share of the requests). Checksums, signatures
#: and pages are asked for by people and scripts alike; installers carry most of the bytes.
ARTEFACTS: tuple[tuple[str, int, float], ...] = (
    ("SHA256SUMS", 1_400, 16.0),
    ("SHA256SUMS.sig", 833, 8.0),
    ("index.html", 9_200, 16.0),
    ("release-notes.html", 46_000, 10.0),
    ("src.tar.xz", 21_500_000, 8.0),
    ("wheel-linux.whl", 14_200_000, 12.0),
    ("wheel-macos.whl", 11_800_000, 6.0),
    ("setup-windows.exe", 29_000_000, 14.0),
    ("bundle-macos.dmg", 68_000_000, 7.0),
    ("docs.zip", 13_000_000, 1.5),
    ("live.iso", 940_000_000, 1.0),
)


@dataclass(frozen=True, slots=True)
class ReleaseDay:
    """The shape of a release day; the defaults are the ones every figure in `docs` uses."""

    bandwidth_bytes_s: float = 25_000_000.0
    rush_s: float = 600.0
    rush_load: float = 1.5
    calm_s: float = 600.0
    calm_load: float = 0.3
    slowest_bytes_s: float = 1_000_000.0
    fastest_bytes_s: float = 10_000_000.0
    #: Median patience for a first byte where clients may give up; log-normal, sigma 0.7.
    patience_s: float = 240.0
    rude_fraction: float = 0.0


RELEASE_DAY = ReleaseDay()


def bounded_pareto(u: float, alpha: float, low: float, high: float) -> float:
    """The `u`-quantile (0 <= u < 1) of a Pareto distribution cut at `low` and `high`."""
    ratio = math.pow(low / high, alpha)
    return low * math.pow(1.0 - u * (1.0 - ratio), -1.0 / alpha)


def bounded_pareto_mean(alpha: float, low: float, high: float) -> float:
    """Its mean (alpha must not be 1)."""
    scale = alpha * math.pow(low, alpha) / (1.0 - math.pow(low / high, alpha))
    return scale * (math.pow(high, 1.0 - alpha) - math.pow(low, 1.0 - alpha)) / (1.0 - alpha)


def _release(
    name: str,
    seed: int,
    shape: ReleaseDay,
    draw: Callable[[random.Random, int], File],
    mean_bytes: float,
    abandon: bool,
) -> Workload:
    rng = random.Random(f"{name}/{seed}")
    slow, fast = math.log(shape.slowest_bytes_s), math.log(shape.fastest_bytes_s)
    visitors: list[Visitor] = []

    def arrivals() -> Iterator[float]:
        now = 0.0
        for load, until in (
            (shape.rush_load, shape.rush_s),
            (shape.calm_load, shape.rush_s + shape.calm_s),
        ):
            if load <= 0.0:
                now = until
                continue
            per_s = load * shape.bandwidth_bytes_s / mean_bytes
            while (now := now + rng.expovariate(per_s)) < until:
                yield now
            now = until

    for number, arrival in enumerate(arrivals()):
        visitors.append(
            Visitor(
                key=f"c{number}",
                arrival_s=arrival,
                rate_bytes_s=math.exp(rng.uniform(slow, fast)),
                files=(draw(rng, number),),
                patience_s=shape.patience_s * math.exp(rng.gauss(0.0, 0.7))
                if abandon
                else math.inf,
                rude=rng.random() < shape.rude_fraction,
            )
        )
    return Workload(name, seed, tuple(visitors), shape.bandwidth_bytes_s)


def release_pareto(seed: int, *, abandon: bool = False) -> Workload:
    """Release day whose file sizes are bounded Pareto, 1 KB to 1 GB; each file its own name."""

    # With this alpha the mean is 4 MB; few files hold most bytes.
    alpha, low, high = 0.35, 1_000, 1_000_000_000

    def draw(rng: random.Random, number: int) -> File:
        return File(f"f{number}", int(bounded_pareto(rng.random(), alpha, low, high)))

    mean = bounded_pareto_mean(alpha, low, high)
    return _release("release-pareto", seed, RELEASE_DAY, draw, mean, abandon)


def release_artefacts(
    seed: int, *, abandon: bool = False, shape: ReleaseDay = RELEASE_DAY
) -> Workload:
    """Release day with the files of a real release: checksums, pages, archives, installers."""
    files = [File(name, size) for name, size, _ in ARTEFACTS]
    shares = [share for _, _, share in ARTEFACTS]
    mean = sum(size * share for _, size, share in ARTEFACTS) / sum(shares)

    def draw(rng: random.Random, number: int) -> File:
        return rng.choices(files, shares)[0]

    return _release("release-artefacts", seed, shape, draw, mean, abandon)


@dataclass(frozen=True, slots=True)
class CrowdShape:
    """Clients within `rush_s` for the large file; over `span_s`, others for the small one."""

    clients: int = 10_000
    rush_s: float = 60.0
    looks_per_s: float = 20.0
    span_s: float = 240.0
    large: File = File("live.iso", 200 * MB)
    small: File = File("SHA256SUMS.txt", 1_400)
    bandwidth_bytes_s: float = 12_500_000.0


def crowd(seed: int) -> Workload:
    """Ten thousand people within a minute for one image, and others who only read a small file.

    The image takes the link hours to send to all, so nearly all clients wait. It measures
    the queue itself, and whether small files are still answered at once beside it.
    """
    rng = random.Random(f"crowd/{seed}")
    shape = CrowdShape()
    waiting = [(rng.uniform(0.0, shape.rush_s), shape.large) for _ in range(shape.clients)]
    looks = int(shape.looks_per_s * shape.span_s)
    waiting += [(rng.uniform(0.0, shape.span_s), shape.small) for _ in range(looks)]
    visitors = tuple(
        Visitor(f"c{number}", arrival, math.inf, (file,))
        for number, (arrival, file) in enumerate(sorted(waiting, key=lambda pair: pair[0]))
    )
    return Workload("crowd", seed, visitors, shape.bandwidth_bytes_s)


def with_rude(workload: Workload, fraction: float) -> Workload:
    """The same population with this fraction of rude clients, drawn by the workload's seed."""
    rng = random.Random(f"rude/{workload.name}/{workload.seed}")
    visitors = tuple(
        replace(visitor, rude=rng.random() < fraction) for visitor in workload.visitors
    )
    return replace(workload, visitors=visitors)


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


WORKLOADS: Mapping[str, Callable[[int], Workload]] = {
    "exp1": exp1,
    "exp2": exp2,
    "release-pareto": release_pareto,
    "release-artefacts": release_artefacts,
    "crowd": crowd,
    "release-pareto-abandon": lambda seed: release_pareto(seed, abandon=True),
    "release-artefacts-abandon": lambda seed: release_artefacts(seed, abandon=True),
}


def make_workload(name: str, seed: int) -> Workload:
    """The population of that name, one of `WORKLOADS`."""
    return replace(WORKLOADS[name](seed), name=name)

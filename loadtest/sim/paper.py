"""The paper's two experiments: its figures, ours beside them, and which findings come back.

Source: S. Holmes à Court, Dartmouth PCS-TR97-315 (1997), figures 7-9 and 17-19. The paper ran
each cell once. Its "net faster proportion" of Experiment 1 divides by 400 although there were 200
clients, so those are doubled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .scenario import paper_scenarios
from .study import StudyResult, run_seeds

LABELS = (
    "HTTP+0",
    "FTP+0",
    "Ticket+0",
    "HTTP+10",
    "FTP+10",
    "Reserve+10",
    "Ticket+10",
    "HTTP+20",
    "FTP+20",
    "Reserve+20",
    "Ticket+20",
)
LOADS: Mapping[str, float] = {"sufficient": 1.0, "light": 0.75, "heavy": 0.5, "extreme": 0.3}

#: Mean session time, s, in the order of LABELS.
MEANS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("exp1", "sufficient"): (102, 82, 84, 82, 82, 82, 84, 85, 90, 123, 138),
    ("exp1", "light"): (199, 177, 168, 183, 182, 201, 170, 179, 186, 203, 171),
    ("exp1", "heavy"): (428, 404, 386, 424, 403, 413, 393, 416, 416, 376, 422),
    ("exp2", "sufficient"): (119, 113, 110, 125, 97, 112, 103, 107, 97, 112, 103),
    ("exp2", "light"): (332, 427, 186, 323, 333, 203, 187, 441, 459, 183, 182),
    ("exp2", "heavy"): (1265, 2184, 375, 1434, 1455, 506, 375, 1380, 717, 355, 353),
}
#: Net proportion of clients faster than HTTP+0, percent (Experiment 1 already doubled).
NET_FASTER: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("exp1", "sufficient"): (0, 62, 54, 64, 66, 64, 60, 60, 48, -52, -66),
    ("exp1", "light"): (0, 18, 28, 2, 6, -18, 22, 14, -4, -20, 22),
    ("exp1", "heavy"): (0, 6, 10, -4, 0, 6, 4, -4, -10, 14, -14),
    ("exp2", "sufficient"): (0, 8, 11, -9, 24, 6, 17, 12, 21, 6, 15),
    ("exp2", "light"): (0, -22, 36, -8, -8, 28, 34, -30, -34, 35, 38),
    ("exp2", "heavy"): (0, -50, 68, -22, -23, 52, 64, -11, 35, 65, 65),
}
#: A relative difference of means below this is called none: the paper's own threshold.
NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario at one load, ours beside the paper's (None where the paper has none).

    `sign` says whether the change against HTTP+0 goes the same way (within `NOISE`: none).
    """

    experiment: str
    load: str
    label: str
    result: StudyResult
    improvement: float
    paper_mean_s: float | None
    paper_improvement: float | None
    paper_net_faster: float | None
    sign: bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the paper states, and whether our cells say so too."""

    text: str
    reproduced: bool


def direction(change: float) -> int:
    """1 better, -1 worse, 0 no difference beyond the noise."""
    return 0 if abs(change) <= NOISE else 1 if change > 0 else -1


def same_sign(ours: float, theirs: float) -> bool:
    """Same direction; no difference on either side agrees with a small one on the other."""
    a, b = direction(ours), direction(theirs)
    return a == b or (0 in (a, b) and abs(ours - theirs) <= NOISE)


def run_paper(
    experiments: Sequence[str],
    loads: Sequence[str],
    seeds: Sequence[int],
    *,
    come_back_s: float | None,
    jobs: int = 1,
    told: Callable[[Cell], None] | None = None,
) -> list[Cell]:
    """All eleven scenarios at these loads. `told` hears of each cell as it is done."""
    cells: list[Cell] = []
    for experiment in experiments:
        for load in loads:
            for label, scenario in sorted(
                paper_scenarios(LOADS[load], come_back_s).items(),
                key=lambda item: LABELS.index(item[0]),
            ):
                result = run_seeds(experiment, scenario, seeds, jobs=jobs)
                cells.append(_cell(experiment, load, label, result))
                if told is not None:
                    told(cells[-1])
    return cells


def _cell(experiment: str, load: str, label: str, result: StudyResult) -> Cell:
    improvement = 1.0 - result.mean["ratio_to_http"]
    position = LABELS.index(label)
    means = MEANS.get((experiment, load))
    nets = NET_FASTER.get((experiment, load))
    theirs = None if means is None else 1.0 - means[position] / means[0]
    return Cell(
        experiment,
        load,
        label,
        result,
        improvement,
        None if means is None else means[position],
        theirs,
        None if nets is None else nets[position] / 100.0,
        None if theirs is None else same_sign(improvement, theirs),
    )


def findings(cells: Sequence[Cell]) -> list[Finding]:
    """The paper's statements that these cells can judge, in its order."""
    by = {f"{cell.experiment} {cell.load} {cell.label}": cell for cell in cells}

    def gains(load: str, *labels: str) -> list[float]:
        return [by[f"{load} {label}"].improvement for label in labels]

    def figures(name: str, load: str, *labels: str) -> list[float]:
        return [by[f"{load} {label}"].result.mean[name] for label in labels]

    means, nets = partial(figures, "mean_session_s"), partial(figures, "net_faster")
    reserving = ("Reserve+10", "Reserve+20", "Ticket+10", "Ticket+20")
    statements: list[tuple[str, Callable[[], bool]]] = [
        (
            "Exp 1 sufficient: three extra sockets make HTTP 20 % faster",
            lambda: gains("exp1 sufficient", "HTTP+10")[0] > 0.1,
        ),
        (
            "Exp 1 sufficient: Reserve+20 and Ticket+20 are worse than HTTP+0",
            lambda: max(gains("exp1 sufficient", "Reserve+20", "Ticket+20")) < -NOISE,
        ),
        (
            "Exp 1 light: Ticket beats HTTP+0 at +0, +10 and +20",
            lambda: min(gains("exp1 light", "Ticket+0", "Ticket+10", "Ticket+20")) > 0,
        ),
        (
            "Exp 1 heavy: no scenario is more than 15 % better or worse than HTTP+0",
            lambda: max(map(abs, gains("exp1 heavy", *LABELS))) <= 0.15,
        ),
        (
            "Exp 1 heavy: Ticket+0 and Ticket+10 are better than HTTP+0",
            lambda: min(gains("exp1 heavy", "Ticket+0", "Ticket+10")) > 0,
        ),
        (
            "Exp 2 light: Reserve and Ticket with reserved slots gain 30 % and more",
            lambda: min(gains("exp2 light", *reserving)) >= 0.3,
        ),
        (
            "Exp 2 heavy: Reserve and Ticket with reserved slots gain 50 % and more",
            lambda: min(gains("exp2 heavy", *reserving)) >= 0.5,
        ),
        (
            "Exp 2 heavy: half of the clients and more are faster with reserved slots",
            lambda: min(nets("exp2 heavy", *reserving)) >= 0.5,
        ),
        (
            "Exp 2 heavy: Ticket without reserved slots gains as much as with them",
            lambda: (
                gains("exp2 heavy", "Ticket+0") >= [gains("exp2 heavy", "Ticket+10")[0] - NOISE]
            ),
        ),
        (
            "Exp 2 heavy: Ticket is no slower than Reserve with the same slots",
            lambda: all(
                ticket <= (1 + NOISE) * reserve
                for ticket, reserve in (
                    means("exp2 heavy", f"Ticket+{extra}", f"Reserve+{extra}") for extra in (10, 20)
                )
            ),
        ),
        (
            "Exp 2 heavy: FTP+0 is far worse than HTTP+0, FTP+20 far better",
            lambda: (
                gains("exp2 heavy", "FTP+0")[0] < -0.3 and gains("exp2 heavy", "FTP+20")[0] > 0.3
            ),
        ),
        (
            "Exp 2: halving the bandwidth makes HTTP+0 more than five times slower",
            lambda: means("exp2 heavy", "HTTP+0")[0] > 5 * means("exp2 sufficient", "HTTP+0")[0],
        ),
        (
            "Exp 2: Reserve and Ticket (+20) under heavy load do about as well as HTTP under light",
            lambda: (
                max(means("exp2 heavy", "Reserve+20", "Ticket+20"))
                <= 1.2 * means("exp2 light", "HTTP+0")[0]
            ),
        ),
    ]
    told: list[Finding] = []
    for text, holds in statements:
        try:
            told.append(Finding(text, holds()))
        except KeyError:
            continue  # needs cells that were not run
    return told


def order_agrees(cells: Sequence[Cell], experiment: str, load: str) -> float | None:
    """Share of the pairs of scenarios that the paper orders (beyond noise) and we order alike."""
    row = [
        (cell.paper_mean_s, cell.result.mean["mean_session_s"])
        for cell in cells
        if (cell.experiment, cell.load) == (experiment, load) and cell.paper_mean_s is not None
    ]
    agree = pairs = 0
    for index, (paper_a, ours_a) in enumerate(row):
        for paper_b, ours_b in row[index + 1 :]:
            if direction(1.0 - paper_a / paper_b) == 0:
                continue
            pairs += 1
            agree += (paper_a < paper_b) == (ours_a < ours_b)
    return agree / pairs if pairs else None

"""One self-contained HTML page: figures as tables, and the chronology of every policy.

Needs nothing from anywhere: styles and pictures stand in the page. The pictures of one page share
their time axis, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .registry import find_workload
from .sim.chronology import Chronicle, draw, natural_end
from .sim.metrics import MEANING
from .sim.paper import Cell, Finding
from .sim.scenario import Scenario
from .sim.study import StudyResult
from .sim.tables import comparison_rows, paper_rows
from .workloads import Workload, make_workload, with_rude

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.8rem}
th,td{padding:.25rem .4rem;text-align:right;vertical-align:bottom;border-bottom:1px solid #8884}
td{white-space:nowrap}
th:first-child,td:first-child,.words th:last-child,.words td:last-child{text-align:left}
figure{margin:1.5rem 0}svg{max-width:100%;height:auto}.wide{overflow-x:auto}
.pair{display:flex;flex-wrap:wrap;gap:0 1rem}.pair>*{flex:1 1 24rem;margin:1rem 0}
dt{font-weight:600}dd{margin:0 0 .3rem 1.2rem}.no{opacity:.65}
"""


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}"
        "</main></body></html>\n"
    )


def table(rows: Sequence[Sequence[str]], label: str = "Figures", *, words: bool = False) -> str:
    """Heading and rows as a table that scrolls by itself; `words`: the last column has words."""
    head = "".join(
        f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in rows[0]
    )
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:]
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table{' class=words' if words else ''}><thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def pair_of(pictures: Sequence[str]) -> str:
    """Pictures beside each other where the screen is wide."""
    return f'<div class="pair">{"".join(f"<figure>{one}</figure>" for one in pictures)}</div>'


def chronologies(workload: Workload, scenarios: Sequence[tuple[str, Scenario]]) -> list[str]:
    """One picture a scenario, all on one time axis."""
    drawn: list[tuple[str, Scenario, Chronicle]] = []
    for title, scenario in scenarios:
        chronicle = Chronicle()
        scenario.simulate(workload, workload.seed, chronicle)
        drawn.append((title, scenario, chronicle))
    until_s = max(natural_end(chronicle) for _, _, chronicle in drawn)
    return [
        draw(chronicle, scenario.capacity(workload), title, until_s=until_s)
        for title, scenario, chronicle in drawn
    ]


def study_report(results: Sequence[StudyResult]) -> str:
    """The page of `simulate run` and `simulate compare`."""
    first = results[0]
    workload = find_workload(first.workload, first.seeds[0])
    shown = [(f"{workload.name}, {r.scenario.policy}", r.scenario) for r in results]
    control = first.scenario.control()
    if all(scenario.policy != "http" for _, scenario in shown):
        shown.insert(0, (f"{workload.name}, http (control)", control))
    if first.scenario.rude > 0.0:
        workload = with_rude(workload, first.scenario.rude)
    figures = pair_of(chronologies(workload, shown))
    meanings = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in MEANING.items()
    )
    return page(
        f"Tidegate simulation: {workload.name}",
        f"<p>{len(first.seeds)} population(s); lower bound {first.mean['bound_s']:.1f} s; means "
        "over the populations, ± one standard error.</p>"
        f"{table(comparison_rows(results))}<h2>Chronology of population {first.seeds[0]}</h2>"
        f"{figures}<details><summary>What the figures mean</summary><dl>{meanings}</dl></details>",
    )


def paper_report(cells: Sequence[Cell], statements: Sequence[Finding]) -> str:
    """The page of `simulate paper`, with the paper's pictures (HTTP, FTP, Reserve, Ticket)."""
    findings = "".join(
        f'<li class="{"yes" if finding.reproduced else "no"}">'
        f"{'Reproduced' if finding.reproduced else 'Not reproduced'}: {escape(finding.text)}</li>"
        for finding in statements
    )
    parts = [f"<ul>{findings}</ul>", table(paper_rows(cells))]
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        own = [cell for cell in cells if cell.experiment == experiment]
        load = own[-1].load
        chosen = [
            (f"{experiment} {load}, {cell.label}", cell.result.scenario)
            for cell in own
            if cell.load == load and cell.label.endswith("+20")
        ]
        workload = make_workload(experiment, own[0].result.seeds[0])
        parts.append(f"<h2>Chronology: {experiment}, {load} load, 36 slots</h2>")
        parts.append(pair_of(chronologies(workload, chosen)))
    return page("The paper's experiments, simulated again", "".join(parts))

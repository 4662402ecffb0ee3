"""Carries the tally through Locust: from workers to the master, to its page, file and exit code.

Import it once from a locustfile. In a worker `tally()` is what this process saw since its last
report; in a local run or on the master `total()` is everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from .tally import Objective, Tally, misses, rows

_KEY = "tidegate"
_seen = Tally()
_total = Tally()


def tally() -> Tally:
    """Where users of this process count."""
    return _seen


def total() -> Tally:
    """All that is known in this process: its own, and what workers have sent."""
    result = Tally()
    result.merge(_total)
    result.merge(_seen)
    return result


@events.report_to_master.add_listener
def _send(client_id: str, data: dict[str, Any]) -> None:
    data[_KEY] = _seen.drain()


@events.worker_report.add_listener
def _receive(client_id: str, data: dict[str, Any]) -> None:
    if _KEY in data:
        _total.merge(Tally.from_json(data[_KEY]))


#: Counters that a profile is about: a run in which one of them stays 0 has shown nothing.
_subjects: dict[str, str] = {}


def must_count(counter: str, sentence: str) -> None:
    """Let a run miss its objectives with `sentence` if it never counts `counter`."""
    _subjects[counter] = sentence


def missing_subjects(figures: Mapping[str, float]) -> list[str]:
    """What a profile is about and the run did not have, in words."""
    return [text for counter, text in _subjects.items() if not figures.get(counter)]


def reset() -> None:
    """A new run begins: nothing has been seen yet."""
    _seen.drain()
    _total.drain()


@events.init.add_listener
def _extend_page(environment: Environment, **_: Any) -> None:
    if environment.web_ui is None:
        return
    from flask import Response, request

    app = environment.web_ui.app
    environment.web_ui.template_args |= {
        "extended_tabs": [{"title": "Admission", "key": "admission"}],
        "extended_tables": [
            {
                "key": "admission",
                "structure": [
                    {"key": "group", "title": "About"},
                    {"key": "figure", "title": "Figure"},
                    {"key": "value", "title": "Value"},
                    {"key": "meaning", "title": "Meaning"},
                ],
            }
        ],
    }

    @app.after_request
    def add_figures(response: Response) -> Response:
        if request.path == "/stats/requests" and response.is_json:
            # The page sorts by `name`, which would tear our groups apart.
            shown = [
                {**row, "figure": row["name"], "name": number}
                for number, row in enumerate(rows(total().figures()))
            ]
            extra = [{"key": "admission", "data": shown}]
            response.set_data(json.dumps({**response.get_json(), "extended_stats": extra}))
        return response


@events.quitting.add_listener
def _conclude(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        return
    figures = total().figures()
    options = environment.parsed_options
    wanted = objectives_of(options.slo)
    found = verdict_on(wanted, figures)
    if found:
        environment.process_exit_code = 1
    elif isinstance(environment.runner, MasterRunner) and not environment.runner.errors:
        environment.process_exit_code = 0
    if options.figures_json:
        verdict = {
            "profile": Path(getattr(options, "config", None) or options.locustfile).stem,
            "workload": options.workload,
            "seed": options.seed,
            "time_scale": options.time_scale,
            "thin": options.thin,
            "objectives": wanted,
            "missed": found,
            "figures": figures,
        }
        Path(options.figures_json).write_text(json.dumps(verdict, indent=1), encoding="utf-8")
    for row in rows(figures):
        sys.stderr.write(f"  {row['name']:<22} {row['value']:>14}  {row['meaning']}\n")
    for sentence in found:
        sys.stderr.write(f"objective missed: {sentence}\n")
    sys.stderr.flush()


def objectives_of(given: str | Sequence[str] | None) -> list[str]:
    """Objectives as the command line gives them, or as the page does: one string with commas."""
    texts = given.split(",") if isinstance(given, str) else list(given or ())
    return [text.strip() for text in texts if text.strip()]


def verdict_on(wanted: Sequence[str], figures: dict[str, float]) -> list[str]:
    """What was missed; what the page let through and no objective is, counts as missed."""
    objectives, found = [], []
    for text in wanted:
        try:
            objectives.append(Objective.parse(text))
        except ValueError as error:
            found.append(str(error))
    return misses(objectives, figures) + missing_subjects(figures) + found

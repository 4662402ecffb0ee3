"""Metrics for Prometheus: names and units by its conventions, labels from small fixed sets.

Values come from the live objects at each request. Client addresses and file names never become
labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .revisions import Revisions
from .vitals import Vitals

#: Name, help, and the figure (`Vitals.figures`); a counter's name ends in _total there.
_FIGURES = (
    ("tidegate_slots", "Downloads that may run at once.", "slots"),
    ("tidegate_slots_large", "Slots that large downloads may take.", "large_slots"),
    ("tidegate_downloads_paused", "Downloads that the policy has paused.", "paused"),
    ("tidegate_ready_list_target", "Tickets that the policy keeps ready.", "ready_target"),
    ("tidegate_no_show_ratio", "Share of ready tickets that nobody came for.", "no_show_fraction"),
    (
        "tidegate_eta_within_p90_ratio",
        "Share of clients that started before the 90 % bound they were told.",
        "eta_within_p90",
    ),
    (
        "tidegate_eta_error_ratio",
        "Median error of the told wait, as a share of the wait.",
        "eta_median_error",
    ),
    (
        "tidegate_end_within_p90_ratio",
        "Share of downloads that were whole before the 90 % bound they were told.",
        "end_within_p90",
    ),
    (
        "tidegate_end_error_ratio",
        "Median error of the told end, as a share of the time to it.",
        "end_median_error",
    ),
    ("tidegate_ends_judged", "Told ends that are judged.", "ends_judged_total"),
    ("tidegate_ends_kept", "Told ends whose 90 % bound held.", "ends_kept_total"),
    (
        "tidegate_people_waiting",
        "Clients that have not started, and those whose download is paused.",
        "people_waiting",
    ),
    ("tidegate_offers", "Requests to start a download.", "offers_total"),
    ("tidegate_completions", "Leases that delivered all they asked for.", "completed_total"),
    ("tidegate_downloads_begun", "Downloads begun, as on the Files page.", "begun_downloads_total"),
    (
        "tidegate_downloads_complete",
        "Whole files delivered, each under one lease.",
        "complete_downloads_total",
    ),
    ("tidegate_refusals", "Requests refused for good.", "refused_total"),
    ("tidegate_tickets_issued", "Tickets issued.", "tickets_issued_total"),
    ("tidegate_tickets_expired", "Tickets that expired.", "tickets_expired_total"),
    ("tidegate_early_polls", "Visits before the promised time.", "early_polls_total"),
    ("tidegate_goodput_bytes_per_second", "Bytes that leave, measured.", "goodput_bytes_s"),
    ("tidegate_capacity_bytes_per_second", "The cap on what leaves.", "capacity_bytes_s"),
    (
        "tidegate_transfers_misplaced",
        "Transfers that the pacer would forget: 0, or the server has a fault.",
        "transfers_misplaced",
    ),
    (
        "tidegate_transfers_starved",
        "Turns given to downloads that had waited 4 s for one under the cap.",
        "transfers_starved_total",
    ),
    (
        "tidegate_loop_lag_seconds",
        "Longest turn of the event loop in the last one to two minutes.",
        "loop_lag_s",
    ),
    ("tidegate_certificate_left_seconds", "Time to its expiry.", "certificate_left_s"),
    ("tidegate_connections", "Open connections.", "connections"),
    ("tidegate_held_requests", "Clients that wait inside their request.", "held"),
    ("tidegate_multicast_cohorts", "Multicast sessions that send.", "multicast_cohorts"),
    ("tidegate_multicast_receivers", "Receivers of multicast sessions.", "multicast_receivers"),
    ("tidegate_moved_bodies", "Files that a mover sends now.", "moved_bodies"),
    ("tidegate_torrent_peers", "Downloads that exchange pieces.", "torrent_peers"),
    ("tidegate_start_time_seconds", "When the server started, Unix time.", "started_s"),
    ("tidegate_http_connections", "Connections accepted.", "connections_total"),
    ("tidegate_sent_bytes", "Bytes of file bodies sent.", "sent_bytes_total"),
    ("tidegate_faults", "Errors logged.", "errors_total"),
    ("tidegate_torrent_announces", "Words of peers to the tracker.", "torrent_announces_total"),
    ("tidegate_mover_reports", "Ends that a mover reported.", "mover_reports_total"),
    (
        "tidegate_mover_reports_lost",
        "Ends that were found by the socket of the client, as no report came.",
        "mover_reports_lost_total",
    ),
    (
        "tidegate_mover_unclaimed",
        "Files that a mover did not begin to send.",
        "mover_unclaimed_total",
    ),
    (
        "tidegate_mover_unknown",
        "Lines of a CDN's log about downloads that are over.",
        "mover_unknown_total",
    ),
    ("tidegate_forged_tokens", "Tickets and passes with a wrong signature.", "forged_total"),
    ("tidegate_doors_closed", "Whether nobody may start, for maintenance.", "closed"),
    ("tidegate_draining", "Whether the server finishes what runs, to stop or restart.", "draining"),
    ("tidegate_store_up", "Whether the database takes writes.", "store_up"),
    ("tidegate_settings_revision", "The revision of the settings in force.", "settings_revision"),
)
#: Name, help, label, and the figure of each of its values.
_BY_LABEL = (
    (
        "tidegate_downloads_active",
        "Downloads that hold a slot.",
        "class",
        {"small": "small_active", "large": "large_active"},
    ),
    (
        "tidegate_tickets",
        "Tickets in the queue.",
        "state",
        {"waiting": "waiting", "ready": "ready"},
    ),
    (
        "tidegate_admissions",
        "Downloads started.",
        "class",
        {"small": "admitted_small_total", "large": "admitted_large_total"},
    ),
    (
        "tidegate_last_wait_seconds",
        "Wait told to the last in line.",
        "bound",
        {"expected": "last_wait_s", "p90": "last_wait_p90_s"},
    ),
)


def _family(
    name: str, text: str, field: str, values: Mapping[str, Any], label: str = ""
) -> GaugeMetricFamily | CounterMetricFamily:
    """One metric with a value for each label ("" without label); unknown values are left out."""
    kind = CounterMetricFamily if field.endswith("_total") else GaugeMetricFamily
    found = kind(name, text, labels=[label] if label else None)
    for word, value in values.items():
        if value is not None:
            found.add_metric([word] if label else [], float(value))
    return found


class _Live(Collector):
    """Reads the live objects; `mirrors` returns the condition of each mirror."""

    def __init__(
        self, vitals: Vitals, revisions: Revisions, mirrors: Callable[[], Iterable[str]]
    ) -> None:
        self._vitals = vitals
        self._revisions = revisions
        self._mirrors = mirrors

    def collect(self) -> Iterator[Metric]:
        figures = self._vitals.figures()
        figures["store_up"] = not figures["store_degraded"]
        figures["settings_revision"] = self._revisions.current.number
        yield from (_family(*one, {"": figures[one[2]]}) for one in _FIGURES)
        for name, text, label, fields in _BY_LABEL:
            values = {word: figures[field] for word, field in fields.items()}
            yield _family(name, text, next(iter(fields.values())), values, label)
        if figures["epoch"]:
            yield from _of_fleet(figures)
        mirrors = dict(sorted(Counter(self._mirrors()).items()))
        yield _family("tidegate_mirrors", "Mirrors by condition.", "", mirrors, "state")
        words = ("version", "policy", "mode")
        info = GaugeMetricFamily(
            "tidegate_info", "Version, policy and mode; always 1.", labels=words
        )
        info.add_metric([figures[word] for word in words], 1)
        yield info


def _of_fleet(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """Metrics of several processes that serve; the label is a node's name."""
    nodes = figures["nodes"]
    for name, text, field in (
        ("tidegate_node_connections", "Open connections of a node.", "connections"),
        ("tidegate_node_bodies", "Bodies that a node sends.", "bodies"),
        ("tidegate_node_goodput_bytes_per_second", "What leaves a node.", "goodput_bytes_s"),
        ("tidegate_node_silent_seconds", "Since the leader heard of a node.", "silent_s"),
        ("tidegate_node_sent_bytes", "Bytes that left a node.", "sent_bytes_total"),
    ):
        yield _family(name, text, field, {node["name"]: node[field] for node in nodes}, "node")
    yield _family("tidegate_nodes", "Nodes that are connected.", "", {"": len(nodes)})
    yield _family("tidegate_leader_epoch", "Leaders up to now.", "", {"": figures["epoch"]})
    up = not figures["fleet_fault"]
    yield _family("tidegate_fleet_up", "Whether all nodes are here.", "", {"": up})


def metrics_text(
    vitals: Vitals, revisions: Revisions, mirrors: Callable[[], Iterable[str]]
) -> bytes:
    """The metrics of one server in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Live(vitals, revisions, mirrors))
    ProcessCollector(registry=registry)
    return generate_latest(registry)

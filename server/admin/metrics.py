"""What Prometheus reads: names and units by its conventions, labels from small fixed sets.

Values are taken from the live objects when they are asked for; nothing is counted here. Client
addresses and file names never become labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from policies.contract import Snapshot
from server.admin.revisions import Revisions
from server.admin.vitals import Health, Vitals

#: (name, help, label, {label value: field of the snapshot}); no label: one field under "".
_GAUGES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("tidegate_slots", "Downloads that may run at once.", "", {"": "slots"}),
    ("tidegate_slots_large", "Slots that large downloads may take.", "", {"": "large_slots"}),
    (
        "tidegate_downloads_active",
        "Downloads that hold a slot.",
        "class",
        {"small": "small_active", "large": "large_active"},
    ),
    ("tidegate_downloads_paused", "Downloads that the policy has paused.", "", {"": "paused"}),
    (
        "tidegate_tickets",
        "Tickets in the queue.",
        "state",
        {"waiting": "waiting", "ready": "ready"},
    ),
    ("tidegate_ready_list_target", "Tickets to be kept ready.", "", {"": "ready_target"}),
    ("tidegate_no_show_ratio", "Ready tickets nobody came for.", "", {"": "no_show_fraction"}),
    (
        "tidegate_eta_within_p90_ratio",
        "Share of clients that started before the 90 % bound they were told.",
        "",
        {"": "eta_within_p90"},
    ),
    (
        "tidegate_eta_error_ratio",
        "Median error of the told wait, as a share of the wait.",
        "",
        {"": "eta_median_error"},
    ),
)
_COUNTERS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("tidegate_offers", "Requests to start a download.", "", {"": "offers_total"}),
    (
        "tidegate_admissions",
        "Downloads started.",
        "class",
        {"small": "admitted_small_total", "large": "admitted_large_total"},
    ),
    ("tidegate_completions", "Downloads finished.", "", {"": "completed_total"}),
    ("tidegate_refusals", "Requests refused for good.", "", {"": "refused_total"}),
    ("tidegate_tickets_issued", "Tickets issued.", "", {"": "tickets_issued_total"}),
    ("tidegate_tickets_expired", "Tickets that expired.", "", {"": "tickets_expired_total"}),
    ("tidegate_early_polls", "Visits before the promised time.", "", {"": "early_polls_total"}),
)
_HEALTH_GAUGES = (
    ("tidegate_goodput_bytes_per_second", "Bytes that leave, measured.", "goodput_bytes_s"),
    ("tidegate_capacity_bytes_per_second", "The configured cap.", "capacity_bytes_s"),
    ("tidegate_connections", "Open connections.", "connections"),
    ("tidegate_held_requests", "Clients that wait inside their request.", "held"),
    ("tidegate_multicast_cohorts", "Multicast sessions that send.", "multicast_cohorts"),
    ("tidegate_multicast_receivers", "Receivers of multicast sessions.", "multicast_receivers"),
    ("tidegate_torrent_peers", "Downloads that exchange pieces.", "torrent_peers"),
    ("tidegate_start_time_seconds", "When the server started, Unix time.", "started_s"),
)
#: Of each node, where several processes serve; its name is the label.
_NODE_GAUGES = (
    ("tidegate_node_connections", "Open connections of a node.", "connections"),
    ("tidegate_node_bodies", "Bodies that a node sends.", "bodies"),
    ("tidegate_node_goodput_bytes_per_second", "What leaves a node.", "goodput_bytes_s"),
    ("tidegate_node_silent_seconds", "Since the leader heard of a node.", "silent_s"),
)
_HEALTH_COUNTERS = (
    ("tidegate_http_connections", "Connections accepted.", "connections_total"),
    ("tidegate_sent_bytes", "Bytes of file bodies sent.", "sent_bytes_total"),
    ("tidegate_faults", "Errors logged.", "errors_total"),
    ("tidegate_torrent_announces", "Words of peers to the tracker.", "torrent_announces_total"),
    ("tidegate_forged_tokens", "Tickets and passes with a wrong signature.", "forged_total"),
)


class _Live(Collector):
    """Reads the live objects when asked; `mirrors` gives the condition of each mirror."""

    def __init__(
        self, vitals: Vitals, revisions: Revisions, mirrors: Callable[[], Iterable[str]]
    ) -> None:
        self._vitals = vitals
        self._revisions = revisions
        self._mirrors = mirrors

    def collect(self) -> Iterator[Metric]:
        snapshot, health = self._vitals.snapshot(), self._vitals.read()
        for name, text, label, fields in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=[label] if label else None)
            _fill(gauge, snapshot, fields)
            yield gauge
        for name, text, label, fields in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=[label] if label else None)
            _fill(counter, snapshot, fields)
            yield counter
        wait = GaugeMetricFamily(
            "tidegate_last_wait_seconds", "Wait told to the last in line.", labels=["bound"]
        )
        if snapshot.last_wait is not None:
            wait.add_metric(["expected"], snapshot.last_wait.expected_s)
            wait.add_metric(["p90"], snapshot.last_wait.p90_s)
        yield wait
        for name, text, field in _HEALTH_GAUGES:
            value = getattr(health, field)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
        for name, text, field in _HEALTH_COUNTERS:
            yield CounterMetricFamily(name, text, value=getattr(health, field))
        yield GaugeMetricFamily(
            "tidegate_store_up",
            "Whether the database takes writes.",
            value=not health.store_degraded,
        )
        yield GaugeMetricFamily(
            "tidegate_doors_closed",
            "Whether nobody may start, for maintenance.",
            value=snapshot.closed,
        )
        yield GaugeMetricFamily(
            "tidegate_draining", "Whether the server is about to stop.", value=health.draining
        )
        yield GaugeMetricFamily(
            "tidegate_settings_revision", "Settings in force.", value=self._revisions.current.number
        )
        yield from _of_nodes(health)
        mirrors = GaugeMetricFamily("tidegate_mirrors", "Mirrors by condition.", labels=["state"])
        for state, count in sorted(Counter(self._mirrors()).items()):
            mirrors.add_metric([state], count)
        yield mirrors
        info = GaugeMetricFamily(
            "tidegate_info",
            "Version, policy and mode; always 1.",
            labels=["version", "policy", "mode"],
        )
        info.add_metric([health.version, snapshot.policy, snapshot.mode], 1)
        yield info


def _of_nodes(health: Health) -> Iterator[Metric]:
    if not health.epoch:
        return
    for name, text, field in _NODE_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=["node"])
        for node in health.nodes:
            gauge.add_metric([node.name], getattr(node, field))
        yield gauge
    sent = CounterMetricFamily(
        "tidegate_node_sent_bytes", "Bytes that left a node.", labels=["node"]
    )
    for node in health.nodes:
        sent.add_metric([node.name], node.sent_bytes_total)
    yield sent
    yield GaugeMetricFamily("tidegate_nodes", "Nodes that are connected.", value=len(health.nodes))
    yield GaugeMetricFamily("tidegate_leader_epoch", "Leaders up to now.", value=health.epoch)
    yield GaugeMetricFamily(
        "tidegate_fleet_up",
        "Whether all nodes are here and the leader's lease is renewed.",
        value=not health.fleet_fault,
    )


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, snapshot: Snapshot, fields: dict[str, str]
) -> None:
    for label, field in fields.items():
        value = getattr(snapshot, field)
        if value is not None:
            family.add_metric([label] if label else [], float(value))


class Metrics:
    """One registry of its own, so that several servers in one process do not meet."""

    def __init__(
        self, vitals: Vitals, revisions: Revisions, mirrors: Callable[[], Iterable[str]]
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Live(vitals, revisions, mirrors))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The exposition in Prometheus's text format."""
        return generate_latest(self._registry)

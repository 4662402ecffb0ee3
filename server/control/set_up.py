"""What operators have set up and a restart keeps: blocked networks, the doors, rules for files."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from twisted.logger import Logger

from ..admission.actions import QueueActions
from ..admission.draw import Prequeue
from ..admission.gate import Gate
from ..admission.rules import Rule, RuleBook, openings
from ..http.proxies import block_of
from .branding import Branding
from .key_values import KeyValues
from .problems import wrong

_log = Logger()


@dataclass(frozen=True, slots=True)
class DoorState:
    """Whether downloads may start.

    Visitors read `text` and `opens_s`, which is no timer; open doors have neither.
    """

    closed: bool = False
    text: str = ""
    opens_s: float | None = None
    since_s: float | None = None
    who: str = ""


class Doors:
    """Keeps the state of the doors and applies it: while they are closed, no download starts.

    Running downloads finish, new requests are queued, and the waiting page says why and until when.
    """

    def __init__(self, gate: Gate, branding: Branding, documents: KeyValues) -> None:
        self._gate = gate
        self._branding = branding
        self._documents = documents
        self.state = DoorState(**documents.read("doors"))

    def change(self, state: DoorState) -> None:
        """Store this state and apply it."""
        self.state = state
        self._documents.write("doors", asdict(state))
        self.put_in_force()

    def put_in_force(self) -> None:
        self._branding.announce(self.state.text, self.state.opens_s)
        self._gate.close_doors(self.state.closed)


@dataclass(frozen=True, slots=True)
class BlockedNetwork:
    """A blocked address or network, until `until_s` or for good."""

    network: str
    since_s: float
    until_s: float | None
    who: str
    note: str = ""


class BlockedNetworks:
    """The blocks in force."""

    def __init__(
        self, actions: QueueActions, documents: KeyValues, now: Callable[[], float]
    ) -> None:
        self._actions = actions
        self._documents = documents
        self._now = now
        self._by_network = {
            row["network"]: BlockedNetwork(**row) for row in documents.read_list("blocks")
        }

    def open(self) -> None:
        """Apply the stored blocks."""
        for block in self.all():
            self._actions.block(block.network, block.until_s)

    def all(self) -> list[BlockedNetwork]:
        """Blocks that have not expired."""
        now = self._now()
        return [b for b in self._by_network.values() if b.until_s is None or b.until_s > now]

    def add(self, block: BlockedNetwork) -> None:
        """Block from now on, and cut the connections of the network."""
        self._by_network[block.network] = block
        self._actions.block(block.network, block.until_s)
        self._write()

    def remove(self, network: str) -> bool:
        """Serve the network again; False if it was not blocked."""
        known = self._by_network.pop(network, None) is not None
        self._write()
        return self._actions.unblock(network) or known

    def _write(self) -> None:
        self._documents.write_list("blocks", [asdict(block) for block in self.all()])


def network_of(text: str) -> str:
    """An address or network in its canonical spelling. Raises Problem 422."""
    try:
        return str(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise wrong(
            "network", f"{text!r} is neither an address nor a network such as 192.0.2.0/24."
        ) from None


def refuse_by_mistake(network: str, own: str) -> None:
    """Raises Problem 422 if a block takes too many addresses, or the address `own`."""
    found = ipaddress.ip_network(network)
    # The registries hand out IPv4 by /8 and IPv6 by /12.
    if found.prefixlen < (8 if found.version == 4 else 12):
        text = f"{network} holds many networks. To stop all downloads close the doors"
    elif own and found.overlaps(ipaddress.ip_network(block_of(own), strict=False)):
        text = f"{network} holds your own address, {own}"
    else:
        return
    raise wrong("network", f"{text}. To block it all the same, say that you are sure.")


Source = Literal["configuration", "admin"]


@dataclass(frozen=True, slots=True)
class Sourced:
    rule: Rule
    source: Source


class RuleKeeper:
    """Keeps the rules and applies them; those of operators are stored."""

    def __init__(
        self,
        gate: Gate,
        prequeue: Prequeue,
        documents: KeyValues,
        now: Callable[[], float],
        configured: Iterable[Rule],
        real_url: Callable[[str], str],
    ) -> None:
        self._gate = gate
        self._prequeue = prequeue
        self._documents = documents
        self._now = now
        self._real_url = real_url
        self.configured: tuple[Rule, ...] = tuple(configured)
        self.own: tuple[Rule, ...] = tuple(
            Rule.model_validate(row) for row in documents.read_list("rules")
        )

    def all(self) -> list[Sourced]:
        """All rules in order; the last one that matches a file decides."""
        return [
            *(Sourced(rule, "configuration") for rule in self.configured),
            *(Sourced(rule, "admin") for rule in self.own),
        ]

    def matching(self, url_path: str) -> list[Sourced]:
        """The rules that match a file, given by its percent-encoded URL path."""
        found = self._gate.parts.rules.matching(url_path)
        return [one for one in self.all() if one.rule in found]

    def configure(self, rules: Iterable[Rule]) -> None:
        self.configured = tuple(rules)
        self.put_in_force()

    def set_own(self, rules: Sequence[Rule]) -> None:
        """Replace and store the operators' rules."""
        self.own = tuple(rules)
        rows = [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]
        self._documents.write_list("rules", rows)
        self.put_in_force()

    def put_in_force(self) -> None:
        """Apply all rules to the gate, and plan the draws that they need."""
        rules = [one.rule for one in self.all()]
        for rule in rules:
            if rule.require_class not in (None, *self._gate.settings.class_weights):
                _log.warn(
                    "No pass can have the class {name} that the rule of {path} requires: no client "
                    "can download these files.",
                    name=rule.require_class,
                    path=rule.path,
                )
        self._gate.parts.rules = RuleBook(rules, self._real_url)
        self._prequeue.plan(openings(rules), self._now())

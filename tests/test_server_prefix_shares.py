"""Something scarce is shared by network: the network that has most gives up first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.server.http.prefix_shares import PrefixShares
from tidegate.server.http.proxies import prefixes_of

addresses = st.builds(
    lambda net, host: f"10.0.{net}.{host}", st.integers(0, 3), st.integers(0, 3)
) | st.builds(lambda net, host: f"2001:db8:{net}:{host}::1", st.integers(0, 2), st.integers(0, 2))


def counts(members: dict[int, str], level: int) -> Counter[str]:
    return Counter(list(reversed(prefixes_of(one)))[level] for one in members.values())


@given(st.lists(addresses, max_size=60), st.integers(1, 12))
def test_the_greediest_network_gives_its_oldest_up(asking: list[str], most: int) -> None:
    shares: PrefixShares[int] = PrefixShares()
    model: dict[int, str] = {}
    for number, address in enumerate(asking):
        network = prefixes_of(address)
        if len(shares) >= most:
            victim = shares.to_give_up(network)
            widest = counts(model, 0)
            own = widest[network[-1]]
            if max(widest.values()) - 1 > own:
                assert victim is not None
                wide = prefixes_of(model[victim])[-1]
                assert widest[wide] == max(widest.values())
            if victim is None:
                assert max(widest.values()) - 1 <= own
                continue
            # Where the two part, the newcomer still has less than is left to the other.
            ways = zip(reversed(prefixes_of(model[victim])), reversed(network), strict=False)
            theirs, ours = next((one, other) for one, other in ways if one != other)
            inside = Counter(key for one in model.values() for key in prefixes_of(one))
            assert inside[theirs] - 1 > inside[ours]
            home = prefixes_of(model[victim])[0]
            same = [one for one in model if prefixes_of(model[one])[0] == home]
            assert victim == min(same)
            shares.remove(victim)
            del model[victim]
        shares.add(number, network)
        model[number] = address
        assert len(shares) == len(model) <= most
    for number in list(model):
        shares.remove(number)
    shares.remove(-1)
    assert len(shares) == 0
    assert shares.to_give_up(("a",)) is None
    assert not shares._all.inside
    assert not shares._all.by_count


def test_ten_greedy_addresses_leave_room_for_everybody_else() -> None:
    shares: PrefixShares[int] = PrefixShares()
    for number in range(1000):
        shares.add(number, prefixes_of(f"10.{number % 10}.0.1"))
    for number in range(1000, 1200):
        victim = shares.to_give_up(prefixes_of(f"192.{number % 200}.2.1"))
        assert victim is not None
        assert victim < 1000
        shares.remove(victim)
        shares.add(number, prefixes_of(f"192.{number % 200}.2.1"))


def test_within_one_network_the_greediest_address_gives_up() -> None:
    shares: PrefixShares[int] = PrefixShares()
    for number in range(10):
        shares.add(number, prefixes_of("192.0.2.1"))
    assert shares.to_give_up(prefixes_of("192.0.2.2")) == 0
    assert shares.to_give_up(prefixes_of("192.0.2.1")) is None

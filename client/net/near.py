"""Which addresses only this machine, or its own link, can reach. Pure."""

from __future__ import annotations


def is_near(address: str) -> bool:
    """Whether an IP address, as systems write it, is this machine's own or one of its link only.

    Services there, such as those of other programs or of a cloud for its machines, trust everybody
    who reaches them.
    """
    bare = address.lower().partition("%")[0].removeprefix("::ffff:")
    if ":" in bare:
        return bare in ("::", "::1") or ("fe80" <= bare[:4] <= "febf" and bare[4:5] == ":")
    return bare.startswith(("0.", "127.", "169.254."))

"""Who may start now. Pure: no I/O, no clock; time enters as `now` in seconds."""

from importlib.util import find_spec


def compiled() -> bool:
    """Whether these modules run compiled, as in a wheel that was built beside a C compiler."""
    found = find_spec("policies.admission")
    return found is not None and not str(found.origin).endswith(".py")


def running_as() -> str:
    """The same in words, for versions and figures."""
    return "policies compiled" if compiled() else "policies in Python"

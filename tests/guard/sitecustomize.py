"""Ends a process of the suite that looks for modules in the checkout.

`tests/conftest.py` puts this folder into PYTHONPATH, so every Python process of a test loads this
file first. Processes must run the installed package, as users do.
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Folders of the checkout that hold installed packages, and links to `tests` and `bench`.
ALLOWED = ("build", ".venv")


def refuse_checkout(entry: str) -> object:
    """A hook of `sys.path_hooks`: leaves each entry outside the checkout to the next hook."""
    path = Path(entry).absolute()
    if path.is_relative_to(CHECKOUT) and path != Path(__file__).parent:
        inner = path.relative_to(CHECKOUT).parts
        if not inner or inner[0] not in ALLOWED:
            raise RuntimeError(f"This process of the suite looks for modules in {path}.")
    raise ImportError


sys.path_hooks.insert(0, refuse_checkout)

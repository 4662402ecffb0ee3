"""Faults that Tidegate had, as small changes of today's code: the search must find them again.

A change is text for text in one module, applied while the module is imported. `origin` is the
commit that mended the fault, or the test that holds it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class PastFault:
    """`before` stands once in the source of `module`; `after` is what it was like."""

    name: str
    origin: str
    module: str
    before: str
    after: str

    @property
    def full_module(self) -> str:
        """Its name to import."""
        return f"tidegate.{self.module}"

    def path(self) -> Path:
        """Its source."""
        found = importlib.util.find_spec(self.full_module)
        assert found is not None
        assert found.origin is not None
        return Path(found.origin)

    def change(self, source: str) -> str:
        """The source with the fault. Raises ValueError where today's code is another."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.module} has changed; write the fault anew")
        return source.replace(self.before, self.after)


class _ChangedLoader(importlib.machinery.SourceFileLoader):
    """Loads one module with its fault, and no compiled file of it."""

    fault: PastFault

    def get_code(self, fullname: str) -> Any:
        source = self.fault.change(Path(self.path).read_text("utf-8"))
        return self.source_to_code(source.encode(), self.path)


class _ChangedFinder:
    """Finds the one module before all others do."""

    def __init__(self, fault: PastFault) -> None:
        self._name, self._path = fault.full_module, str(fault.path())
        self._fault = fault

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self._name:
            return None
        loader = _ChangedLoader(name, self._path)
        loader.fault = self._fault
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


def bring_back(name: str) -> None:
    """Have the fault of this name in this process. Call it before the server is imported."""
    from .faults import PAST

    fault = next(one for one in PAST if one.name == name)
    finder: Any = _ChangedFinder(fault)
    if fault.full_module in sys.modules:
        raise ValueError(f"{fault.module} is imported already")
    sys.meta_path.insert(0, finder)

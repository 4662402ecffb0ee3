"""The version of this release: the only place that states it."""

__version__ = "0.2.0"

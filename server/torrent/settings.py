"""Settings of the torrents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TorrentSettings(BaseModel):
    """Whether clients may also fetch from each other."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    enabled: bool = False
    """Offer FILE.torrent and a magnet link beside each file, and a tracker; needs the `peers`
    extra."""
    least: int = Field(1 << 20, ge=1, json_schema_extra={"unit": "bytes"})
    """Files below this size have no torrent."""
    interval_s: float = Field(60.0, ge=5, le=3600, json_schema_extra={"unit": "s"})
    """How often a peer announces itself to the tracker."""
    peers: int = Field(2000, ge=2, le=1_000_000)
    """The most peers of one file in memory."""

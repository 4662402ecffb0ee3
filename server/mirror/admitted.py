"""The operator's list of mirrors: which ones may report, and the URL under which each serves."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from urllib.parse import urlsplit

from ...protocol.disk.durable import write_whole
from .registry import Admitted
from .repository import RepositoryProblem


def _path(publish: Path) -> Path:
    return publish / ".state" / "mirrors.json"


def read_admitted(publish: Path) -> dict[str, Admitted]:
    """The admitted mirrors of a publish directory, by name. Raises RepositoryProblem."""
    try:
        rows = json.loads(_path(publish).read_bytes())
        names = [one.name for one in fields(Admitted)]
        # Rows of before 0.2 have more.
        return {row["name"]: Admitted(**{n: row[n] for n in names if n in row}) for row in rows}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as fault:
        raise RepositoryProblem(f"{_path(publish)} cannot be read; repair or remove it.") from fault


def admit(
    publish: Path,
    name: str,
    url: str,
    relay_url: str | None = None,
) -> str:
    """Add or change a mirror. Returns the secret with which it signs its reports.

    Raises RepositoryProblem.
    """
    for one in (url, relay_url or url):
        with suppress(ValueError):
            if urlsplit(one).scheme in ("http", "https") and urlsplit(one).hostname:
                continue
        raise RepositoryProblem(f"{one!r} is not the http(s) URL of a mirror.")
    known = read_admitted(publish)
    secret = known[name].secret if name in known else secrets.token_urlsafe(32)
    known[name] = Admitted(name, url.rstrip("/") + "/", secret, relay_url)
    _save(publish, known)
    return secret


def expel(publish: Path, name: str) -> None:
    """Remove a mirror. Raises RepositoryProblem."""
    known = read_admitted(publish)
    if known.pop(name, None) is None:
        raise RepositoryProblem(f"No mirror named {name!r} is admitted.")
    _save(publish, known)


def _save(publish: Path, known: dict[str, Admitted]) -> None:
    rows = json.dumps([asdict(mirror) for mirror in known.values()], indent=1)
    write_whole(_path(publish), rows.encode(), mode=0o600)

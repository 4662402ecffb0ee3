"""`tidegate config check|show`: is the configuration good, and where does each value come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, SecretStr

from ....policies.settings import one_line
from ...admission.client_programs import ToolRule
from ...admission.rules import Rule
from ..config import (
    CannotStart,
    LoadedConfig,
    field_of,
    setting_names,
    value_of,
    without_password,
)
from ..settings import FIXED, ServerConfig
from .serve import config_option, fail, load_or_fail


@click.group()
def config() -> None:
    """Check or show the configuration."""


@config.command()
@config_option
def check(file: Path | None) -> None:
    """Say whether the configuration is good; exit 2 and name each fault when it is not.

    The files, folders, addresses and packages that it needs are looked at, too: by root as the
    setting `user`, else as the user that runs this.
    """
    _, loaded = load_or_fail(file, {})
    # Twisted is only needed here.
    from ..confinement import try_user
    from ..start_checks import start_faults

    try:
        try_user(loaded.config.user)
    except CannotStart as fault:
        fail([str(fault)], 2)
    faults = start_faults(loaded)
    if faults:
        fail(faults, 2)
    click.echo(f"The configuration is good ({loaded.file or 'no file; defaults'}).")


@config.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(file: Path | None, as_json: bool) -> None:
    """Show every setting, its value, and where the value came from.

    Where a revision of the admin page is in force instead of the file, its value is shown, and
    what the file says.
    """
    _, loaded = load_or_fail(file, {})
    try:
        changed = _changed(loaded)
    except CannotStart as fault:
        click.echo(f"tidegate: {fault}", err=True)
        click.echo("tidegate: What the admin page has set is not shown.", err=True)
        changed = {}
    # Those of the top level stand before every section, as in a file.
    names = sorted(setting_names(), key=lambda name: "." in name)
    rows = {name: _row(loaded, name, changed) for name in names}
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    section = ""
    for name, row in rows.items():
        head, _, key = name.rpartition(".")
        if head != section:
            section = head
            click.echo(f"\n[{head}]")
        value, file = row["value"], row.get("overridden")
        text = f"{key} = {json.dumps(value)}" if value is not None else f"# {key} ="
        over = f"; {file['origin']} says {json.dumps(file['value'])}" if file else ""
        click.echo(f"{text:<44}  # {row['origin']}{over}")


def _changed(loaded: LoadedConfig) -> dict[str, tuple[Any, str]]:
    """The settings that a revision of the admin page overrides: values, and the revision."""
    # The database is only needed here.
    from ..bootstrap import configured_revision, stored_revision

    current, configured = stored_revision(loaded.config), configured_revision(loaded.config, 0.0)
    if current is None:
        return {}
    origin = f"admin page, revision {current.number} by {current.who}"
    found = {
        f"admission.{name}": (value, origin)
        for name, value in current.settings.items()
        if value != configured.settings.get(name)
    }
    if current.policy != configured.policy:
        found["policy"] = (current.policy, origin)
    return found


def _row(loaded: LoadedConfig, name: str, changed: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    """A setting in force; `overridden` is what the configuration says where that differs."""
    file = {"value": shown(value_of(loaded.config, name)), "origin": loaded.origin(name)}
    if name not in changed:
        return file
    value, origin = changed[name]
    return {"value": value, "origin": origin, "overridden": file}


def shown(value: Any) -> Any:
    """A value for a screen: as JSON knows it, a password in an address left out."""
    found = plain(value)
    return without_password(found) if isinstance(found, str) else found


def plain(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path | SecretStr) else value


@config.command()
def reference() -> None:
    """Print the manual of all settings (Markdown)."""
    click.echo(manual(), nl=False)


def manual() -> str:
    """The reference of all settings as Markdown; `docs/configuration.md` holds it."""
    lines = [
        "# Configuration",
        "",
        "Defaults < `tidegate.toml` (or `--config FILE`) < environment < flags. `tidegate config "
        "check` names every fault, `tidegate config show` says where each value came from. "
        "`SIGHUP` reads everything again; a bad configuration changes nothing. A setting follows "
        "at once, or at the next start where a table says `restart`.",
        "",
        "In the environment settings are `TIDEGATE_NAME`, `TIDEGATE_SECTION__NAME`, and those of "
        "`admission` also `TIDEGATE_NAME`. The end of a name says its unit: `_s` seconds, "
        "`_bytes`, `_bytes_s` bytes per second. Values may carry others: `20KB`, `4MiB`, "
        '`100Mbit`, `12MB/s`, `15m`, `7d`. Where a value may be absent, `""`, `none` and `auto` '
        "say so.",
        "",
        "This page is the output of `tidegate config reference`.",
    ]
    section = None
    for name in setting_names():
        head, _, key = name.rpartition(".")
        if head != section:
            section = head
            lines += ["", f"## `[{head}]`" if head else "## Top level", ""]
            lines += ["At `restart`:", ""] if head in FIXED else []
            columns = "| setting | default | " if head else "| setting | default | reload | "
            lines += [f"{columns}|", "|---|---|---|" if head else "|---|---|---|---|"]
        field = field_of(name)
        assert field is not None
        default = json.dumps(plain(value_of(ServerConfig(), name)))
        text = one_line(field.description).replace("|", "\\|")
        shown = "" if default == "null" else f"`{default}`"
        reload = "" if head else "restart | " if key in FIXED else "| "
        lines.append(f"| `{key}` | {shown} | {reload}{text} |")
    for title, model in (("`[[rules]]`", Rule), ("`[[holding.tools]]`", ToolRule)):
        lines += ["", f"## {title}", "", "| key | default | |", "|---|---|---|"]
        for key, field in model.model_fields.items():
            default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
            shown = "" if default == "`null`" else default
            lines.append(f"| `{key}` | {shown} | {one_line(field.description)} |")
    return "\n".join(lines) + "\n"

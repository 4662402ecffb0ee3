"""The documents tell the truth: links lead somewhere, locks fit, no machine shows through."""

from __future__ import annotations

import re
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRACKED = subprocess.run(
    ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split("\0")
DOCUMENTS = [name for name in TRACKED if name.endswith(".md") and (ROOT / name).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_within_the_repository_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert ((ROOT / name).parent / target).exists(), target


def test_every_pinned_dependency_stands_in_the_lock_and_in_the_architecture() -> None:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    wanted = {"run": parser["options"]["install_requires"].split("\n")}
    wanted["test"] = "\n".join(parser["options.extras_require"].values()).split("\n")
    reasons = (ROOT / "ARCHITECTURE.md").read_text("utf-8").lower()
    for lock, pins in wanted.items():
        locked = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8").lower()
        for pin in filter(None, pins):
            name, _, rest = re.sub(r"\[.*?\]", "", pin).lower().partition("==")
            assert rest, f"{pin} is not pinned"
            version = rest.partition(";")[0].strip()
            # A lock spells names as the package index does.
            assert f"{name.replace('.', '-')}=={version}" in locked, f"{pin}: run `make lock`"
            assert f"`{name}`" in reasons, f"{pin}: ARCHITECTURE.md does not say why"


def test_no_file_names_a_private_place() -> None:
    """Paths of one machine and hosts of one network mean nothing to a reader."""
    private = re.compile(rb"/" + rb"(work|wt)/|files\.python" + rb"hosted|registry\.npm" + rb"js")
    for name in TRACKED:
        path = ROOT / name
        if name and path.is_file():
            assert not private.search(path.read_bytes()), name


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for name in DOCUMENTS:
        for target in re.findall(r"`make ([a-z][\w-]*)", (ROOT / name).read_text("utf-8")):
            assert target in targets, f"{name} names `make {target}`"

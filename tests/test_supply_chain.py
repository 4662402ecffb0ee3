"""What is shipped is what was reviewed, and everybody who builds it gets the same bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope

from tests.installed import user_environ
from tidegate import __version__

ROOT = Path(__file__).parent.parent
VENDOR = ROOT / "templates" / "vendor"

#: Licences under which Tidegate (Apache-2.0) may ship or need a package, and why.
ALLOWED = {
    "0BSD": "asks for nothing",
    "MIT-0": "asks for nothing",
    "MIT": "asks to keep the notice",
    "MIT License": "MIT, as older metadata names it",
    "BSD-2-Clause": "asks to keep the notice",
    "BSD-3-Clause": "asks to keep the notice",
    "BSD License": "BSD-2-Clause or BSD-3-Clause, as older metadata names them",
    "BSD": "libtorrent's BSD-3-Clause, as its metadata names it",
    "Apache-2.0": "our own",
    "Apache Software License": "Apache-2.0, as older metadata names it",
    "PSF-2.0": "asks to keep the notice",
    "Python Software Foundation License": "PSF-2.0, as older metadata names it",
    "ZPL-2.1": "asks to keep the notice",
}
#: The same for optional packages only: nothing of them is in a release.
ALLOWED_OPTIONAL = {
    "LGPL-3.0-only": "psycopg is imported as it is, and everybody can exchange it",
}


def test_scripts_of_others_are_those_that_were_fetched() -> None:
    sums = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    scripts = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert scripts <= set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> Bom:
    """What a release of this checkout is made of."""
    path = tmp_path_factory.mktemp("sbom") / "sbom.cdx.json"
    words = [sys.executable, ROOT / "tools" / "build-sbom", path, "0" * 40, "1790000000"]
    subprocess.run(words, check=True, env=user_environ())
    document: Any = json.loads(path.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    bom: Bom = Bom.from_json(document)  # type: ignore[attr-defined]
    return bom


def licences(component: Component) -> set[str]:
    """The names in what a component says of its licences."""
    [said] = component.licenses
    text = getattr(said, "value", None) or getattr(said, "id", None) or said.name
    return set(re.split(r" (?:and|AND|OR) ", text))


def test_everything_in_a_release_has_a_licence_that_is_allowed(sbom: Bom) -> None:
    for component in sbom.components:
        optional = component.scope is ComponentScope.OPTIONAL
        allowed = ALLOWED | ALLOWED_OPTIONAL if optional else ALLOWED
        assert licences(component) <= allowed.keys(), component.name


def test_the_sbom_has_all_that_a_server_needs_and_no_more(sbom: Bom) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {component.name: component for component in sbom.components}
    direct = {re.split(r"[\[>=;]", one)[0].replace(".", "-") for one in project["dependencies"]}
    required = {name for name, one in found.items() if one.scope is ComponentScope.REQUIRED}
    assert direct <= required
    assert {"htmx.org", "uplot", "cffi", "zope-interface"} <= required
    assert {"psycopg", "libtorrent"} <= found.keys() - required
    assert not {"pytest", "hatchling", "locust"} & found.keys()
    locked = (ROOT / "requirements" / "run.txt").read_text()
    for name in required - {"htmx.org", "uplot"}:
        assert f"{name}=={found[name].version} " in locked
    assert sbom.metadata.component is not None
    assert sbom.metadata.component.name == "tidegate"


@pytest.mark.parametrize(
    ("written", "status", "expected", "words"),
    [
        (True, 0, 0, "Every dependency was looked up"),
        (True, 1, 2, "Every dependency was looked up"),
        (False, 1, 2, "nothing was looked up"),
    ],
    ids=["clean", "vulnerable", "no data"],
)
def test_an_audit_without_data_says_so(
    tmp_path: Path, written: bool, status: int, expected: int, words: str
) -> None:
    """pip-audit ends with 1 in both cases."""
    audit = tmp_path / "pip-audit"
    output = 'for last; do :; done; echo "{}" > "$last"; ' if written else ""
    audit.write_text(f"#!/bin/sh\n{output}exit {status}\n")
    audit.chmod(0o755)
    (tmp_path / "build").mkdir()
    command = ["make", "-f", ROOT / "Makefile", "-o", "build/tools", f"PIP_AUDIT={audit}", "audit"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == expected
    assert words in done.stdout + done.stderr


def test_the_key_that_signs_releases_is_told_of_as_it_is() -> None:
    """Until the maintainers publish one, SECURITY.md says that no release is signed."""
    policy = (ROOT / "SECURITY.md").read_text("utf-8")
    key = ROOT / "release.pub"
    if not key.exists():
        assert "There is no such file yet, so no release is signed" in policy
        return
    comment, packed = key.read_text("ascii").splitlines()
    assert comment.startswith("untrusted comment: minisign public key")
    algorithm, number = base64.b64decode(packed)[:2], base64.b64decode(packed)[2:10]
    assert algorithm == b"Ed"
    assert f"{int.from_bytes(number, 'little'):016X}" in policy
    assert "no release is signed" not in policy


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_release_has_the_same_bytes_wherever_it_is_built(tmp_path: Path) -> None:
    found = []
    for umask in (0o022, 0o077):
        folder = tmp_path / f"{umask:o}"
        subprocess.run(
            [sys.executable, ROOT / "tools" / "build-release", folder],
            check=True,
            env=user_environ(),
            capture_output=True,
            umask=umask,
        )
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]
    assert len(found[0]) == 6
    assert found[0]["NOTES.md"].startswith(f"## {__version__}".encode())
    for line in found[0]["SHA256SUMS"].decode().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(found[0][name]).hexdigest() == digest

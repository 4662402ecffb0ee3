"""A publisher's tree gives nobody rights or a way out at the mirrors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mirror_site import Site, fill
from tidegate.client.mirror.problem import MirrorProblem
from tidegate.server.mirror import publish as publishing
from tidegate.server.mirror.repository import RepositoryProblem

ESCAPES = {"abs": "/etc/passwd", "rel": "../../../../../../etc/shadow", "pkg/up": "sub/../../.."}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    fill(site.tree)
    return site


def add_escapes(site: Site) -> None:
    for name, target in ESCAPES.items():
        (site.tree / name).symlink_to(target)


def test_publish_refuses_links_that_lead_out_and_names_them(site: Site) -> None:
    site.publish()
    add_escapes(site)
    with pytest.raises(RepositoryProblem) as refused:
        site.publish()
    assert all(repr(name) in str(refused.value) for name in ESCAPES)
    for name in ESCAPES:
        (site.tree / name).unlink()
    (site.tree / "pkg" / "over").symlink_to("../latest/data.bin")
    assert site.publish().version == 2


def test_a_mirror_refuses_them_from_an_origin_that_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish()
    follower = site.follower()
    assert follower.once().version == 1
    add_escapes(site)
    monkeypatch.setattr(publishing, "leads_out", lambda path, target: False)
    site.publish()
    with pytest.raises(MirrorProblem) as refused:
        follower.once()
    assert refused.value.code == "links-out"
    assert all(repr(name) in str(refused.value) for name in ESCAPES)
    live = follower.place.live
    assert not any((live / name).is_symlink() for name in ESCAPES)
    assert (live / "pkg" / "a.py").exists()


def test_set_user_id_bits_are_neither_published_nor_followed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.tree / "su.sh").write_bytes(b"#!/bin/sh\n")
    (site.tree / "su.sh").chmod(0o4755)
    (site.tree / "pkg").chmod(0o3775)
    published = site.publish()
    assert published.stripped == ["su.sh"]
    manifest = (site.publish_dir / ".state" / "main" / "1.manifest").read_text()
    assert not any(f",{mode}," in manifest for mode in (0o4755, 0o3775))
    assert site.publish().changed is False

    # An origin that publishes them all the same.
    monkeypatch.setattr(publishing, "KEPT_MODE", 0o7777)
    site.settings = replace(site.settings, paranoid=True)
    assert site.publish().version == 2
    follower = site.follower()
    assert follower.once().version == 2
    for folder, folders, files in os.walk(follower.place.live):
        for name in (*folders, *files):
            assert Path(folder, name).lstat().st_mode & 0o7000 == 0
    assert (follower.place.live / "su.sh").stat().st_mode & 0o777 == 0o755
    assert not follower.once().changed

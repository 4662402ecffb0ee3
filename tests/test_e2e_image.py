"""The image: each line of the Dockerfile is run, then what the containers of a site run."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from bench.shared.namespaces import inside
from tests.composition import Composition
from tests.dockerfile import Builder, Image, container
from tests.roots import View
from tests.running import wait_for
from tidegate.loadtest.content import files_of
from tidegate.loadtest.workloads import make_workload

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
CONTENT = b"tide" * 100_000


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Holds what one stage leaves for the next."""
    return Builder(tmp_path_factory.mktemp("image"))


def started(view: View, image: Image, log: Path) -> subprocess.Popen[bytes]:
    """What Docker starts, as the user of the image."""
    words = view.words(
        *image.entrypoint,
        *image.command,
        user=image.user,
        folder=image.folder,
        environ=image.environ,
    )
    with log.open("ab") as out:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def is_healthy(view: View, image: Image) -> bool:
    """Ask what HEALTHCHECK asks."""
    words = view.words(*image.healthcheck, user=image.user, environ=image.environ)
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_the_image_serves_and_starts_again_with_its_state(builder: Builder, tmp_path: Path) -> None:
    image = builder.build(builder.last)
    assert (image.user, image.volumes) == ("tidegate", ("/state",))
    with container(tmp_path / "container", image) as view:
        (tmp_path / "image.iso").write_bytes(CONTENT)
        view.put(tmp_path / "image.iso", "/release/image.iso")
        keys = []
        for _ in range(2):
            server = started(view, image, tmp_path / "log")
            try:
                wait_for(lambda: is_healthy(view, image) or server.poll() is not None, 60)  # noqa: B023
                assert is_healthy(view, image), (tmp_path / "log").read_text()
                get = "tidegate get http://127.0.0.1:8080/image.iso -o /tmp/got --quiet"
                how = {"user": image.user, "environ": image.environ}
                view.run("sh", "-c", f"{get} && cmp /tmp/got /release/image.iso", **how)
                keys.append(view.run("sha256sum", "/state/keys.json"))
            finally:
                server.terminate()
            assert server.wait(40) == 0
        assert keys[0] == keys[1]


def services_of_our_images(composition: Composition) -> set[str]:
    return {name for name in composition.services if "build" in composition.services[name]}


def test_the_composition_serves_from_the_images(builder: Builder, tmp_path: Path) -> None:
    """Every service that has our image runs; of the others, only PostgreSQL is needed."""
    images = {name: builder.build(name) for name in ("server", "load")}
    root = tmp_path / "site"
    root.mkdir()
    with contextlib.ExitStack() as stack:
        site = Composition(root, "docker-compose.yml", images)
        stack.callback(site.close)
        ours = services_of_our_images(site)
        assert {site.services[name]["build"]["target"] for name in ours} == set(images)
        small = lay_out_holes(root / "volumes" / "release")
        site.network()
        site.start("postgres")
        site.wait_for("postgres")
        site.start("content")
        assert site.running["content"].wait(120) == 0, site.log("content")
        for name in ("origin", "mirror-a", "mirror-b"):
            site.start(name)
        for name in ("origin", "mirror-a", "mirror-b"):
            site.wait_for(name)
            url = f"http://{site.address[name]}:8080/{small}"
            whole = (root / "volumes" / "release" / small).read_bytes()
            assert asked(site, "-L", url) == whole
        site.start("locust-master")
        site.start("locust-worker")
        page = f"http://{site.address['locust-master']}:8089/stats/requests"

        def workers() -> list[dict[str, str]]:
            found = asked(site, page)
            return json.loads(found)["workers"] if found else []  # type: ignore[no-any-return]

        wait_for(lambda: workers() or site.running["locust-worker"].poll() is not None, 60)
        assert [one["state"] for one in workers()] == ["ready"], site.log("locust-worker")
        assert ours == set(site.running) - {"postgres", "dns"}
        assert not re.search("Traceback", "".join(map(site.log, ours)))


def test_the_machines_of_a_cluster_start_from_the_image(builder: Builder, tmp_path: Path) -> None:
    root = tmp_path / "site"
    root.mkdir()
    with contextlib.ExitStack() as stack:
        site = Composition(root, images={"server": builder.build("server")})
        stack.callback(site.close)
        (root / "release" / "image.iso").write_bytes(CONTENT)
        site.network()
        for name in ("postgres", "one"):
            site.start(name)
            site.wait_for(name)
        assert asked(site, f"http://{site.address['one']}:8080/image.iso") == CONTENT


def lay_out_holes(release: Path) -> str:
    """Lay out all files but the smallest as holes: the command makes what is missing. Its name."""
    release.mkdir(parents=True)
    files = sorted(files_of(make_workload("release-artefacts", 1)), key=lambda one: one.size_bytes)
    for file in files[1:]:
        with (release / file.name).open("wb") as hole:
            hole.truncate(file.size_bytes)
    return files[0].name


def asked(site: Composition, *words: str) -> bytes:
    """What curl prints on the host of the composition."""
    command = inside(site.name("host"), "curl", "-sf", "--max-time", "20", *words)
    return subprocess.run(command, capture_output=True, check=False).stdout

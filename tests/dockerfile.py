"""Builds the stages of the Dockerfile without Docker, line by line, in roots of Debian.

Debian's own Python stands for the one of the base image. Each stage is one layer. As Docker does,
a layer is kept for the next build (`roots.kept`) unless it has files of the whole context. An
instruction that is not known here is an error.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from tests.roots import RELEASES, ROOT, View, debian, entered, kept

#: The official image has these packages beside Python, and its command is `python`.
IMAGE_PACKAGES = ("ca-certificates", "netbase", "tzdata")
_BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """What a stage leaves: layers, the uppermost first, and how its container starts."""

    layers: tuple[Path, ...]
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": _BASE_PATH})
    user: str = "root"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


def read(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, each with its words on one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, words = line.strip().partition(" ")
            yield name.upper(), words.strip()


def _is_copy_of_a_stage(instruction: tuple[str, str]) -> bool:
    name, words = instruction
    return name == "COPY" and words.startswith("--from=")


def context() -> list[str]:
    """The files that a fresh clone sends to Docker. .dockerignore names nothing that git has."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = listed.stdout.rstrip("\0").split("\0")
    return sorted(name for name in names if (ROOT / name).exists())


class Builder:
    """Builds stages of the repository's Dockerfile in `scratch`, each once."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._images: dict[str, Image] = {}
        self._stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        for name, words in read((ROOT / "Dockerfile").read_text("utf-8")):
            if name == "FROM":
                base, _, stage = words.split()
                self._stages[stage] = (base, [])
            else:
                self._stages[stage][1].append((name, words))
        #: What `docker build` without a target builds.
        self.last = stage

    def build(self, stage: str) -> Image:
        """The image of a stage, or of a base image."""
        if stage not in self._images:
            made = self._build(stage) if stage in self._stages else self._base(stage)
            self._images[stage] = made
        return self._images[stage]

    def _base(self, name: str) -> Image:
        """Stands for an official image of Python."""
        version, release = name.removeprefix("python:").split("-slim-")
        assert RELEASES[release] == version, f"{name} does not have Debian's Python"

        def make(scratch: Path) -> None:
            with entered(scratch, debian(release)) as view:
                view.run("apt-get", "update", "-q")
                view.run("apt-get", "install", "-q", "-y", *IMAGE_PACKAGES, environ=_UNATTENDED)
                view.run("ln", "-s", "/usr/bin/python3", "/usr/local/bin/python")

        layer = kept(f"python-{release}", IMAGE_PACKAGES, (debian(release),), make)
        return Image((layer, debian(release)))

    def _build(self, stage: str) -> Image:
        base, instructions = self._stages[stage]
        below = self.build(base)
        copied = list(takewhile(_is_copy_of_a_stage, instructions))
        instructions = instructions[len(copied) :]
        linked = [layer for _, words in copied for layer in self._linked(stage, *words.split())]
        below = replace(below, layers=(*reversed(linked), *below.layers))

        def make(scratch: Path) -> None:
            with entered(scratch, *below.layers) as view:
                self._steps(view, below, instructions)

        contexts = [words for name, words in instructions if name == "COPY"]
        if not copied and all(words.startswith("requirements/ ") for words in contexts):
            locked = [(ROOT / name).read_bytes() for name in context() if "requirements/" in name]
            layer = kept(stage, (*instructions, *locked), below.layers, make)
        else:
            make(self._scratch / stage)
            layer = self._scratch / stage / "upper"
        image = self._steps(None, below, instructions)
        return replace(image, layers=(layer, *below.layers))

    def _linked(self, stage: str, option: str, source: str, target: str) -> Iterator[Path]:
        """Layers, the lowest first, with what a stage copies from another before all else.

        They have links to its files: 90 MB would take a tenth of the suite's time.
        """
        for number, layer in enumerate(reversed(self.build(option.partition("=")[2]).layers)):
            found = layer / source.strip("/")
            if found.is_dir():
                made = self._scratch / f"linked-{stage}-{target.replace('/', '-')}-{number}"
                place = made / target.strip("/")
                place.parent.mkdir(parents=True)
                is_near = layer.stat().st_dev == made.stat().st_dev
                link = ["--link"] if is_near else []
                subprocess.run(["cp", "--archive", *link, found, place], check=True)
                yield made

    def _steps(self, view: View | None, image: Image, instructions: list[tuple[str, str]]) -> Image:
        """Do what a stage does in `view`; without one, only say what it leaves."""
        image = replace(image, environ=dict(image.environ))
        for name, words in instructions:
            if view is not None:
                self._do(view, image, name, words)
            image = self._step(image, name, words)
        return image

    def _do(self, view: View, image: Image, name: str, words: str) -> None:
        match name:
            case "RUN":
                view.run(
                    *("/bin/sh", "-c", words),
                    user=image.user,
                    folder=image.folder,
                    environ=image.environ,
                )
            case "COPY":
                self._copy(view, image, words.split())
            case "WORKDIR":
                view.run("mkdir", "-p", words)

    def _step(self, image: Image, name: str, words: str) -> Image:
        match name:
            case "WORKDIR":
                return replace(image, folder=words)
            case "ENV":
                for pair in shlex.split(words):
                    key, _, value = pair.partition("=")
                    image.environ[key] = value.replace("$PATH", image.environ["PATH"])
            case "USER":
                return replace(image, user=words)
            case "VOLUME":
                return replace(image, volumes=tuple(json.loads(words)))
            case "ENTRYPOINT":
                return replace(image, entrypoint=tuple(json.loads(words)))
            case "CMD":
                return replace(image, command=tuple(json.loads(words)))
            case "HEALTHCHECK":
                options, _, test = words.partition("CMD ")
                assert all(word.startswith("--") for word in options.split())
                return replace(image, healthcheck=tuple(json.loads(test)))
            case "RUN" | "COPY" | "EXPOSE":
                pass
            case _:
                raise AssertionError(f"{name} is not known here")
        return image

    def _copy(self, view: View, image: Image, words: list[str]) -> None:
        """COPY one folder from the context or from another stage."""
        stage = words.pop(0).partition("=")[2] if words[0].startswith("--from=") else ""
        source, target = words
        target = target if target.startswith("/") else f"{image.folder}/{target}"
        view.run("mkdir", "-p", target)
        unpack = view.words("tar", "-C", target, "-xp", "--no-same-owner")
        if stage:
            with entered(
                self._scratch / f"copy-{target.strip('/').replace('/', '-')}-{stage}",
                *self.build(stage).layers,
            ) as other:
                pack = other.words("tar", "-C", source, "-c", ".")
                _pipe(pack, unpack, "")
            return
        folder = ROOT / source
        inside = [ROOT / name for name in context()]
        names = [str(one.relative_to(folder)) for one in inside if one.is_relative_to(folder)]
        assert names, f"COPY {source} copies nothing"
        _pipe(["tar", "-C", str(folder), "-c", "-T", "-"], unpack, "\n".join(names))


_UNATTENDED = {"DEBIAN_FRONTEND": "noninteractive"}


def _pipe(pack: list[str], unpack: list[str], names: str) -> None:
    packed = subprocess.run(pack, input=names.encode(), stdout=subprocess.PIPE, check=True)
    subprocess.run(unpack, input=packed.stdout, check=True)


@contextmanager
def container(scratch: Path, image: Image) -> Iterator[View]:
    """A view of an image with a network of its own."""
    with entered(scratch, *image.layers, own_network=True) as view:
        yield view

"""What a wheel has compiled: the policies, by mypyc. All else about it stands in setup.cfg.

Only a wheel does. In an editable installation a change of a module counts at once, and an sdist has
sources alone. Without a C compiler, or with `TIDEGATE_PURE=1`, a wheel has the same modules in
Python; the output of the build says so, and `tidegate --version`.
"""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# isort: split
from distutils.ccompiler import new_compiler  # setuptools' own
from distutils.sysconfig import customize_compiler

#: Rooms that are compiled, and what in them stays interpreted: models of pydantic, what finds the
#: policies of others, and a test.
COMPILED = ("policies",)
INTERPRETED = {"policies/registry.py", "policies/settings.py", "policies/testing.py"}
#: At -O3 gcc takes twice as long, and what it makes is no faster.
FLAGS: dict[str, Any] = {"opt_level": "1", "debug_level": "0"}

FAULTS = (BaseError, CCompilerError, OSError)


def say(word: str) -> None:
    """Tell who builds; pip shows it with -v."""
    sys.stderr.write(f"tidegate: {word}\n")


def modules() -> list[str]:
    """What is compiled."""
    paths = sorted(str(path) for room in COMPILED for path in Path(room).rglob("*.py"))
    return [path for path in paths if path not in INTERPRETED and "__init__" not in path]


def can_compile(scratch: str) -> bool:
    """Whether there is a C compiler, and Python's headers for it."""
    source = Path(scratch, "any.c")
    source.write_text("#include <Python.h>\nint any;\n")
    compiler = new_compiler()
    customize_compiler(compiler)
    try:
        compiler.compile([str(source)], include_dirs=[sysconfig.get_path("include")])
    except FAULTS as fault:
        say(f"there is no C compiler that finds Python.h: the policies are not compiled ({fault})")
        return False
    return True


def extensions(scratch: str) -> list[Extension]:
    """C made of these modules, in this folder; empty where they stay in Python."""
    if os.environ.get("TIDEGATE_PURE", "0") not in ("", "0"):
        say("TIDEGATE_PURE is set: the policies are not compiled")
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        say("mypy is not installed: the policies are not compiled")
        return []
    if not can_compile(scratch):
        return []
    # What is installed beside it changes nothing of what is made.
    words = ["--config-file=", "--no-site-packages", "--ignore-missing-imports"]
    try:
        made = mypycify(
            [*words, f"--cache-dir={scratch}/types", *modules()],
            target_dir=f"{scratch}/c",
            multi_file=True,
            **FLAGS,
        )
    except SystemExit:
        say("mypyc has told a fault: the policies are not compiled")
        return []
    for extension in made:
        # What another compiler warns of stops nobody.
        extension.extra_compile_args.append("-Wno-error")
    return made


class BuildAll(build_ext):
    """All of them or none: half of the policies compiled would not load."""

    def run(self) -> None:
        """Compile on all processors; where that fails leave the modules as they are."""
        self.parallel = self.parallel or os.cpu_count()
        try:
            super().run()
        except FAULTS as fault:
            say(f"the policies are not compiled: {fault}")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions.clear()

    def build_extensions(self) -> None:
        """Compile the sources of one extension side by side, too."""
        one_by_one: Callable[..., list[str]] = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(self.parallel) as pool:
                made = pool.map(lambda source: one_by_one([source], **options), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_all
        super().build_extensions()


if "bdist_wheel" in sys.argv:
    # Nothing of an earlier build is ever taken for today's, and none of it is left in the tree.
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build") as folder:
        scratch = os.path.relpath(folder)
        setup(
            ext_modules=extensions(scratch),
            cmdclass={"build_ext": BuildAll},
            options={"build": {"build_base": f"{scratch}/build"}},
        )
else:
    setup()

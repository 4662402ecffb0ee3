"""The documentation as a site (`make docs`): the Markdown of the repository, as it lies there."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from protocol.version import __version__  # noqa: E402

project = "Tidegate"
author = "The Tidegate authors"
release = __version__
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md", "loadtest/README.md", "deploy/proxy/README.md"]
root_doc = "docs/site/index"
html_theme = "furo"
html_title = f"Tidegate {release}"
#: GitHub's names of headings, which the documents link to.
myst_heading_anchors = 3

"""Sphinx configuration. Nothing here needs the network."""

import tomllib
from pathlib import Path

project = "hl_dask"
author = "hl_dask developers"
copyright = "2026, hl_dask developers"
with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures are documented in words, with shapes and units
autoclass_content = "class"

html_theme = "furo"
html_title = "hl_dask"
html_show_sourcelink = False

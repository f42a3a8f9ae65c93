"""Sphinx configuration."""

import re

project = "normae"
author = "The normae developers"
copyright = "2026, the normae developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "normae"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
nitpicky = False


def escape_stars(app, what, name, obj, options, lines):  # noqa: ARG001
    """Shapes such as (N, *event) are no emphasis."""
    lines[:] = [re.sub(r"\*(?=[a-z])", r"\\*", line) for line in lines]


def setup(app):
    """Connect before napoleon, which reads the same docstrings."""
    app.connect("autodoc-process-docstring", escape_stars, priority=100)

"""Sphinx configuration."""

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

"""Sphinx configuration.

The gallery is sphinx-gallery: its examples are plain Python files, which ruff reads and anyone runs, and it needs
Sphinx and Pillow alone; notebooks (myst-nb) would bring a Jupyter kernel.
"""

import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import command_pages

project = "normae"
author = "The normae developers"
copyright = "2026, the normae developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
highlight_language = "none"  # blocks without a language are commands and what they print
html_theme = "furo"
html_title = "normae"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["normae.css"]
exclude_patterns = ["_build", "examples", "gallery_examples"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
nitpicky = False

torch.set_num_threads(1)
warnings.filterwarnings("error", module="normae")

sphinx_gallery_conf = {
    "examples_dirs": "gallery_examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "capture_repr": (),
    "write_computation_times": False,
    "image_srcset": ["2x"],
    "plot_gallery": "True",
}


def escape(app, what, name, obj, options, lines):  # noqa: ARG001
    """Shapes such as (N, *event) are no emphasis, |Delta| is no substitution, a constant has no docstring."""
    if what == "data":
        lines.clear()
    for k, line in enumerate(lines):
        if not line.startswith((">>>", "...")):
            lines[k] = re.sub(r"\*(?=[a-z])|\|(?=\w)", r"\\\g<0>", line)


def skip_fields(app, what, name, obj, skip, options):  # noqa: ARG001
    """A named tuple's docstring says what its fields are; "Alias for field number 0" says nothing."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def write_commands(app):
    """The pages of the commands, from their own help."""
    command_pages.write_pages(Path(app.srcdir) / "commands")


def setup(app):
    """Connect before napoleon, which reads the same docstrings."""
    app.connect("builder-inited", write_commands)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", escape, priority=100)

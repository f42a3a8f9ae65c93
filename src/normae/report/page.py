"""The report of a run: figures on disk, and one HTML page that needs nothing else, no network and no second file.

**A figure** is written as SVG for the page, PDF for the paper, CSV for whoever wants to draw it again. Each file
appears whole or not at all, and the same figure gives the same bytes: matplotlib's random ids are salted with the
figure's name, and no date is written.

**The page** is made from values only. Whoever has a run folder fills a `Report` and writes what `render` returns.

A picture may come from anyone. It is parsed, and only elements and attributes of a list reach the page; the page lets
nothing be loaded and no script run but its own. Two matplotlib figures both have an `axes_1`, and a clip path of one
would cut the other: every id of a picture, and every reference to it (`url(#id)`, `href="#id"`), gets its prefix.
"""

import base64
import csv
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError, refuse
from normae.files import as_cell, atomic_path
from normae.progress import counted
from normae.statistics.arrays import Estimate

Status = Literal["good", "warning", "bad"]
Value = str | Estimate
MOST_ROWS = 20_000  # rows of a CSV beyond which every k-th is kept, k the smallest number that suffices
RASTER_DPI = 200
Columns = Mapping[str, ArrayLike]
OWN_SCRIPT = "'sha256-'"  # in the page's policy: stands for the one script that may run
WIDE = 1.7  # aspect ratio from which a picture takes the whole width of the page
SPACES = ("", "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}")  # of names in a picture
DROPPED = {"metadata", "style"}
ELEMENTS = re.compile(
    "svg|g|defs|path|use|image|clipPath|mask|pattern|marker|symbol|rect|circle|ellipse|line|polyline|polygon|text|tspan|"
    "title|desc|linearGradient|radialGradient|stop"
)
_ATTRIBUTE = re.compile(
    r"id|class|d|points|x|y|[xy][12]|[cfr][xy]|r|width|height|transform|viewBox|preserveAspectRatio|version|style|href|"
    r"offset|opacity|overflow|image-rendering|\w+Units|\w+Transform|marker\w+|ref[XY]|orient|"
    r"(fill|stroke|stop|clip|font|text|mask|marker|color|dominant|letter)(-[a-z]+)*"
)
FUNCTIONS = {"url", "rgb", "rgba", "translate", "scale", "rotate", "matrix", "skewX", "skewY"}
_HREF = re.compile(r"#.*|data:image/png;base64,[\w+/=\s]*", re.DOTALL)
_VIEW_BOX = re.compile(r"""viewBox=["']\s*\S+\s+\S+\s+(\S+)\s+(\S+?)\s*["']""")


@dataclass(frozen=True)
class Check:
    """One look at the health of the training, what it says, and what to do where it is not good."""

    name: str
    status: Status
    sentence: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise InputError(f"status of {self.name}: expected one of {get_args(Status)}, got {self.status!r}")


class Comparison(NamedTuple):
    """A quantity, the paper's value and ours."""

    quantity: str
    paper: Value
    ours: Value
    note: str = ""


class Picture(NamedTuple):
    """A figure as the text of an SVG file, and the sentence that says what to see in it."""

    title: str
    svg: str
    sentence: str


class Report(NamedTuple):
    """Everything on the page, in the order of the page but for the comparisons, which stand before the facts."""

    title: str
    summary: str
    facts: Mapping[str, Value] = {}  # about the run, by name: the data, the settings, the time it took
    checks: Sequence[Check] = ()
    comparisons: Sequence[Comparison] = ()
    pictures: Sequence[Picture] = ()
    footer: str = ""


def render(report: Report) -> str:
    """The page as text. Everything but the pictures' SVG is escaped."""
    pictures = []
    for number, (title, svg, sentence) in enumerate(report.pictures, start=1):
        inline = Markup(inline_svg(svg, f"picture{number}"))  # nothing but what the lists there allow
        pictures.append({"title": title, "sentence": sentence, "svg": inline, "wide": aspect_ratio(svg) >= WIDE})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("normae.report").joinpath("template.html").read_text(encoding="utf-8"))
    page = template.render(report=report, pictures=pictures, verdict=verdict(report.checks))
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page.replace(OWN_SCRIPT, f"'sha256-{digest}'", 1)


def verdict(checks: Sequence[Check]) -> tuple[Status, str]:
    """The worst status of the checks, and a count in words."""
    count = Counter(check.status for check in checks)
    if count["bad"]:
        return "bad", f"{count['bad']} of {len(checks)} checks failed"
    if count["warning"]:
        return "warning", f"{count['warning']} of {len(checks)} checks with a warning"
    return "good", f"all {len(checks)} checks passed"


def inline_svg(svg: str, prefix: str) -> str:
    """The `<svg>` element of a file's text, with prefixed ids and its size left to the page."""
    refuse("<!ENTITY" in svg, "expected a plain SVG picture, got one that defines entities")
    try:
        found = _plain(ElementTree.fromstring(svg), f"{prefix}-")
        if found is None or found.tag != "svg":
            raise InputError("expected the text of an SVG file, got none with an <svg> element")
        found.attrib = {key: value for key, value in found.attrib.items() if key not in ("width", "height")}
        return ElementTree.tostring(found, encoding="unicode")
    except (ElementTree.ParseError, RecursionError) as error:
        raise InputError(f"expected the text of an SVG file, got none that can be read ({error})") from None


def _plain(element: ElementTree.Element, prefix: str) -> ElementTree.Element | None:
    """An element with what the lists allow; None for what is dropped."""
    name = _local(str(element.tag))
    if name in DROPPED:
        return None
    if name is None or not ELEMENTS.fullmatch(name):
        raise InputError(f"expected a plain SVG picture, got one with an element {element.tag!r}")
    found = ElementTree.Element(name)
    for long, value in element.attrib.items():
        key = _local(long)
        if key is None:
            continue  # of another program's name space
        if not _ATTRIBUTE.fullmatch(key) or not (_HREF.fullmatch(value) if key == "href" else _harmless(value)):
            raise InputError(f"expected a plain SVG picture, got one with {key}={value[:40]!r}")
        value = prefix + value if key == "id" else re.sub(r"(url\(\s*[\"']?#|^#(?=.*$))", rf"\g<1>{prefix}", value)
        found.set(key, value)
    found.text, found.tail = element.text, element.tail
    found.extend([one for child in element if (one := _plain(child, prefix)) is not None])
    return found


def _harmless(value: str) -> bool:
    """Whether a value calls nothing but what draws, and refers to nothing outside of its picture."""
    places = re.split(r"url\s*\(", value, flags=re.IGNORECASE)[1:]
    own = all(place.lstrip(" \t\n\"'").startswith("#") for place in places)
    return own and not set("\\@") & set(value) and set(re.findall(r"([\w-]*)\s*\(", value)) <= FUNCTIONS


def _local(name: str) -> str | None:
    """A name without its name space; None where that is not one of a picture."""
    space, bracket, rest = name.rpartition("}")
    return rest if space + bracket in SPACES else None


def aspect_ratio(svg: str) -> float:
    """Width over height by the view box; 1 where there is none."""
    match = _VIEW_BOX.search(svg)
    return float(match[1]) / float(match[2]) if match else 1.0


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


class SavedFigure(NamedTuple):
    """Where the three files of a figure lie."""

    svg: Path
    pdf: Path
    csv: Path

    def picture(self, title: str, sentence: str) -> Picture:
        """For a page."""
        return Picture(title, self.svg.read_text(encoding="utf-8"), sentence)


def save_figure(
    figure: Figure, folder: str | Path, name: str, columns: Columns | Sequence[Mapping[str, NDArray[Any]]]
) -> SavedFigure:
    """Write `name`.svg, `name`.pdf and `name`.csv into `folder`.

    Args:
        columns: what the figure shows, each with shape (N,); several of them stand one below the other. Of more than
            20,000 rows every k-th is written, and the file's first line, which starts with "#", says so.
    """
    paths = SavedFigure(*(Path(folder) / f"{name}.{suffix}" for suffix in SavedFigure._fields))
    if not isinstance(columns, Mapping):
        columns = {key: np.concatenate([part[key] for part in columns]) for key in columns[0]}
    table = {key: np.asarray(values) for key, values in columns.items()}
    shapes = {key: values.shape for key, values in table.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InputError(f"expected columns of one length, got {shapes}")
    with mpl.rc_context({"svg.hashsalt": f"normae/{name}", "svg.fonttype": "path", "pdf.fonttype": 42}):
        for path, dated in counted(f"drawing {name}", [(paths.svg, "Date"), (paths.pdf, "CreationDate")]):
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=RASTER_DPI, metadata={dated: None})
    rows = len(next(iter(table.values())))
    every = max(1, -(-rows // MOST_ROWS))
    with atomic_path(paths.csv) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        if every > 1:
            stream.write(f"# rows 1, {1 + every}, {1 + 2 * every}, ... (every {every}th) of {rows}\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(as_cell, table))
        writer.writerows(zip(*(map(_cell, values[::every].tolist()) for values in table.values()), strict=True))
    return paths


def _cell(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value) if isinstance(value, int) else as_cell(str(value))

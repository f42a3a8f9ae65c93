"""The report of a run as one HTML page that needs nothing else: no network, no second file.

It is made from values only. Whoever has a run folder fills a `Report` and writes what `render` returns.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from normae.errors import InputError
from normae.report.svg import aspect_ratio, inline_svg
from normae.statistics.estimate import Estimate, format_estimate

Status = Literal["good", "warning", "bad"]
Value = str | Estimate
WIDE = 1.7
"""Aspect ratio from which a picture takes the whole width of the page."""


@dataclass(frozen=True)
class Fact:
    """Something about the run: the data, the settings, the time it took."""

    name: str
    value: Value


@dataclass(frozen=True)
class Check:
    """One look at the health of the training, and what it says."""

    name: str
    status: Status
    sentence: str

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise InputError(f"status of {self.name}: expected one of {get_args(Status)}, got {self.status!r}")


@dataclass(frozen=True)
class Comparison:
    """A quantity, the paper's value and ours."""

    quantity: str
    paper: Value
    ours: Value
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as the text of an SVG file, and the sentence that says what to see in it."""

    title: str
    svg: str
    sentence: str


@dataclass(frozen=True)
class Report:
    """Everything on the page, in the order of the page but for the comparisons, which stand before the facts."""

    title: str
    summary: str
    facts: Sequence[Fact] = ()
    checks: Sequence[Check] = ()
    comparisons: Sequence[Comparison] = ()
    pictures: Sequence[Picture] = ()
    footer: str = ""


def render(report: Report) -> str:
    """The page as text. Everything but the pictures' SVG is escaped."""
    pictures = [
        {
            "title": picture.title,
            "sentence": picture.sentence,
            "svg": Markup(inline_svg(picture.svg, f"picture{number}")),  # checked there for scripts
            "wide": aspect_ratio(picture.svg) >= WIDE,
        }
        for number, picture in enumerate(report.pictures, start=1)
    ]
    return _template().render(report=report, pictures=pictures, verdict=verdict(report.checks))


def verdict(checks: Sequence[Check]) -> tuple[Status, str]:
    """The worst status of the checks, and a count in words."""
    count = Counter(check.status for check in checks)
    if count["bad"]:
        return "bad", f"{count['bad']} of {len(checks)} checks failed"
    if count["warning"]:
        return "warning", f"{count['warning']} of {len(checks)} checks with a warning"
    return "good", f"all {len(checks)} checks passed"


def _shown(value: Value) -> str:
    return format_estimate(value) if isinstance(value, Estimate) else value


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = _shown
    return environment.from_string(files("normae.report").joinpath("template.html").read_text(encoding="utf-8"))

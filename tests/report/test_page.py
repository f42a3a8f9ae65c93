"""The page is whole, escaped, needs no network, and its pictures do not disturb each other."""

import base64
import csv
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from normae.errors import InputError
from normae.figures import new_figure
from normae.figures.curves import column_histograms
from normae.figures.densities import field_map
from normae.report import Check, Comparison, Picture, Report, render, save_figure
from normae.report.page import aspect_ratio, inline_svg, verdict
from normae.statistics import Estimate

PLAIN = '<?xml version="1.0"?>\n<svg width="9pt" height="3pt" viewBox="0 0 9 3"><g id="a"/><use href="#a"/></svg>\n'


class Reader(HTMLParser):
    """Collects ids, references and open tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("href", "xlink:href", "src", "action") if name in values]
        self.addresses += [f"<{tag}>"] if tag in {"link", "iframe", "object"} else []


@pytest.fixture
def figure_text(tmp_path: Path) -> str:
    figure, axes = new_figure()
    field_map(axes[0, 0], np.arange(5), np.arange(5), np.eye(5), "p")
    return save_figure(figure, tmp_path, "map", {"x": np.zeros(1)}).svg.read_text(encoding="utf-8")


def full(svg: str) -> Report:
    return Report(
        title="A run <1>",
        summary="It agrees & is done.",
        facts={"log Z": Estimate(1.234, 0.002), "device": "cpu"},
        checks=(Check("energies", "good", "They meet."), Check("acceptance", "warning", "Near 1.")),
        comparisons=(Comparison("AUC", "0.536", Estimate(0.5071, 0.0015), "paper's recipe"),),
        pictures=(Picture("First", svg, "One sentence."), Picture("Second", svg, "Another.")),
        footer="normae",
    )


def test_everything_is_on_the_page(figure_text: str) -> None:
    page = render(full(figure_text))
    for text in ("1.234 ± 0.002", "0.536", "0.507 ± 0.002", "They meet.", "1 of 2 checks with a warning", "Another."):
        assert text in page
    assert page.count("<svg") == 2


def test_text_is_escaped(figure_text: str) -> None:
    page = render(full(figure_text))
    assert "A run &lt;1&gt;" in page
    assert "It agrees &amp; is done." in page
    assert "paper&#39;s recipe" in page


def test_ids_are_unique_and_references_meet_them(figure_text: str) -> None:
    page = render(full(figure_text))
    reader = Reader(page)
    assert reader.ids
    assert len(reader.ids) == len(set(reader.ids))
    references = re.findall(r"url\(#([^)]+)\)", page) + [a[1:] for a in reader.addresses if a.startswith("#")]
    assert references
    assert set(references) <= set(reader.ids)


def test_nothing_is_fetched(figure_text: str) -> None:
    page = render(full(figure_text))
    assert all(address.startswith(("#", "data:")) for address in Reader(page).addresses)
    assert not re.search(r"@import|url\((?!#)", page)


def test_an_empty_report_is_a_page() -> None:
    page = render(Report("Title", "Summary."))
    assert "<h2>" not in page
    assert page.rstrip().endswith("</html>")


def test_svg_loses_what_belongs_to_a_file() -> None:
    assert inline_svg(PLAIN, "p1") == '<svg viewBox="0 0 9 3"><g id="p1-a" /><use href="#p1-a" /></svg>'
    assert aspect_ratio(PLAIN) == 3.0
    assert aspect_ratio("<svg></svg>") == 1.0


def test_a_wide_picture_takes_the_whole_width() -> None:
    page = render(Report("T", "S", pictures=[Picture("a", PLAIN, "b")]))
    assert '<figure class="wide">' in page


XLINK = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
HOSTILE = [
    "no picture",
    "<svg",
    "<html></html>",
    "<svg><script>1</script></svg>",
    '<svg onload="x()"></svg>',
    "<svg/onload=alert(1)>",
    "<svg><svg/onload=alert(1)></svg>",
    '<svg><g onclick="x()"/></svg>',
    '<svg onload="alert`1`"></svg>',
    '<svg><g onclick="location=name"/></svg>',
    '<svg><rect srcdoc="x"/></svg>',
    '<svg><iframe srcdoc="x"/></svg>',
    "<svg><foreignObject><b/></foreignObject></svg>",
    '<svg><a href="java&#115;cript:x()"/></svg>',
    '<svg><use href="java&#115;cript:x()"/></svg>',
    f'<svg {XLINK}><use xlink:href="https://a.b/c.svg#d"/></svg>',
    f'<svg {XLINK}><image xlink:href="data:image/svg+xml;base64,AA"/></svg>',
    '<svg><animate attributeName="href" values="javascript:x()"/></svg>',
    '<svg><set attributeName="onload" to="x()"/></svg>',
    '<svg><rect style="fill: url(http://a.b/c)"/></svg>',
    '<svg><rect style="fill: u\\72l(http://a.b/c)"/></svg>',
    "<svg><rect style=\"background: image-set('http://a.b/c' 1x)\"/></svg>",
    "<svg><rect style=\"@import 'http://a.b/c'\"/></svg>",
    '<svg><rect style="fill: r\\65 d"/></svg>',
    '<svg xmlns:h="http://www.w3.org/1999/xhtml"><h:script>1</h:script></svg>',
    '<svg xmlns:h="http://www.w3.org/1999/xhtml"><h:g/></svg>',
    '<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>',
    "<svg>" + "<g>" * 20_000 + "</g>" * 20_000 + "</svg>",
]


@pytest.mark.parametrize("svg", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_plain_picture_is_refused(svg: str) -> None:
    with pytest.raises(InputError, match="expected"):
        render(Report("T", "S", pictures=[Picture("a", svg, "b")]))


def test_a_label_that_reads_like_a_handler_is_none() -> None:
    title = "<title>only onload=1 &lt;script&gt;</title>"
    assert inline_svg('<svg xmlns:i="http://a.b/c"><g i:label="x"/></svg>', "p") == "<svg><g /></svg>"
    assert inline_svg(f"<svg>{title}<style>* {{ x: url(http://a) }}</style></svg>", "p") == f"<svg>{title}</svg>"


def test_the_page_lets_one_script_run(figure_text: str) -> None:
    """Its own, by its hash; nothing is loaded from anywhere."""
    page = render(full(figure_text))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    nothing = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert policy.replace(f" script-src 'sha256-{digest}';", "") == nothing


def test_verdict_is_the_worst() -> None:
    good, warning, bad = (Check("name", status, "") for status in ("good", "warning", "bad"))
    assert verdict([good, good]) == ("good", "all 2 checks passed")
    assert verdict([good, warning]) == ("warning", "1 of 2 checks with a warning")
    assert verdict([bad, warning]) == ("bad", "1 of 2 checks failed")


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(InputError, match="status of a: expected one of"):
        Check("a", "fine", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [r"$\frac{$", r"a$b$\$c", "tab\tand\x00nothing", "=1+1"])
def test_any_name_of_a_column(name: str, tmp_path: Path) -> None:
    """As it is: dollars begin no formula, and no cell of the table begins one for a spreadsheet."""
    figure, axes = new_figure()
    column_histograms(axes[0], [name], np.random.default_rng(0).normal(size=(50, 1)), np.ones((50, 1)), [""])
    paths = save_figure(figure, tmp_path, "columns", {name: np.array(["=1+1", "a"])})
    assert inline_svg(paths.svg.read_text(encoding="utf-8"), "p").startswith("<svg")
    with paths.csv.open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == [f"'{name}" if name == "=1+1" else name]
        assert file.read().split() == ["'=1+1", "a"]
    label = axes[0, 0].get_xlabel()
    assert label.count("$") == label.count(r"\$") == name.count("$"), "all are escaped"

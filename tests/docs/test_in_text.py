"""Numbers in the running text of README and docs have a source, and the user pages are no longer than they may be."""

import json
import re
import tomllib

import make
import pytest
from scipy import special

from pages import DOCS, ROOT, name_of, prose

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LISTED = tomllib.loads((DOCS / "numbers" / "in_text.toml").read_text(encoding="utf-8"))
NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d+ ± \d+\.\d+|\d+(?:\.\d+)?e-?\d+|\d+\.\d+(?!\.?\d)|\d+ %)")
REFERENCE = {"mathematics.md", "design.md", "api.md"}
WORDS = 14_000
"""Of all user pages, as `wc -w` counts: README.md and docs/*.md without `REFERENCE`, docs/api and docs/research."""


def numbers(text: str) -> list[str]:
    """The numbers of a page outside of code, links and the tables of docs/numbers."""
    bare = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", make.BLOCK.sub("", text))
    return NUMBER.findall(bare)


def sourced(number: str, source: object) -> bool:
    """Whether the source of a number says just that."""
    if isinstance(source, str):
        return len(source.split()) > 1
    assert isinstance(source, dict)
    if "file" in source:
        value = float(number.removesuffix(" %")) / (100 if number.endswith("%") else 1)
        found = [float(one) for one in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", source["says"])]
        written = source["says"] in (ROOT / source["file"]).read_text(encoding="utf-8")
        return written and any(value in (one, 1 - one) or abs(value - (1 - one)) < 1e-9 for one in found)
    if "formula" in source:
        names = {name: getattr(special, name) for name in ("erf", "erfc", "ndtr", "stdtrit")}
        value = eval(source["formula"], names | {"log": lambda x: -special.entr(x) / x, "sqrt": lambda x: x**0.5})
        digits = number.removesuffix(" %")
        if "e" in digits:
            return f"{value:.0e}".replace("e-0", "e-") == digits
        return f"{value:.{len(digits.partition('.')[2])}f}" == digits
    if "zoo" in source:
        file = ROOT / "src" / "normae" / "zoo" / source["zoo"] / "metrics.json"
        return make.cell(json.loads(file.read_text(encoding="utf-8"))[source["metric"]]) == number
    return number in make.table(source["table"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_in_text_have_a_source(page):
    said = set(numbers(prose(page)))
    listed = LISTED.get(name_of(page), {})
    assert said - set(listed) == set(), "docs/numbers/in_text.toml does not say where they come from"
    assert set(listed) - said == set(), "the page no longer says these"
    for number, source in listed.items():
        assert sourced(number, source), f"{number}: {source}"


def test_user_pages_are_short():
    count = sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES if page.name not in REFERENCE)
    assert count <= WORDS


def test_a_wrong_number_is_found():
    text = "KL is 0.00017 ± 0.00003, 3 of 4, at 1e-4, v1.2.3; `0.3` and [a](b-0.4.md) are none, 68 % is one."
    assert numbers(text) == ["0.00017 ± 0.00003", "1e-4", "68 %"]
    assert not sourced("0.00018 ± 0.00003", {"zoo": "toy-2gauss-nae", "metric": "kl"})
    assert not sourced("1.387", {"formula": "2 * log(2)"})
    assert not sourced("0.03", {"file": "src/normae/evaluation/table.py", "says": "LATE = 0.02"})
    assert not sourced("0.02", {"file": "src/normae/evaluation/evaluate.py", "says": "LATE = 0.02"})
    assert not sourced("0.04", {"table": "search-p-values"})

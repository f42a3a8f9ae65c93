"""Write the tables of README and docs from the numbers beside this file: `python docs/numbers/make.py`.

A file NAME.json holds the numbers of one table, the commands that made them, their seeds, and on what settings were
chosen. A page shows it between the lines

    <!-- numbers: NAME -->
    <!-- end of numbers -->

whatever stands there is replaced. `--check` changes nothing and tells which pages are not up to date.

A cell is a text, or null, or one of

    {"value": 0.5, "error": 0.01}               0.50 ± 0.01
    {"seeds": [0.1, 0.3], "worst": "max"}       mean ± scatter over trainings, and the worst of them
    {"zoo": "toy-2gauss-nae", "metric": "kl"}   what the model's metrics.json says
"""

import json
import re
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end of numbers -->)", re.S)
NEEDED = ("about", "commands", "seeds", "chosen_on", "header", "rows")


def pages() -> list[Path]:
    """All that may show a table."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "research").glob("*.md")),
    ]


def numbers(name: str) -> dict:
    """The content of NAME.json."""
    content = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    if missing := [key for key in NEEDED if key not in content]:
        raise SystemExit(f"{name}.json: lacks {', '.join(missing)}")
    return content


def with_error(value: float, error: float, digits: int = 1) -> str:
    """Both to the leading digits of the error."""
    if not error > 0:
        return f"{value:.4g}"
    decimals = digits - 1 - int(f"{error:.{digits - 1}e}".split("e")[1])
    return f"{value:.{max(decimals, 0)}f} ± {error:.{max(decimals, 0)}f}"


def cell(content: object) -> str:
    """One cell in words."""
    if content is None or isinstance(content, str):
        return content or ""
    assert isinstance(content, dict)
    if "zoo" in content:
        file = ROOT / "src" / "normae" / "zoo" / content["zoo"] / "metrics.json"
        content = json.loads(file.read_text(encoding="utf-8"))[content["metric"]]
    if "seeds" in content:
        found = content["seeds"]
        worst = {"min": min, "max": max}[content["worst"]](found)
        scatter = statistics.stdev(found)
        mean = with_error(statistics.mean(found), scatter, 2 if f"{scatter:e}"[0] == "1" else 1)
        return f"{mean}, worst {worst:.6g}"
    bold = "**" if content.get("bold") else ""
    return f"{bold}{with_error(content['value'], content['error'])}{bold}"


def table(name: str) -> str:
    """The table in Markdown, with a line that says where it comes from."""
    content = numbers(name)
    rows = [
        content["header"],
        ["---"] * len(content["header"]),
        *([cell(one) for one in row] for row in content["rows"]),
    ]
    if wrong := [row for row in rows if len(row) != len(content["header"])]:
        raise SystemExit(f"{name}.json: expected {len(content['header'])} cells, got {wrong[0]}")
    return "\n".join("|" + "|".join(f" {one} " if one else " " for one in row) + "|" for row in rows)


def page(text: str) -> str:
    """A page with its tables made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{table(found[2])}\n{found[3]}", text)


def main(check: bool) -> int:
    """Write all pages, or tell which are not up to date."""
    stale = 0
    for path in pages():
        text = path.read_text(encoding="utf-8")
        made = page(text)
        if made != text:
            stale += 1
            print(f"{'not up to date' if check else 'written'}: {path.relative_to(ROOT)}")
            if not check:
                path.write_text(made, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

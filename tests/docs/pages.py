"""The pages of the documentation as text, fenced blocks and links."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if not {"_build", "commands", "gallery"} & set(page.relative_to(ROOT).parts)]
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
"""The comment before a block that no test can run, with the reason."""


class Block(NamedTuple):
    """A fenced block: its language, its text, its first line in the page, and why it is not run, where it is not."""

    language: str
    text: str
    line: int
    reason: str | None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, also those that are indented under a list item."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    k, before = 0, ""
    while k < len(lines):
        opened = re.fullmatch(r"( *)(```+)(\S*).*", lines[k])
        if opened:
            indent, fence, language = opened.groups()
            end = next((n for n in range(k + 1, len(lines)) if lines[n] == indent + fence), None)
            assert end is not None, f"{name_of(page)}:{k + 1}: the block is not closed"
            text = "\n".join(line.removeprefix(indent) for line in lines[k + 1 : end])
            said = NOT_RUN.fullmatch(before.strip())
            found.append(Block(language, text, k + 2, said and said[1]))
            k = end
        before = lines[k] if lines[k].strip() else before
        k += 1
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def command_lines(page: Path) -> list[str]:
    """Every `normae ...` of a page: in blocks that are not Python or TOML, indented, and in code spans with options."""
    found: list[str] = []
    for block in blocks(page):
        if block.language in ("", "bash", "sh", "console"):
            found += re.sub(r"\\\n\s*", "", block.text).splitlines()
    text = prose(page)
    found += re.findall(r"^ {4}(normae .*)$", text, flags=re.M)
    found += [span for span in re.findall(r"`([^`\n]+)`", text) if " -" in span]
    lines = [line.removeprefix("$ ").strip() for line in found]
    return [line for line in lines if re.match(r"(\w+=\S+ )*(normae|torchrun) ", line)]

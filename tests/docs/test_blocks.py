"""Every Python block of the README and the documentation runs, page by page, in the order of the page."""

import re

import pytest
import torch

from pages import PAGES, blocks, name_of
from preparation import PREPARATIONS, SMALLER

OUTPUT = re.compile(r"^(\S.*)  # (-?\d+\.\d+)(?=:|$)", re.M)
"""A line with the number that it gives, in a comment."""
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = name_of(page)
    names = {"__name__": "__main__"} | PREPARATIONS.get(name, dict)()
    replaced = set()
    for block in blocks(page):
        if block.language != "python" or block.reason:
            continue
        text = block.text
        for old, new in SMALLER.get(name, []):
            replaced |= {old} if old in text else set()
            text = text.replace(old, new)
        with torch.random.fork_rng():
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), names)
            for expression, said in OUTPUT.findall(text):
                assert eval(expression, names) == pytest.approx(float(said), rel=0.02), f"{name}: {expression}"
    assert replaced == {old for old, _ in SMALLER.get(name, [])}, "the page no longer says what is made smaller here"


def test_settings_of_pages_are_configurations():
    """A TOML block with [data] is a whole configuration: it is read."""
    import tomllib

    from normae.config import structure

    read = 0
    for page in PAGES:
        for block in blocks(page):
            if block.language == "toml" and "[data]" in block.text:
                structure(tomllib.loads(block.text), f"{name_of(page)}:{block.line}")
                read += 1
    assert read >= 1


def test_a_block_that_fails_is_found(tmp_path):
    """The reader of blocks sees indented and marked ones, and their lines."""
    page = tmp_path / "page.md"
    page.write_text("1. text\n\n   ```python\n   1 / 0\n   ```\n\n<!-- not run: far away -->\n\n```python\nx\n```\n")
    found = blocks(page)
    assert [(b.text, b.line, b.reason) for b in found] == [("1 / 0", 4, None), ("x", 10, "far away")]
    assert OUTPUT.findall("f(x)  # -3.5: low\ng(x)  # 2.5 of them\n  h(x)  # 1.5") == [("f(x)", "-3.5")]
    with pytest.raises(ZeroDivisionError):
        exec(found[0].text)

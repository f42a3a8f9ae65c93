"""The examples in docstrings run as they stand: a name that an example needs, it imports itself."""

import ast
import doctest

import pytest

from pages import ROOT

SOURCE = ROOT / "src" / "normae"
LEAST = 55
"""Docstrings with an example: those of more than fifty functions and classes that users meet."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def documented(node, name):
    """(name, docstring) of a module, and of all that is in it."""
    if isinstance(node, Documented) and (text := ast.get_docstring(node)):
        yield name, text
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from documented(child, f"{name}.{child.name}")


def examples():
    """Those of all docstrings, by name; the modules are not imported, so a decorator hides none."""
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in (text := path.read_text(encoding="utf-8")):
            place = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
            for name, docstring in documented(ast.parse(text), place):
                test = doctest.DocTestParser().get_doctest(docstring, {}, name, str(path), 0)
                if test.examples:
                    yield pytest.param(test, id=name)


EXAMPLES = list(examples())


def test_what_users_meet_has_examples():
    assert len(EXAMPLES) >= LEAST


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not failed, "".join(said)

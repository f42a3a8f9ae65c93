"""The list of mutants is up to date: `make mutants` runs it."""

from pathlib import Path

import run


def test_every_mutant_can_be_made():
    found = run.mutants()
    assert len(found) >= 45
    for mutant in found:
        text = (run.ROOT / mutant["file"]).read_text()
        assert text.count(mutant["old"]) == 1, mutant
        assert mutant["old"] != mutant["new"]
        for test in mutant["tests"]:
            path, _, name = test.partition("::")
            assert not name or f"def {name}(" in (Path(run.ROOT) / "tests" / path).read_text(), test

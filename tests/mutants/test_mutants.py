"""The list of mutants is up to date: `make mutants` runs it."""

from pathlib import Path

import run


def test_every_mutant_can_be_made():
    found, stale = run.mutants(), []
    for mutant in found:
        if (run.ROOT / mutant["file"]).read_text().count(mutant["old"]) != 1:
            stale.append(f"{mutant['file']}: {mutant['old']}")
        assert mutant["old"] != mutant["new"]
        for test in mutant["tests"]:
            path, _, name = test.partition("::")
            assert not name or f"def {name}(" in (Path(run.ROOT) / "tests" / path).read_text(), test
    assert len(found) >= 45
    assert not stale

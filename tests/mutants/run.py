"""Break the package on purpose, one line at a time, and see that a fast test notices: `make mutants`.

mutants.toml lists the changes: a file, the text in it, what is put in its place, and the tests that must fail. Each is
made in a copy of the clone. One that no test notices has survived, and the exit status says so.

    python tests/mutants/run.py [words of a file, of its text or of a test ...]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("src", "configs", "tests", "docs", "bench", "README.md", "pyproject.toml")
FAILED = 1
"""What pytest returns where tests ran and some failed; anything else, such as no test found, is no proof."""


def mutants() -> list[dict]:
    """The list; a change stands as `old` and `new`, with the paths of `tests` under tests/."""
    with (ROOT / "tests" / "mutants" / "mutants.toml").open("rb") as file:
        return tomllib.load(file)["mutant"]


def noticed(mutant: dict, clone: Path) -> bool:
    """Whether the named tests fail in `clone` with the change made; the file is as before afterwards."""
    path = clone / mutant["file"]
    text = path.read_text()
    _write(path, text.replace(mutant["old"], mutant["new"]))
    try:
        tests = [str(clone / "tests" / test) for test in mutant["tests"]]
        flags = ["-x", "-q", "-p", "no:cacheprovider", "--durations=0", "--no-header", "--tb=no"]
        environment = os.environ | {"PYTHONPATH": str(clone / "src"), "PYTHONDONTWRITEBYTECODE": ""}
        environment["NUMBA_DISABLE_JIT"] = "1"  # compiling takes longer than these tests
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *flags, *tests], cwd=clone, env=environment, capture_output=True, text=True
        )
        if done.returncode not in (0, FAILED):
            raise SystemExit(f"{mutant['file']}: the tests did not run\n{done.stdout}{done.stderr}")
        return done.returncode == FAILED
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Put `text` into the file; the byte code of what was there goes, since it is told by size and second only."""
    path.write_text(text)
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()


def main(words: list[str]) -> int:
    """Run all mutants that have one of the words, or all."""
    chosen = [one for one in mutants() if not words or any(word in str(one) for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "_build", "gallery"))
            else:
                shutil.copy(source, target)
        for mutant in chosen:
            if (Path(folder) / mutant["file"]).read_text().count(mutant["old"]) != 1:
                print(f"STALE    {mutant['file']}: {mutant['old'].strip().splitlines()[0]}")
                survivors.append(mutant)
                continue
            start = time.perf_counter()
            found = noticed(mutant, Path(folder))
            survivors += [] if found else [mutant]
            said = f"{'noticed ' if found else 'SURVIVED'} {time.perf_counter() - start:5.1f} s  {mutant['file']}"
            print(f"{said}: {mutant['new'].strip().splitlines()[0][:90]}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} noticed")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

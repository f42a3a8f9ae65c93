"""How far the numbers of trainings scatter that differ in their seeds only."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normae.config import read
from normae.errors import InputError, refuse
from normae.files import Place, check_new, output, write_json
from normae.runs.folder import RunFolder, is_number, is_pair, read_json
from normae.runs.load import run_of, seed_folders, shared_settings
from normae.statistics.arrays import Estimate, student

Numbers = dict[str, Estimate]
ROUNDING = 1e-12  # share of a number by which the same one differs from sum to sum


class Scatter(NamedTuple):
    """One number over trainings."""

    mean: Estimate  # its error comes from their scatter, with Student's factor
    deviation: float  # standard deviation over trainings, of one training
    stated: float  # root mean square of the errors that trainings state; NaN where one states none, or infinity
    within: float  # share of the other trainings that lie within the error of one, over all of them; NaN likewise
    values: tuple[float, ...]  # of each training


def spread_of_runs(folders: Sequence[Place], out: Place | None = None, force: bool = False) -> dict[str, Scatter]:
    """Finite numbers that all of the trainings have, in the order of the first.

    Args:
        folders: evaluated runs that differ in their seeds, or one folder of them; or folders of dual tests.
        out: a JSON file to write; `force` replaces what is there.
    """
    if out is not None:
        check_new(out, force)
    found = _numbers(folders)
    shared = [name for name in found[0] if all(name in numbers for numbers in found)]
    refuse(not shared, f"{folders[0]}: expected numbers that all of the trainings have, got none")
    result = {name: scatter([numbers[name] for numbers in found]) for name in shared}
    if out is not None:
        plain = {}
        for name, one in result.items():
            numbers = one._asdict() | {"mean": one.mean._asdict(), "values": list(one.values)}
            plain[name] = {of: None if n != n else n for of, n in numbers.items()}  # null for what is not known
        with output(out, force) as temporary:
            write_json(temporary, plain)
    return result


def scatter(estimates: Sequence[Estimate]) -> Scatter:
    """Mean and scatter of independent estimates of one number."""
    refuse(len(estimates) < 2, f"expected at least two trainings, got {len(estimates)}")
    values, errors = np.array(estimates, dtype=np.float64).T
    found = float(values.std(ddof=1))
    deviation = 0.0 if found < ROUNDING * abs(values).max() else found
    known = bool(((errors > 0) & np.isfinite(errors)).all())
    away = np.abs(values[:, None] - values) <= errors[:, None]
    mean = Estimate(float(values.mean()), student(len(values)) * deviation / len(values) ** 0.5)
    stated, within = float(np.sqrt((errors**2).mean())), float(away[~np.eye(len(values), dtype=bool)].mean())
    return Scatter(mean, deviation, *((stated, within) if known else (np.nan, np.nan)), tuple(values.tolist()))


def _numbers(folders: Sequence[Place]) -> list[Numbers]:
    tests = [Path(folder) / "dual.json" for folder in folders]
    if any(test.is_file() for test in tests):
        contents = []
        for test in tests:
            words = "expected the folder of a dual test, as the others; it has no dual.json"
            refuse(not test.is_file(), f"{test.parent}: {words}")
            contents.append(read_json(test))
            if not isinstance(contents[-1], dict) or not isinstance(contents[-1].get("tested"), dict):
                raise InputError(f"{test}: expected what `normae dual` writes; run it again")
        _check_tests(tests, contents)
        return [_finite(content, test) for test, content in zip(tests, contents, strict=True)]
    runs = seed_folders(folders)
    shared_settings(runs)
    seeds = [read(run.config).seed for run in runs]
    refuse(len(set(seeds)) < len(seeds), f"expected runs of different seeds, got {', '.join(map(str, seeds))}")
    return [_finite(run.read_metrics(), run.metrics) for run in runs]


def _check_tests(paths: Sequence[Path], contents: Sequence[dict[str, Any]]) -> None:
    """The same events and reference, and pairs of models that differ in their seeds where they can still be read."""
    tested = [content["tested"] for content in contents]
    for path, one in zip(paths, tested, strict=True):
        for name in ("data", "reference"):
            if one.get(name) != tested[0].get(name):
                raise InputError(f"{path.parent}: expected the {name} of {paths[0].parent}, got {one.get(name)}")
    seeds: list[list[int]] = []
    for side in ("run_a", "run_b"):
        runs: list[RunFolder] = []
        with suppress(InputError):  # models of an earlier test may be gone
            runs = [run_of(str(one.get(side))) for one in tested]
        if runs:
            shared_settings(runs)
            seeds.append([read(run.config).seed for run in runs])
    pairs = [str(pair) for pair in zip(*seeds, strict=True)] if len(seeds) == 2 else [str(p.resolve()) for p in paths]
    for k, one in enumerate(pairs):
        refuse(one in pairs[:k], f"{paths[k].parent}: the models of {paths[pairs.index(one)].parent}; expected others")


def _finite(content: dict[str, Any], path: Path) -> Numbers:
    """The numbers among other things, with NaN for an error that is not known."""
    found = {}
    for name, one in content.items():
        if is_pair(one):
            value, error = (np.nan if one[key] is None else one[key] for key in ("value", "error"))
            words = f"expected a number and its error as {name}, got {one['value']}, {one['error']}"
            refuse(not (is_number(value) and is_number(error)), f"{path}: {words}")
            if np.isfinite(value):
                found[name] = Estimate(value, error)
    return found

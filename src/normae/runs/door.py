"""`normae.train`: from data to a model, whatever the data are; `normae train` and the estimator are the same call."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
from torch import nn

from normae.config import Run, override, read
from normae.data import Rows, as_rows, read_rows
from normae.data.frames import Missing
from normae.errors import InputError, Interrupted, refuse, require_that
from normae.files import atomic_path, new_folder
from normae.inference import Model
from normae.jets import is_jets
from normae.networks import Autoencoder
from normae.networks.own import own_network
from normae.progress import plain, shown_by
from normae.runs.automatic import Wishes, automatic_run, check_table, events_run, own_run, split_sizes, start_iterations
from normae.runs.folder import DATA, RunFolder
from normae.runs.load import Loaded, load, load_run
from normae.runs.session import train as train_run
from normae.sources import KINDS, DataConfig, Events, file_in, load_events, read_jet_images

WEIGHTS = "weights"  # the array of `DATA` with them
NO_WISHES = Wishes()
JETS_TEST, JETS_VALIDATION = 0.2, 0.1  # shares of a file of jets that are held out


def train(
    data: Any, out: str | Path | None = None, *, columns: Sequence[str] | None = None, dataset: str | None = None,
    weights: Any = None, condition: Sequence[str | int] | str | int = (), missing: Missing = "refuse",
    settings: Sequence[str] = (), seed: int = 0, device: str = "auto", resume: bool = False, verbose: int = 0,
    encoder: nn.Module | None = None, decoder: nn.Module | None = None, energy: nn.Module | None = None,
) -> Model:  # fmt: skip
    """Train a normalized autoencoder and return it, with log Z where it can be had.

    Args:
        data: a file (.csv, .parquet, .h5, .hdf5, .root, .npy, .npz; a table, or jets), an array with shape (N, d), a
            data frame, or the name of a preset or of a TOML file; for networks of your own any array (N, *event).
        out: the run folder to write, which every command takes; without it the model is in memory only.
        columns: of the table, in this order; all of them by default.
        dataset: the array of an .npz file, the group or dataset of an HDF5 file, the tree of a ROOT file.
        weights: of the rows of a table, a column's name or an array with shape (N,); the model is the density of the
            weighted rows. Negative ones count as such.
        condition: names or places of columns m of the table: the model is p(x | m) of the others.
        missing: of rows with missing values, NaN: "refuse" them, or "drop" them from the training.
        settings: changes such as "training.iterations=500", as `normae train --set` takes them.
        seed: gives all randomness.
        device: "cpu", "cuda" or "auto".
        resume: continue a training in `out` that was stopped.
        verbose: 1 prints progress with the time left.
        encoder, decoder: networks of your own, (N, *event) to (N, d_z) and back, trained in place.
        energy: in place of both, a module of your own (N, *event) to (N,), trained in place as E with T = 1.

    >>> import numpy as np, normae
    >>> x = np.random.default_rng(0).normal(size=(300, 1))
    >>> model = normae.train(x, settings=["contrast.iterations=50", "training.iterations=5"])
    >>> model.log_prob([[0.0]]).round()  # the truth is -log(2 pi)/2 = -0.92
    array([-1.])
    """
    changes = [*([settings] if isinstance(settings, str) else settings), f"device={device}"]
    modules = {"encoder": encoder, "decoder": decoder, "energy": energy}
    own = own_network(**modules)
    with TemporaryDirectory() as temporary, shown_by(plain()) if verbose else nullcontext():
        kept, wishes = None if out is None else Path(out), Wishes(condition=condition)
        folder = kept or Path(temporary) / "run"
        run, table = planned(data, kept, columns, dataset, seed, changes, own is not None, weights, wishes, missing)
        events = None if table is None else load_events(run.data, run.seed, table)
        if own is not None:
            run = own_run(run, own, events or load_events(run.data, run.seed), changes)
        finished = train_run(run, folder, resume=resume, events=events, own=own)
        if kept is not None and table is not None:
            keep_table(kept, table)
        if not finished:
            raise Interrupted(f"stopped; go on with resume=True, out={str(out)!r}")
        model = load(folder, device, **modules)
        model.name = run.name if kept is None else model.name
        return model


def planned(
    data: Any, folder: Path | None, columns: Sequence[str] | None = None, dataset: str | None = None,
    seed: int | None = None, changes: Sequence[str] = (), any_shape: bool = False, weights: Any = None,
    wishes: Wishes = NO_WISHES, missing: Missing = "refuse",
) -> tuple[Run, Rows | None]:  # fmt: skip
    """The run that suits the data, as `train` takes them, and the table where it is in memory.

    Args:
        folder: of the run, where a table that is in memory will be kept, with test rows.
        any_shape: take an array (N, *event) too, for networks of the user's own.
    """
    require_that(missing in get_args(Missing), "missing", '"refuse" or "drop"', repr(missing))
    if not isinstance(data, str | Path):
        table = in_memory(data, columns, any_shape, weights, missing)
        rows, of_rows = check_table(table, "data")
        name = "table" if folder is None else folder.name
        source = kept_data(table, *split_sizes(len(rows), test=folder is not None))
        if rows.ndim > 2:
            return override(events_run(rows, source, name, seed or 0), changes), table
        return override(automatic_run(rows, source, wishes, name, seed or 0, weights=of_rows), changes), table
    if not isinstance(weights, str | None):
        raise InputError(f"{data}: expected the name of the column with the weights, got an array; read the file first")
    file = Path(data)
    if file.suffix not in ("", ".toml") or file.is_dir():
        if is_jets(file) and wishes.condition == ():
            refuse(weights is not None, f"{data}: jets are trained on without weights; leave them out, or give a table")
            return _jets_run(file, seed or 0, changes), None
        if not file.is_dir():  # of a suffix that no table has, the reader says so
            table = read_rows(data, columns, dataset, weights, missing, None)
            rows, of_rows = check_table(table, str(data))
            table = table._replace(columns=table.columns or (None if columns is None else tuple(columns)))
            source = kept_data(table, *split_sizes(len(rows), test=True))
            source = replace(source, file=str(file.resolve()), dataset=dataset, weights=weights, missing=missing)
            return override(automatic_run(rows, source, wishes, file.stem, seed or 0, weights=of_rows), changes), None
    asked = not columns is dataset is weights is None or wishes.condition != ()
    where = "a TOML file names them in [data], and the places of the condition in [coordinates]"
    refuse(asked, f"{data}: columns, dataset, weights and condition are of a table; {where}")
    return read(data, [*([] if seed is None else [f"seed={seed}"]), *changes]), None


def kept_data(table: Rows, test: int, validation: int) -> DataConfig:
    """Of a table that is in memory, with the numbers of `split_sizes`."""
    weights = None if table.weights is None else WEIGHTS
    source = DataConfig(file=DATA, columns=table.columns, categories=table.categories, weights=weights)
    return replace(source, train=0, test=test, validation=validation)


def in_memory(
    data: Any, columns: Sequence[str] | None, any_shape: bool, weights: Any = None, missing: Missing = "refuse"
) -> Rows:
    """The rows of an array or of a data frame; where `any_shape` is allowed, also events (N, *event)."""
    shape = tuple(getattr(data, "shape", ()))
    if not any_shape or columns is not None or len(shape) <= 2:
        apart = isinstance(weights, str) and columns is not None and weights not in columns
        names = [*(columns or ()), weights] if apart else columns
        return as_rows(data, names, missing=missing).weighted(weights, "data").whole("data")
    rows = as_rows(data.reshape(shape[0], -1)).weighted(weights, "data")
    return rows._replace(values=rows.values.reshape(shape))


def keep_table(folder: Path, table: Rows | Path) -> None:
    """Put a table that was in memory into its run folder, or the file of one, where that is still there."""
    if isinstance(table, Path):
        with suppress(FileNotFoundError), atomic_path(folder / DATA) as temporary:
            shutil.copyfile(table, temporary)
    elif not (folder / DATA).exists():
        with atomic_path(folder / DATA) as temporary:
            arrays: dict[str, Any] = {"x": table.values} | ({} if table.weights is None else {WEIGHTS: table.weights})
            np.savez(temporary, **arrays)


def _jets_run(path: Path, seed: int, changes: Sequence[str]) -> Run:
    """The preset for jets with the sizes of a file; a file with both classes has to say which one."""
    given = dict(change.split("=", 1) for change in changes if "=" in change)
    labels = read_jet_images(path if path.is_file() else file_in(path, "train")).labels
    counts: dict[str, int] = {kind: int((labels == label).sum()) for label, kind in enumerate(KINDS)}
    kinds = [kind for kind, count in counts.items() if count]
    kind = given.get("data.jets") or (kinds[0] if len(kinds) == 1 else None)
    if kind is None or kind not in counts:
        raise InputError(f"{path}: holds {' and '.join(kinds)} jets; say which to train on with data.jets=qcd or top")
    where, preset = [f"data.path={path.resolve()}", f"seed={seed}"], f"jets-components-{kind}"
    if path.is_dir():
        return read(preset, [*where, *changes])
    n = counts[kind]
    test, validation = round(JETS_TEST * n), max(1, round(JETS_VALIDATION * n))
    contrast: Any = read(preset).contrast
    trained = n - test - validation
    sizes = ["data.train=0", f"data.test={test}", f"data.validation={validation}"]
    sizes += [f"{table}.batch={max(1, min(256, trained))}" for table in ("training", "pretraining")]
    sizes += [f"contrast.batch={max(1, min(contrast.batch, trained // 4))}"]
    sizes += [f"contrast.iterations={min(contrast.iterations, start_iterations(trained))}"]
    return read(preset, [*where, *sizes, *changes])


# --- a finished run in memory: its files as bytes, which a pickle can hold and a folder can be made of

FILES = ("config.toml", "model.safetensors", "provenance.json", "metrics.jsonl")


def train_in_memory(run: Run, events: Events) -> dict[str, bytes]:
    """Train, and give the files of the run folder."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        if not train_run(run, folder, events=events):
            raise KeyboardInterrupt
        return keep(folder)


def keep(folder: str | Path) -> dict[str, bytes]:
    """The files of a run folder."""
    run = RunFolder.existing(folder)
    return {name: (run.path / name).read_bytes() for name in FILES if (run.path / name).is_file()}


def open_kept(kept: Mapping[str, bytes], own: Autoencoder | None = None) -> Loaded:
    """The model of a run in memory, with its configuration; networks `own` as in `load_run`."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        write_kept(kept, folder)
        return load_run(folder, own=own)


def write_kept(kept: Mapping[str, bytes], folder: str | Path) -> None:
    """Make a run folder, which must be new."""
    with new_folder(folder, None) as temporary:
        for name, content in kept.items():
            (temporary / name).write_bytes(content)

"""How the samples beside this file were made; not run by the tests, since pandas is no dependency.

    python make_samples.py TEST_NPZ

`sample.npz` holds the first 100 QCD and 100 top jets of a simulated npz; the pandas files hold its first 10 jets.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from normae import jets

FOLDER = Path(__file__).parent


def sample(source: str) -> None:
    """Cut 100 jets of each class out of an npz of simulated jets."""
    with np.load(source) as full:
        arrays = {name: full[name] for name in full.files}
    rows = np.sort(np.concatenate([np.flatnonzero(arrays["label"] == k)[:100] for k in (0, 1)]))
    offsets = np.concatenate([[0], np.cumsum(arrays["count"].astype(int))])
    flat = np.concatenate([np.arange(offsets[r], offsets[r + 1]) for r in rows])
    ragged = {name: arrays[name][flat] for name in ("pt", "deta", "dphi")}
    whole = {name: arrays[name][rows] for name in ("label", "count", "jet")}
    np.savez_compressed(FOLDER / "sample.npz", **whole, **ragged)


def frame(part: jets.Jets) -> pd.DataFrame:
    """The public TopTagging columns."""
    values = np.zeros((len(part), 200, 4), dtype=np.float32)
    for i, (a, b) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True)):
        pt, eta, phi = (v[a:b].astype(float) for v in (part.pt, part.eta, part.phi))
        columns = (pt * np.cosh(eta), pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta))
        values[i, : b - a] = np.stack(columns, axis=1)
    names = [f"{c}_{i}" for i in range(200) for c in ("E", "PX", "PY", "PZ")]
    table = pd.DataFrame(values.reshape(len(part), 800), columns=names)
    truth = pd.DataFrame(np.zeros((len(part), 4), np.float32), columns=["truthE", "truthPX", "truthPY", "truthPZ"])
    marks = pd.DataFrame({"ttv": 1, "is_signal_new": part.labels.astype(int)}, index=table.index)
    return pd.concat([table, truth, marks], axis=1)


def reference() -> None:
    """What fastjet and fastjet-contrib say of the sample."""
    sys.path.insert(0, str(FOLDER.parent))
    import oracle

    part = jets.read(FOLDER / "sample.npz")
    np.savez_compressed(FOLDER / "fastjet.npz", tau=oracle.subjettiness(part), mass=oracle.mass(part))


def main() -> None:
    """Write all samples."""
    sample(sys.argv[1])
    reference()
    table = frame(jets.read(FOLDER / "sample.npz", 10))
    options = {"key": "table", "mode": "w", "index": False, "complevel": 9}
    table.to_hdf(FOLDER / "pandas_table.h5", format="table", complib="zlib", **options)
    table.to_hdf(FOLDER / "pandas_blosc.h5", format="table", complib="blosc", **options)
    columns = {"data_columns": ["is_signal_new"], "complib": "zlib"}
    table.to_hdf(FOLDER / "pandas_columns.h5", format="table", **columns, **options)
    table.to_hdf(FOLDER / "pandas_fixed.h5", format="fixed", complib="zlib", key="table", mode="w", complevel=9)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()

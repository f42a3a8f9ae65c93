"""A run folder with anything in its header, its settings or its parts: a model, or one sentence, never more."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import normae
from normae import zoo
from normae.cli.console import judged
from normae.errors import InputError
from normae.runs.folder import read_tensors, write_tensors
from normae.scoring.score import open_scorer, score
from tiny_table import rows, write

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
KINDS = {"plain": "toy-1gauss-nae", "bayesian": "toy-1gauss-bnae"}


@pytest.fixture(params=[*KINDS, "table", "members"])
def source(request) -> Path:
    """Run folders of four kinds."""
    if request.param in KINDS:
        return Path(zoo.path(KINDS[request.param]))
    return Path(request.getfixturevalue("table_run" if request.param == "table" else "bars_run").path)


def loads(folder: Path) -> None:
    """A model whose scores are numbers, or one sentence of ours."""
    try:
        model = normae.load(folder)
        x = np.ones((2, *model.event)) if model.event[0] < 100 else None
        assert x is None or np.isfinite(model.score(x)).all()
    except InputError as error:
        text, code = judged(error)
        assert code == 2, text


def copied(source: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("config.toml", "model.safetensors"):
        shutil.copyfile(source / name, folder / name)
    return folder


@QUICK
@given(data=st.data())
def test_headers(source, data, tmp_path_factory):
    """A value of the header, at any depth, that is another one or is not there."""
    folder = copied(source, tmp_path_factory.getbasetemp() / "fuzzed")
    tensors, header = read_tensors(folder / "model.safetensors")
    header = json.loads(json.dumps(header))
    inner = header
    while True:
        places = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        place = data.draw(st.sampled_from(places), "place")
        if not inner[place] or not isinstance(inner[place], dict | list) or data.draw(st.booleans(), "here"):
            break
        inner = inner[place]
    if data.draw(st.booleans(), "gone"):
        del inner[place]
    else:
        inner[place] = data.draw(JSON, "value")
    write_tensors(folder / "model.safetensors", tensors, header)
    loads(folder)


@QUICK
@given(data=st.data())
def test_settings(source, data, tmp_path_factory):
    """A line of config.toml with another value, without its end, or with bytes of its own."""
    folder = copied(source, tmp_path_factory.getbasetemp() / "fuzzed")
    lines = (source / "config.toml").read_bytes().split(b"\n")
    number = data.draw(st.integers(0, len(lines) - 1), "line")
    name, equals, _ = lines[number].partition(b"=")
    value = data.draw(JSON.map(lambda v: json.dumps(v).encode()) | st.binary(max_size=8), "value")
    lines[number] = name + equals + value
    (folder / "config.toml").write_bytes(b"\n".join(lines))
    loads(folder)


@settings(QUICK, max_examples=6)
@given(data=st.data())
def test_parts(table_run, data, tmp_path_factory):
    """Bytes of a part that are others, or are missing: it is made again, and the scores are the same."""
    folder = tmp_path_factory.mktemp("parts")
    scorer = replace(open_scorer(table_run.path, device="cpu"), block=64, part=128)
    file = write(rows(300, seed=1), folder / "t.parquet")
    assert score(scorer, [file], folder / "plain.parquet").whole
    assert not score(scorer, [file], folder / "s.parquet", shard="0/1").whole
    part = sorted((folder / "s.parquet.parts").glob("*.safetensors"))[data.draw(st.integers(0, 2), "part")]
    raw = bytearray(part.read_bytes())
    place = data.draw(st.integers(0, 9999), "place") * len(raw) // 10_000
    if data.draw(st.booleans(), "cut"):
        raw = raw[:place]
    else:
        raw[place] ^= 1 << data.draw(st.integers(0, 7), "bit")
    part.write_bytes(raw)
    assert score(scorer, [file], folder / "s.parquet").whole
    assert (folder / "s.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()

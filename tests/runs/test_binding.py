"""Results are bound to inputs: a model to its bytes, its configuration and its data; a checkpoint to all of them."""

import errno
import importlib.util
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save

import normae
from command import command
from normae.config import read, structure, to_toml
from normae.errors import DataChanged, InputError
from normae.evaluation.evaluate import evaluate
from normae.evaluation.jets import read_kept, write_kept
from normae.files import write_text
from normae.runs.folder import RunFolder, model_digest, read_tensors, write_tensors
from normae.runs.session import train
from normae.scoring.score import open_scorer
from tiny_run import tiny

NAMES, ROOT = ("a", "b"), Path(__file__).parents[2]


def table(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(700, 2))


def write(path: Path, x: np.ndarray, names: tuple[str, ...] = NAMES) -> None:
    pyarrow.parquet.write_table(pa.table(dict(zip(names, x.T, strict=True))), path)


def settings(file: str) -> dict:
    content = tiny(data={"file": file, "train": 500, "test": 200})
    content["pretraining"]["epochs"] = content["training"]["epochs"] = 1
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with x.parquet, and with a run on it that was trained as `x.parquet`, a relative name."""
    folder = tmp_path_factory.mktemp("bound")
    write(folder / "x.parquet", table())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train(structure(settings("x.parquet")), folder / "run")
    return folder


@pytest.fixture
def copy(made, tmp_path) -> RunFolder:
    """The run, and its table where it was."""
    return RunFolder(shutil.copytree(made / "run", tmp_path / "run"))


def flipped(content: bytes, generator: random.Random) -> bytes:
    found = bytearray(content)
    found[generator.randrange(len(found))] ^= 1 << generator.randrange(8)
    return bytes(found)


# --- bytes


@pytest.mark.parametrize(
    ("name", "times"), [("model.safetensors", 150), ("checkpoint/state.safetensors", 120), ("config.toml", 100)]
)
def test_every_flipped_bit_is_noticed(copy, name, times):
    generator, path = random.Random(1), copy.path / name
    content = path.read_bytes()
    for _ in range(times):
        path.write_bytes(flipped(content, generator))
        with pytest.raises(InputError):
            read_tensors(path) if "checkpoint" in name else normae.load(copy.path)
    path.write_bytes(content)
    assert normae.load(copy.path).score(table()[:1]) > 0


def test_flipped_bits_of_the_zoo_are_noticed(tmp_path):
    generator, run = random.Random(2), tmp_path / "run"
    shutil.copytree(normae.zoo.path("toy-2gauss-nae"), run)
    content = (run / "model.safetensors").read_bytes()
    for _ in range(30):
        (run / "model.safetensors").write_bytes(flipped(content, generator))
        with pytest.raises(InputError):
            normae.load(run)


def test_headers_nested_deeply(tmp_path):
    deep, path = "[" * 100_000, tmp_path / "x.safetensors"
    for header in (deep, '{"__metadata__": ' + deep):
        path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with pytest.raises(InputError, match="truncated or not a safetensors file"):
            read_tensors(path)
    path.write_bytes(save({"a": torch.zeros(1)}, {"normae-2": deep}))
    with pytest.raises(InputError, match="the header cannot be read"):
        read_tensors(path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(copy, tmp_path, caplog):
    """Stopped in the middle, its last checkpoint damaged: the model is that of a run without a stop, bit for bit."""
    config = read(copy.config)

    def stop(trainer, happening) -> None:
        trainer.stop = trainer.stop or happening.phase == "training"

    run = RunFolder(tmp_path / "new")
    assert not train(config, run.path, watch=stop)
    assert len(run.checkpoints) == 2
    run.checkpoint.write_bytes(flipped(run.checkpoint.read_bytes(), random.Random(3)))
    assert train(config, run.path, resume=True)
    assert "The training goes on from the checkpoint before it" in caplog.text
    assert run.model.read_bytes() == copy.model.read_bytes()
    for path in run.checkpoints:
        path.write_bytes(b"")
    run.model.unlink()
    with pytest.raises(InputError, match="truncated or not a safetensors file"):
        train(config, run.path, resume=True)


@pytest.mark.parametrize("damage", ["empty", "bit"])
def test_a_damaged_model_is_made_again_from_the_checkpoint(copy, damage, caplog):
    content = copy.model.read_bytes()
    copy.model.write_bytes(b"" if damage == "empty" else flipped(content, random.Random(4)))
    assert train(read(copy.config), copy.path, resume=True)
    assert "It is made again" in caplog.text
    assert copy.model.read_bytes() == content


def test_a_model_belongs_to_its_configuration(copy):
    config = copy.config.read_text()
    copy.config.write_text(config.replace('"silu"', '"relu"'))
    with pytest.raises(InputError, match=r"config\.toml: not the one that model\.safetensors was made with"):
        normae.load(copy.path)
    with pytest.raises(InputError, match="the checkpoint is of another configuration"):
        train(read(copy.config), copy.path, resume=True)
    copy.config.write_text(config)
    normae.load(copy.path)


def test_files_without_a_checksum_are_refused_until_they_are_sealed(copy):
    before = model_digest(copy.model)
    tensors, header = read_tensors(copy.model)
    copy.model.write_bytes(save(tensors, {"normae-1": json.dumps(header, sort_keys=True)}))
    with pytest.raises(InputError, match=r"bench/seal\.py brings files of normae-1 up to date"):
        normae.load(copy.path)
    found = importlib.util.spec_from_file_location("seal", ROOT / "bench" / "seal.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.seal(copy.model)
    assert not module.seal(copy.model)
    assert model_digest(copy.model) == before
    normae.load(copy.path)


def test_a_column_may_have_any_name(tmp_path):
    """Even one that looks like the checksum."""
    name = '\\"checksum\\": \\"' + "0" * 64 + '\\"'
    write_tensors(tmp_path / "m.safetensors", {}, {"columns": [name, json.dumps({"checksum": "0" * 64})]})
    assert read_tensors(tmp_path / "m.safetensors")[1]["columns"][0] == name


# --- data


@pytest.mark.parametrize("change", ["values", "names", "order", "one bit"])
def test_other_rows_than_those_of_the_training_are_refused(made, tmp_path, change):
    x, names = table(1 if change == "values" else 0), ("b", "c") if change == "names" else NAMES
    if change == "one bit":
        x.view(np.int64)[699, 1] ^= 1
    write(tmp_path / "x.parquet", x[::-1] if change == "order" else x, names)
    shutil.copytree(made / "run", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    text = run.config.read_text().replace(str(made), str(tmp_path))
    tensors, header = read_tensors(run.model)
    write_text(run.config, text)
    write_tensors(run.model, tensors, header)
    with pytest.raises(DataChanged, match=r"x\.parquet: not the rows that the run was trained on"):
        open_scorer(run.path, device="cpu")
    with pytest.raises(DataChanged):
        evaluate(run.path, figures=False, device="cpu")
    write(tmp_path / "x.parquet", table())
    assert len(open_scorer(run.path, device="cpu").background) == 200


@pytest.mark.parametrize("damage", ["missing", "empty", "other key"])
def test_rows_are_not_taken_on_trust_without_provenance(made, copy, damage, caplog):
    """No hash to know the rows by: no p-value and no judgement from them; a resumed run has its provenance again."""
    text = copy.provenance.read_text()
    copy.provenance.write_text("" if damage == "empty" else text.replace("data_sha256", "data_sha356"))
    if damage == "missing":
        copy.provenance.unlink()
    scorer = open_scorer(copy.path, device="cpu")
    assert len(scorer.background) == 0
    assert "no p_value" in scorer.notes[0]
    assert "provenance.json" in scorer.notes[0]
    with pytest.raises(InputError, match="provenance.json"):
        evaluate(copy.path, figures=False, device="cpu")
    if damage != "other key":
        assert train(read(copy.config), copy.path, resume=True)
        assert json.loads(copy.provenance.read_text())["data_sha256"] == json.loads(text)["data_sha256"]
        assert copy.model.read_bytes() == (made / "run" / "model.safetensors").read_bytes()
        assert len(open_scorer(copy.path, device="cpu").background) == 200


def test_damaged_scores_of_the_background_are_made_again(copy):
    """A bit of a zip's directory may ask for a password, or for a compression that nobody knows."""
    expected = open_scorer(copy.path, device="cpu").background
    content = copy.background.read_bytes()
    entries = [k for k in range(len(content)) if content.startswith(b"PK\x01\x02", k)]
    assert len(entries) == 2
    for place in (entry + k for entry in entries for k in (6, 8, 10, 11)):
        for bit in (0, 3, 6):
            copy.background.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            assert np.array_equal(open_scorer(copy.path, device="cpu").background, expected)


def test_damaged_scores_of_jets_are_made_again(tmp_path):
    """What is kept is packed, and so damaged where it is unpacked."""
    path, x = tmp_path / "scores.npz", np.arange(50.0)
    write_kept(path, "key", {"x": x})
    content, found = path.read_bytes(), []
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        found.append(read_kept(path, "key", ("x",)))
    assert None in found
    assert all(one is None or np.array_equal(one["x"], x) for one in found)


def test_a_run_does_not_follow_the_current_folder(made, tmp_path, monkeypatch):
    write(tmp_path / "x.parquet", table(1))
    monkeypatch.chdir(tmp_path)
    config = read(made / "run" / "config.toml")
    assert config.data.file == str((made / "x.parquet").resolve())
    assert len(open_scorer(made / "run", device="cpu").background) == 200


def test_renamed_columns_are_not_resumed(tmp_path):
    def stop(trainer, happening) -> None:
        trainer.stop = True

    write(tmp_path / "x.parquet", table())
    config = structure(settings(str(tmp_path / "x.parquet")))
    assert not train(config, tmp_path / "run", watch=stop)
    write(tmp_path / "x.parquet", table(), ("c", "d"))
    with pytest.raises(InputError, match="the training data have changed since the run began"):
        train(config, tmp_path / "run", resume=True)


def test_a_finished_run_is_not_resumed_with_other_rows(tmp_path):
    write(tmp_path / "x.parquet", table())
    assert command("train", tmp_path / "x.parquet", "-o", tmp_path / "run", "--set", "contrast.iterations=20") == 0
    config = read(tmp_path / "run" / "config.toml")
    assert train(config, tmp_path / "run", resume=True)
    write(tmp_path / "x.parquet", 1000 * table())
    with pytest.raises(DataChanged, match="finished, with other data"):
        train(config, tmp_path / "run", resume=True)


# --- the disk


def test_a_full_disk_is_one_sentence_and_the_checkpoint_stays(tmp_path, monkeypatch, capfd):
    write_text(tmp_path / "tiny.toml", to_toml(structure(tiny())))
    real, run, count = os.fsync, RunFolder(tmp_path / "run"), 0

    def full(handle: int) -> None:
        nonlocal count
        count += "state" in os.readlink(f"/proc/self/fd/{handle}")
        if count > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert command("train", tmp_path / "tiny.toml", "-o", run.path) == 3
    assert "No space left on device" in capfd.readouterr().err
    monkeypatch.undo()
    assert all(read_tensors(path) for path in run.checkpoints)
    assert not list(tmp_path.rglob("*normae-part*"))
    assert command("train", tmp_path / "tiny.toml", "-o", run.path, "--resume") == 0

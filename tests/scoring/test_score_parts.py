"""Parts of `normae score` are bound to the events that they are of; one output has one writer."""

import os
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from normae.errors import InputError
from normae.runs.folder import read_tensors, write_tensors
from normae.scoring.score import Scorer, open_scorer, score
from watched import watched

ROWS, PART = 3000, 512


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """With small parts, so that small files have many."""
    return replace(open_scorer("toy-1gauss-nae", device="cpu"), block=128, part=PART)


def events(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 2)).astype(np.float32)


@pytest.fixture
def file(tmp_path) -> Path:
    np.save(tmp_path / "x.npy", events())
    return tmp_path / "x.npy"


@pytest.fixture
def whole(scorer, file, tmp_path) -> bytes:
    """What an undisturbed call gives."""
    score(scorer, [file], tmp_path / "whole.parquet")
    return (tmp_path / "whole.parquet").read_bytes()


def overwrite(path: Path, content: bytes) -> None:
    """Change a file where it is, and set its time back."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def sharded(scorer: Scorer, file: Path, out: Path) -> list[Path]:
    assert not score(scorer, [file], out, shard="0/1").whole
    return sorted(out.with_name(out.name + ".parts").iterdir())


def test_parts_of_other_events_are_made_again(scorer, file, tmp_path, caplog):
    out = tmp_path / "s.parquet"
    sharded(scorer, file, out)
    changed = file.read_bytes()[:-8] + events(1).tobytes()[-8:]
    overwrite(file, changed)
    score(scorer, [file], out)
    score(scorer, [file], tmp_path / "new.parquet")
    assert out.read_bytes() == (tmp_path / "new.parquet").read_bytes()
    assert "1 of 6 parts are damaged, or of other events" in caplog.text


def test_a_file_that_was_only_touched_is_not_scored_again(scorer, file, tmp_path, monkeypatch, whole):
    out = tmp_path / "s.parquet"
    sharded(scorer, file, out)
    os.utime(file)
    monkeypatch.setattr(Scorer, "score", lambda *_: pytest.fail("scored again"))
    score(scorer, [file], out)
    assert out.read_bytes() == whole


def virtual(path: Path, source: str) -> None:
    """A file whose rows are those of another."""
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((ROWS, 2), "f4")
        layout[:] = h5py.VirtualSource(source, "x", (ROWS, 2))
        file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize("kind", ["link", "virtual", "virtual of virtual", "link to virtual", "symbolic link"])
def test_so_are_those_of_the_target_of_a_link(scorer, tmp_path, kind):
    path = tmp_path / "x.h5"
    with h5py.File(tmp_path / "target.h5", "w") as target:
        target["x"] = events()
    virtual(tmp_path / "middle.h5", "target.h5")
    if "virtual" in kind.split()[0]:
        virtual(path, "middle.h5" if kind.endswith("of virtual") else "target.h5")
    elif kind == "symbolic link":
        path = tmp_path / "other" / "x.h5"
        path.parent.mkdir()
        path.symlink_to(tmp_path / "middle.h5")
    else:
        with h5py.File(path, "w") as file:
            file["x"] = h5py.ExternalLink("target.h5" if kind == "link" else "middle.h5", "x")
    out = tmp_path / "s.parquet"
    sharded(scorer, path, out)
    with h5py.File(tmp_path / "target.h5", "r+") as target:
        target["x"][...] = events(1)
    score(scorer, [path], out)
    score(scorer, [path], tmp_path / "new.parquet")
    assert out.read_bytes() == (tmp_path / "new.parquet").read_bytes()


def test_a_file_that_changes_while_it_is_scored_is_refused(scorer, file, tmp_path):
    def change(done: int, _: int) -> None:
        if done > ROWS // 2:
            overwrite(file, file.read_bytes()[:-12000] + events(1).tobytes()[-12000:])

    with watched(change), pytest.raises(InputError, match="changed while it was read"):
        score(scorer, [file], tmp_path / "s.parquet", chunk=128)
    assert not (tmp_path / "s.parquet").exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "truncated", "swapped", "folder"])
def test_a_bad_part_is_made_again(scorer, file, tmp_path, whole, damage):
    out = tmp_path / "s.parquet"
    first, second, *_ = sorted(sharded(scorer, file, out), key=lambda part: -part.stat().st_size)  # as many rows
    if damage == "cut":
        tensors, header = read_tensors(first)
        write_tensors(first, {name: values[:10] for name, values in tensors.items()}, header)
    elif damage == "swapped":
        other = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(other)
    elif damage == "folder":
        (out.with_name("s.parquet.parts") / "mine").mkdir()
        first.write_bytes(b"")
    else:
        first.write_bytes(first.read_bytes()[: 0 if damage == "empty" else 700])
    score(scorer, [file], out)
    assert out.read_bytes() == whole


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_a_part_that_spoils_before_it_is_joined_is_made_again(scorer, file, tmp_path, suffix):
    def spoil(done: int, total: int) -> None:
        if done == total and not spoilt:
            spoilt.append(min(parts.glob("*.safetensors")))
            spoilt[0].write_bytes(b"PAR1")

    score(scorer, [file], tmp_path / f"whole.{suffix}")
    out, spoilt = tmp_path / f"s.{suffix}", []
    parts = out.with_name(out.name + ".parts")
    with watched(spoil):
        score(scorer, [file], out)
    assert spoilt
    assert out.read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()


def test_flipped_bits_in_parts_change_no_score(scorer, file, tmp_path, whole):
    generator, out = random.Random(0), tmp_path / "s.parquet"
    kept = tmp_path / "kept"
    parts = sharded(scorer, file, out)
    shutil.copytree(parts[0].parent, kept)
    for _ in range(30):
        if not parts[0].parent.exists():
            shutil.copytree(kept, parts[0].parent)
        part = generator.choice(parts)
        content = bytearray(part.read_bytes())
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        part.write_bytes(content)
        score(scorer, [file], out, force=True)
        assert out.read_bytes() == whole


def test_a_folder_of_parquet_files_is_said_to_be_one(scorer, tmp_path):
    (tmp_path / "x.parquet").mkdir()
    with pytest.raises(InputError, match=r"x\.parquet: a folder; expected a file"):
        score(scorer, [tmp_path / "x.parquet"], tmp_path / "s.parquet")


def test_files_of_others_among_the_parts_stay(scorer, file, tmp_path):
    out, parts = tmp_path / "s.parquet", tmp_path / "s.parquet.parts"
    parts.mkdir()
    for name in ("notes.parquet", ".notes.part", "0123.parquet"):
        (parts / name).write_text("mine")
    score(scorer, [file], out)
    assert {p.name: p.read_text() for p in parts.iterdir()} == dict.fromkeys(
        ("notes.parquet", ".notes.part", "0123.parquet"), "mine"
    )


def test_what_a_killed_join_had_begun_is_cleared_away(scorer, file, tmp_path, whole):
    (tmp_path / ".s.0123abcd.normae-part.parquet").write_text("begun")
    (tmp_path / ".s.parquet.lock").touch()
    score(scorer, [file], tmp_path / "s.parquet")
    assert (tmp_path / "s.parquet").read_bytes() == whole
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "s.parquet", "whole.parquet"}


def test_sixteen_writers_give_one_result(scorer, file, tmp_path, whole):
    """Threads have a lock each, as processes have."""
    barrier, sentences, out = threading.Barrier(16), [], tmp_path / "s.parquet"

    def write() -> None:
        barrier.wait()
        try:
            score(scorer, [file], out)
        except InputError as error:
            sentences.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sentences) == 15
    assert all("in use by a running job" in s or "exists already" in s for s in sentences)
    assert out.read_bytes() == whole
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "s.parquet", "whole.parquet"}


def test_a_join_waits_for_no_shard_that_is_at_work(scorer, file, tmp_path):
    out = tmp_path / "s.parquet"

    def meanwhile(done: int, _: int) -> None:
        if done == PART:
            score(scorer, [file], out, shard="1/2")
            with pytest.raises(InputError, match="in use by a running job"):
                score(scorer, [file], out)

    with watched(meanwhile):
        score(scorer, [file], out, shard="0/2", chunk=PART)
    assert score(scorer, [file], out).whole


@pytest.mark.slow
def test_sixteen_processes_give_one_result(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200_000, 2)))
    words = [sys.executable, "-m", "normae", "score", "toy-1gauss-nae", "x.npy", "-o", "s.parquet", "--device", "cpu"]
    calls = [subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(16)]
    said = [call.communicate()[1] for call in calls]
    assert sorted(call.returncode for call in calls) == [0] + [2] * 15
    assert sum("in use by a running job" in s or "exists already" in s for s in said) == 15
    assert {p.name for p in tmp_path.iterdir()} == {"x.npy", "s.parquet"}

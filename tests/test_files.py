"""Files that appear whole or not at all, each with one writer: names that users chose, kills, and what is left."""

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from command import command
from normae import jets, zoo
from normae.cli import app
from normae.errors import InputError
from normae.files import atomic_path, check_new, clear, lock, new_folder, output, write_json, write_text
from normae.runs.folder import locked


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a tree by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# --- whole or not at all


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_the_umask_is_respected(tmp_path, mask):
    with umask(mask):
        write_text(tmp_path / "a.txt", "a")
        with new_folder(tmp_path / "folder") as folder:
            write_text(folder / "b.txt", "b")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "folder" / "b.txt").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def test_the_folder_is_flushed_after_the_name_is_there(tmp_path, monkeypatch):
    flushed = []
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.append((os.readlink(f"/proc/self/fd/{handle}"), (tmp_path / "new" / "a.txt").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with output(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("a")
    assert flushed[0] == (str(tmp_path), False), "the new folder's own name"
    assert "normae-part" in flushed[1][0]
    assert flushed[2] == (str(tmp_path / "new"), True)


def test_a_folder_is_flushed_with_all_that_is_in_it(tmp_path, monkeypatch):
    """Its files and itself before it has its name, and then the name."""
    flushed, real = [], os.fsync

    def fsync(handle: int) -> None:
        flushed.append((os.fstat(handle).st_ino, (tmp_path / "out").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("a")  # by a library, which does not flush
    out = tmp_path / "out"
    assert {place for place, named in flushed if not named} >= {p.stat().st_ino for p in (out, *out.rglob("*"))}
    assert flushed[-1] == (tmp_path.stat().st_ino, True)


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*model\.bin'"), atomic_path(tmp_path / "model.bin"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_only_what_was_begun_here_is_cleared(tmp_path):
    foreign = [".movie.part", ".a.0123abcd.part.txt", "notes.normae-part", ".a.normae-part.txt", ".cache"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".a.0123abcd.normae-part.txt").write_text("begun")
    clear(tmp_path, tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(foreign)


def test_a_reader_keeps_the_file_that_it_opened(tmp_path):
    """A rename puts another file in place. A copy would write into the one that is open."""
    path = tmp_path / "numbers.json"
    write_json(path, {"n": 1})
    with path.open() as reader:
        write_json(path, {"n": 2})
        assert json.load(reader) == {"n": 1}
    assert json.loads(path.read_text()) == {"n": 2}


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """fsync of the very file, with all that was written, and only then the rename."""
    path, order = tmp_path / "a.txt", []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append(("sync", os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))
        sync(descriptor)

    def renamed(source, target) -> None:
        order.append(("rename", os.stat(source).st_ino, os.stat(source).st_size))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with atomic_path(path) as temporary:
        temporary.write_text("abc")
    inode = path.stat().st_ino
    assert order[:2] == [("sync", inode, 3), ("rename", inode, 3)]


def fail(maker, path) -> None:
    with maker(path) as temporary:
        (temporary / "a" if temporary.is_dir() else temporary).write_text("half")
        raise RuntimeError


def test_what_fails_leaves_nothing(tmp_path):
    kept = tmp_path / "kept.txt"
    kept.write_text("old")
    for maker, path in ((atomic_path, kept), (new_folder, tmp_path / "folder")):
        with pytest.raises(RuntimeError):
            fail(maker, path)
        assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
        assert kept.read_text() == "old"


def test_the_temporary_has_the_suffix_of_the_file_and_its_folder_is_made(tmp_path):
    with atomic_path(tmp_path / "new" / "a.h5") as temporary:
        assert (temporary.suffix, temporary.parent) == (".h5", tmp_path / "new")
        temporary.write_text("")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.h5"]


# --- names that users chose


def test_what_is_there_stays_unless_it_is_forced(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"a\.txt: exists already; choose another name, or replace it with --force"):
        output(path).__enter__()
    with pytest.raises(InputError, match=r"a\.txt: exists already; .* \(force=True\)$"):
        output(path).__enter__()
    with pytest.raises(InputError, match=r"a\.txt: exists already; choose another name$"):
        new_folder(path, None).__enter__()
    with output(path, force=True) as temporary:
        temporary.write_text("new")
    assert content(tmp_path) == {"a.txt": b"new"}


def test_a_file_takes_the_place_of_no_folder_nor_a_folder_that_of_a_file(tmp_path):
    """It is said at once, not when the work is done."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="folder: exists already"):
        check_new(tmp_path / "folder")
    with pytest.raises(InputError, match="folder: a folder, not a file; choose another name"):
        check_new(tmp_path / "folder", force=True)
    with pytest.raises(InputError, match=r"a\.txt: a file, not a folder; choose another name"):
        check_new(tmp_path / "a.txt", force=True, folder=True)
    check_new(tmp_path / "folder", folder=True)
    check_new(tmp_path / "a.txt", force=True)


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch, links):
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    writing = output(tmp_path / "a.txt")
    writing.__enter__().write_text("new")
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        writing.__exit__(None, None, None)
    assert content(tmp_path) == {"a.txt": b"mine"}
    with output(tmp_path / "b.txt") as temporary:
        temporary.write_text("new")
    assert content(tmp_path) == {"a.txt": b"mine", "b.txt": b"new"}


def test_a_folder_is_replaced_only_by_one_with_the_same_files(tmp_path):
    for text in ("first", "second"):
        with new_folder(tmp_path / "out", force=True) as folder:
            write_text(folder / "inner" / "a.txt", text)
    assert content(tmp_path) == {"out/inner/a.txt": b"second"}
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds thesis\.tex"), new_folder(tmp_path / "out", force=True) as folder:
        write_text(folder / "inner" / "a.txt", "third")
    assert content(tmp_path) == {"out/inner/a.txt": b"second", "out/thesis.tex": b"mine"}
    writing = new_folder(tmp_path / "late")
    write_text(writing.__enter__() / "a.txt", "new")
    write_text(tmp_path / "late" / "a.txt", "mine")
    with pytest.raises(InputError, match="exists already"):
        writing.__exit__(None, None, None)
    assert (tmp_path / "late" / "a.txt").read_text() == "mine"


def test_sixteen_writers_give_one_result_and_fifteen_sentences(tmp_path):
    barrier, sentences, path = threading.Barrier(16), [], tmp_path / "a.txt"

    def write(number: int) -> None:
        barrier.wait()
        try:
            with output(path) as temporary:
                temporary.write_text(str(number) * 1000)
        except InputError as error:
            sentences.append(str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sentences) == 15
    assert all("in use by a running job" in s or "exists already" in s for s in sentences)
    assert len(set(path.read_text())) <= 2
    assert len(path.read_text()) in (1000, 2000)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_those_who_share_a_lock_keep_others_out_until_the_last_is_done(tmp_path):
    path = tmp_path / "a.txt"
    with lock(path, shared=True):
        with lock(path, shared=True):
            pass
        with pytest.raises(InputError, match="in use"):
            lock(path).__enter__()
    with lock(path), pytest.raises(InputError, match="in use"):
        lock(path, shared=True).__enter__()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_with_the_name_of_a_lock_stays(tmp_path, shared):
    (tmp_path / ".a.txt.lock").write_text("mine")
    with lock(tmp_path / "a.txt", shared), pytest.raises(InputError, match="in use"):
        lock(tmp_path / "a.txt").__enter__()
    assert content(tmp_path) == {".a.txt.lock": b"mine"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("mine")
    with locked(tmp_path / "run"):
        pass
    assert content(tmp_path / "run") == {".lock": b"mine"}


def test_no_command_replaces_a_file_that_is_there(tmp_path, capfd):
    source, out = tmp_path / "jets.h5", tmp_path / "out"
    jets.write(source, jets.from_lists([[(500, 0, 0), (50, 0.1, 0.2)]] * 3))
    for seed in range(2):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        for name in ("config.toml", "metrics.json"):
            text = (zoo.path("toy-1gauss-nae") / name).read_text()
            (folder / name).write_text(text.replace("seed = 0", f"seed = {seed}"))
    out.mkdir()
    for name, words, forced in (
        ("a.npz", ["sample", "toy-1gauss-nae", "-n", 10, "--latent-steps", 1, "--feature-steps", 1], True),
        ("b.h5", ["jets", "convert", source], True),
        ("c.h5", ["jets", "images", source], False),
        ("d.csv", ["jets", "observables", source], False),
        ("e.json", ["spread", tmp_path], True),
        ("f", ["jets", "show", source], False),
    ):
        (out / name).write_text("mine")
        assert command(*words, "-o", out / name) == 2, words
        assert "exists already; choose another name, or replace it with --force" in capfd.readouterr().err
        assert (out / name).read_text() == "mine"
        if forced:
            assert command(*words, "-o", out / name, "--force") == 0, capfd.readouterr().err
            assert (out / name).read_bytes() != b"mine"
    assert sorted(p.name for p in out.iterdir()) == ["a.npz", "b.h5", "c.h5", "d.csv", "e.json", "f"]


FORCED = {
    "report": "RUN", "dual": "RUN RUN -o FILE", "spread": "RUNS -o FOLDER", "score": "RUN x.npz -o FOLDER.npz",
    "sample": "RUN -o FOLDER.npz", "histogram": "RUN x.npz -o FILE", "export": "RUN --onnx -o FOLDER.onnx",
    "export ": "RUN --trigger -o FILE", "ensemble": "RUN RUN -o FILE", "reproduce": "toy -o FILE",
    "bench": "--only toy -o FILE", "jets generate": "qcd -n 1 -o FOLDER.h5", "jets convert": "x.h5 -o FOLDER.h5",
    "jets images": "x.h5 -o FOLDER.h5", "jets observables": "x.h5 -o FOLDER.csv", "jets show": "x.h5 -o FILE",
}  # fmt: skip


def test_these_are_all_commands_that_may_be_forced():
    root = typer.main.get_command(app).commands
    inner = [(f"jets {name}", one) for name, one in root["jets"].commands.items()]
    found = {name for name, one in [*root.items(), *inner] if any("--force" in p.opts for p in one.params)}
    assert found == {name.strip() for name in FORCED}


@pytest.mark.parametrize("name", FORCED)
def test_force_reaches_every_command(name, tmp_path, monkeypatch, capfd):
    """Of a file where a folder is to be, or the other way round, it is said that it is the wrong kind."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(zoo.path("toy-1gauss-nae"), "RUN")
    for folder in ("FOLDER", "FOLDER.npz", "FOLDER.onnx", "FOLDER.h5", "FOLDER.csv", "RUN/report.html"):
        Path(folder).mkdir()
    Path("FILE").write_text("mine")
    words = [*name.split(), *FORCED[name].split()]
    for more, said in (
        ([], "exists already; choose another name"),
        (["--force"], r", not a (file|folder); choose"),
    ):
        assert command(*words, *more) == 2
        assert re.search(said, capfd.readouterr().err)


def test_no_command_writes_into_a_folder_of_somebody_else(tmp_path, capfd):
    names = {"bench.json": ["bench", "--only", "toy"], "table.md": ["reproduce", "toy"], "a.png": ["jets", "show", "a"]}
    for name, words in names.items():
        (tmp_path / words[0]).mkdir()
        (tmp_path / words[0] / name).write_text("mine")
        assert command(*words, "-o", tmp_path / words[0]) == 2
        assert f"{words[0]}: exists already; choose another name, or replace it with --force" in capfd.readouterr().err
        assert content(tmp_path / words[0]) == {name: b"mine"}

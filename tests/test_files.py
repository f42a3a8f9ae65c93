"""Files that appear whole or not at all, whatever happens meanwhile."""

import json
import os

import pytest

from normae.files import atomic_path, new_folder, write_json


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
    assert order == [("sync", inode, 3), ("rename", inode, 3)]


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

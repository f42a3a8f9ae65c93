"""Presets are found by name from anywhere; a wrong name is one sentence with the nearest ones."""

from pathlib import Path

import pytest

from normae.config import find, read
from normae.errors import InputError
from normae.presets import describe, preset_path, presets

CONFIGS = Path(__file__).parents[1] / "configs"


def test_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy-quick").mkdir()
    for name in ("toy-quick", "toy-quick.toml"):
        assert find(name) == CONFIGS / "toy-quick.toml"
    assert read("toy-quick") == read(CONFIGS / "toy-quick.toml")
    assert read("toy-quick", ["seed=3"]).seed == 3


def test_a_file_goes_before_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (CONFIGS / "toy-quick.toml").read_text()
    Path("toy-quick.toml").write_text(text.replace('name = "toy-quick"', 'name = "mine"'))
    assert read("toy-quick.toml").name == "mine"
    assert read("toy-quick").name == "toy-quick"


def test_every_preset_says_what_it_is():
    assert set(presets()) == {path.stem for path in CONFIGS.glob("*.toml")}
    for name, path in presets().items():
        assert 20 < len(describe(path)) < 100, name
        assert describe(path).endswith("."), name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toy-papr", "toy-papr: no such preset; presets with names like it: toy-paper"),
        ("xyz123", "xyz123: no such preset; `normae presets` lists their names"),
        ("jets.toml", "jets.toml: no such configuration file; presets with names like it: jets-"),
        ("some/toy-quick", "no such configuration file"),
        ("rows.csv", "rows.csv: no such configuration file"),
        (".", "a folder; expected a TOML file or the name of a preset"),
    ],
)
def test_a_wrong_name_is_one_sentence(name, message):
    with pytest.raises(InputError, match=message):
        find(name)


def test_presets_of_another_folder(tmp_path):
    (tmp_path / "mine.toml").write_text("# Mine.\n")
    assert preset_path("mine", tmp_path) == tmp_path / "mine.toml"
    assert describe(tmp_path / "mine.toml") == "Mine."
    with pytest.raises(InputError, match="toy-quick: no such preset in"):
        preset_path("toy-quick", tmp_path)

"""What a user meets first: help without torch, old spellings, presets from anywhere, text that looks like markup."""

import subprocess
import sys

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.testing import CliRunner

from command import command
from normae.cli import PANELS, app, console
from normae.cli.console import Bars, say, show
from normae.config import structure
from normae.presets import presets
from normae.progress import counted, progress, shown_by
from normae.runs.session import train
from tiny_run import tiny

ROOT = typer.main.get_command(app)
HEAVY = ["torch", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow", "h5py", "normae.config"]
LOADED = f"""
import sys
try:
    CODE
except SystemExit:
    pass
print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def loaded_after(code: str) -> str:
    words = [sys.executable, "-c", LOADED.replace("CODE", code)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr.strip()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["presets"], ["train", "--help"], ["jets", "--help"]])
def test_help_imports_nothing_heavy(words):
    assert loaded_after(f"sys.argv[1:] = {words!r}; from normae.cli import main; main()") == ""


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_after("import normae, normae.errors, normae.presets, normae.progress") == ""


def all_commands(group=ROOT, path=()):
    for name, one in group.commands.items():
        yield from all_commands(one, (*path, name)) if isinstance(one, TyperGroup) else [((*path, name), one)]


@pytest.mark.parametrize(("path", "one"), [c for c in all_commands() if not c[1].hidden], ids=lambda p: str(p))
def test_help_has_a_short_line_one_example_and_one_name_for_what_is_written(path, one):
    first, *_, example = [part.strip() for part in one.help.split("\n\n")]
    assert len(first) < 70
    assert "\n" not in first
    assert example.startswith(f"Example: normae {' '.join(path)}")
    names = {name for parameter in one.params for name in parameter.opts}
    assert not names & {"--output", "--key"}
    assert ("--out" in names) == ("-o" in names)


def test_help_is_in_the_order_of_use():
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert "anomaly scores that are likelihoods" in text


# --- old spellings


@pytest.mark.parametrize(
    ("old", "name", "value"),
    [
        ("score run f.csv --output s.csv", "out", "s.csv"),
        ("score run f.csv --output=s.csv", "out", "s.csv"),
        ("sample run --output x.npz", "out", "x.npz"),
        ("spread run --output x.json", "out", "x.json"),
        ("evaluate run --data jets", "jets", "jets"),
        ("ensemble a b --out c --data jets", "jets", "jets"),
        ("reproduce jets --data jets", "jets", "jets"),
        ("dual a b --data x.npz", "data", "x.npz"),
        ("histogram run f.csv -o h --data d.csv", "observed", "[PosixPath('d.csv')]"),
    ],
)
def test_old_spellings_go_on_working(old, name, value):
    words = old.split()
    context = ROOT.commands[words[0]].make_context(words[0], words[1:])
    assert str(context.params[name]) == value


def test_the_old_key_of_jets():
    context = ROOT.commands["jets"].commands["info"].make_context("info", ["a.h5", "--key", "jets"])
    assert context.params["dataset"] == "jets"


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["run"], "estimate"),
        (["--events", "20", "run", "--data", "x.h5"], "estimate"),
        (["a.toml", "b.toml", "--out", "s"], "search"),
        (["--out", "s", "--trainings", "2", "a.toml", "b.toml"], "search"),
    ],
)
def test_temperature_without_its_word(words, called):
    context = ROOT.commands["temperature"].make_context("temperature", words)
    assert context._protected_args == [called]


# --- presets, markup, bars


def test_presets_are_listed_with_one_line_each(capsys):
    assert command("presets") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(presets())
    assert all(len(line) < 120 and line.endswith(".") for line in lines)
    assert "toy-quick               The demo" in "\n".join(lines)


def test_text_of_the_user_s_is_not_markup(capsys):
    say("a[/x]b :smile: [red]")
    show(("[/h]", "b"), [("[/c]", ":smile:")], "[/t]")
    out = capsys.readouterr().out
    assert "a[/x]b :smile: [red]" in out
    assert all(piece in out for piece in ("[/h]", "[/c]", ":smile:", "[/t]"))


def test_no_text_commands_the_terminal(tmp_path, capfd):
    """What ESC begins, in C0 or C1, may hide what came before, or set the title; tabs and lines stay."""
    hostile = "a\x1b]0;title\x07b\x9b2Jc\x7fd\te"
    say(hostile + "\nf")
    show((hostile,), [(hostile,)], hostile)
    assert train(structure(tiny(training__epochs=1, name=hostile)), tmp_path / "run")
    assert command("info", tmp_path / "run") == 0
    assert command("score", f"none{hostile}", "x.parquet", "-o", tmp_path / "s.parquet") == 2
    captured = capfd.readouterr()
    assert captured.out.startswith("a]0;titleb2Jcd")
    assert captured.out.count("a]0;titleb2Jcd") == 5
    assert "nonea]0;titleb2Jcd" in captured.err
    assert not {*"\x1b\x07\x9b\x7f"} & {*(captured.out + captured.err)}


def test_no_warning_commands_the_terminal(tmp_path):
    """What is logged has the names of files in it."""
    file = tmp_path / "a\x1b]0;title\x07b\x9b2J.npz"
    np.savez(file, x=np.where(np.arange(24).reshape(12, 2) % 7, 1.0, np.nan))
    words = [sys.executable, "-m", "normae", "train", file, "--missing", "drop", "-o", tmp_path / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a]0;titleb2J.npz: 4 of 12 rows with missing values are left out" in done.stderr
    assert not {*"\x1b\x07\x9b"} & {*done.stderr}


def test_a_table_too_wide_for_its_words_is_printed_row_by_row(capsys, monkeypatch):
    monkeypatch.setattr(console, "output", Console(width=40))
    show(("pair", "correlation", "uncertainty"), [("one", 0.8, 0.1)], "fits")
    show(("pair", "correlation", "uncertainty", "temperature"), [("one", 0.8, 0.1, 2)], "does not")
    fits, wide = capsys.readouterr().out.split("does not:")
    assert "│ one" in fits
    assert wide.strip() == "one: correlation 0.8; uncertainty 0.1; temperature 2"


def test_a_run_in_a_folder_that_looks_like_markup(tmp_path, capsys):
    run = tmp_path / "a[/x]b"
    assert train(structure(tiny(training__epochs=1)), run)
    for words in (["info", run], ["sample", run, "-n", 5, "-o", tmp_path / "[/y].npz"]):
        assert command(*words) == 0
    assert "[/x]" in capsys.readouterr().out
    assert np.load(tmp_path / "[/y].npz")["x"].shape == (5, 2)


def test_bars_are_shown_on_a_terminal_and_vanish(monkeypatch, capsys):
    monkeypatch.setattr(console, "PATIENCE", -1.0)
    monkeypatch.setattr(console, "REFRESH", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    with shown_by(Bars()):
        assert list(counted("silent", range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "MINUTE", 0.0)
    with shown_by(Bars()):
        assert list(counted("plain", range(3))) == [0, 1, 2]
    assert "plain 2/3, 0 s left" in capsys.readouterr().err
    monkeypatch.setattr(console, "errors", Console(stderr=True, force_terminal=True))
    with shown_by(Bars()):
        for _ in counted("outer", range(2)):
            assert list(counted("inner", range(3))) == [0, 1, 2]
        with progress("a[/x]", 3) as tick:
            tick(1, "b[/y]")
    error = capsys.readouterr().err
    assert "outer" in error
    assert "inner" in error
    assert "3/3" in error
    assert "a[/x]" in error
    assert "b[/y]" in error

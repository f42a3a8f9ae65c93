"""Every command has its page with every option, and every `normae ...` of the documentation can be parsed."""

import re
import shlex

import pytest
import typer
from command_pages import EXAMPLES, NOT_RUN, commands, page
from typer.core import TyperGroup, TyperOption

from normae.cli import app
from pages import DOCS, PAGES, command_lines, name_of

try:
    from typer._click.exceptions import UsageError  # typer carries its own click since 0.26
except ImportError:
    from click import UsageError

ROOT_COMMAND = typer.main.get_command(app)
HELP = {"--help"}
NUMBERS = {"-n", "--seed", "--workers", "--threads", "--chunk", "--draws", "--events", "--rounds"}
"""Options whose value is a number; a page may write N for it."""
WRONG = (AssertionError, ValueError, UsageError)


def options(command):
    """The options of a command: every spelling, with the parameter."""
    return {text: p for p in command.params if isinstance(p, TyperOption) for text in (*p.opts, *p.secondary_opts)}


def test_every_command_is_listed_and_has_an_example():
    listed = re.findall(
        r"^\|.*?\| `normae ([\w ]+)` \|", (DOCS / "commands.md").read_text(encoding="utf-8"), flags=re.M
    )
    assert listed == list(commands())
    assert set(EXAMPLES) | set(NOT_RUN) == set(listed)
    assert not set(EXAMPLES) & set(NOT_RUN)


@pytest.mark.parametrize("name", commands())
def test_the_page_of_a_command(name):
    """It has every option with what it is by default, and an example that can be parsed."""
    command = commands()[name]
    text = page(name, command, "printed" if name in EXAMPLES else None)
    rows = {option: row for row in text.splitlines() for option in re.findall(r"`(--?[\w-]+)`", row.split(" | ")[0])}
    known = options(command)
    assert set(rows) == set(known) - HELP
    for option, row in rows.items():
        if known[option].required:
            assert "| needed |" in row
        elif isinstance(known[option].default, int | float) and not isinstance(known[option].default, bool):
            assert f"`{known[option].default}`" in row
    example = re.search(r"^(?:\$ )?(normae .*)$", text, flags=re.M)[1]
    assert example.startswith(f"normae {name}")
    parse(example)


# --- command lines anywhere


def words_of(line):
    """A command line without comment, optional brackets, variables before it and torchrun."""
    line = re.split(r"\s{2,}| #", line)[0]
    line = re.sub(r"\[(-[^\]]*)\]", r"\1", line)
    words = shlex.split(line)
    return words[words.index("normae") + 1 :]


def parse(line):
    """Parse without running; a placeholder such as N counts as a number."""
    words, command, path = words_of(line), ROOT_COMMAND, ["normae"]
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        path.append(words.pop(0))
        if path[-1] == "...":
            return
        assert path[-1] in command.commands, f"{line}: there is no command {' '.join(path)}"
        command = command.commands[path[-1]]
    known = options(command)
    for option in (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)):
        assert option in known or option in HELP, f"{line}: {' '.join(path)} has no option {option}"
    if "..." in words or isinstance(command, TyperGroup):
        return
    for k, word in enumerate(words[1:], start=1):
        if re.fullmatch("[A-Z]+", word) and words[k - 1] in NUMBERS:
            words[k] = "2"
    command.make_context(path[-1], words)


LINES = sorted({(name_of(page), line) for page in PAGES for line in command_lines(page)})


def test_command_lines_parse():
    assert len(LINES) > 60
    for where, line in LINES:
        try:
            parse(line)
        except WRONG as error:
            message = getattr(error, "message", None) or str(error)
            pytest.fail(f"{where}: {line}: {message}")


@pytest.mark.parametrize(
    "line", ["normae trian x.toml", "normae train x.toml", "normae train x.toml --out r --sed 3", "normae jets show"]
)
def test_a_wrong_line_is_found(line):
    with pytest.raises(WRONG):
        parse(line)

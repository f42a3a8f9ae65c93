"""Every command and option is in docs/commands.md, and every `normae ...` of the documentation can be parsed."""

import re
import shlex

import pytest
import typer
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


def commands(command=ROOT_COMMAND, path="normae"):
    """All commands that are shown, by their words."""
    if isinstance(command, TyperGroup):
        found = {}
        for name, inner in command.commands.items():
            found |= {} if inner.hidden else commands(inner, f"{path} {name}")
        return found
    return {path: command}


def sections():
    """The text below each heading `## normae ...` of the page."""
    parts = re.split(r"^## (.+)$", (DOCS / "commands.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options(command):
    """The options of a command: every spelling, with the parameter."""
    return {text: p for p in command.params if isinstance(p, TyperOption) for text in (*p.opts, *p.secondary_opts)}


def test_every_command_has_a_section_and_no_other():
    assert {name for name in sections() if name.startswith("normae ")} == set(commands())


@pytest.mark.parametrize("name", commands())
def test_options_are_documented(name):
    text, known = sections()[name], options(commands()[name])
    rows = [line for line in text.splitlines() if line.startswith("| `-")]
    said = {option for row in rows for option in re.findall(r"`(--?[\w-]+)", row.split(" | ")[0])}
    assert said == set(known) - HELP
    for row in rows:
        first, default = row.split("|")[1:3]
        parameter = known[re.findall(r"`(--?[\w-]+)", first)[0]]
        if parameter.required:
            assert default.strip() == "needed", row
        elif isinstance(parameter.default, bool):
            assert (default.strip() == ("on" if parameter.default else "off")) or not parameter.secondary_opts, row
        elif isinstance(parameter.default, int | float):
            assert float(default) == parameter.default, row
        elif parameter.default is not None:
            assert default.strip(" `") == str(parameter.default), row


@pytest.mark.parametrize("name", commands())
def test_the_synopsis_names_every_argument(name):
    """The indented line has as many words as the command has arguments."""
    line = re.search(r"^    (normae .*)$", sections()[name], flags=re.M)[1]
    assert line.startswith(name)
    parse(line)


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
    for page, line in LINES:
        try:
            parse(line)
        except WRONG as error:
            message = getattr(error, "message", None) or str(error)
            pytest.fail(f"{page}: {line}: {message}")


@pytest.mark.parametrize(
    "line", ["normae trian x.toml", "normae train x.toml", "normae train x.toml --out r --sed 3", "normae jets show"]
)
def test_a_wrong_line_is_found(line):
    with pytest.raises(WRONG):
        parse(line)

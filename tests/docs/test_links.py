"""Links to pages, headings and files of the repository lead somewhere; the table of contents has every page."""

import re

import pytest

from pages import DOCS, PAGES, ROOT, blocks, name_of, prose

FILES = re.compile(r"(?<![\w/.-])((?:configs|docs|src|tests|bench)/[\w./-]+\.\w+)(?![\w*])")


def slug(heading):
    """The anchor that GitHub and myst give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.M)}


def problem(page, target):
    """Why a link of a page leads nowhere, or None."""
    path, _, anchor = target.partition("#")
    place = (page.parent / path).resolve() if path else page
    if re.match(r"gallery/", path):
        place = DOCS / "gallery_examples" / (re.sub(r"^gallery/|\.html$", "", path) + ".py")
        return None if path == "gallery/index" or place.is_file() else "no such example"
    if not place.exists():
        return "no such file"
    if anchor and anchor not in anchors(place):
        return f"no heading #{anchor} in {place.name}"
    return None


def links(page):
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"\w+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in links(page):
        assert problem(page, link) is None, f"{name_of(page)}: {link}: {problem(page, link)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    for path in FILES.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


def test_examples_link_to_pages():
    for example in sorted((DOCS / "gallery_examples").glob("*.py")):
        for target in re.findall(r":doc:`/([\w-]+)`", example.read_text(encoding="utf-8")):
            assert (DOCS / f"{target}.md").is_file(), f"{example.name}: {target}"


def test_every_page_is_in_the_table_of_contents():
    listed = set()
    for name in ("index.md", "api.md"):
        for block in blocks(DOCS / name):
            if block.language == "{toctree}":
                entries = [line for line in block.text.splitlines() if line and not line.startswith(":")]
                listed |= {path for entry in entries for path in DOCS.glob(entry + ".md")}
    pages = {page for page in PAGES if DOCS in page.parents and page.name != "index.md"}
    assert {name_of(page) for page in pages - listed} == set()


def test_a_wrong_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# Some heading\n")
    page = tmp_path / "page.md"
    assert problem(page, "there.md#some-heading") is None
    assert problem(page, "there.md#other") is not None
    assert problem(page, "nowhere.md") is not None
    assert problem(page, "gallery/nothing") is not None

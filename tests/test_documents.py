"""README and guides: their commands and programs run. All pages: links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import GUIDES, README, ROOT, SPARK, TUTORIALS, blocks_of, name_of, run_page
from tests.sentences import pronoun_sentences, texts_of

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS]
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
SOURCE = re.compile(r"`((?:actors|transports|node|pipeline|tests|scripts)/[\w/.*-]+\.(?:py|toml))`")
CITED = re.compile(r"\bdocs/[\w/-]+\.md\b")
README_LINES_MAX = 200
COLUMNS_MAX = 100
UNWRAPPED = re.compile(r"^(\||!\[|    CREATE INDEX|.* \\$)")
"""Rows of tables, SQL and continued shell lines are not wrapped."""


@pytest.mark.readme
@pytest.mark.parametrize("path", [README, *GUIDES], ids=name_of)
def test_the_page_shows_what_happens(path: Path, tmp_path: Path) -> None:
    run_page(path.read_text("utf-8"), tmp_path)


def test_each_tutorial_and_the_readme_have_something_to_run() -> None:
    assert all(blocks_of(path.read_text("utf-8")) for path in (README, *TUTORIALS, SPARK, *GUIDES))


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The fragments by which headings of a page are linked, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    missing = []
    for target, fragment in LINK.findall(path.read_text("utf-8")):
        found = path.parent / target if target else path
        is_there = found.exists() and (
            not fragment or found.suffix != ".md" or fragment in anchors(found)
        )
        missing += [] if is_there else [f"{target}#{fragment}"]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_files_that_a_page_names_exist(path: Path) -> None:
    named = [name for name in SOURCE.findall(path.read_text("utf-8")) if path.stem != "CHANGELOG"]
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_pages_that_the_code_cites_exist() -> None:
    packages = ("actors", "transports", "node", "pipeline", "tests", "scripts")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    cited = {(name_of(path), page) for path in sources for page in CITED.findall(path.read_text())}
    assert {(path, page) for path, page in cited if not (ROOT / page).exists()} == set()


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_lines_are_wrapped(path: Path) -> None:
    lines = prose(path).splitlines()
    long = [line for line in lines if len(line) > COLUMNS_MAX and not UNWRAPPED.match(line)]
    assert [line for line in long if " " in line.strip()] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Whoever is on the way can forge receipts.", 1),
        ("A node has a key.\nWhat it signs is public.\n\n- **Who asks** hears nothing.", 2),
        ("| what | who |\n| --- | --- |\n| a | What is left. |\n\n1. Whose it is: nobody's.", 2),
        ("# What is encrypted\n\nWhat is it? Whatever: a node.\n\n```\nWho pays.\n```", 1),
        ("It asks what is there, and who. 3.5. Whatsoever.", 0),
    ],
)
def test_the_rule_of_nouns_finds_sentences(tmp_path: Path, text: str, count: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    assert len([each for part in texts_of(page) for each in pronoun_sentences(part)]) == count


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_sentences_begin_with_a_noun(path: Path) -> None:
    assert [each for part in texts_of(path) for each in pronoun_sentences(part)] == []


def strings() -> str:
    """Every string of the code that logs."""
    found = []
    for package in ("actors", "transports", "node"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            found += [str(each.value) for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    return "\n".join(found)


def test_the_lines_of_the_log_that_are_explained_exist() -> None:
    page = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    table = [row for row in page.partition("## Logs")[2].splitlines() if row.startswith("| `")]
    rows = [row.split("|")[1] for row in table]
    lines, known = [line for row in rows for line in re.findall(r"`([^`]+)`", row)], strings()
    assert len(lines) > 20
    assert [line for line in lines if line not in known] == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= README_LINES_MAX


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

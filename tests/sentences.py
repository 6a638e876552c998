"""Sentences of pages, docstrings and comments that begin with a pronoun in place of a noun."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

PRONOUN = re.compile(
    r"(?:^|(?<=[.:!?] )|(?<=[.!?][)\"'`*] )|(?<=\| ))"
    r"(?:What|Who|Whoever|Whatever|Whose)\b(?:[^.?!|]|[.?!](?!\s|$))*[.?!|]?"
)
ANY = re.compile(r"\b(?:What|Who|Whoever|Whatever|Whose)\b")
BULLET = re.compile(r"^\s*(?:[-*] |\d+\. |> )?(?:\*\*|_)?")
SCRIPT_COMMENT = re.compile(
    r"/\*(.*?)\*/|((?:^[ \t]*//[^\n]*\n)+|//[^\n]*)", re.DOTALL | re.MULTILINE
)


def pronoun_sentences(text: str) -> list[str]:
    """The sentences of a paragraph that begin with Who, What and the like, save for questions."""
    words = " ".join(BULLET.sub("", text).split())
    return [found for found in PRONOUN.findall(words) if not found.endswith("?")]


def paragraphs_of_page(page: str) -> Iterator[str]:
    """Paragraphs, points of lists and rows of tables; no headings and no fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#+ .*)$", "", text, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\|))", text)


def texts_of_python(source: str) -> Iterator[str]:
    """Strings that are whole statements (docstrings), and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from re.split(r"\n\s*\n", str(node.value.value))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    yield from joined([(token.start, token.string.lstrip("#: ")) for token in comments])


def joined(comments: list[tuple[tuple[int, int], str]]) -> Iterator[str]:
    """Comments below one another as one text."""
    numbered = enumerate(comments)
    for _, group in groupby(numbered, key=lambda each: (each[1][0][0] - each[0], each[1][0][1])):
        yield " ".join(text for _, (_, text) in group)


def texts_of_lines(source: str) -> Iterator[str]:
    """Comments of a shell script or a TOML file."""
    lines = [
        ((number, 0), line.lstrip()[1:])
        for number, line in enumerate(source.splitlines())
        if line.lstrip().startswith("#")
    ]
    yield from joined(lines)


def texts_of_script(source: str) -> Iterator[str]:
    """Comments of JavaScript and TypeScript."""
    for block, lines in SCRIPT_COMMENT.findall(source):
        text = re.sub(r"^[ \t]*(//|\*)", "", block or lines, flags=re.MULTILINE)
        yield from re.split(r"\n\s*\n|\n\s*(?=@)", text)


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a file in which such a sentence may be; none where no such word is in it."""
    source = path.read_text("utf-8")
    if ANY.search(source) is None:
        return iter(())
    if path.suffix == ".py" or (source.startswith("#!") and "python" in source.partition("\n")[0]):
        return texts_of_python(source)
    if path.suffix in {".js", ".ts", ".css"}:
        return texts_of_script(source)
    if path.suffix == ".md":
        return paragraphs_of_page(source)
    return texts_of_lines(source)

"""The errors that users catch are one tree, and `millpond.errors` draws it."""

from __future__ import annotations

from millpond import errors
from tests.error_tree import drawn_tree, public_errors


def test_every_public_error_is_a_millpond_error() -> None:
    assert [each for each in public_errors() if not issubclass(each, errors.MillpondError)] == []


def test_the_docstring_draws_the_tree() -> None:
    assert errors.__doc__ is not None
    assert drawn_tree() in errors.__doc__, drawn_tree()


def test_every_public_error_is_in_the_tree() -> None:
    names = {line.split()[0] for line in drawn_tree().splitlines()}
    assert names == {each.__name__ for each in public_errors()}

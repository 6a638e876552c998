"""Saved files in `millpond chat`: nothing is overwritten, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millpond.node.cli.chat.files import _placed


@pytest.mark.parametrize("has_links", [True, False])
def test_a_saved_file_takes_a_name_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def link(_source: object, _target: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", link)
    for number, name in enumerate(("cat.png", "cat (1).png", "cat (2).png")):
        partial = tmp_path / ".millpond-x"
        partial.write_bytes(b"%d" % number)
        assert _placed(partial, tmp_path / "cat.png") == tmp_path / name
        assert (tmp_path / name).read_bytes() == b"%d" % number
        partial.unlink(missing_ok=True)

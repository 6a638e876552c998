"""The applications of docs/guides/jobs-in-web-apps.md run, where their frameworks are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import ROOT, run_page

PAGE = ROOT / "docs/guides/jobs-in-web-apps.md"


@pytest.mark.readme
def test_applications_of_both_frameworks_put_jobs_and_read_results(tmp_path: Path) -> None:
    for name in ("fastapi", "httpx2", "django"):
        pytest.importorskip(name)
    run_page(PAGE.read_text("utf-8"), tmp_path)

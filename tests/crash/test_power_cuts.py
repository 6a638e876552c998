"""Acknowledged messages are there after any loss of power (P2P-06, P2P-14, PA-09)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.crash.loop import run
from tests.crash.volume import NoVolume, Volume

SEED, CUTS = 20261122, 4


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    try:
        volume = Volume(tmp_path)
    except NoVolume as error:
        pytest.skip(str(error))
    yield volume
    volume.close()


def test_a_volume_loses_what_was_not_synced(volume: Volume) -> None:
    """The test of the test: a loss of power does lose something."""
    with (volume.at / "file").open("wb") as file:
        file.write(b"not synced")
    volume.cut_power()
    with pytest.raises(OSError, match=r"Input/output error|shut"):
        (volume.at / "other").write_bytes(b"")
    volume.power_up()
    assert not (volume.at / "file").exists()


def test_nothing_acknowledged_is_lost_when_the_power_goes(
    tmp_path: Path, volume: Volume, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"use_uvloop": True}
    report = anyio.run(run, tmp_path, SEED, CUTS, volume, backend_options=options)
    with capsys.disabled():
        print(f"\n{report.table()}")
    assert report.is_good, report.table()
    assert report.outside == CUTS and report.result.acked > 0

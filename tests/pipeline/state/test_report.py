"""The report of a job: the page with pictures, and the bar on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ET

from millpond.pipeline.state.report import SAMPLES_MAX, Sample, report_page, with_sample
from tests.pipeline.pipeline_nodes import ROOT

BAR = """
from millpond.pipeline.commands.progress import progress
from millpond.pipeline.state.report import Sample
told = progress(as_json=False)
told.left(0, 100)
told.batch(Sample(7, 40, 2.0, 60, 1, 2.0))
told.left(40, 60)
told.close()
"""


def pictures(page: str) -> list[ET.Element]:
    found = page.split("<svg")[1:]
    return [ET.fromstring("<svg" + each.partition("</svg>")[0] + "</svg>") for each in found]


def test_a_report_has_its_pictures_with_it() -> None:
    samples = [Sample(0, 100, 0.5, 50, 1, 4.0), Sample(1, 50, 0.0, 0, 0, 4.5)]
    page = report_page("a <b>", samples)
    assert "a &lt;b&gt;" in page and "http" not in page
    assert "150 records, 1 of them rejected, in 4.5 s" in page
    throughput, lag = pictures(page)
    tall, flat = [float(each.attrib["height"]) for each in throughput.iter("rect")]
    assert tall > 100 and flat == 0
    heights = [float(each.attrib["cy"]) for each in lag.iter("circle")]
    assert len(heights) == 3 and heights == sorted(heights), "it falls from 150 to 50 to 0"
    ticks = [each.text for each in throughput.iter("text")]
    assert ticks[0::2] == ["0", "50", "100", "150", "200"]
    assert "nothing to do" in report_page("x", []) and len(pictures(report_page("x", []))) == 2


def test_a_report_of_days_stays_small() -> None:
    samples: list[Sample] = []
    for batch in range(5000):
        samples = with_sample(samples, Sample(batch, 10, 1.0, 5000 - batch, 1, float(batch)))
        assert len(samples) <= SAMPLES_MAX
    assert sum(each.records for each in samples) == 50_000
    assert samples[-1] == Sample(4999, 10, 1.0, 1, 1, 4999.0)
    assert len(report_page("x", samples)) < 400_000


def test_on_a_terminal_there_is_a_bar() -> None:
    master, terminal = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([sys.executable, "-c", BAR], env=environment, stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "batch 7" in shown and "40/100" in shown and "60 left" in shown
    assert "20 records/s, 1 rejected" in shown

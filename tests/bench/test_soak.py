"""The soak in little: many streams, each followed to its end; nothing lost, twice or refused."""

from __future__ import annotations

import json

import pytest

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import Appended, Records, Refused
from millpond.node.bench.verify import Faults
from tests.bench.soak import Latencies, Log, S3pDriver, Soak, Writer, main


def soaked(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words]) == 0
    told: dict[str, object] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return told


def test_two_hundred_streams_are_followed_to_their_ends(capfd):
    words = ("--streams", "200", "--writers", "20", "--rate", "2000", "--seconds", "2")
    told = soaked(capfd, *words)
    assert told["appended"] == told["kept"] == told["seen"] > 2_000
    assert told["missing"] == 0 and told["faults"] == {} and told["trims"] > 0


@pytest.mark.full
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_thousand_streams_for_five_seconds(capfd, tmp_path, durability: str):
    words = ("--seconds", "5", "--durability", durability, "--data", str(tmp_path))
    told = soaked(capfd, *words)
    assert told["appended"] == told["kept"] == told["seen"] > 5_000
    assert max(told["rss_mib"]) < 200


def follower() -> tuple[Log, Soak]:
    soak = Soak(1, 1, 1.0, 20, Faults(), Latencies())
    log = Log(7, soak, DriverConnection(S3pDriver(), soak.faults, lambda: None))
    log.follow()
    return log, soak


@pytest.mark.parametrize("order", [[0, 2], [0, 1, 1], [0, 2, 1]], ids=["gap", "twice", "exchanged"])
def test_a_follower_sees_gaps_repetitions_and_disorder(order: list[int]):
    log, soak = follower()
    bodies = [log.make(0.0) for _ in range(3)]
    log.connection.on_answers(
        [Records([((5, place), bodies[each]) for place, each in enumerate(order)])]
    )
    assert soak.faults.counts["disordered"] > 0


def test_a_refused_append_is_a_fault_and_not_kept():
    log, soak = follower()
    writer = Writer([log], soak, DriverConnection(S3pDriver(), soak.faults, lambda: None))
    writer.append(2, 0.0)
    writer.connection.on_answers([Appended((5, 0), (5, 0), 1), Refused("ERR_LIMITS full")])
    assert (soak.appended, soak.kept) == (2, 1)
    assert soak.faults.counts == {"refused": 1}

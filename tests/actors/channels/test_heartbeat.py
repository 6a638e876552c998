"""Pings after silence, and the end of a silent connection (PA-28)."""

from __future__ import annotations

from millpond.actors.channels.heartbeat import Heartbeat, HeartbeatResult
from millpond.actors.messages import Hangup, Probe
from tests.actors.channels.harness import ChannelHarness


def test_pa_28_pings_after_20_and_30_seconds_and_the_end_after_40() -> None:
    liveness = Heartbeat(20.0)
    results = [(now, liveness.check(0.0, float(now))) for now in range(41)]
    assert [each for each in results if each[1] is not HeartbeatResult.ALIVE] == [
        (20, HeartbeatResult.PROBE),
        (30, HeartbeatResult.PROBE),
        (40, HeartbeatResult.DEAD),
    ]


def test_pa_28_any_traffic_starts_the_silence_anew() -> None:
    liveness = Heartbeat(20.0)
    assert liveness.check(0.0, 20.0) is HeartbeatResult.PROBE
    assert liveness.due_at(25.0) == 45.0
    assert liveness.check(25.0, 44.0) is HeartbeatResult.ALIVE
    assert [liveness.check(25.0, now) for now in (45.0, 55.0, 65.0)] == [
        HeartbeatResult.PROBE,
        HeartbeatResult.PROBE,
        HeartbeatResult.DEAD,
    ]


def test_pa_28_a_channel_pings_only_its_silent_connections() -> None:
    harness = ChannelHarness()
    silent, alive = harness.join(keep_alive_s=20.0), harness.join(keep_alive_s=20.0)
    told = []
    for _ in range(39):
        harness.advance(1)
        alive.port.received_at = harness.now
        told.append(silent.port.take())
        assert alive.port.take() == []
    assert [second for second, replies in enumerate(told, 1) if replies == [Probe()]] == [20, 30]
    harness.advance(1)
    assert silent.port.take() == [Hangup()]


def test_a_channel_does_not_spin_while_a_dead_connection_takes_its_time_to_close() -> None:
    harness = ChannelHarness()
    silent = harness.join(keep_alive_s=20.0)
    harness.advance(40)
    assert silent.port.take() == [Probe(), Probe(), Hangup()]
    assert harness.scheduler.timers.next_at > harness.now
    harness.advance(600)
    assert set(silent.port.take()) <= {Hangup()}
    silent.leave()
    harness.advance(60)
    assert harness.scheduler.cells == {}

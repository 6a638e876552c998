"""`h2` as it is spoken here: its limits, and what it would do otherwise."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.events import Event
from h2.settings import SettingCodes, Settings

from millpond.transports.http.server.settings import ServerSettings

WINDOW_AT_FIRST = 2**16 - 1
FRAME_BYTES_MAX = 2**16
HEADER_TABLE_BYTES = 2**12


class _Speech(H2Connection):
    MAX_CLOSED_STREAMS = 2**12
    """So many of the last streams are known; more takes megabytes."""


class _States(H2ConnectionStateMachine):
    """Who says goodbye still hears what it asked for; h2 would let us say nothing more."""

    def process_input(self, input_: ConnectionInputs) -> list[Event]:
        if input_ is ConnectionInputs.RECV_GOAWAY:
            return []
        return super().process_input(input_)


def new_speech(settings: ServerSettings) -> H2Connection:
    """Our end of a connection."""
    speech = _Speech(config=H2Configuration(client_side=False, header_encoding=None))
    speech.state_machine = _States()
    speech.local_settings = settings_for(settings, settings.streams_max)
    speech.max_inbound_frame_size = FRAME_BYTES_MAX
    speech.decoder.max_header_list_size = 2 * settings.header_bytes_max
    return speech


def settings_for(settings: ServerSettings, streams_max: int) -> Settings:
    """What the other end is told to keep to."""
    return Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: streams_max,
            SettingCodes.INITIAL_WINDOW_SIZE: settings.window_bytes,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            SettingCodes.MAX_HEADER_LIST_SIZE: 2 * settings.header_bytes_max,
            SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
        },
    )

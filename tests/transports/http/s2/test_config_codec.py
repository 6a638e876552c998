"""Settings of basins and streams (docs/reference/s2.md)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.streams.messages import Settings, StreamOptions, Timestamping
from millpond.transports.http.s2.codecs.config import (
    NOTHING,
    BasinConfig,
    Cipher,
    ResolvedConfig,
    RetentionPolicy,
    StorageClass,
    StreamConfig,
    TimestampingMode,
    change_basin,
    change_stream,
    encode_basin_config,
    encode_stream_config,
    encode_stream_settings,
    inherit,
    read_basin_change,
    read_config_header,
    read_post_basin,
    read_post_stream,
    read_put_basin,
    read_put_stream,
    read_stream_change,
    resolve,
    settings_of,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode

stream_configs = st.builds(
    StreamConfig,
    st.none() | st.sampled_from(StorageClass),
    st.none() | st.builds(RetentionPolicy, st.none() | st.integers(1, 2**64 - 1)),
    st.none() | st.sampled_from(TimestampingMode),
    st.none() | st.booleans(),
    st.none() | st.integers(0, 2**64 - 1),
)
basin_configs = st.builds(
    BasinConfig,
    stream_configs,
    st.none() | st.sampled_from(Cipher),
    st.booleans(),
    st.booleans(),
)


def told(config: object) -> bytes:
    return json.dumps(config).encode()


def test_what_holds_by_default() -> None:
    assert json.loads(encode_stream_config(resolve(NOTHING))) == {
        "storage_class": "express",
        "retention_policy": {"age": 604800},
        "timestamping": {"mode": "client-prefer", "uncapped": False},
        "delete_on_empty": {"min_age_secs": 0},
    }
    assert json.loads(encode_basin_config(BasinConfig())) == {
        "default_stream_config": None,
        "stream_cipher": None,
        "create_stream_on_append": False,
        "create_stream_on_read": False,
    }


def test_a_stream_inherits_what_it_was_not_told() -> None:
    mine = StreamConfig(uncapped=False, retention=RetentionPolicy(None))
    basin = StreamConfig(
        StorageClass.STANDARD, RetentionPolicy(5), uncapped=True, delete_on_empty_s=9
    )
    assert resolve(inherit(mine, basin)) == ResolvedConfig(
        StorageClass.STANDARD, RetentionPolicy(None), TimestampingMode.CLIENT_PREFER, False, 9
    )


def test_a_basin_shows_of_its_streams_what_it_was_told() -> None:
    config = read_post_basin(
        told(
            {
                "basin": "some-basin",
                "config": {"default_stream_config": {"timestamping": {"uncapped": True}}},
                "location": "here",
            }
        )
    )
    assert (config.basin, config.location) == ("some-basin", "here")
    shown = json.loads(encode_basin_config(config.config))
    assert shown["default_stream_config"] == {"timestamping": {"uncapped": True}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "old"),
        ({"timestamping": {"mode": "arrival"}}, {"timestamping_mode": TimestampingMode.ARRIVAL}),
        ({"timestamping": {"mode": None}}, {"timestamping_mode": None}),
        ({"timestamping": {}}, "old"),
        ({"timestamping": None}, {"timestamping_mode": None, "uncapped": None}),
        ({"retention_policy": None}, {"retention": None}),
        ({"retention_policy": {"infinite": {}}}, {"retention": RetentionPolicy(None)}),
        (
            {"storage_class": None, "delete_on_empty": None},
            {"storage_class": None, "delete_on_empty_s": None},
        ),
        ({"delete_on_empty": {"min_age_secs": 7}}, {"delete_on_empty_s": 7}),
        ({"delete_on_empty": {"min_age_secs": None}}, {"delete_on_empty_s": None}),
    ],
)
def test_a_change_keeps_what_is_absent_and_clears_what_is_null(
    change: object, expected: object
) -> None:
    fields: dict[str, object] = {
        "storage_class": StorageClass.STANDARD,
        "retention": RetentionPolicy(60),
        "timestamping_mode": TimestampingMode.CLIENT_REQUIRE,
        "uncapped": True,
        "delete_on_empty_s": 3,
    }
    old = StreamConfig(**fields)  # type: ignore[arg-type]
    fields.update(expected if isinstance(expected, dict) else {})
    found = change_stream(old, read_stream_change(told(change)))
    assert found == StreamConfig(**fields)  # type: ignore[arg-type]


def test_changes_of_basins_are_nested() -> None:
    old = BasinConfig(
        StreamConfig(StorageClass.STANDARD, RetentionPolicy(9)), Cipher.AEGIS_256, True
    )
    for change, expected in (
        ({}, old),
        (
            {"default_stream_config": {"storage_class": None}},
            StreamConfig(retention=RetentionPolicy(9)),
        ),
        ({"default_stream_config": None}, NOTHING),
    ):
        found = change_basin(old, read_basin_change(told(change)))
        wanted = (
            expected
            if isinstance(expected, BasinConfig)
            else BasinConfig(expected, Cipher.AEGIS_256, True)
        )
        assert found == wanted
    cleared = {"stream_cipher": None, "create_stream_on_append": None}
    assert change_basin(old, read_basin_change(told(cleared))) == BasinConfig(
        old.default_stream_config
    )


def test_a_put_without_a_body_tells_nothing() -> None:
    assert read_put_stream(b"") == NOTHING
    assert read_put_basin(b"") == (BasinConfig(), None)
    assert read_put_stream(b'{"storage_class":null}') == NOTHING
    found = read_put_basin(b'{"config":{"create_stream_on_read":true},"location":null}')
    assert found == (BasinConfig(create_stream_on_read=True), None)


def test_streams_to_make() -> None:
    made = read_post_stream(told({"stream": "a/b", "config": {"retention_policy": {"age": 1}}}))
    assert (made.stream, made.config) == ("a/b", StreamConfig(retention=RetentionPolicy(1)))
    assert read_post_stream(told({"stream": "s", "config": None})).config == NOTHING


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"retention_policy": {"age": 0}}, ErrorCode.INVALID),
        ({"retention_policy": {}}, ErrorCode.BAD_JSON),
        ({"retention_policy": {"age": 1, "infinite": {}}}, ErrorCode.BAD_JSON),
        ({"retention_policy": {"age": -1}}, ErrorCode.BAD_JSON),
        ({"retention_policy": {"age": 2**64}}, ErrorCode.BAD_JSON),
        ({"storage_class": "slow"}, ErrorCode.BAD_JSON),
        ({"timestamping": {"mode": "never"}}, ErrorCode.BAD_JSON),
        ({"delete_on_empty": {"min_age_secs": -1}}, ErrorCode.BAD_JSON),
        ([], ErrorCode.BAD_JSON),
    ],
)
def test_settings_that_are_refused(config: object, code: ErrorCode) -> None:
    with pytest.raises(CodedError) as caught:
        read_put_stream(told(config))
    assert caught.value.code is code
    with pytest.raises(CodedError) as in_a_header:
        read_config_header(json.dumps(config))
    is_bad = code is ErrorCode.BAD_JSON
    assert in_a_header.value.code is (ErrorCode.BAD_HEADER if is_bad else code)


@pytest.mark.parametrize("body", [{"basin": "short"}, {"basin": "some-basin-"}])
def test_names_of_basins_to_make_are_checked(body: object) -> None:
    with pytest.raises(CodedError) as caught:
        read_post_basin(told(body))
    assert caught.value.code is ErrorCode.BAD_JSON


@given(stream_configs, basin_configs)
def test_what_is_kept_comes_back(stream: StreamConfig, basin: BasinConfig) -> None:
    assert read_put_stream(encode_stream_settings(stream)) == stream
    assert read_config_header(encode_stream_settings(stream).decode()) == stream
    change = read_basin_change(encode_basin_config(basin))
    assert change_basin(BasinConfig(), change) == basin
    resolved = resolve(inherit(stream, basin.default_stream_config))
    again = read_put_stream(encode_stream_config(resolved))
    assert resolve(again) == resolved


def test_what_the_cell_of_a_stream_is_told() -> None:
    config = ResolvedConfig(
        retention=RetentionPolicy(60),
        timestamping_mode=TimestampingMode.ARRIVAL,
        uncapped=True,
        delete_on_empty_s=5,
    )
    expected = Settings(
        age_s=60, options=StreamOptions(Timestamping.ARRIVAL, False, 5, {"s2": b"x"})
    )
    assert settings_of(config, {"s2": b"x"}) == expected
    for_ever = settings_of(ResolvedConfig(retention=RetentionPolicy(None)), {})
    assert for_ever == Settings(age_s=0, options=StreamOptions(Timestamping.PREFERRED, True, 0, {}))

"""Definitions: which schemas there are, what producers may write, what JSON Schema means here."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from millpond.actors.state.errors import BadSchema, BadValue
from millpond.actors.state.events import Operation, decode, encode
from millpond.actors.state.json_schema import ERROR_CHARS_MAX, JsonSchema
from millpond.actors.state.schema import Collection, StreamState


class User(msgspec.Struct):
    id: str
    name: str
    age: int = 0


CHAT = StreamState(
    users=Collection("user", User, key="id"),
    notes=Collection("note"),
    flags=Collection("f", False),
)


def test_an_event_as_it_is_written() -> None:
    event = CHAT["users"].insert(User("u1", "Ann"), txid="t", timestamp="now")
    assert json.loads(encode(event)) == {
        "type": "user",
        "key": "u1",
        "value": {"id": "u1", "name": "Ann", "age": 0},
        "headers": {"operation": "insert", "txid": "t", "timestamp": "now"},
    }
    assert decode(encode(event)) == event
    gone = CHAT["users"].delete("u1", old_value={"id": "u1"})
    assert json.loads(encode(gone)) == {
        "type": "user",
        "key": "u1",
        "old_value": {"id": "u1"},
        "headers": {"operation": "delete"},
    }
    null = CHAT["notes"].update(None, "n")
    assert json.loads(encode(null))["value"] is None


def test_an_upsert_is_written_as_an_insert() -> None:
    event = CHAT["notes"].upsert({"a": 1}, "n")
    assert event.headers.operation is Operation.INSERT


@pytest.mark.parametrize(
    ("table", "value", "key", "words"),
    [
        ("users", {"id": "u1"}, None, "name"),
        ("users", {"id": "u1", "name": 5}, None, "name"),
        ("users", {"id": "u1", "name": "Ann"}, "u2", "the key has to be"),
        ("users", "Ann", None, "object"),
        ("notes", 1, None, "a key is needed"),
        ("notes", 1, "", "at least one character"),
        ("notes", {1, 2}.__iter__(), "n", "JSON does not have it"),
        ("flags", 1, "n", "False schema"),
    ],
)
def test_an_invalid_value_is_not_written(table: str, value: Any, key: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        CHAT[table].insert(value, key)


def test_values_are_read_as_their_types() -> None:
    assert CHAT["users"].typed({"id": "u1", "name": "Ann"}) == User("u1", "Ann")
    assert CHAT["notes"].typed([1]) == [1]


def test_models_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Person", id=(str, ...), age=(int, ...))
    people = StreamState(people=Collection("person", model, key="id"))["people"]
    event = people.insert(model(id="p1", age=3))
    assert event.value == {"id": "p1", "age": 3} and event.key == "p1"
    with pytest.raises(BadValue, match="age"):
        people.insert({"id": "p1", "age": "old"})
    assert people.typed({"id": "p1", "age": 3}).age == 3
    named = pydantic.create_model("Named", given=(str, pydantic.Field(alias="givenName")))
    people = StreamState(people=Collection("person", named))["people"]
    event = people.insert(named(givenName="Ann"), "p1")
    assert event.value == {"givenName": "Ann"} and people.typed(event.value).given == "Ann"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "text"}, "#/type: 'text'"),
        ({"properties": {"a": {"minimum": "1"}}}, "#/properties/a/minimum: '1'"),
        ({"pattern": "("}, "#/pattern"),
        ({"patternProperties": {"(": True}}, "#/patternProperties"),
        ({"anyOf": []}, "#/anyOf"),
        ({"required": "a"}, "#/required: 'a'"),
        ({"items": 5}, "#/items: 5"),
        ({"minLength": -1}, "#/minLength: -1"),
        ({"multipleOf": float("nan")}, "#/multipleOf"),
        ({"const": {1, 2}.__iter__()}, "#: "),
        ({"$ref": "https://127.0.0.1:9/schema"}, "127.0.0.1:9/schema': not within the schema"),
        ({"$ref": "http://[/"}, "not within the schema"),
        ({"$ref": "#/$defs/a"}, "not within the schema"),
        ({"$ref": "#nowhere"}, "not within the schema"),
        ({"allOf": [True], "not": {"$ref": "#/allOf/x"}}, "not within the schema"),
        ({"title": "t", "items": {"$ref": "#/title"}}, "#/title: 't'"),
        ({"more": {"type": "text"}, "items": {"$ref": "#/more"}}, "#/more/type: 'text'"),
        ({"$dynamicRef": "https://127.0.0.1:9/schema"}, "not within the schema"),
        ({"$schema": "https://127.0.0.1:9/schema"}, "127.0.0.1:9/schema' is not known"),
        ({"$schema": 5}, "5 is not known"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "$ref": 5}, "not within"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {"(": {}}},
            "unterminated",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        StreamState(things=Collection("thing", schema))


TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
DRAFT_7 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "items": [{"type": "number"}],
    "additionalItems": {"$ref": "#/definitions/unique"},
    "definitions": {"unique": {"uniqueItems": True}},
}
ROWS = [{"n": n} for n in range(50_000)]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (True, [None, 1, {}], []),
        (False, [], [None, 1]),
        ({"type": "integer"}, [1, 1.0, -5, 10**30], [1.5, "1", True, None]),
        ({"type": ["string", "null"]}, ["", None], [0, False]),
        ({"enum": [1, "a", None, [1]]}, [1, 1.0, "a", None, [1]], [True, "b", [True], 0]),
        ({"const": {"a": 1}}, [{"a": 1}], [{"a": True}, {}, {"a": 1, "b": 2}]),
        ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.9, "text"], [0.9, 3]),
        ({"multipleOf": 0.5}, [1, 1.5], [1.2]),
        ({"multipleOf": 0.1}, [0.3, 1e22, 7, "text"], [0.35]),
        ({"multipleOf": 0.01}, [19.99], [19.999]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "\u00e9\u00e9\u00e9", 5], ["a", "abcd"]),
        ({"pattern": "^a+$"}, ["aa", 5], ["ab"]),
        ({"required": ["a"]}, [{"a": None}, 5], [{}, {"b": 1}]),
        ({"properties": {"a": {"type": "string"}}}, [{"a": "x"}, {"b": 1}, 5], [{"a": 1}]),
        ({"properties": {"a": True}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
        (
            {"patternProperties": {"^n": {"type": "number"}}, "additionalProperties": False},
            [{"n": 1, "nn": 2}],
            [{"n": "x"}, {"m": 1}],
        ),
        ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"items": {"type": "number"}, "minItems": 1}, [[1, 2]], [[], ["a"]]),
        ({"prefixItems": [{"type": "number"}], "items": False}, [[1], []], [["a"], [1, 2]]),
        ({"contains": {"const": 1}}, [[0, 1]], [[], [0]]),
        ({"uniqueItems": True}, [[1, True, "1"]], [[1, 1.0], [{"a": 1}, {"a": 1}], [[1], [1.0]]]),
        ({"uniqueItems": True}, [list(range(200_000))], [[*range(200_000), 7]]),
        ({"uniqueItems": True}, [ROWS], [[*ROWS, {"n": 7.0}]]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
        ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 5], [4]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, [0, 3], [1, 2]),
        ({"not": {"type": "null"}}, [0], [None]),
        (
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
            [{"a": 1, "b": 1}, {"c": 1}],
            [{"a": 1}, {}],
        ),
        (TREE, [[], [[], [[]]], nested(50)], [[1], [[[2]]], nested(100_000)]),
        ({"uniqueItems": True}, [[nested(50)]], [[nested(100_000)]]),
        ({"const": 1}, [1], [nested(100_000)]),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
        (
            {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
            [{"a": 1}],
            [{"a": 1, "b": 1}],
        ),
        ({"items": True, "unevaluatedItems": False}, [[1] * 1000, 5], [[1] * 1001]),
        ({"format": "email", "nobody knows": 1}, ["no address"], []),
        (DRAFT_7, [[1, [1]], [1, [1, 2]]], [["a"], [1, [1, 1.0]]]),
        ({"$ref": "#/items", "items": {"$ref": "#"}}, [], [1]),
    ],
)
def test_json_schema(schema: Any, good: list[Any], bad: list[Any]) -> None:
    checker = JsonSchema(schema)
    assert [value for value in good if checker.error_in(value) is not None] == []
    assert [value for value in bad if checker.error_in(value) is None] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"users": [{"id": "u1"}, {"id": 5}]}, "$.users[1].id: 5 is not of type 'string'"),
        ({"users": [], "a b": 1}, "$['a b']: 1 is not of type 'string'"),
        ({}, "$: 'users' is a required property"),
        ({"users": [{}], "note": 1}, "$.note: 1 is not of type 'string'"),
    ],
)
def test_an_error_has_a_path_and_a_text(value: Any, words: str) -> None:
    user = {"properties": {"id": {"type": "string"}}, "required": ["id"]}
    schema = {
        "properties": {"users": {"items": {"anyOf": [{"type": "null"}, user]}}},
        "additionalProperties": {"type": "string"},
        "required": ["users"],
    }
    assert JsonSchema(schema).error_in(value) == words


def test_a_complaint_about_a_large_value_is_short() -> None:
    complaint = JsonSchema({"items": {"type": "null"}}).error_in(["x" * 2**20] * 1000)
    assert complaint is not None and complaint.startswith("$[0]: 'xxx")
    assert complaint.endswith("is not of type 'null'")
    assert len(complaint) <= ERROR_CHARS_MAX + len(" ... ")


def test_the_schema_may_change_its_argument() -> None:
    schema = {"items": {"type": "string"}}
    checker = JsonSchema(schema)
    schema["items"]["type"] = "number"
    assert checker.error_in(["a"]) is None


@pytest.mark.parametrize(
    ("value", "key"), [("\ud800", "k"), ({"a": ["\udc00"]}, "k"), (1, "\ud800")]
)
def test_half_a_surrogate_pair_is_not_written(value: Any, key: str) -> None:
    with pytest.raises(BadValue, match="surrogates"):
        StreamState(notes=Collection("note", None))["notes"].insert(value, key)

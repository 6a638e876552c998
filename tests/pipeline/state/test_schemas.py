"""Schemas of entities: what they allow, and that the node, asked the same, says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.state.errors import BadSchema
from millpond.actors.state.json_schema import JsonSchema
from millpond.pipeline.errors import BadOption
from millpond.pipeline.state.schemas import compile_schema, load_schemas

SCHEMAS: list[Any] = [
    True,
    False,
    {},
    {"type": "integer"},
    {"type": ["string", "null"], "maxLength": 3, "pattern": "^[a-z]*$"},
    {"enum": [1, True, "a", None]},
    {"multipleOf": 0.01},
    {"uniqueItems": True, "items": {"type": ["integer", "boolean", "object"]}},
    {"required": ["a"], "additionalProperties": False, "properties": {"a": {"minimum": 1}}},
    {"patternProperties": {"^a": {"const": 1}}, "unevaluatedProperties": False},
    {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/list"}], "$defs": {"list": {"maxItems": 2}}},
    {"oneOf": [{"type": "number"}, {"minimum": 3}], "not": {"const": 2}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "array"}, "then": False},
    {"type": "date"},
    {"$ref": "#/nowhere"},
    {"$ref": "http://elsewhere.example/schema"},
    {"$schema": "http://elsewhere.example/draft"},
    {"pattern": "("},
    {"patternProperties": {"(": {}}},
    {"properties": []},
    3,
    None,
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.sampled_from([0.5, 1.0, 19.99, "", "a"])
    | st.sampled_from(["abcd", "A"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "ab", "z"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_the_node_and_the_pipeline_understand_the_same_schemas(schema: Any) -> None:
    try:
        node = JsonSchema(schema)
    except BadSchema:
        with pytest.raises(BadOption):
            compile_schema(schema)
        return
    check = compile_schema(schema)

    @settings(deadline=None, max_examples=25)
    @given(values)
    def same(value: Any) -> None:
        assert check(value) == node.error_in(value)

    same()


def test_a_value_that_does_not_fit_is_told_where() -> None:
    schema = {"properties": {"tags": {"type": "array", "items": {"enum": ["x", "y"]}}}}
    check = compile_schema(schema, "user")
    assert check({"tags": ["x"]}) is None
    assert check({"tags": ["x", "q"]}) == "$.tags[1]: 'q' is not one of ['x', 'y']"


def test_schemas_that_are_none_are_refused_before_a_job_begins(tmp_path: Path) -> None:
    file = tmp_path / "schemas.json"
    for text in ('{"user":{"oneOf":[]}}', "[]", "{", '{"user":{"type":"date"}}', '{"user":3}'):
        file.write_text(text)
        with pytest.raises(BadOption):
            load_schemas(file)
    file.write_text('{"user":{"type":"integer"}}')
    assert load_schemas(file) == {"user": {"type": "integer"}}

"""The schema of a state stream: named collections, each a type of events with one schema.

    chat = StreamState(
        users=Collection("user", User, key="id"),
        messages=Collection("message", {"type": "object", "required": ["text"]}),
    )
    event = chat["users"].insert({"id": "u1", "name": "Ann"})

A schema is a JSON Schema, a `msgspec.Struct`, a pydantic model, or None for any value. Values stay
JSON in events and in the state; `Table.typed` reads them as what the schema says. To a type
checker `Collection("user", User)` is a `Collection[User]`, and others are `Collection[object]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic

import msgspec
from msgspec import UNSET
from typing_extensions import TypeVar

from millpond.actors.state.errors import BadSchema, BadValue, DuplicateType
from millpond.actors.state.events import (
    ChangeEvent,
    InvalidReason,
    InvalidRecord,
    Operation,
    change,
)

V = TypeVar("V", default=object, covariant=True)
"""The type of the values of a collection."""
Schema = Mapping[str, object] | bool | type[V] | None


class Collection(msgspec.Struct, Generic[V], frozen=True):
    """One type of events. `key` names the field of a value that has its key; None: it has none."""

    type: str
    schema: Schema[V] = None
    key: str | None = None


class Table:
    """A collection of a stream: it makes events, and checks their values."""

    def __init__(self, name: str, collection: Collection) -> None:
        """Raises BadSchema."""
        if not collection.type:
            raise BadSchema(f"{name}: a type has at least one character")
        self.name = name
        self.collection = collection
        self.type = collection.type
        self._key = collection.key
        self._check, self.typed = _check_and_convert(name, collection.schema)

    def error_in(self, value: object) -> str | None:
        """The error in a JSON value; None: it is valid."""
        return self._check(value)

    def insert(self, value: object, key: str | None = None, **more: str) -> ChangeEvent[object]:
        """The event that sets a value; `key` may be left out where the value has it. `more`:
        `txid`, `timestamp`. Raises BadValue."""
        return self._setting(Operation.INSERT, value, key, more)

    def update(
        self, value: object, key: str | None = None, *, old_value: object = UNSET, **more: str
    ) -> ChangeEvent[object]:
        """The same, for a value that exists."""
        return self._setting(Operation.UPDATE, value, key, more, old_value)

    def upsert(self, value: object, key: str | None = None, **more: str) -> ChangeEvent[object]:
        """The same, whether one exists or not; written as an insert, which every reader knows."""
        return self._setting(Operation.UPSERT, value, key, more)

    def delete(self, key: str, *, old_value: object = UNSET, **more: str) -> ChangeEvent[object]:
        """The event that removes a value."""
        return change(Operation.DELETE, self.type, _named(key), old_value=old_value, **more)

    def _setting(
        self,
        operation: Operation,
        value: object,
        key: str | None,
        more: Mapping[str, str],
        old_value: object = UNSET,
    ) -> ChangeEvent[object]:
        plain = _plain(value)
        error = self._check(plain)
        if error is not None:
            raise BadValue(f"{self.name}: {error}")
        own = plain.get(self._key) if self._key and isinstance(plain, dict) else None
        if self._key and (not isinstance(own, str) or key not in (None, own)):
            raise BadValue(f"{self.name}: the key has to be what {self._key!r} of the value says")
        chosen = own if key is None else key
        if chosen is None:
            raise BadValue(f"{self.name}: a key is needed")
        return change(operation, self.type, _named(chosen), plain, old_value=old_value, **more)


class StreamState:
    """The collections of a stream. Raises DuplicateType, BadSchema."""

    def __init__(
        self, collections: Mapping[str, Collection] | None = None, /, **named: Collection
    ) -> None:
        self._tables: dict[str, Table] = {}
        self._by_type: dict[str, Table] = {}
        for name, collection in {**(collections or {}), **named}.items():
            table = Table(name, collection)
            other = self._by_type.setdefault(table.type, table)
            if other is not table:
                raise DuplicateType(f"{other.name} and {name} are both of type {table.type!r}")
            self._tables[name] = table

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def of_type(self, kind: str) -> Table | None:
        """The collection of a type; None: it has none."""
        return self._by_type.get(kind)

    def check(self, event: ChangeEvent[object]) -> InvalidRecord | None:
        """The reason why an event must not be applied; None: it is valid."""
        table = self._by_type.get(event.type)
        if table is None:
            return InvalidRecord(InvalidReason.UNKNOWN_TYPE, event.type)
        if event.headers.operation is Operation.DELETE:
            return None
        error = table.error_in(event.value)
        return None if error is None else InvalidRecord(InvalidReason.BAD_VALUE, error)


Check = Callable[[Any], str | None]
Typed = Callable[[Any], Any]


def _check_and_convert(name: str, schema: Schema) -> tuple[Check, Typed]:
    """The check of a JSON value, and its conversion to the type."""
    # A program that has a model of pydantic has imported it.
    pydantic: Any = sys.modules.get("pydantic")
    match schema:
        case None:
            return _accept, _identity
        case bool() | Mapping():
            # Here, as the package takes longer to import than everything else.
            from millpond.actors.state.json_schema import JsonSchema

            return JsonSchema(schema).error_in, _identity
        case type() if pydantic is not None and issubclass(schema, pydantic.BaseModel):
            model: Any = schema
            return _check_by(model.model_validate), model.model_validate
        case _:
            try:
                msgspec.convert(None, schema | None)
            except TypeError as exc:
                raise BadSchema(f"{name}: {exc}") from exc

            def convert(value: Any) -> Any:
                return msgspec.convert(value, schema)

            return _check_by(convert), convert


def _check_by(read: Typed) -> Check:
    def check(value: Any) -> str | None:
        try:
            read(value)
        except (ValueError, msgspec.ValidationError, RecursionError) as exc:
            return str(exc)
        return None

    return check


def _accept(value: Any) -> str | None:
    return None


def _identity(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """A value as plain JSON types. Raises BadValue."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_dump))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadValue(f"JSON does not have it: {exc}") from exc


def _dump(value: Any) -> Any:
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _named(key: str) -> str:
    if not isinstance(key, str) or not key:
        raise BadValue("a key is a string of at least one character")
    try:
        key.encode()
    except UnicodeEncodeError as exc:
        raise BadValue(f"a key is text: {exc}") from exc
    return key

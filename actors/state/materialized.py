"""Materialized state: the values of change events by `(type, key)`, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from millpond.actors.state.events import ChangeEvent, Operation


class MaterializedState:
    """Values by type and key. A type exists while it has a key.

    Values are stored as they come in events, whatever they are.
    """

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, dict[str, Any]] = {}

    def __contains__(self, place: tuple[str, str]) -> bool:
        """Is there a value, null included, at `(type, key)`?"""
        return place[1] in self._types.get(place[0], ())

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaterializedState) and self._types == other._types

    __hash__ = None  # type: ignore[assignment]  # it changes

    def apply(self, event: ChangeEvent[Any]) -> Any:
        """Set or remove one value. Gives the value that was there, UNSET if none was.

        An insert or update without a value changes nothing (S12).
        """
        if event.headers.operation is Operation.DELETE:
            return self.remove(event.type, event.key)
        if event.value is UNSET:
            return self.get(event.type, event.key, UNSET)
        return self.put(event.type, event.key, event.value)

    def put(self, kind: str, key: str, value: Any) -> Any:
        """Set one value. Gives the one that was there, UNSET if none was."""
        values = self._types.get(kind)
        if values is None:
            self._types[kind] = {key: value}
            return UNSET
        before = values.get(key, UNSET)
        values[key] = value
        return before

    def fill(self, kind: str, values: dict[str, Any]) -> None:
        """Set many values of a type that are new."""
        self._types.setdefault(kind, {}).update(values)

    def copy(self) -> MaterializedState:
        """A copy, which stays as it is now."""
        copied = MaterializedState()
        copied._types = {kind: values.copy() for kind, values in self._types.items()}
        return copied

    def remove(self, kind: str, key: str) -> Any:
        """Remove one value. Gives the one that was there, UNSET if none was."""
        values = self._types.get(kind)
        if values is None:
            return UNSET
        before = values.pop(key, UNSET)
        if not values:
            del self._types[kind]
        return before

    def apply_batch(self, events: Iterable[ChangeEvent[Any]]) -> None:
        """Apply each event, in order."""
        for event in events:
            self.apply(event)

    def get(self, kind: str, key: str, default: Any = None) -> Any:
        """The value at `(kind, key)`. `in` tells a null from nothing."""
        values = self._types.get(kind)
        return default if values is None else values.get(key, default)

    def get_type(self, kind: str) -> Mapping[str, Any]:
        """All values of a type by their keys, empty for an unknown one: a view, which cannot be
        written to and follows the state. `dict(view)` is a copy."""
        return _View(self._types, kind)

    def clear(self) -> None:
        """Remove everything."""
        self._types.clear()

    @property
    def types(self) -> list[str]:
        """The types that have a value, in the order in which they came."""
        return list(self._types)

    @property
    def type_count(self) -> int:
        """The number of types that have a value."""
        return len(self._types)


_NOTHING: Mapping[str, Any] = {}


class _View(Mapping[str, Any]):
    __slots__ = ("_kind", "_types")

    def __init__(self, types: Mapping[str, Mapping[str, Any]], kind: str) -> None:
        self._types = types
        self._kind = kind

    def __getitem__(self, key: str) -> Any:
        return self._types.get(self._kind, _NOTHING)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types.get(self._kind, _NOTHING))

    def __len__(self) -> int:
        return len(self._types.get(self._kind, _NOTHING))

    def __repr__(self) -> str:
        return repr(dict(self))

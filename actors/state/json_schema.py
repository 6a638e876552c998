"""JSON Schema by the `jsonschema` package: draft 2020-12, or the draft that `$schema` names.

`format` is an annotation, and patterns are Python's regular expressions. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from typing import Any

import msgspec
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import UnknownDialect, specification_with

from millpond.actors.state.errors import BadSchema

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ERRORS_MAX = 100
ERROR_CHARS_MAX = 400
UNEVALUATED_MAX = 1000


class JsonSchema:
    """A validator. Raises BadSchema."""

    def __init__(self, schema: Mapping[str, object] | bool) -> None:
        try:
            given = dict(schema) if isinstance(schema, Mapping) else schema
            plain = msgspec.json.decode(msgspec.json.encode(given))
            # Left in, references to "#" would use the class of the package in place of ours.
            draft = plain.pop("$schema", DRAFT) if isinstance(plain, dict) else DRAFT
            self._specification = specification_with(str(draft))
            known: Any = validator_for({"$schema": draft})
            own = {name: check for name, check in _OWN.items() if name in known.VALIDATORS}
            own |= {
                name: _with_size_limit(known.VALIDATORS[name])
                for name in _SLOW & {*known.VALIDATORS}
            }
            self._kind: Any = extend(known, own)  # type: ignore[no-untyped-call]
            self._seen: set[int] = set()
            self._check("#", plain)
            root = self._specification.create_resource(plain)
            self._check_references(Registry().resolver_with_root(root), root)
            self._validator = self._kind(plain, registry=Registry())
        except UnknownDialect as exc:
            raise BadSchema(f"#/$schema: {draft!r} is not known") from exc
        except BadSchema:
            raise
        except (re.error, TypeError, ValueError, RecursionError) as exc:
            raise BadSchema(f"#: {exc}") from exc

    def error_in(self, value: Any) -> str | None:
        """The error in a value, with a path that begins with `$`; None: it is valid."""
        try:
            errors = islice(self._validator.iter_errors(value), ERRORS_MAX)
            error = best_match(errors, key=_weight)
        except RecursionError:
            return "$: nested too deeply"
        words = "" if error is None else f"{error.json_path}: {error.message}"
        half = ERROR_CHARS_MAX // 2
        return (words if len(words) <= 2 * half else f"{words[:half]} ... {words[-half:]}") or None

    def _check_references(self, resolver: Any, part: Any) -> None:
        """Check that each reference leads to a schema; the package does so only in use."""
        schema = part.contents
        if not isinstance(schema, dict) or id(schema) in self._seen:
            return
        self._seen.add(id(schema))
        for pattern in schema.get("patternProperties", ()):
            re.compile(pattern)
        for keyword in {"$ref", "$dynamicRef"} & schema.keys():
            reference = schema[keyword]
            try:
                found = resolver.lookup(reference)
            except (Unresolvable, AttributeError, TypeError, ValueError) as exc:
                raise BadSchema(f"{keyword} {reference!r}: not within the schema") from exc
            if id(found.contents) not in self._seen:
                self._check(reference, found.contents)
                self._check_references(
                    found.resolver, self._specification.create_resource(found.contents)
                )
        for each in part.subresources():
            self._check_references(resolver.in_subresource(each), each)

    def _check(self, where: str, schema: Any) -> None:
        try:
            self._kind.check_schema(schema)
        except SchemaError as exc:
            path = "/".join([where, *map(str, exc.absolute_path)])
            raise BadSchema(f"{path}: {exc.message}") from exc


def _weight(error: ValidationError) -> Any:
    """The rank of an error: one of the whole says more than one of a part."""
    return -len(error.path), error.validator not in ("anyOf", "oneOf")


def _unique(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """`uniqueItems` in linear time: the package compares each object with each."""
    if wanted and isinstance(value, list) and len(set(map(_canonical, value))) < len(value):
        yield ValidationError("an item is there twice")


def _canonical(value: Any) -> Hashable:
    """A key that equal JSON values share: true is not equal to 1, but 1.0 is."""
    match value:
        case list():
            return tuple(map(_canonical, value))
        case dict():
            return frozenset((key, _canonical(each)) for key, each in value.items())
        case _:
            return isinstance(value, bool), value


def _multiple(validator: Any, of: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """`multipleOf` of decimals: 19.99 is a multiple of 0.01, which the package denies."""
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(of)):
        yield ValidationError(f"{value} is not a multiple of {of}")


def _with_size_limit(check: Any) -> Any:
    """A check that refuses large values, because the package compares each member with each."""

    def bounded(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list | dict) and len(value) > UNEVALUATED_MAX:
            yield ValidationError(f"more than {UNEVALUATED_MAX} members are too many to look at")
        else:
            yield from check(validator, wanted, value, schema)

    return bounded


_SLOW = {"unevaluatedItems", "unevaluatedProperties"}
_OWN = {"uniqueItems": _unique, "multipleOf": _multiple}

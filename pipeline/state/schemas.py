"""Schemas of entities: JSON Schema by the `jsonschema` package, with the node's answers.

Draft 2020-12, or the draft that `$schema` names. `format` is an annotation, patterns are Python's
regular expressions, and nothing is ever fetched. The package itself is loaded with the first
schema: an executor without schemas does without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from millpond.pipeline.errors import BadOption

Check = Callable[[Any], str | None]
"""A check of a value: the reason why it is wrong, or None."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ERRORS_MAX = 100
ERROR_CHARS_MAX = 400
UNEVALUATED_MAX = 1000


def load_schemas(file: Path) -> dict[str, Any]:
    """Schemas by type of entity, from a JSON file. Raises BadOption."""
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise BadOption(f"{file}: no schemas: {error}") from None
    if not isinstance(found, dict):
        raise BadOption(f"{file}: an object, with a JSON Schema for each type")
    for name, schema in found.items():
        compile_schema(schema, name)
    return found


def compile_schema(schema: Any, where: str = "schema") -> Check:
    """A schema as a check. Raises BadOption for an invalid schema."""
    from referencing.jsonschema import UnknownDialect

    if not isinstance(schema, dict | bool):
        raise BadOption(f"{where}: a schema is an object, true or false")
    plain = dict(schema) if isinstance(schema, dict) else schema
    # Left in, it would bring back the package's own class wherever "#" is referred to.
    draft = str(plain.pop("$schema", DRAFT)) if isinstance(plain, dict) else DRAFT
    try:
        return _check_of(_validator_of(plain, draft, where))
    except UnknownDialect:
        raise BadOption(f"{where}: $schema: {draft!r} is not known") from None
    except (re.error, TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"{where}: {error}") from None


def _check_of(validator: Any) -> Check:
    from jsonschema.exceptions import best_match

    def check(value: Any) -> str | None:
        try:
            errors = islice(validator.iter_errors(value), ERRORS_MAX)
            error = best_match(errors, key=_relevance)
        except RecursionError:
            return "$: nested too deeply"
        text = "" if error is None else f"{error.json_path}: {error.message}"
        half = ERROR_CHARS_MAX // 2
        return (text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}") or None

    return check


def _validator_of(schema: Any, draft: str, where: str) -> Any:
    """A validator, after a check that each reference leads to a schema."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(draft)
    base: Any = validator_for({"$schema": draft})
    validator_class: Any = extend(base, _own_checks(base.VALIDATORS))  # type: ignore[no-untyped-call]
    root = specification.create_resource(schema)
    parts = [(Registry().resolver_with_root(root), root, True)]
    seen: set[int] = set()
    while parts:
        resolver, part, is_new = parts.pop()
        found = part.contents
        if is_new:
            try:
                validator_class.check_schema(found)
            except SchemaError as error:
                raise BadOption(f"{where}: {error.json_path}: {error.message}") from None
        if not isinstance(found, dict) or id(found) in seen:
            continue
        seen.add(id(found))
        for pattern in found.get("patternProperties", ()):
            re.compile(pattern)
        for keyword in {"$ref", "$dynamicRef"} & found.keys():
            try:
                target = resolver.lookup(found[keyword])
            except (Unresolvable, AttributeError, TypeError, ValueError):
                text = f"{where}: {keyword} {found[keyword]!r}: not within the schema"
                raise BadOption(text) from None
            parts.append((target.resolver, specification.create_resource(target.contents), True))
        parts += [(resolver.in_subresource(each), each, False) for each in part.subresources()]
    return validator_class(schema, registry=Registry())


def _own_checks(known: Mapping[str, Any]) -> dict[str, Any]:
    """Our own checks, where the package is slow or wrong."""
    own: dict[str, Any] = {"uniqueItems": _unique, "multipleOf": _multiple}
    own |= {name: _with_size_limit(known[name]) for name in _SLOW if name in known}
    return {name: check for name, check in own.items() if name in known}


def _relevance(error: Any) -> Any:
    """The order of errors: those of the whole value before those of its parts."""
    return -len(error.path), error.validator not in ("anyOf", "oneOf")


def _unique(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Unique items in linear time: the package compares each object with each other."""
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(value, list) and len(set(map(_canonical, value))) < len(value):
        yield ValidationError("an item is there twice")


def _canonical(value: Any) -> Hashable:
    """A key that only equal JSON values share: true differs from 1, and 1.0 does not."""
    match value:
        case list():
            return tuple(map(_canonical, value))
        case dict():
            return frozenset((key, _canonical(each)) for key, each in value.items())
        case _:
            return isinstance(value, bool), value


def _multiple(validator: Any, of: Any, value: Any, schema: Any) -> Iterator[Any]:
    """Multiples in decimal: 19.99 is a multiple of 0.01, which the package denies."""
    from jsonschema.exceptions import ValidationError

    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(of)):
        yield ValidationError(f"{value} is not a multiple of {of}")


def _with_size_limit(check: Any) -> Any:
    """A check that refuses large values, because the package compares each member with each."""
    from jsonschema.exceptions import ValidationError

    def bounded(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, list | dict) and len(value) > UNEVALUATED_MAX:
            yield ValidationError(f"more than {UNEVALUATED_MAX} members are too many to look at")
        else:
            yield from check(validator, wanted, value, schema)

    return bounded


_SLOW = ("unevaluatedItems", "unevaluatedProperties")

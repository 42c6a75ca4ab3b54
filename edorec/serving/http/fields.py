"""Inputs of the model as JSON values: what each may hold, and such values as Arrow columns.

Integers are 64-bit, signed or unsigned; null is a missing value. A column's Arrow type depends on
the input alone (int64, string, float64 or a list of these), so that columns of several requests
can be joined; only ids from 2^63 on make it uint64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from edorec.serving.model import Signature

Kind = Literal["integer", "string", "number"]
Where = Callable[[int], str]

ARROW_TYPES = {"integer": pa.int64(), "string": pa.string(), "number": pa.float64()}
_PYTHON_TYPES: dict[Kind, frozenset[type]] = {
    "integer": frozenset({int, type(None)}),
    "string": frozenset({str, type(None)}),
    "number": frozenset({int, float, type(None)}),
}
_LIST_TYPES: frozenset[type] = frozenset({list, type(None)})
_ARTICLES = {"integer": "an integer", "string": "a string", "number": "a number"}
_JSON_NAMES = {
    bool: "a bool",
    int: "an integer",
    float: "a number with a fraction or beyond 64 bits",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True)
class Field:
    """One input of the model as a client sees it: a feature's column.

    Attributes:
        name: of the column.
        kind: of its values, or of the items of its lists.
        is_list: whether a row holds a list of ids.
    """

    name: str
    kind: Kind
    is_list: bool

    @property
    def type(self) -> pa.DataType:
        """Arrow type of a column."""
        item = ARROW_TYPES[self.kind]
        return pa.list_(item) if self.is_list else item


def fields_of(signature: Signature) -> tuple[Field, ...]:
    """The inputs of a model."""
    kinds: dict[str, Kind] = {"int64": "integer", "string": "string", "float64": "number"}
    return tuple(
        Field(source.column, kinds[source.type], is_list=source.kind == "ids")
        for source in signature.inputs
    )


def to_column(field: Field, values: Sequence[Any], *, where: Where) -> pa.Array:
    """A column of JSON values.

    Args:
        field: the feature.
        values: one value a row.
        where: names the place of a row in the request.

    Raises:
        ValueError: with the place and the type of the first value that does not fit.
    """
    if field.is_list:
        _check_types(values, _LIST_TYPES, f"a list of {field.kind}s", where)
        items = list(chain.from_iterable(value for value in values if value is not None))
        if not set(map(type, items)) <= _PYTHON_TYPES[field.kind]:
            _refuse_item(field, values, where)
    else:
        _check_types(values, _PYTHON_TYPES[field.kind], _ARTICLES[field.kind], where)
    return _to_arrow(field, values, where)


def _check_types(
    values: Sequence[Any], allowed: frozenset[type], wanted: str, where: Where
) -> None:
    if set(map(type, values)) <= allowed:
        return
    row = next(index for index, value in enumerate(values) if type(value) not in allowed)
    found = _JSON_NAMES[type(values[row])]
    raise ValueError(f"{where(row)}: wanted {wanted} or null, got {found}")


def _refuse_item(field: Field, values: Sequence[Any], where: Where) -> None:
    """Names the first item of a list that does not fit."""
    for row, items in enumerate(values):
        _check_types(
            items or (),
            _PYTHON_TYPES[field.kind],
            _ARTICLES[field.kind],
            lambda position, row=row: f"{where(row)}[{position}]",  # type: ignore[misc]
        )


def _to_arrow(field: Field, values: Sequence[Any], where: Where) -> pa.Array:
    """Checked values as a column.

    Raises:
        ValueError: integers that no 64-bit type holds together, or text that is not UTF-8.
    """
    try:
        return pa.array(values, field.type)
    except OverflowError:
        return _unsigned(field, values, where)
    except pa.ArrowInvalid:
        # A float column takes integers only where float64 holds them exactly.
        return pa.array([None if value is None else float(value) for value in values], field.type)


def _unsigned(field: Field, values: Sequence[Any], where: Where) -> pa.Array:
    try:
        kind = pa.list_(pa.uint64()) if field.is_list else pa.uint64()
        return pa.array(values, kind)
    except OverflowError:
        raise ValueError(
            f"{where(0)} and after: integers below 0 and from 2^63 on in one input"
        ) from None

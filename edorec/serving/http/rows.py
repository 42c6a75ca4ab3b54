"""Bodies of the JSON endpoints as Arrow tables.

Two forms: ``{"rows": [{feature: value, ...}, ...]}`` and, for one user and many candidates,
``{"user": {feature: value, ...}, "candidates": {feature: [value, ...], ...}}``. An input that a
request leaves out is missing in each of its rows; a name that is no input is passed over. Both are
told in the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from edorec.serving.http.errors import RequestError, refuse
from edorec.serving.http.fields import Field, Where, to_column

WhereOf = Callable[[str], Where]


@dataclass(frozen=True)
class Rows:
    """Rows to be scored; every input is a column of one of the two tables.

    Attributes:
        shared: one row, what all rows have in common: the user's inputs and missing ones.
        table: the others.
        num_rows: rows of ``table``, which has none itself when it has no columns.
        missing: inputs that the request left out.
        ignored: names in the request that are no input, sorted.
    """

    shared: pa.Table
    table: pa.Table
    num_rows: int
    missing: list[str]
    ignored: list[str]


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        RequestError: if it is none. The parser's message could quote the body, so only the place
            of the fault is told.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            400, f"the body is not JSON: fault at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(content, dict):
        raise RequestError(400, "the body must be a JSON object")
    return content


def parse_rows(body: bytes, fields: Sequence[Field], *, max_rows: int) -> Rows:
    """The rows form.

    Raises:
        RequestError: naming what is wrong with the body.
    """
    rows = _member(parse_json(body), "rows", list, "a list of objects")
    check_num_rows(len(rows), max_rows)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(400, f"rows[{index}]: wanted an object")
    named = set().union(*rows)
    columns = {
        field.name: [row.get(field.name) for row in rows] for field in fields if field.name in named
    }
    problems: list[str] = []
    arrays = _arrays(columns, fields, lambda name: lambda row: f"rows[{row}].{name}", problems)
    refuse(problems)
    return assemble(arrays, fields, len(rows), ignored=named - columns.keys())


def parse_candidates(body: bytes, fields: Sequence[Field], *, max_rows: int) -> Rows:
    """The candidates form: the user's inputs hold for every candidate.

    Raises:
        RequestError: naming what is wrong with the body.
    """
    content = parse_json(body)
    user = _member(content, "user", dict, "an object")
    candidates = _member(content, "candidates", dict, "an object of lists")
    num_rows = _num_candidates(candidates, fields)
    check_num_rows(num_rows, max_rows)
    names = {field.name for field in fields}
    both = sorted(user.keys() & candidates.keys() & names)
    problems = [f"{name}: both in user and in candidates" for name in both]
    of_user = {name: [value] for name, value in user.items()}
    shared = _arrays(of_user, fields, lambda name: lambda _: f"user.{name}", problems)
    arrays = _arrays(
        candidates, fields, lambda name: lambda row: f"candidates.{name}[{row}]", problems
    )
    refuse(problems)
    ignored = (user.keys() | candidates.keys()) - names
    return assemble(arrays, fields, num_rows, shared=shared, ignored=ignored)


def check_num_rows(num_rows: int, max_rows: int) -> None:
    """Refuses a request of too many rows.

    Raises:
        RequestError: status 413.
    """
    if num_rows > max_rows:
        raise RequestError(413, f"{num_rows} rows in one request; at most {max_rows} are allowed")


def _member(content: Mapping[str, Any], name: str, kind: type, wanted: str) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise RequestError(400, f"{name}: wanted {wanted}")
    return value


def _num_candidates(candidates: Mapping[str, Any], fields: Sequence[Field]) -> int:
    """Length of the candidates' lists."""
    lengths: dict[str, int] = {}
    for field in fields:
        values = candidates.get(field.name, [])
        if not isinstance(values, list):
            raise RequestError(
                400, f"candidates.{field.name}: wanted a list with a value for each candidate"
            )
        if field.name in candidates:
            lengths[field.name] = len(values)
    if not lengths:
        names = ", ".join(field.name for field in fields)
        raise RequestError(400, f"candidates: holds none of the model's inputs: {names}")
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise RequestError(400, f"candidates: lists of different lengths: {found}")
    return next(iter(lengths.values()))


def _arrays(
    columns: Mapping[str, Any], fields: Sequence[Field], where: WhereOf, problems: list[str]
) -> dict[str, pa.Array]:
    """Columns of those inputs that there are; adds what is wrong with them to ``problems``."""
    arrays = {}
    for field in fields:
        if field.name in columns:
            try:
                arrays[field.name] = to_column(field, columns[field.name], where=where(field.name))
            except ValueError as error:
                problems.append(str(error))
    return arrays


def assemble(
    arrays: Mapping[str, pa.Array],
    fields: Sequence[Field],
    num_rows: int,
    *,
    shared: Mapping[str, pa.Array] | None = None,
    ignored: set[str] | None = None,
) -> Rows:
    """The two tables of a request; inputs that it has not are null in all rows.

    Args:
        arrays: columns of ``num_rows`` values.
        fields: inputs of the model.
        num_rows: number of rows.
        shared: columns of one value, for all rows.
        ignored: names that are no input.

    Raises:
        RequestError: if there are rows and not one input.
    """
    one = dict(shared or {})
    if num_rows and not arrays and not one:
        names = ", ".join(field.name for field in fields)
        raise RequestError(400, f"the request holds none of the model's inputs: {names}")
    missing = [field for field in fields if field.name not in arrays and field.name not in one]
    one |= {field.name: pa.nulls(1, field.type) for field in missing}
    return Rows(
        shared=pa.table({field.name: one[field.name] for field in fields if field.name in one}),
        table=pa.table(
            {field.name: arrays[field.name] for field in fields if field.name in arrays}
        ),
        num_rows=num_rows,
        missing=[field.name for field in missing] if num_rows else [],
        ignored=sorted(ignored or ()),
    )

"""Which columns a run reads, what each may hold, and the check of files against that.

Ids: integers of any width, bool, strings (plain or dictionary-encoded), or lists of these in any
list flavour; a whole column is either scalar or list. Dense values and columns with ``bins``:
integers, floats, bool, decimals (scaled), timestamps and dates (seconds since 1970, UTC). Labels:
integers, floats, bool. Weights: like dense without times. A column of Arrow type null is accepted
anywhere. Everything else is refused here, before any row is read, if it is used.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from edorec.data.schema import (
    DenseFeature,
    FeaturesConfig,
    SparseFeature,
    TaskConfig,
    candidate_of,
    is_sequence,
)
from edorec.data.source import SourceFile
from edorec.errors import ConfigError

Kind = Literal["id", "bins", "dense", "label", "weight", "group"]
T = pa.types
_LIST_TESTS = (
    T.is_list,
    T.is_large_list,
    T.is_fixed_size_list,
    T.is_list_view,
    T.is_large_list_view,
)
_ID_TESTS = (
    T.is_integer,
    T.is_boolean,
    T.is_string,
    T.is_large_string,
    T.is_string_view,
    T.is_null,
)
_NUMERIC_TESTS = (
    T.is_integer,
    T.is_floating,
    T.is_boolean,
    T.is_decimal,
    T.is_timestamp,
    T.is_date,
)


@dataclass(frozen=True)
class ColumnUse:
    """One use of a column: ``key`` is the configuration key, ``name`` the feature or task."""

    kind: Kind
    name: str
    column: str
    key: str

    @property
    def may_be_missing(self) -> bool:
        """Whether data.missing_columns applies."""
        return self.kind in ("id", "bins", "dense")


def column_uses(
    features: FeaturesConfig,
    tasks: Mapping[str, TaskConfig],
    *,
    weight: str | None,
    group: str | None,
) -> list[ColumnUse]:
    """Every use of a column, in the order of the encoded columns."""
    uses = [_sparse_use(name, feature) for name, feature in features.sparse.items()]
    uses += [_dense_use(name, feature) for name, feature in features.dense.items()]
    uses += [
        ColumnUse("label", name, task.label, f"tasks.{name}.label") for name, task in tasks.items()
    ]
    if weight is not None:
        uses.append(ColumnUse("weight", "weight", weight, "data.weight"))
    if group is not None:
        uses.append(ColumnUse("group", "group", group, "data.group"))
    return uses


def _sparse_use(name: str, feature: SparseFeature) -> ColumnUse:
    kind: Kind = "id" if feature.bins is None else "bins"
    return ColumnUse(kind, name, feature.column or name, f"features.sparse.{name}")


def _dense_use(name: str, feature: DenseFeature) -> ColumnUse:
    return ColumnUse("dense", name, feature.column or name, f"features.dense.{name}")


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's list flavours."""
    return any(test(kind) for test in _LIST_TESTS)


def check_uses(uses: Sequence[ColumnUse]) -> list[str]:
    """Columns in two roles that exclude each other."""
    roles: dict[str, ColumnUse] = {}
    problems = []
    for use in uses:
        if use.kind in ("label", "weight"):
            first = roles.setdefault(use.column, use)
            if first.kind != use.kind:
                problems.append(f"{use.key}: column {use.column} is already used by {first.key}")
    for use in uses:
        other = roles.get(use.column)
        if other is None or use.kind in ("label", "weight"):
            continue
        what = f"the label of task {other.name}" if other.kind == "label" else "the weight of rows"
        role = "the group" if use.kind == "group" else "a feature"
        problems.append(f"{use.key}: column {use.column} is {what} and cannot be {role} too")
    return problems


def check_files(
    uses: Sequence[ColumnUse], files: Sequence[SourceFile], *, missing_columns: str
) -> list[str]:
    """Every fault of the files' schemas, one sentence each."""
    problems = []
    for use in uses:
        found = [(file, _positions(file, use.column)) for file in files]
        if not any(positions for _, positions in found):
            problems.append(_absent(use, files))
            continue
        problems += _faults(use, found, missing_columns)
    return problems


def check_sparse(features: Mapping[str, SparseFeature], lists: frozenset[str]) -> list[str]:
    """Settings of sparse features that do not fit what their columns hold."""
    problems = []
    for name, feature in features.items():
        if feature.max_length is not None and name not in lists:
            problems.append(
                f"features.sparse.{name}.max_length: column {feature.column or name} holds no lists"
            )
        if is_sequence(feature) and name not in lists:
            problems.append(
                f"features.sparse.{name}.pooling: {feature.pooling} pools lists, and column "
                f"{feature.column or name} holds none"
            )
        if is_sequence(feature) and candidate_of(name, features) in lists:
            problems.append(
                f"features.sparse.{name}.candidate: {candidate_of(name, features)} holds lists; "
                f"{feature.pooling} attends from the one id that is scored"
            )
        texts = [value for value in feature.missing if isinstance(value, str)]
        if feature.bins is not None and texts:
            problems.append(
                f"features.sparse.{name}.missing: {texts[0]!r} is no number, and a feature with "
                "bins holds numbers"
            )
    return problems


def check(
    uses: Sequence[ColumnUse],
    files: Sequence[SourceFile],
    *,
    features: FeaturesConfig,
    missing_columns: str,
) -> None:
    """Checks roles, schemas and settings together.

    Raises:
        ConfigError: with all faults.
    """
    problems = check_uses(uses) + check_files(uses, files, missing_columns=missing_columns)
    if not problems:
        problems = check_sparse(features.sparse, list_features(uses, files))
    if problems:
        raise ConfigError(problems)


def check_again(
    uses: Sequence[ColumnUse],
    files: Sequence[SourceFile],
    *,
    lists: frozenset[str],
    missing_columns: str,
) -> None:
    """Checks files that come later, for which ``lists`` are the features that hold lists.

    Raises:
        ConfigError: with all faults.
    """
    problems = check_files(uses, files, missing_columns=missing_columns)
    for use in uses:
        for file in files if use.kind == "id" and not problems else ():
            for kind in (file.types[position] for position in _positions(file, use.column)):
                if not T.is_null(kind) and is_list(kind) != (use.name in lists):
                    was = "lists" if use.name in lists else "no lists"
                    problems.append(
                        f"{use.key}: column {use.column} of {file.path} is {kind}; the rows "
                        f"trained on held {was} there"
                    )
    if problems:
        raise ConfigError(problems)


def list_features(uses: Iterable[ColumnUse], files: Sequence[SourceFile]) -> frozenset[str]:
    """Names of the sparse features whose column holds lists; call after ``check``."""
    return frozenset(
        use.name
        for use in uses
        if use.kind == "id"
        and any(is_list(file.types[p]) for file in files for p in _positions(file, use.column))
    )


def _positions(file: SourceFile, column: str) -> list[int]:
    return [index for index, name in enumerate(file.names) if name == column]


def _absent(use: ColumnUse, files: Sequence[SourceFile]) -> str:
    names = sorted({name for file in files for name in file.names})
    near = difflib.get_close_matches(use.column, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names[:10])}"
    where = str(files[0].path) if len(files) == 1 else f"any of the {len(files)} files"
    return f"{use.key}: there is no column {use.column} in {where}{hint}"


def _faults(
    use: ColumnUse, found: Sequence[tuple[SourceFile, list[int]]], missing_columns: str
) -> list[str]:
    """Faults of a column that at least one file has; the first file of each kind is named."""
    problems: dict[str, str] = {}
    shape: tuple[bool, SourceFile, pa.DataType] | None = None
    for file, positions in found:
        if not positions:
            if not use.may_be_missing or missing_columns == "error":
                hint = "; data.missing_columns: null reads it as null" if use.may_be_missing else ""
                problems.setdefault(
                    "missing", f"{use.key}: {file.path} has no column {use.column}{hint}"
                )
            continue
        if len(positions) > 1:
            problems.setdefault(
                "repeated",
                f"{use.key}: {file.path} has {len(positions)} columns called {use.column}",
            )
        kind = file.types[positions[0]]
        if refusal := _refusal(use, kind):
            problems.setdefault(
                "type", f"{use.key}: column {use.column} of {file.path} is {kind}; {refusal}"
            )
        elif not T.is_null(kind):
            shape = shape or (is_list(kind), file, kind)
            if shape[0] != is_list(kind):
                problems.setdefault(
                    "shape",
                    f"{use.key}: column {use.column} is {shape[2]} in {shape[1].path} and {kind} "
                    f"in {file.path}; it must hold lists in all files or in none",
                )
    return list(problems.values())


def _refusal(use: ColumnUse, kind: pa.DataType) -> str | None:
    """Why a type cannot be used so, None if it can."""
    if T.is_null(kind):
        return None
    if use.kind in ("id", "group"):
        item = kind.value_type if is_list(kind) and use.kind == "id" else kind
        if _is_id(item):
            return None
        wanted = "ids are integers, bools or strings" + (
            ", or lists of them" if use.kind == "id" else ""
        )
        can_bin = use.kind == "id" and _is_numeric(kind)
        hint = "; bins makes ids of a numeric column" if can_bin else ""
        return wanted + hint
    if use.kind == "label":
        ok = T.is_integer(kind) or T.is_floating(kind) or T.is_boolean(kind)
        return None if ok else "labels are integers, floats or bools"
    if use.kind == "weight":
        ok = T.is_integer(kind) or T.is_floating(kind) or T.is_decimal(kind)
        return None if ok else "weights are integers, floats or decimals"
    return None if _is_numeric(kind) else "it must hold numbers, bools, timestamps or dates"


def _is_id(kind: pa.DataType) -> bool:
    if T.is_dictionary(kind):
        return _is_id(kind.value_type)
    return any(test(kind) for test in _ID_TESTS)


def _is_numeric(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _NUMERIC_TESTS)

"""What ``edorec init`` takes each column of a log for; all of it guesses from names and figures."""

import re
from dataclasses import dataclass, field

from edorec.init_sample import Column, Sample


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


LABEL_WORDS = _set("label labels target y")
ACTION_WORDS = _set("""
    click clicks clicked buy bought purchase purchased order ordered cart convert converted
    conversion like liked follow followed share shared install installed subscribe subscribed
""")
USER_WORDS = _set("user uid member customer visitor buyer client account device session")
ID_WORDS = _set("id ids uid code key sku uuid guid hash zip cat category type")
QUANTITY_WORDS = _set("""
    num count cnt price amount cost age day days week weeks month months year years hours minutes
    seconds sec secs ms length len duration size score rate ratio ctr avg mean sum total qty
    quantity discount distance rank gain gains loss losses income salary wage revenue balance
    dividend dividends weight height width
""")
TIME_WORDS = _set("time timestamp ts date datetime dt day at ms event")
WEIGHT_WORDS = _set("weight weights propensity")
GENERIC_WORDS = _set("id hist history recent last list seq of the")

MIN_ROWS_FOR_ROW_ID = 100
SMALL = 50
SKEWED = 2.0
# Seconds, milliseconds, microseconds and nanoseconds since 1970, from 2001 to 2065.
EPOCH_RANGES = [(1e9 * unit, 3e9 * unit) for unit in (1, 1e3, 1e6, 1e9)]


@dataclass(frozen=True)
class Guess:
    """What a column is used as, and why.

    Attributes:
        column: the column.
        why: a phrase for the comment.
        vocabulary: the scalar column whose ids a list holds.
        log1p: for numbers, whether to take the logarithm.
    """

    column: Column
    why: str
    vocabulary: str | None = None
    log1p: bool = False


@dataclass
class Guesses:
    """The roles of all columns.

    Attributes:
        tasks: labels by task name.
        left_out: column names, or lists of them, with the reason.
        time: the column to split by.
    """

    tasks: dict[str, Guess] = field(default_factory=dict)
    sparse: list[Guess] = field(default_factory=list)
    dense: list[Guess] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    group: Column | None = None
    weight: Column | None = None
    time: Column | None = None


def guess(sample: Sample) -> Guesses:
    """Finds a role for every column of a sample."""
    guesses = Guesses()
    guesses.tasks = _tasks(sample.columns)
    labels = {task.column.name for task in guesses.tasks.values()}
    rest = [column for column in sample.columns if column.name not in labels]
    guesses.group = _group(rest)
    for column in rest:
        reason = _reason_to_leave_out(column)
        if reason:
            guesses.left_out.append((column.name, reason))
            if reason.startswith("a time"):
                guesses.time = guesses.time or column
            if reason.startswith("a weight"):
                guesses.weight = column
        else:
            _add_feature(guesses, column)
    guesses.left_out += [(name, "several columns have this name") for name in sample.repeated]
    guesses.sparse = [_shared(sample, feature, guesses.sparse) for feature in guesses.sparse]
    return guesses


def words(name: str) -> set[str]:
    """The lower-case words of a column name, split at marks and at capitals."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(re.split(r"[^a-z0-9]+", apart.lower())) - {""}


def _tasks(columns: list[Column]) -> dict[str, Guess]:
    """Columns that hold only 0 and 1 under a telling name; else the last one that does."""
    binary = [column for column in columns if column.is_binary]
    named = [c for c in binary if words(c.name) & (LABEL_WORDS | ACTION_WORDS)]
    flags = [c for c in binary if "is" in words(c.name)]
    chosen = named or flags or binary[-1:]
    why = "" if named else "no column is called like a label; "
    tasks: dict[str, Guess] = {}
    for column in chosen:
        name = re.sub(r"^(is|label|target)_|_(label|target)$", "", column.name) or column.name
        share = f"{column.mean:.2%} are 1" if column.mean is not None else "all null"
        tasks[name if name not in tasks else column.name] = Guess(column, why + share)
    return tasks


def _group(columns: list[Column]) -> Column | None:
    """The column that looks most like the id of a user."""

    def closeness(column: Column) -> tuple[bool, int]:
        return bool(words(column.name) & {"user", "uid"}), column.distinct

    found = [
        column
        for column in columns
        if column.kind in ("int", "text")
        and column.distinct > 1
        and words(column.name) & USER_WORDS
        and words(column.name) <= USER_WORDS | ID_WORDS
    ]
    return max(found, key=closeness, default=None)


def _reason_to_leave_out(column: Column) -> str | None:
    """Why a column is no feature, None if it is one."""
    name, filled = words(column.name), column.rows - column.nulls
    rules = (
        (not filled, "null in every row of the sample"),
        (column.kind == "other", f"{column.type} is no id, list of ids, or number"),
        (bool(name & LABEL_WORDS), "called like a label, but its values are not 0 and 1"),
        (column.kind == "time" or _is_time(column, name), "a time"),
        (column.kind == "float" and bool(name & WEIGHT_WORDS), "a weight of the row?"),
        (
            not column.kind.startswith("list") and column.distinct == 1 and not column.nulls,
            "constant",
        ),
        (_is_row_id(column, filled), "different in every row"),
        (column.kind == "float" and column.low is None, "no finite number"),
        (column.kind == "text" and column.length > 64, "long text"),
    )
    return next((reason for applies, reason in rules if applies), None)


def _is_time(column: Column, name: set[str]) -> bool:
    if column.kind not in ("int", "float") or column.low is None or column.high is None:
        return False
    if not name & TIME_WORDS:
        return False
    is_calendar_day = column.low >= 19_000_101 and column.high <= 21_001_231
    return is_calendar_day or any(a <= column.low and column.high <= b for a, b in EPOCH_RANGES)


def _is_row_id(column: Column, filled: int) -> bool:
    if column.kind not in ("int", "text") or words(column.name) & USER_WORDS:
        return False
    return filled >= MIN_ROWS_FOR_ROW_ID and column.distinct == filled


def _add_feature(guesses: Guesses, column: Column) -> None:
    name = words(column.name)
    is_quantity = bool(name & QUANTITY_WORDS) and not name & ID_WORDS
    if column.kind == "float" or (column.kind == "int" and is_quantity):
        log1p = column.skewness is not None and column.skewness > SKEWED
        why = _range(column) + (", skewed" if log1p else "")
        guesses.dense.append(Guess(column, why, log1p=log1p))
        return
    if column.kind.startswith("list"):
        why = f"{column.distinct:,} ids, {column.length:.1f} a row"
    else:
        why = f"{column.distinct:,} values"
        if column.kind == "int" and column.distinct > SMALL and not name & ID_WORDS:
            why += "; under dense if it is a quantity"
    guesses.sparse.append(Guess(column, why + _nulls(column)))


def _shared(sample: Sample, feature: Guess, others: list[Guess]) -> Guess:
    """A list feature with the scalar column whose ids it holds, where there is one."""
    items = feature.column
    if not items.kind.startswith("list"):
        return feature
    found = []
    for other in (other.column for other in others):
        if f"list_{other.kind}" != items.kind:
            continue
        share, jaccard = sample.overlap(items, other)
        named = bool(_topic(items.name) & _topic(other.name))
        # Small integers overlap by chance, so without a like name most values must be common.
        large = min(items.distinct, other.distinct) > SMALL
        if share >= 0.3 if named else large and jaccard >= 0.5:
            found.append((named, share, other.name))
    if not found:
        return feature
    _, share, name = max(found)
    why = f"{feature.why}; {share:.0%} of them are values of {name}"
    return Guess(items, why, vocabulary=name)


def _topic(name: str) -> set[str]:
    """The words of a name that say what it is about, in the singular."""
    return {word.removesuffix("s") for word in words(name) - GENERIC_WORDS}


def _range(column: Column) -> str:
    return f"{column.low:g} to {column.high:g}{_nulls(column)}"


def _nulls(column: Column) -> str:
    return f", {column.nulls / column.rows:.1%} null" if column.nulls else ""

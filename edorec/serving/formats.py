"""Which format each row is served in, as said on the command line."""

from dataclasses import dataclass, field
from itertools import pairwise

from edorec.embedding.formats import SELF_SCALED, format_of
from edorec.errors import InputError
from edorec.serving import pq
from edorec.serving.tables import PQ

AS_TRAINED, AUTO = "as-trained", "auto"
NAMES = (AS_TRAINED, *SELF_SCALED, PQ)


@dataclass(frozen=True)
class Spec:
    """Formats of one table by frequency: ``int8:100:pq`` is INT8 for ids seen 100 times or more.

    Attributes:
        bands: (least count, format), descending; the last count is 0.
    """

    bands: tuple[tuple[int, str], ...] = ((0, AS_TRAINED),)

    def __str__(self) -> str:
        parts = [f"{name}:{count}" for count, name in self.bands[:-1]]
        return ":".join([*parts, self.bands[-1][1]])


@dataclass(frozen=True)
class Formats:
    """Formats of all tables.

    Attributes:
        default: of tables that ``tables`` does not name.
        tables: by name.
        is_auto: search the smallest for each table that ``tables`` does not name.
    """

    default: Spec = field(default_factory=Spec)
    tables: dict[str, Spec] = field(default_factory=dict)
    is_auto: bool = False

    def of(self, table: str) -> Spec:
        """Of one table."""
        return self.tables.get(table, self.default)


def parse_formats(texts: list[str]) -> Formats:
    """Formats from texts such as ``int8``, ``int8:100:pq``, ``item=int4`` and ``auto``.

    Raises:
        InputError: naming the text that is none of these.
    """
    default, tables, is_auto = Spec(), {}, False
    for text in texts:
        table, equals, spec = text.rpartition("=")
        if equals:
            tables[table] = parse_spec(spec, text)
        elif spec == AUTO:
            is_auto = True
        else:
            default = parse_spec(spec, text)
    return Formats(default, tables, is_auto)


def parse_spec(spec: str, text: str) -> Spec:
    """One table's formats.

    Args:
        spec: ``FORMAT`` or ``FORMAT:COUNT:FORMAT`` and so on.
        text: what to name in errors.

    Raises:
        InputError: if it is neither.
    """
    parts = spec.split(":")
    for name in parts[::2]:
        if name not in NAMES:
            raise InputError(f"--format {text}: {name or spec} is none of {', '.join(NAMES)}")
    counts = parts[1::2]
    are_numbers = all(count.isdecimal() and int(count) > 0 for count in counts)
    is_descending = are_numbers and all(int(a) > int(b) for a, b in pairwise(counts))
    if len(parts) % 2 == 0 or not is_descending:
        raise InputError(
            f"--format {text}: wanted FORMAT, or formats with falling counts between them, such "
            "as int8:100:pq"
        )
    return Spec(tuple(zip([*map(int, counts), 0], parts[::2], strict=True)))


def served_format(wanted: str, *, trained: str, dim: int) -> str:
    """The format to write: never one that takes more bytes than the trained one."""
    if wanted == AS_TRAINED or bytes_of(wanted, dim) >= bytes_of(trained, dim):
        return trained
    return wanted


def bytes_of(row_format: str, dim: int) -> int:
    """Bytes of a row."""
    return pq.row_bytes(dim) if row_format == PQ else format_of(row_format).row_bytes(dim)

"""Decides what ``memory.budget`` leaves open.

What the configuration gives is kept, so planning a configuration that holds a plan gives that plan
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edorec.config import RunConfig
from edorec.data.prepared import Prepared
from edorec.data.schema import VocabularyConfig
from edorec.devices import pick_device
from edorec.embedding.accounting import FP32_BYTES, STATE_BYTES
from edorec.embedding.admission import I64, MIN_COUNT, RowMap, build_row_map
from edorec.embedding.bands import bucket_lookups, plan_bands
from edorec.embedding.formats import format_of
from edorec.embedding.optimizers import state_bytes
from edorec.embedding.states import STATES
from edorec.embedding.task_tables import task_name
from edorec.errors import ConfigError
from edorec.memory_use import format_bytes, parse_budget
from edorec.planning.choice import Choice, DoesNotFitError, Pins, TableCosts, choose_within
from edorec.planning.costs import Option, bucket_losses, learned, option_of, options_for
from edorec.planning.placing import move_tables
from edorec.planning.plan import Plan, PlannedBand, PlannedTable
from edorec.planning.value import Classes, Worth, classes_of, measure_worth


class _Table:
    """What the planner knows of one table: a vocabulary's, or a task's own for its first ids."""

    def __init__(
        self,
        config: RunConfig,
        prepared: Prepared,
        vocabulary: str,
        *,
        task: str | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.is_shared = task is None
        self.settings = config.vocabularies.get(vocabulary, VocabularyConfig())
        self.dim = self.settings.dim or config.embedding.dim
        self.counts: I64 = prepared.vocabularies[vocabulary].counts
        self.bucket_ids = prepared.vocabularies[vocabulary].bucket_ids
        self.num_ids = len(self.counts)
        if task is None:
            self.name = vocabulary
        else:  # its rows are given: the first ids, and one row for all others
            self.name = task_name(vocabulary, task)
            rows = self.settings.task_specific[task]
            given = {"min_count": 1, "max_rows": rows.rows, "buckets": 1.0}
            self.settings = self.settings.model_copy(update=given)
            self.dim = rows.dim
            self.num_ids = min(rows.rows, self.num_ids)
        self.optimizer = config.embedding.optimizer
        self.features = tuple(
            feature for feature, v in prepared.feature_vocabulary.items() if v == vocabulary
        )
        own = config.memory.tables.get(self.name)
        fixed = own.all_bands() if own is not None and own.is_given else None
        self.pins = Pins(min_count=self.settings.min_count, bands=fixed)
        self.pinned = tuple(
            key
            for key, value in (
                ("min_count", self.settings.min_count),
                ("max_rows", self.settings.max_rows),
                ("buckets", self.settings.buckets),
                ("bands", fixed),
            )
            if value is not None
        )
        # Ids beyond max_rows share buckets whatever the plan.
        self.classes = classes_of(self.counts[: self.settings.max_rows], self.pins.edges())

    @property
    def is_decided(self) -> bool:
        """Whether nothing is left open."""
        return {"min_count", "buckets", "bands"} <= set(self.pinned)

    def row_map(
        self, *, min_count: int | None, buckets: float | None, shared: RowMap | None = None
    ) -> RowMap:
        """Which ids have rows; a task's are among those that have one in the ``shared`` table."""
        found = build_row_map(
            self.counts,
            min_count=min_count,
            max_rows=self.settings.max_rows,
            buckets=buckets,
            oov_rate=self.settings.oov_rate,
            bucket_ids=self.bucket_ids,
        )
        if shared is None:
            return found
        return replace(found, num_own_rows=min(found.num_own_rows, shared.num_own_rows))

    def buckets(self) -> list[tuple[int, float]]:
        """(rows, loss) of each number of buckets to choose from."""
        given = self.settings.buckets
        if given is None:
            return bucket_losses(len(self.counts), self.classes)
        return [(self.row_map(min_count=1, buckets=given).num_buckets, 0.0)]

    def bucket_lookups(self, min_count: int, buckets: int) -> float:
        """Training look-ups of one bucket."""
        return bucket_lookups(self.row_map(min_count=min_count, buckets=buckets), self.counts)

    def options(self) -> list[Option]:
        """Storages to choose from."""
        if self.pins.bands is None:
            return options_for(self.optimizer)
        fixed = dict.fromkeys((band.format, band.state) for band in self.pins.bands)
        return [option_of(row_format, state) for row_format, state in fixed]


def measure(config: RunConfig, prepared: Prepared) -> dict[str, Worth]:
    """What ids are worth, by table, where anything is left open."""
    open_ = [table for table in _tables(config, prepared) if not table.is_decided]
    return measure_worth(
        prepared,
        {table.name: table.classes for table in open_},
        features={table.name: table.features for table in open_},
        averaged=[n for n, feature in config.features.sparse.items() if feature.pooling != "sum"],
    )


def make_plan(
    config: RunConfig,
    prepared: Prepared,
    *,
    worth: Mapping[str, Worth] | None = None,
    num_processes: int = 1,
) -> Plan:
    """Decides what ``memory.budget`` leaves open; without one, or with 1.0, nothing changes.

    Args:
        config: the whole run.
        prepared: with training rows, unless everything is given.
        worth: what ``measure`` found, to do it once for several budgets.
        num_processes: of the run; tables of several stay in memory.

    Raises:
        ConfigError: if the budget is too small, with the smallest possible size.
    """
    tables = _tables(config, prepared)
    baseline = sum(t.num_ids * (t.dim * FP32_BYTES + STATE_BYTES) for t in tables)
    budget = config.memory.budget
    parsed = None if budget is None else parse_budget(budget)
    if parsed is None or (parsed == 1.0 and isinstance(parsed, float)):
        budget_bytes = None if parsed is None else baseline
        return Plan(budget, budget_bytes, baseline, _as_configured(config, tables))
    budget_bytes = int(parsed * baseline) if isinstance(parsed, float) else parsed
    known = measure(config, prepared) if worth is None else worth
    costs = {
        table.name: TableCosts(
            table.classes,
            known.get(table.name) or _nothing(table.classes),
            dim=table.dim,
            optimizer=table.optimizer,
            buckets=table.buckets(),
            bucket_lookups=table.bucket_lookups,
            options=table.options(),
            pins=table.pins,
        )
        for table in tables
    }
    try:
        choices = choose_within(costs, budget_bytes)
    except DoesNotFitError as error:
        raise _too_small(config, tables, error.smallest_bytes, baseline) from error
    decided = _decided(tables, choices, known)
    moved = move_tables(
        config.memory,
        config.embedding,
        {table.name: table.total_bytes for table in decided},
        {table.name: int(table.counts.sum()) for table in tables},
        device=pick_device(config.train.device),
        num_processes=num_processes,
    )
    if moved is None:
        return Plan(budget, budget_bytes, baseline, decided)
    placed = tuple(
        replace(table, placement=moved.placement, why=f"{table.why}; {moved.why}")
        if table.name in moved.tables
        else table
        for table in decided
    )
    return Plan(budget, budget_bytes, baseline, placed, moved.load_factor)


def _nothing(classes: Classes) -> Worth:
    """Of ids whose table is decided."""
    return Worth(np.zeros(len(classes.low)), np.zeros(len(classes.low)))


def _tables(config: RunConfig, prepared: Prepared) -> list[_Table]:
    """Those of vocabularies, then those of tasks."""
    used = sorted(set(prepared.feature_vocabulary.values()))
    tables = [_Table(config, prepared, name) for name in used]
    return tables + [
        _Table(config, prepared, table.vocabulary, task=task)
        for task in config.tasks
        for table in tables
        if task in table.settings.task_specific
    ]


def _too_small(
    config: RunConfig, tables: Sequence[_Table], smallest: int, baseline: int
) -> ConfigError:
    pinned = [f"{t.name} ({', '.join(t.pinned)})" for t in tables if t.pinned]
    advice = f"; what is given stays as it is: {', '.join(pinned)}" if pinned else ""
    return ConfigError(
        [
            f"memory.budget: {config.memory.budget} is too small: the smallest plan takes "
            f"{format_bytes(smallest)} ({smallest:,} bytes, {smallest / baseline:.4f} of FP32's "
            f"{format_bytes(baseline)}){advice}"
        ]
    )


def _as_configured(config: RunConfig, tables: Sequence[_Table]) -> tuple[PlannedTable, ...]:
    choices = {}
    for table in tables:
        given, bands = table.settings, config.memory.bands_of(table.name)
        min_count = MIN_COUNT if given.min_count is None else given.min_count
        buckets = table.row_map(min_count=min_count, buckets=given.buckets).num_buckets
        choices[table.name] = Choice(min_count, buckets, tuple(bands), num_bytes=0, loss=0.0)
    whys = {table.name: "as configured" for table in tables}
    return _planned(tables, choices, kept={}, whys=whys)


def _decided(
    tables: Sequence[_Table], choices: Mapping[str, Choice], known: Mapping[str, Worth]
) -> tuple[PlannedTable, ...]:
    kept, whys = {}, {}
    for table in tables:
        choice, worth = choices[table.name], known.get(table.name)
        whys[table.name] = "as given" if worth is None else _why(table, choice, worth)
        if worth is not None:
            total = float(learned(worth, table.classes).sum())
            kept[table.name] = max(0.0, 1 - choice.loss / total) if total else 1.0
    return _planned(tables, choices, kept=kept, whys=whys)


def _planned(
    tables: Sequence[_Table],
    choices: Mapping[str, Choice],
    *,
    kept: Mapping[str, float],
    whys: Mapping[str, str],
) -> tuple[PlannedTable, ...]:
    """The tables as they will be built."""
    planned: list[PlannedTable] = []
    shared: dict[str, RowMap] = {}
    for table in tables:
        choice = choices[table.name]
        row_map = table.row_map(
            min_count=choice.min_count,
            buckets=choice.buckets,
            shared=shared.get(table.vocabulary),
        )
        if table.is_shared:
            shared[table.vocabulary] = row_map
        planned.append(
            _planned_table(table, choice, row_map, kept=kept.get(table.name), why=whys[table.name])
        )
    return tuple(planned)


def _planned_table(
    table: _Table, choice: Choice, row_map: RowMap, *, kept: float | None, why: str
) -> PlannedTable:
    bands = choice.bands
    planned = plan_bands(bands, row_map=row_map, counts=table.counts)
    states = [
        state_bytes(table.optimizer, dim=table.dim, state=STATES[band.state]) for band in planned
    ]
    own_rows = [band.num_rows for band in planned[: len(bands)]]
    if len(bands) == 1:
        own_rows = [row_map.num_own_rows]
    return PlannedTable(
        name=table.name,
        vocabulary=table.vocabulary,
        features=table.features,
        num_ids=table.num_ids,
        rows=row_map.num_rows,
        buckets=row_map.num_buckets,
        dim=table.dim,
        format="+".join(dict.fromkeys(band.format for band in bands)),
        min_count=choice.min_count,
        bands=tuple(
            PlannedBand(band.min_count, band.format, band.state, rows)
            for band, rows in zip(bands, own_rows, strict=True)
        ),
        weights_bytes=sum(
            band.num_rows * format_of(band.format).row_bytes(table.dim) for band in planned
        ),
        optimizer_bytes=sum(
            band.num_rows * size for band, size in zip(planned, states, strict=True)
        ),
        pinned=table.pinned,
        kept=kept,
        why=why,
    )


def _why(table: _Table, choice: Choice, worth: Worth) -> str:
    """What the frequency curve says about a choice."""
    classes, counts = table.classes, table.counts
    if not len(counts):
        return "no ids"
    lookups = float(counts.sum())
    own = table.row_map(min_count=choice.min_count, buckets=1).num_own_rows
    known = learned(worth, classes)
    sentences = []
    if len(choice.bands) > 1:
        hot = int(np.searchsorted(-counts, -choice.bands[0].min_count, side="right"))
        sentences.append(
            f"the first {hot:,} ids have {counts[:hot].sum() / lookups:.0%} of the look-ups"
        )
    if own == len(counts):
        sentences.append("every id is worth a row")
    else:
        lost = known[classes.low < choice.min_count].sum() / max(known.sum(), 1e-30)
        sentences.append(
            f"{len(counts) - own:,} ids seen fewer than {choice.min_count:,} times have "
            f"{1 - counts[:own].sum() / lookups:.1%} of the look-ups, {lost:.1%} of the value"
        )
    return "; ".join(sentences)

"""A plan: the tables of a run, what was decided for each, and why."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edorec.config import RunConfig
from edorec.data.schema import VocabularyConfig
from edorec.embedding.accounting import FP32_BYTES, STATE_BYTES
from edorec.embedding.tables import BandConfig, Placement, TableMemoryConfig
from edorec.output_folder import write_file


@dataclass(frozen=True)
class PlannedBand:
    """Rows of a table in one format; ``min_count`` as in the configuration."""

    min_count: int
    format: str
    state: str
    rows: int


@dataclass(frozen=True)
class PlannedTable:
    """One table.

    Attributes:
        name: the vocabulary's name, with @ and the task's for rows of one task.
        vocabulary: whose ids.
        features: sparse features that look it up.
        num_ids: ids of the training data that it is for.
        rows: rows, buckets included.
        buckets: rows shared by hash.
        dim: embedding dim.
        format: formats of its bands, joined.
        min_count: look-ups that earned an id a row of its own.
        bands: own rows by frequency.
        weights_bytes: bytes of rows.
        optimizer_bytes: bytes of optimizer state.
        pinned: keys of the configuration that were given.
        kept: share of what its ids are worth that the plan keeps, as far as the planner can tell;
            None where nothing was to be decided.
        why: a sentence.
        placement: where the planner puts it because memory is short, None where it decided nothing.
    """

    name: str
    vocabulary: str
    features: tuple[str, ...]
    num_ids: int
    rows: int
    buckets: int
    dim: int
    format: str
    min_count: int
    bands: tuple[PlannedBand, ...]
    weights_bytes: int
    optimizer_bytes: int
    pinned: tuple[str, ...]
    kept: float | None
    why: str
    placement: Placement | None = None

    @property
    def total_bytes(self) -> int:
        """Rows and optimizer state."""
        return self.weights_bytes + self.optimizer_bytes

    @property
    def baseline_bytes(self) -> int:
        """What FP32 takes for all ids."""
        return self.num_ids * (self.dim * FP32_BYTES + STATE_BYTES)


@dataclass(frozen=True)
class Plan:
    """All tables.

    Attributes:
        budget: as given, None for none.
        budget_bytes: the same in bytes.
        baseline_bytes: what FP32 takes for all ids.
        tables: of vocabularies, then of tasks.
        load_factor: of the tables that the planner puts into ``uvm``.
    """

    budget: float | str | None
    budget_bytes: int | None
    baseline_bytes: int
    tables: tuple[PlannedTable, ...]
    load_factor: float | None = None

    @property
    def total_bytes(self) -> int:
        """Rows and optimizer state of all tables."""
        return sum(table.total_bytes for table in self.tables)


def write_plan(path: Path, plan: Plan) -> None:
    """Writes a plan as JSON."""
    content = asdict(plan) | {"total_bytes": plan.total_bytes}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(content, indent=2) + "\n")


def apply_plan(config: RunConfig, plan: Plan) -> RunConfig:
    """The configuration with every decision of a budget's plan written into it as given."""
    if plan.budget is None:
        return config
    vocabularies, tables = dict(config.vocabularies), dict(config.memory.tables)
    for table in plan.tables:
        if table.name == table.vocabulary:
            settings = vocabularies.get(table.name, VocabularyConfig())
            decided = {"min_count": table.min_count, "buckets": float(table.buckets)}
            vocabularies[table.name] = settings.model_copy(update=decided)
        bands = [
            BandConfig(min_count=band.min_count, format=band.format, state=band.state)
            for band in table.bands
        ]
        own = tables.get(table.name, TableMemoryConfig())
        update: dict[str, Any] = {"bands": bands, "format": None, "state": None}
        if table.placement is not None:
            update["placement"] = table.placement
        tables[table.name] = own.model_copy(update=update)
    memory = config.memory.model_copy(update={"tables": tables})
    if plan.load_factor is not None:
        uvm = memory.uvm.model_copy(update={"load_factor": plan.load_factor})
        memory = memory.model_copy(update={"uvm": uvm})
    return config.model_copy(update={"vocabularies": vocabularies, "memory": memory})

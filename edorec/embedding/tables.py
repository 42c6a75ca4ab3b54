"""What the user says about embedding tables."""

from typing import Literal

from pydantic import Field

from edorec.sections import Section

SelfScaledFormat = Literal["fp32", "fp16", "int8", "int4", "int2"]
TrainedFormat = Literal[SelfScaledFormat, "ternary"]
StateName = Literal["fp32", "bf16", "log8"]
Placement = Literal["ram", "disk", "device", "uvm"]


class EmbeddingConfig(Section):
    """Defaults of all embedding tables and their optimizer."""

    dim: int = Field(16, ge=1, description="Embedding dim of tables that state none.")
    init_std: float = Field(
        0.01, ge=0, description="Standard deviation of initial rows; the same for every table size."
    )
    optimizer: Literal["rowwise_adagrad", "adagrad", "sgd", "adam"] = Field(
        "rowwise_adagrad",
        description="Optimizer fused into the backward pass; touches looked-up rows only.",
    )
    learning_rate: float = Field(0.05, gt=0, description="Learning rate of the tables.")
    sharding: Literal["table_wise", "row_wise"] = Field(
        "table_wise",
        description="In several processes: each table in one of them, or each table of 64 rows "
        "or more spread over all (docs/distributed.md).",
    )
    initial_accumulator: float = Field(
        1e-5, ge=0, description="Initial sum of squared gradients of (row-wise) Adagrad."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="Decoupled weight decay; in each step of the rows that it looks up alone, "
        "others stay as they are.",
    )
    backend: Literal["auto", "edorec", "fbgemm"] = Field(
        "auto",
        description="Whose tables: edorec's, or FBGEMM's fused ones, which torchrec uses (fp32 or "
        "fp16 rows only); auto: FBGEMM's on CUDA where they can, else edorec's.",
    )


class BandConfig(Section):
    """Rows of ids that are about equally frequent, in one format."""

    min_count: int = Field(
        0,
        ge=0,
        description="Ids seen at least so often in training; those of the bands before excluded.",
    )
    format: TrainedFormat = Field(
        description="Row format; the step of ternary rows is embedding.learning_rate."
    )
    state: StateName = Field(
        "fp32", description="Format of row-wise Adagrad's accumulator: 4, 2 or 1 bytes a row."
    )


class DiskConfig(Section):
    """How tables with placement disk are paged."""

    folder: str | None = Field(
        None,
        description="Folder on the disk that holds the tables' files, which have no name there and "
        "go with the process; default data.cache.",
    )
    page_rows: int = Field(
        64,
        ge=1,
        le=65536,
        description="Rows of a page, rounded down to whole pages of the operating system.",
    )
    resident: str | None = Field(
        None,
        description="Most bytes of these tables in memory at once, such as 4GB; default what the "
        "system gives.",
    )
    keep_cached: bool = Field(
        True,
        description="Pages beyond that may stay in the system's cache of files while no one else "
        "needs the memory; false: they are written to the disk and dropped.",
    )


class MonitorConfig(Section):
    """Watches memory while training, and makes tables smaller where it runs short."""

    interval: float = Field(10.0, ge=0, description="Seconds between looks at memory.")
    limit: str | None = Field(
        None,
        description="Most memory that the process should hold, such as 8GB, where the machine, the "
        "control group or the device would give more.",
    )
    compress_below: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="When a smaller share of memory than this is free, tables are stored in "
        "cheaper formats, such as 0.2; null: never.",
    )
    hysteresis: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Tables are then made smaller until this share more would be free.",
    )
    min_seconds: float = Field(30.0, ge=0, description="Seconds from one such change to the next.")
    smallest_format: SelfScaledFormat = Field(
        "int8", description="No table is made smaller than this format."
    )
    stop_below: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="With nothing left to make smaller, the run stops with a checkpoint when a "
        "smaller share of memory than this is free; only with compress_below.",
    )


class UvmConfig(Section):
    """Which rows of tables with placement uvm are on the device."""

    load_factor: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Share of each table's bytes that is on the device: its most frequent rows; in "
        "FBGEMM's tables a cache of so many rows.",
    )
    algorithm: Literal["lru", "lfu"] = Field(
        "lru",
        description="Rows that leave FBGEMM's cache: not used for longest, or least often used.",
    )


class TableMemoryConfig(Section):
    """How the rows of one table are stored while training; it wins over what holds for all."""

    format: TrainedFormat | None = Field(None, description="Row format; default fp32.")
    state: StateName | None = Field(
        None,
        description="Format of row-wise Adagrad's accumulator: 4, 2 or 1 bytes a row; default "
        "fp32.",
    )
    bands: list[BandConfig] = Field(
        [],
        description="Formats by frequency in place of format and state, the most frequent ids "
        "first; the last band has min_count 0. Buckets are stored like an id that is as frequent.",
    )
    placement: Placement | None = Field(
        None,
        description="Where rows are: ram or disk on the CPU, device or uvm on CUDA; default ram or "
        "device.",
    )

    @property
    def is_given(self) -> bool:
        """Whether it says anything of formats."""
        return bool(self.bands) or self.format is not None or self.state is not None

    def all_bands(self) -> list[BandConfig]:
        """The bands, one where format and state are given."""
        return self.bands or [BandConfig(format=self.format or "fp32", state=self.state or "fp32")]


class MemoryConfig(TableMemoryConfig):
    """How table rows are stored while training."""

    budget: float | str | None = Field(
        None,
        description="Bytes that rows and optimizer state may take: a share of what FP32 takes for "
        "all ids (above 0, at most 1) or a size such as 800MB. The planner then decides what is "
        "not given: formats, ids with a row of their own, buckets (docs/planning.md).",
    )
    qat: Literal["int8", "int4", "int2", "sparse28"] | None = Field(
        None,
        description="Quantization-aware training: rows are read through this format, which the "
        "model then serves in, while they are stored and updated in theirs.",
    )
    tables: dict[str, TableMemoryConfig] = Field(
        {},
        description="Formats and placement of single tables, by vocabulary, or vocabulary@task for "
        "a task's.",
    )
    disk: DiskConfig = DiskConfig()
    uvm: UvmConfig = UvmConfig()
    monitor: MonitorConfig = MonitorConfig()

    def bands_of(self, table: str) -> list[BandConfig]:
        """The bands of a table."""
        own = self.tables.get(table)
        return (own if own is not None and own.is_given else self).all_bands()

    def placement_of(self, table: str, device: str) -> Placement:
        """Where the rows of a table are on a device, ``cpu`` or ``cuda``."""
        own = self.tables.get(table)
        given = own.placement if own is not None and own.placement else self.placement
        return given or ("device" if device == "cuda" else "ram")

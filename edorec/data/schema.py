"""What the user says about the data: files, columns, features, vocabularies, tasks.

An entity (user, item, category) has one *vocabulary*; any number of features, scalar or list, use
it and share its embedding table. A feature that names no vocabulary has one of its own, called
like the feature.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from edorec.sections import Section

Files = str | list[str]
SEQUENCE_POOLINGS = ("din", "transformer")


class DataConfig(Section):
    """Where the rows are and how they are read."""

    folder: str = Field(
        ".",
        description="Folder that paths below start from; ${NAME} is an environment variable.",
    )
    train: Files = Field(
        description="Parquet files to train on: a file, folder, glob, or list of them."
    )
    valid: Files | None = Field(
        None, description="Files for early stopping and every choice made while training."
    )
    test: Files | None = Field(None, description="Files that are reported and never chosen on.")
    cache: str = Field(".cache/edorec", description="Folder for vocabularies and encoded rows.")
    weight: str | None = Field(None, description="Column with a weight (>= 0) for each row.")
    group: str | None = Field(
        None, description="Column that groups rows for GAUC, such as the user."
    )
    shuffle: bool = Field(True, description="Shuffle training rows with a seeded window.")
    shuffle_rows: int = Field(262_144, ge=1, description="Rows in the shuffle window.")
    missing_columns: Literal["error", "null"] = Field(
        "error",
        description="A feature column absent from some files: refuse, or read it as null there "
        "(counted in the report). Labels are never filled.",
    )
    extend: str | None = Field(
        None,
        description="Folder of a run whose vocabularies grow by these rows: counts are added and "
        "ids ranked again; means of dense columns and edges of bins are kept.",
    )
    decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of its earlier count that an id keeps with extend; below 1, ids that "
        "do not come again lose their rows in time.",
    )
    memory_limit: str | None = Field(
        None,
        description="Memory for preparing, such as 4GB; default half of what is free.",
    )


class TaskRowsConfig(Section):
    """Rows that one task alone sees and trains, beside the shared ones (STEM, AAAI 2024)."""

    rows: int = Field(
        ge=1, description="The most frequent ids that get such a row; all others share one."
    )
    dim: int = Field(8, ge=1, description="Embedding dim of these rows.")


class VocabularyConfig(Section):
    """The ids of one entity, in order of frequency, and which of them get an embedding row."""

    dim: int | None = Field(None, ge=1, description="Embedding dim; default embedding.dim.")
    min_count: int | None = Field(
        None,
        ge=1,
        description="Training occurrences that earn an id its own row; default 1, or the plan's.",
    )
    max_rows: int | None = Field(
        None, ge=0, description="At most this many ids get a row of their own."
    )
    buckets: float | None = Field(
        None,
        ge=0,
        description="Rows shared by hash for all other ids: a share of the ids seen when below 1, "
        "else a number of rows. At least one row; default 0.01, or the plan's.",
    )
    oov_rate: float = Field(
        0.1,
        ge=0,
        le=1,
        description="While training, ids seen once or twice take their bucket's row with this "
        "probability, so that buckets learn what an unknown id means.",
    )
    file: str | None = Field(
        None,
        description="Parquet file, or folder of parts, with the columns id and count in order of "
        "rank, made elsewhere and taken as it is; ids that it lacks count as never seen.",
    )
    task_specific: dict[str, TaskRowsConfig] = Field(
        {}, description="By task, rows of its own for the most frequent ids."
    )


class SparseFeature(Section):
    """An id column (integers or strings) or a list of ids."""

    column: str | None = Field(None, description="Column of the files; default the feature's name.")
    vocabulary: str | None = Field(
        None, description="Vocabulary it shares; default one of its own."
    )
    pooling: Literal["sum", "mean", "din", "transformer"] = Field(
        "mean",
        description="How the rows of a list are combined; din and transformer attend to them from "
        "the candidate that is scored.",
    )
    candidate: str | None = Field(
        None,
        description="For din and transformer, the feature to attend from; it shares the list's "
        "vocabulary. Default the only other one that does.",
    )
    max_length: int | None = Field(None, ge=1, description="Keep only the first ids of a list.")
    missing: list[int | str] = Field(
        [], description="Values that mean null, such as -1; a null id has a row of its own."
    )
    bins: int | None = Field(
        None,
        ge=2,
        description="For a numeric column: its training quantiles become the ids 0 .. bins - 1.",
    )


def is_sequence(feature: SparseFeature) -> bool:
    """Whether a list goes into the model as it is, to be pooled there."""
    return feature.pooling in SEQUENCE_POOLINGS


def sequence_length(feature: SparseFeature) -> int | None:
    """The longest list of a sequence, None for other features."""
    return feature.max_length if is_sequence(feature) else None


def candidate_of(name: str, features: Mapping[str, SparseFeature]) -> str:
    """The feature that a sequence is attended to from; configurations are checked for it."""
    given = features[name].candidate
    return given or candidates(name, features)[0]


def candidates(name: str, features: Mapping[str, SparseFeature]) -> list[str]:
    """Features that a sequence can be attended to from: they share its vocabulary."""
    vocabulary = features[name].vocabulary or name
    return [
        other
        for other, feature in features.items()
        if (feature.vocabulary or other) == vocabulary and not is_sequence(feature)
    ]


class DenseFeature(Section):
    """A numeric column; standardized with mean and deviation of the training rows."""

    column: str | None = Field(None, description="Column of the files; default the feature's name.")
    transform: Literal["none", "log1p"] = Field(
        "none", description="log1p is sign(x) * ln(1 + |x|), defined for every finite x."
    )


class FeaturesConfig(Section):
    """The model's inputs."""

    sparse: dict[str, SparseFeature] = Field({}, description="Id features by name.")
    dense: dict[str, DenseFeature] = Field({}, description="Numeric features by name.")

    @field_validator("sparse")
    @classmethod
    def _in_table_order(cls, sparse: dict[str, SparseFeature]) -> dict[str, SparseFeature]:
        """Sorted by vocabulary and name, so that the order in the YAML changes no result."""
        return dict(
            sorted(sparse.items(), key=lambda item: (item[1].vocabulary or item[0], item[0]))
        )


class TaskConfig(Section):
    """A binary label to predict."""

    label: str = Field(description="Column with 0, 1 or null (null: not counted for this task).")
    loss_weight: float = Field(1.0, gt=0, description="Weight of this task in the loss.")
    sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of this task's negatives that the log kept (in every split); scores, "
        "logloss and calibration are corrected for it.",
    )

"""What the ids of a table are worth, by how often training saw them.

Ids are put into classes of about equal counts. The value of a look-up in a class is the share of
the labels' variance that lies between its ids. For one id with n rows, k of them positive, and the
overall rate q, the pairs of its rows give an estimate without bias, summed over a class:

    V = sum(k(k-1) - 2q k(n-1) + q^2 n(n-1)) / sum(n(n-1)) / (q(1-q))

It needs no model, one pass over the encoded rows, and ids seen twice or more: a class with few
pairs leans on the class of the next more frequent ids. V counts what other features know too, and
misses what ids mean only together, so it ranks tables and classes; it is no forecast of AUC.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from edorec.data.prepared import Prepared
from edorec.embedding.admission import RANK_MASK

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
EXACT_COUNTS = 20  # classes of one count each; above, each class reaches 1.25 times further
GROWTH = 1.25
LEAST_VALUE = 0.01  # of a look-up; ids may matter together with others though not alone
PRIOR_SPREAD = 0.01  # least standard deviation between the values of neighbouring classes
CHUNK_ROWS = 1 << 17  # lists of a million rows would take gigabytes
CHUNK_IDS = 1 << 20  # counts of all ids become floats a chunk at a time


@dataclass(frozen=True)
class Classes:
    """The frequency curve of a vocabulary in classes, the most frequent ids first.

    Attributes:
        low: smallest count of each class, descending.
        ends: first rank behind each class.
        lookups: training look-ups of each class.
        highest: the largest count, 0 without ids.
    """

    low: I64
    ends: I64
    lookups: I64
    highest: int

    @property
    def num_ids(self) -> I64:
        """Ids of each class."""
        return np.diff(self.ends, prepend=0)

    @property
    def mean_count(self) -> F64:
        """Look-ups of an id, by class."""
        return self.lookups / np.maximum(self.num_ids, 1)


def classes_of(counts: I64, edges: Collection[int] = ()) -> Classes:
    """Cuts a frequency curve into classes that have ids.

    Args:
        counts: training look-ups of each id, descending.
        edges: counts that must begin a class.
    """
    if not len(counts):
        empty = np.zeros(0, np.int64)
        return Classes(empty, empty, empty, 0)
    lows = set(range(1, EXACT_COUNTS + 1)) | {edge for edge in edges if edge > 0}
    low = float(EXACT_COUNTS)
    while low < counts[0]:
        low *= GROWTH
        lows.add(round(low))
    descending = np.array(sorted(lows, reverse=True), np.int64)
    ends = np.searchsorted(-counts, -descending, side="right")
    has_ids = np.diff(ends, prepend=0) > 0
    ends = ends[has_ids]
    lookups = np.diff(np.cumsum(counts)[ends - 1], prepend=0)
    return Classes(descending[has_ids], ends, lookups, int(counts[0]))


@dataclass(frozen=True)
class Worth:
    """What the ids of a table are worth.

    Attributes:
        value: of a look-up in each class, the mean over features and tasks.
        reads: look-ups of each class, those of a list that is averaged by the square of their
            share in it: the noise of one row of ten counts a hundredth.
    """

    value: F64
    reads: F64


def measure_worth(
    prepared: Prepared,
    classes: Mapping[str, Classes],
    *,
    features: Mapping[str, Collection[str]],
    averaged: Collection[str],
) -> dict[str, Worth]:
    """What ids are worth, by table.

    Args:
        prepared: with training rows.
        classes: by table; others are not measured.
        features: that look up rows, by table.
        averaged: features whose lists are pooled by their mean.
    """
    worth = {}
    for name, curve in classes.items():
        weighted, lookups, reads = np.zeros((3, len(curve.low)))
        for feature in features[name]:
            counts = _count(prepared, feature, is_mean=feature in averaged)
            of_class = _by_class(counts.lookups, curve).astype(np.float64)
            weighted += of_class * counts.value(curve)
            lookups += of_class
            reads += _by_class(counts.reads, curve)
        worth[name] = Worth(np.maximum(weighted / np.maximum(lookups, 1), LEAST_VALUE), reads)
    return worth


@dataclass(frozen=True)
class _Counts:
    """What training rows say of the ids of one feature.

    Attributes:
        lookups: int64 (ids).
        reads: float64 (ids), see ``Worth``.
        labels: int32 (tasks, ids), rows with a label.
        positives: int32 (tasks, ids).
    """

    lookups: I64
    reads: F64
    labels: I32
    positives: I32

    def value(self, curve: Classes) -> F64:
        """The value of a look-up by class, the mean over the tasks that have both labels."""
        found = []
        for labels, positives in zip(self.labels, self.positives, strict=True):
            if 0 < positives.sum() < labels.sum():
                found.append(_value(positives, labels, curve))
        return np.mean(found, axis=0) if found else np.zeros(len(curve.low))


def _count(prepared: Prepared, feature: str, *, is_mean: bool) -> _Counts:
    """Counts look-ups and labels of each id; one pass over the feature and the labels."""
    column = prepared.columns["sparse", feature]
    label_columns = [prepared.columns["label", task] for task in prepared.tasks]
    num_ids = prepared.vocabularies[prepared.feature_vocabulary[feature]].num_ids
    lookups, reads = np.zeros(num_ids, np.int64), np.zeros(num_ids)
    labels, positives = np.zeros((2, len(label_columns), num_ids), np.int32)
    with pq.ParquetFile(prepared.splits["train"].path) as file:
        for batch in file.iter_batches(CHUNK_ROWS, columns=[column, *label_columns]):
            ids, rows = batch.column(column), np.arange(len(batch))
            lengths = np.ones(len(batch), np.int64)
            if feature in prepared.list_features:
                lengths = ids.value_lengths().to_numpy(zero_copy_only=False)
                rows, ids = np.repeat(rows, lengths), ids.flatten()
            ranks = (ids.to_numpy() & RANK_MASK) - 1
            shares = 1 / lengths[rows] if is_mean else np.ones(len(ranks))
            lookups += np.bincount(ranks, minlength=num_ids)
            reads += np.bincount(ranks, shares**2, minlength=num_ids)
            if feature in prepared.list_features:  # a row is one witness, however often it says so
                rows, ranks = np.divmod(np.unique(rows * num_ids + ranks), num_ids)
            seen = np.bincount(ranks, minlength=num_ids)
            for task, label_column in enumerate(label_columns):
                label = batch.column(label_column).to_numpy()[rows]
                known = ~np.isnan(label)
                labels[task] += (
                    seen if known.all() else np.bincount(ranks[known], minlength=num_ids)
                )
                positives[task] += np.bincount(ranks[label == 1], minlength=num_ids)
    return _Counts(lookups, reads, labels, positives)


def _by_class(values: F64 | I64, curve: Classes) -> F64 | I64:
    """Sums over the ids of each class; ids beyond the last class are left out."""
    starts = np.concatenate([[0], curve.ends[:-1]]) if len(curve.ends) else curve.ends
    return np.add.reduceat(values[: curve.ends[-1]], starts) if len(starts) else np.zeros(0)


def _value(positives: I32, labels: I32, curve: Classes) -> F64:
    """Of one task: positives among the labels of each id."""
    rate = positives.sum(dtype=np.int64) / labels.sum(dtype=np.int64)
    pairs, between = np.zeros((2, len(curve.ends)))
    for index, (start, end) in enumerate(pairwise([0, *curve.ends.tolist()])):
        for low in range(start, end, CHUNK_IDS):
            ids = slice(low, min(low + CHUNK_IDS, end))
            k, n = positives[ids].astype(np.float64), labels[ids].astype(np.float64)
            pairs[index] += (n * (n - 1)).sum()
            sums = k * (k - 1) - 2 * rate * k * (n - 1) + rate**2 * n * (n - 1)
            between[index] += sums.sum()
    estimates = between / (rate * (1 - rate)) / np.maximum(pairs, 1)
    value = np.empty(len(pairs))
    prior = max(float(estimates[0]), 0.0) if len(estimates) else 0.0
    for index, estimate in enumerate(estimates):
        spread = max(prior, PRIOR_SPREAD) ** 2
        # The estimate's variance is 2 / pairs.
        trust = spread * pairs[index] / (spread * pairs[index] + 2)
        prior = value[index] = max(trust * estimate + (1 - trust) * prior, 0.0)
    return value

"""Metrics of scored rows: AUC, GAUC, logloss, normalized entropy, calibration (docs/metrics.md)."""

from edorec.metrics.task import TaskMetrics

__all__ = ["TaskMetrics"]

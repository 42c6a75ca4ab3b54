"""Why a model did not learn: what an AUC near 0.5 points to."""

from typing import Any

NEAR_CHANCE = 0.02
CONSTANT_SPREAD = 1e-4
UNSEEN_SHARE = 0.95


def diagnose(report: dict[str, Any]) -> list[str]:
    """One sentence for each likely cause, for every task whose AUC is within 0.02 of 0.5."""
    sentences = []
    for task, metrics in report["tasks"].items():
        auc = metrics["auc"]
        if auc is None or abs(auc - 0.5) > NEAR_CHANCE:
            continue
        causes = [
            cause
            for cause in (
                _constant_scores(metrics),
                _unseen_ids(metrics),
                _label(report, task),
                _too_few(metrics),
            )
            if cause
        ]
        if not causes:
            causes = [
                "no usual cause was found; check that the features are known before the label is, "
                "and try a higher embedding.learning_rate or more train.epochs"
            ]
        sentences += [f"{task} has AUC {auc:.3f}, no better than chance: {c}" for c in causes]
    return sentences


def _constant_scores(metrics: dict[str, Any]) -> str | None:
    predicted = [point["predicted"] for point in metrics["calibration_curve"]]
    if not predicted or max(predicted) - min(predicted) > CONSTANT_SPREAD:
        return None
    return (
        f"every score is {predicted[0]:.4f}; the model did not move from its start, raise "
        "train.learning_rate and embedding.learning_rate, or train longer"
    )


def _unseen_ids(metrics: dict[str, Any]) -> str | None:
    unseen = metrics["unseen_ids"]
    if not unseen or unseen["rows"] < UNSEEN_SHARE * metrics["rows"]:
        return None
    return (
        f"{unseen['rows'] / metrics['rows']:.0%} of the rows have an id that training never saw; "
        "check that the splits name the same id columns, and leave out columns that are new in "
        "every row"
    )


def _label(report: dict[str, Any], task: str) -> str | None:
    validation = report["validation"].get(task)
    if not validation or validation["auc"] is None or abs(validation["auc"] - 0.5) <= NEAR_CHANCE:
        return None
    return (
        f"its validation AUC is {validation['auc']:.3f}; compare tasks.{task}.label and the "
        "features between the validation and the test files"
    )


def _too_few(metrics: dict[str, Any]) -> str | None:
    fewest = min(metrics["positives"], metrics["rows"] - metrics["positives"])
    if fewest >= 50:
        return None
    return (
        f"there are {metrics['positives']} positives in {metrics['rows']} rows, too few to tell; "
        "check the label column or evaluate on more rows"
    )

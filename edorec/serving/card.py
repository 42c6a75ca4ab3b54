"""The model card: what is served, on what it was trained, what it reaches, how large it is."""

from collections.abc import Mapping
from typing import Any

from edorec.memory_use import format_bytes


def model_card(manifest: Mapping[str, Any]) -> str:
    """Markdown from the content of model.json."""
    lines = [
        f"# {manifest['name']}",
        "",
        f"Exported {manifest['created']} by edorec {manifest['edorec']} from the run "
        f"{manifest['run']}, trained on {manifest['training']['rows']:,} rows.",
        "",
        "| task | AUC before | AUC after export |",
        "|---|---|---|",
    ]
    evaluation = manifest["evaluation"]
    for task, aucs in evaluation["tasks"].items():
        lines.append(f"| {task} | {_auc(aucs['auc_before'])} | {_auc(aucs['auc_after'])} |")
    lines += [
        "",
        f"On {evaluation['rows']:,} rows; the AUC of no task may fall by more than "
        f"{evaluation['max_auc_loss']:g}.",
        "",
        "| table | rows | dim | format | bytes | ids in training |",
        "|---|---|---|---|---|---|",
    ]
    for table in manifest["tables"]:
        rows = sum(band["num_rows"] for band in table["bands"])
        names = dict.fromkeys(band["format"] for band in table["bands"] if band["num_rows"])
        size = sum(_size(manifest, band["file"]) for band in table["bands"])
        lines.append(
            f"| {table['name']} | {rows:,} | {table['dim']} | {'+'.join(names)} | "
            f"{format_bytes(size)} | {manifest['training']['ids'][table['name']]:,} |"
        )
    lines += ["", "| part | bytes |", "|---|---|"]
    lines += [f"| {part} | {format_bytes(size)} |" for part, size in sizes(manifest).items()]
    lines += [
        "",
        "The folder holds no raw ids: an id's row is found by a hash, and 24 bits of it are kept. "
        "An id that training did not see is taken for a known one with a probability of 6e-8.",
        "",
    ]
    return "\n".join(lines)


def sizes(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of tables, index and dense part."""
    found = {"tables": 0, "index": 0, "dense": 0}
    for name in manifest["files"]:
        part = name.split("/")[0].removesuffix(".pt2")
        if part in found:
            found[part] += _size(manifest, name)
    return found


def _size(manifest: Mapping[str, Any], file: str) -> int:
    size: int = manifest["files"][file]["bytes"]
    return size


def _auc(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.5f}"

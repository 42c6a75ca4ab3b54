"""Imports go one way (docs: CONTRIBUTING.md)."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "edorec"
# Files that put a whole run together may read the whole configuration.
MAY_IMPORT_CONFIG = {
    "checkpoints/identity.py",
    "cli.py",
    "cli_planning.py",
    "config_docs.py",
    "evaluate.py",
    "init.py",
    "planning/plan.py",
    "planning/planner.py",
    "process_checks.py",
    "recommender.py",
    "search_space.py",
    "selection.py",
    "sharing.py",
    "serving/export.py",
    "step.py",
    "sweep.py",
    "train.py",
    "tune.py",
    "warm_start.py",
}
# Leaves know nothing of the rest: they could be used in any other project.
LEAVES = ("layers", "losses.py", "metrics.py", "metrics")
LEAVES_MAY_IMPORT = ("edorec.errors", "edorec.layers", "edorec.metrics")


def first_party_imports(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edorec"):
            modules.add(node.module or "")
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("edorec")}
    return modules


def test_only_whole_run_modules_import_the_configuration() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name in MAY_IMPORT_CONFIG or name.startswith("config"):
            continue
        found = {m for m in first_party_imports(path) if m in ("edorec.config", "edorec.cli")}
        assert not found, f"{name} imports {found}"


def test_leaves_import_nothing_else() -> None:
    for leaf in LEAVES:
        root = PACKAGE / leaf
        for path in root.rglob("*.py") if root.is_dir() else [root] * root.exists():
            found = {m for m in first_party_imports(path) if not m.startswith(LEAVES_MAY_IMPORT)}
            assert not found, f"{path} imports {found}"

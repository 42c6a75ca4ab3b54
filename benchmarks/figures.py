"""What every benchmark writes: its figures, their bounds, and where they were measured."""

import json
import platform
import shlex
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edorec.cpus import num_cpus

PACKAGES = ("edorec", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numba", "numpy")


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what it is.
        value: the number.
        unit: its unit; ``ratio`` for a quotient of two paired measurements.
        at_least: bound that it must reach, None if it has none.
        at_most: bound that it must not exceed, None if it has none.
    """

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bound(self) -> float | None:
        """The bound (the lower of two), None for a figure that is only reported."""
        return self.at_least if self.at_least is not None else self.at_most

    @property
    def ok(self) -> bool | None:
        """Whether the bound holds, None without one."""
        if self.bound is None:
            return None
        is_low = self.at_least is not None and not self.value >= self.at_least
        is_high = self.at_most is not None and not self.value <= self.at_most
        return not (is_low or is_high)


def write_figures(figures: list[Figure], *, json_path: Path | None) -> None:
    """Prints the figures as a table and writes them to ``json_path`` if given."""
    table = Table("figure", "value", "unit", "bound", "ok")
    for figure in figures:
        lower = "" if figure.at_least is None else f">= {figure.at_least:g} "
        upper = "" if figure.at_most is None else f"<= {figure.at_most:g}"
        verdict = "" if figure.ok is None else ("yes" if figure.ok else "NO")
        table.add_row(figure.name, f"{figure.value:,.4g}", figure.unit, lower + upper, verdict)
    Console(emoji=False).print(table)
    if json_path is None:
        return
    content = {
        "figures": [
            {"name": f.name, "value": f.value, "unit": f.unit, "bound": f.bound, "ok": f.ok}
            for f in figures
        ],
        "machine": machine(),
        "versions": versions(),
        "command": command(),
    }
    json_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = json_path.with_name(f"{json_path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(json_path)


def _module() -> str:
    """Name of the module that was run, of a package its name."""
    path = Path(sys.argv[0])
    return path.parent.name if path.stem == "__main__" else path.stem


def machine() -> dict[str, str | int]:
    """Processor, CPUs this process may use, system."""
    name = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return {
        "processor": name,
        "num_cpus": num_cpus(),
        "system": platform.platform(),
    }


def has_amx() -> bool:
    """Whether the processor multiplies bf16 matrices in tiles (AMX)."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()


def command() -> str:
    """How this benchmark was started."""
    return shlex.join(["python", "-m", f"benchmarks.{_module()}", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Versions of the packages that decide the figures."""
    installed = {
        dist.metadata["Name"].lower().replace("_", "-"): dist.version
        for dist in metadata.distributions()
    }
    return {name: installed[name] for name in PACKAGES if name in installed}

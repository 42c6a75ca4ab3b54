"""The versions of torch, torchrec and FBGEMM that belong together.

Their binaries fit only each other: any other mix ends in a loader error that names a symbol. So the
packages are looked up by their metadata, and a mix is refused, before one of them is imported.
"""

import importlib
import logging
from importlib import metadata

from edorec.errors import InputError

# Package names by part; FBGEMM comes as one of two packages.
SUPPORTED = {
    ("torch",): "2.13.0",
    ("torchrec",): "1.8.0",
    ("fbgemm-gpu", "fbgemm-gpu-cpu"): "1.8.0",
}
NATIVE_MODULES = ("torch", "fbgemm_gpu", "torchrec")


def check_versions() -> None:
    """Refuses a mix of versions that is not the supported one; imports none of them.

    A local part, as in ``2.13.0+cpu``, does not count.

    Raises:
        InputError: one sentence with what was found and what is supported.
    """
    found = {packages: _installed(packages) for packages in SUPPORTED}
    for packages, versions in found.items():
        bare = {version.partition("+")[0] for version in versions.values()}
        if bare != {SUPPORTED[packages]}:
            raise InputError(f"{_found()}; {_supported()}")


def load_fbgemm() -> None:
    """Imports torch, FBGEMM and torchrec, so that a failure has a clear message.

    Raises:
        InputError: one of them does not load, though the versions are the supported ones.
    """
    for module in NATIVE_MODULES:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{module} is installed but does not load ({reason}); {_found()}; {_supported()}"
            ) from error
    # torchrec asks whether it is being traced in every look-up, and torch warns that it does.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of those packages that are installed, by name."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _found() -> str:
    parts = []
    for packages in SUPPORTED:
        installed = _installed(packages)
        parts += [f"{name} {version}" for name, version in installed.items()]
        if not installed:
            parts.append(f"no {' or '.join(packages)}")
    return "found " + ", ".join(parts)


def _supported() -> str:
    parts = [f"{' or '.join(packages)} {version}" for packages, version in SUPPORTED.items()]
    return "supported together are " + ", ".join(parts) + " (see docs/install.md)"

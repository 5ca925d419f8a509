"""Puts the repository on the path: harness/ and baselines/ are tools, not part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

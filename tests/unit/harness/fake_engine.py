"""A stand-in for llama-bench and `edge-infer bench`: prints prepared output, fails on demand.

Arguments before "--": a JSON object with `stdout`, `stderr`, and optionally `sleep` seconds,
`signal` to end with, `status`, and `log`, a file to append `tag` to. The rest is ignored.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Do what the first argument says."""
    script = json.loads(sys.argv[1])
    if "log" in script:
        with open(script["log"], "a", encoding="utf-8") as log:
            log.write(script["tag"] + "\n")
    sys.stdout.write(script.get("stdout", ""))
    sys.stderr.write(script.get("stderr", ""))
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(script.get("sleep", 0))
    if "signal" in script:
        os.kill(os.getpid(), script["signal"])
    sys.exit(script.get("status", 0))


if __name__ == "__main__":
    main()

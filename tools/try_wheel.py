"""Install a wheel into an empty environment, and run the README's Python there: the end of `make wheel`."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(wheel: Path) -> None:
    """Print the seconds of each step, and of all processors; raise `CalledProcessError` if one fails."""
    (lines,) = re.findall(r"## Ten lines\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    uv = Path(sys.executable).parent / "uv"
    # Not this environment, nor the machine code that it has compiled.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA_"))}
    with tempfile.TemporaryDirectory(prefix="mrfrec-wheel-") as folder:
        python = Path(folder) / "environment" / "bin" / "python"
        steps: dict[str, list[str | Path]] = {
            "installing the wheel": [uv, "pip", "install", "--quiet", "--python", python, wheel.resolve()],
            "README's lines, which compile first": [python, "-c", lines],
        }
        subprocess.run([uv, "venv", "--quiet", python.parents[1], "--python", sys.executable], check=True)
        for name, command in steps.items():
            start, used = time.perf_counter(), _processor_time()
            subprocess.run(command, cwd=folder, env=clean, check=True)
            took, used = time.perf_counter() - start, _processor_time() - used
            sys.stdout.write(f"{name}: {took:.1f} s, {used:.1f} s of processor time\n")
            sys.stdout.flush()


def _processor_time() -> float:
    return os.times().children_user + os.times().children_system


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Run several jobs of experiments/autoencoders.py at a time: one alone does not fill a GPU.

    PYTHONPATH=src python3 experiments/gpu.py data.npz results --jobs jobs.json --at-once 5 --seconds 540

For each kind of model, only the rankings of the job that is best on the validation users are kept.
results.json has the results of all jobs that finished in time.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=540.0, help="stop all jobs after this time")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    jobs, end = json.loads(asked.jobs.read_text()), time.monotonic() + asked.seconds

    def run(place: int) -> None:
        left = end - time.monotonic()
        script = [
            sys.executable,
            str(Path(__file__).with_name("autoencoders.py")),
            asked.data,
            str(asked.out),
        ]
        try:
            subprocess.run(
                [*script, "--jobs", str(asked.jobs), "--only", str(place)], timeout=max(left, 0.1), check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"{jobs[place]['name']}: {type(error).__name__}", flush=True)

    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(run, range(len(jobs))))
    found = []
    for place in range(len(jobs)):
        part = asked.out / f"results-{place}.json"
        if part.exists():
            found += json.loads(part.read_text())
            part.unlink()
    (asked.out / "results.json").write_text(json.dumps(found, indent=1))
    for kind in {job["kind"] for job in found}:
        ranking = sorted(
            (job for job in found if job["kind"] == kind), key=lambda job: -(job["ndcg@100"] or 0)
        )
        for job in ranking[1:]:
            (asked.out / f"{job['name']}.npz").unlink(missing_ok=True)


if __name__ == "__main__":
    main()

"""The nightly job: read, evaluate on held-out users, fit, refuse or publish, report.

from mrfrec import nightly

report = nightly.run("job.toml")
"""

from mrfrec.nightly.job import Job, read_job
from mrfrec.nightly.run import run

__all__ = ["Job", "read_job", "run"]

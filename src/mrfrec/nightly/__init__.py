"""The nightly job: read, fit, evaluate on held-out users, refuse or publish, report.

from mrfrec import nightly

report = nightly.run("job.toml")
"""

from mrfrec.nightly.job import Job, read_job
from mrfrec.nightly.run import run

__all__ = ["Job", "read_job", "run"]

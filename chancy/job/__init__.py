"""Jobs: their definition, settings and ids, and the registry of their functions."""

from __future__ import annotations

from chancy.job.definition import Job, JobFactory, QueuedJob, job

__all__ = ["Job", "JobFactory", "QueuedJob", "job"]

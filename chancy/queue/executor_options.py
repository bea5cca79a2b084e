"""The options of a queue's executor: one class for each executor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from chancy.checks import check_flag, check_function_path, check_instance, check_number
from chancy.errors import ConfigurationError
from chancy.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """The options of an executor. Each executor has a subclass, a frozen dataclass whose fields are
    JSON values with defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(ExecutorOptions):
    """Options of a ``process`` queue, which runs jobs in executor processes, one at a time in each.

    :param max_jobs: an executor process is replaced after this many jobs; None: never.
    :param max_memory_bytes: an executor process is replaced if it holds more resident memory than
        this after a job; None: never.
    :param initializer: path of a function without arguments, ``package.module.function``, that each
        executor process calls before its first job.
    :param grace_s: seconds that a job has to clean up after its time limit or a cancellation; then
        its executor process is killed.
    :param weight: share of the queue when several queues wait for the same executor processes: with
        3, it keeps one three times as long, and for three times as many jobs, as a queue with 1.
    """

    max_jobs: int | None = None
    max_memory_bytes: int | None = None
    initializer: str | None = None
    grace_s: float = 5.0
    weight: int = 1

    def __post_init__(self) -> None:
        if self.max_jobs is not None:
            check_number(self.max_jobs, "max_jobs", 1, 2**53)
        if self.max_memory_bytes is not None:
            check_number(self.max_memory_bytes, "max_memory_bytes", 32 * 2**20, 2**62)
        if self.initializer is not None:
            check_function_path(self.initializer)
        check_number(self.grace_s, "grace_s", 0, 3_600, whole=False, unit="seconds")
        check_number(self.weight, "weight", 1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadOptions(ExecutorOptions):
    """Options of a ``thread`` queue, which runs jobs in threads of the worker.

    :param cooperative: the functions check ``current_job().cancelled`` and return when it is set,
        so that they may have a time limit. A thread cannot be stopped from outside.
    """

    cooperative: bool = False

    def __post_init__(self) -> None:
        check_flag(self.cooperative, "cooperative")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions(ExecutorOptions):
    """Options of an ``async`` queue, which runs jobs in the worker's event loop.

    :param grace_s: seconds that a cancelled coroutine has to end. Then it is abandoned: its attempt
        ends, the coroutine keeps running, and a warning is logged.
    """

    grace_s: float = 5.0

    def __post_init__(self) -> None:
        check_number(self.grace_s, "grace_s", 0, 3_600, whole=False, unit="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ExecutorOptions):
    """Options of queues whose jobs run on a cluster.

    :param resources: resources that one job takes up; each cluster has its own names.
    :param ahead: jobs that a worker submits in addition to those that the cluster can run now. A
        cluster that scales adds machines for them.
    :param scales: whether the cluster adds machines if it lacks resources. Otherwise a queue whose
        resources no machine has is broken, and its jobs are left to other workers.
    :param grace_s: seconds that a job has to clean up after its time limit or a cancellation; then
        its process is killed.
    :param contact_timeout_s: seconds without contact to its worker after which a job is stopped.
        Keep it below the ``heartbeat_timeout_s`` of workers, or a rescued job can run twice at
        once.
    """

    resources: Mapping[str, float] | None = field(default=None, hash=False)
    ahead: int = 1
    scales: bool = False
    grace_s: float = 5.0
    contact_timeout_s: float = 8.0

    def __post_init__(self) -> None:
        if self.resources is not None:
            if not isinstance(self.resources, Mapping):
                raise ConfigurationError(
                    f"resources={shown(self.resources)} must be a mapping of names to amounts"
                )
            for name, amount in self.resources.items():
                check_instance(name, str, "a name of resources", "as in {'GPU': 1}")
                check_number(amount, f"resources[{name!r}]", 0.001, 2**40, whole=False)
            object.__setattr__(self, "resources", dict(self.resources))
        check_number(self.ahead, "ahead", 1, 1_000)
        check_flag(self.scales, "scales")
        check_number(self.grace_s, "grace_s", 0, 3_600, whole=False, unit="seconds")
        check_number(
            self.contact_timeout_s, "contact_timeout_s", 1, 3_600, whole=False, unit="seconds"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskOptions(ClusterOptions):
    """Options of a ``dask`` queue. See `ClusterOptions` for the other options.

    :param address: the address of the scheduler. TLS is configured as for all Dask clients.
    :param resources: abstract resources of Dask, as in ``{"GPU": 1}``.
    """

    address: str = "tcp://127.0.0.1:8786"

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        check_instance(self.address, str, "address", "as in tcp://scheduler:8786")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(ClusterOptions):
    """Options of a ``ray`` queue. See `ClusterOptions` for the other options.

    :param address: the address of the Ray Client server on the cluster's head node.
    :param num_cpus: cores that one job takes up; fractions are allowed.
    :param num_gpus: GPUs that one job takes up; a fraction of one, or a whole number.
    :param resources: custom resources of Ray, as in ``{"TPU": 1}``.
    """

    address: str = "ray://127.0.0.1:10001"
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        check_instance(self.address, str, "address", "as in ray://head:10001")
        if not self.address.startswith("ray://"):
            raise ConfigurationError(
                f"address={shown(self.address)} must be that of a Ray Client server, as in "
                "ray://head:10001"
            )
        check_number(self.num_cpus, "num_cpus", 0.001, 2**40, whole=False)
        check_number(self.num_gpus, "num_gpus", 0, 2**40, whole=False)
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ConfigurationError(
                f"num_gpus={self.num_gpus} must be whole: jobs can share one GPU only"
            )
        if self.resources is not None and (own := self.resources.keys() & {"CPU", "GPU"}):
            raise ConfigurationError(
                f"resources must not contain {min(own)!r}: set num_{min(own).lower()}s instead"
            )

    @property
    def needs(self) -> Mapping[str, float]:
        """All resources that one job takes up, by their names in Ray."""
        gpus = {"GPU": self.num_gpus} if self.num_gpus else {}
        return {"CPU": self.num_cpus, **gpus, **(self.resources or {})}


def encode_options(options: ExecutorOptions | None) -> str | None:
    """Return the options that differ from the defaults, as the JSON string that is stored."""
    if options is None:
        return None
    values = asdict(options)
    return json.dumps(
        {
            field.name: values[field.name]
            for field in fields(options)
            if values[field.name] != field.default
        }
    )

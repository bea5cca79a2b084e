"""Records as the worker prints them."""

from __future__ import annotations

import json
import logging
import sys
import uuid

from chancy.cli.logs import JsonFormatter, TextFormatter

JOB_ID = str(uuid.uuid4())
SAID = {"job_id": JOB_ID, "func": "shop.jobs.work", "attempt": 2}


def record(**extra: object) -> logging.LogRecord:
    try:
        raise ValueError("no luck")
    except ValueError:
        failed = sys.exc_info()
    made = logging.LogRecord("chancy.job", logging.INFO, "x.py", 1, "half %s", ("way",), failed)
    vars(made).update(extra)
    return made


def test_a_line_of_a_job_names_it() -> None:
    line, *trace = TextFormatter("%(levelname)s %(message)s").format(record(**SAID)).split("\n")
    assert line == f"INFO half way job={JOB_ID}"
    assert trace[-1] == "ValueError: no luck"


def test_an_object_of_a_job_names_it() -> None:
    found = json.loads(JsonFormatter().format(record(**SAID)))
    assert (found["message"], found["job"]) == ("half way", JOB_ID)
    assert (found["func"], found["attempt"]) == ("shop.jobs.work", 2)
    assert found["trace"].endswith("ValueError: no luck")


def test_others_name_none() -> None:
    line, *_ = TextFormatter("%(levelname)s %(message)s").format(record()).split("\n")
    assert line == "INFO half way"
    found = json.loads(JsonFormatter().format(record()))
    assert found.keys() == {"at", "level", "logger", "pid", "message", "trace"}


PLACE = {
    "worker": "w",
    "executor": "e",
    "stream": "orders",
    "processor": "bill",
    "partition": 3,
}


def test_a_line_of_a_processor_names_its_partition() -> None:
    formatter = TextFormatter("%(levelname)s %(message)s")
    line, *_ = formatter.format(record(**PLACE)).split("\n")
    assert line == "INFO half way processor=orders/bill partition=3"
    said = record(**PLACE)
    said.msg = "partition_halted processor=orders/bill partition=%s"
    line, *_ = formatter.format(said).split("\n")
    assert line == "INFO partition_halted processor=orders/bill partition=way"


def test_an_object_of_a_processor_names_where_it_comes_from() -> None:
    found = json.loads(JsonFormatter().format(record(**PLACE)))
    assert found.items() >= PLACE.items()


def test_an_object_of_an_attempt_has_its_fields_as_keys() -> None:
    fields = {
        "event": "job_retrying",
        "queue": "mail",
        "max_attempts": 5,
        "duration_s": 0.25,
        "next_at": "2030-01-01T00:00:00.000+00:00",
        "error": "builtins.ValueError: no luck",
    }
    found = json.loads(JsonFormatter().format(record(**SAID, **fields)))
    assert found.items() >= fields.items()
    assert found["job"] == JOB_ID


def test_a_traceback_that_was_cut_is_printed_as_it_is() -> None:
    made = record(**SAID, exc_text="Traceback …")
    assert json.loads(JsonFormatter().format(made))["trace"] == "Traceback …"
    assert TextFormatter("%(message)s").format(made).endswith("\nTraceback …")


def test_a_line_that_names_its_job_names_it_once() -> None:
    made = record(**SAID)
    made.msg = f"job_retrying job={JOB_ID} part=%s"
    line, *_ = TextFormatter("%(message)s").format(made).split("\n")
    assert line == f"job_retrying job={JOB_ID} part=way"

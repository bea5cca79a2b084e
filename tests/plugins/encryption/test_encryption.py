"""Encrypted jobs: nothing readable in the tables, and everything works as without encryption."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from cryptography.fernet import Fernet

from chancy import Chancy, Job, JobFailed, PushError, Queue, Reference, State, Unique, Worker
from chancy.errors import ConfigurationError, InvalidArguments, UnreadablePayload
from chancy.plugin.tables import PayloadTable
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dashboard.redaction import MASKED, Masked, line, tree
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.encryption import VARIABLE, Encryption
from chancy.plugins.encryption.rotation import Rotation
from chancy.plugins.job_logs import JobLogs
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import Each, From, Workflow, Workflows
from chancy.queue.rules import GlobalConcurrency
from chancy.results.reference import result_of
from chancy.serialization.sealed import key_of, sealed
from tests.plugins.encryption import secret_jobs
from tests.plugins.encryption.secret_jobs import SECRET
from tests.support import command
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

K1, K2 = Fernet.generate_key().decode(), Fernet.generate_key().decode()
ONE, BOTH = {"k1": K1}, {"k2": K2, "k1": K1}
ASYNC = [Queue(name="async", executor="async")]
OTHERS = [
    Queue(name="thread", executor="thread"),
    Queue(name="process", executor="process", concurrency=1),
]
TABLES = ("jobs", "finished_jobs", "dead_letters")


def application(
    dsn: str, keys: dict[str, str] = ONE, queues: list[Queue] = ASYNC, **settings: Any
) -> Chancy:
    return Chancy(dsn, queues=queues, plugins=[Encryption(keys, **settings)])


def dump(dsn: str, tables: tuple[str, ...] = TABLES) -> str:
    """Everything that the tables have, as text."""
    return "\n".join(
        row[0]
        for table in tables
        for row in ask(dsn, f"select to_jsonb(t)::text from chancy.{table} t")
    )


@pytest.mark.parametrize(
    ("queues", "job"),
    [
        (ASYNC, secret_jobs.pay.job(card=SECRET)),
        (OTHERS[:1], secret_jobs.pay_in_thread.job(card=SECRET)),
        (OTHERS[1:], secret_jobs.pay_in_process.job(card=SECRET)),
    ],
)
async def test_arguments_steps_and_results_are_encrypted_with_every_executor(
    dsn: str, queues: list[Queue], job: Job[Any]
) -> None:
    async with application(dsn, queues=queues) as chancy:
        reference = await chancy.push(job)
        waiting = dump(dsn)
        async with Worker(chancy):
            assert await reference.result(20) == {"paid": SECRET}
    text = waiting + dump(dsn)
    assert text.count('"encrypted": "k1"') > 2
    assert SECRET not in text
    assert SECRET.upper() not in text


@pytest.mark.parametrize(
    ("queues", "job"),
    [
        (ASYNC, secret_jobs.log.job(card=SECRET)),
        (OTHERS[1:], secret_jobs.log_in_process.job(card=SECRET)),
    ],
)
async def test_lines_of_job_logs_are_encrypted(
    dsn: str, queues: list[Queue], job: Job[Any]
) -> None:
    logs = JobLogs(every_s=0.05)
    async with Chancy(dsn, queues=queues, plugins=[Encryption(ONE), logs]) as chancy:
        await chancy.migrate()
        async with Worker(chancy):
            reference = await chancy.push(job)
            await reference.result(30)
            [line] = await eventually(lambda: logs.read(chancy, reference.id))
        assert line.text == f"{SECRET} is charged"
    assert SECRET not in dump(dsn, (*TABLES, "job_logs"))
    app = "tests.plugins.job_logs.logging_jobs:application"
    shown = await asyncio.to_thread(command.inside, "job", "logs", reference.id, app=app, dsn=dsn)
    assert shown.out.rstrip().endswith("INFO encrypted (key k1)")
    async with Chancy(dsn, plugins=[Encryption({"k2": K2}), logs]) as chancy:
        with pytest.raises(UnreadablePayload, match="with the key 'k1'"):
            await logs.read(chancy, reference.id)


async def test_lines_of_job_logs_are_left_alone_on_request(dsn: str) -> None:
    logs = JobLogs(every_s=0.05)
    async with Chancy(dsn, queues=ASYNC, plugins=[Encryption(ONE, logs=False), logs]) as chancy:
        await chancy.migrate()
        async with Worker(chancy):
            reference = await chancy.push(secret_jobs.log.job(card=SECRET))
            [line] = await eventually(lambda: logs.read(chancy, reference.id))
    assert line.text == f"{SECRET} is charged"
    assert f"{SECRET} is charged" in dump(dsn, ("job_logs",))


async def test_jobs_in_redis_are_encrypted(dsn: str, redis_url: str) -> None:
    queue = Queue(name="async", executor="async", broker="redis")
    plugins = [Encryption(ONE), RedisPlugin(url=redis_url)]
    async with Chancy(dsn, queues=[queue], plugins=plugins) as chancy:
        await chancy.migrate()
        reference = await chancy.push(secret_jobs.pay.job(card=SECRET))
        async with Worker(chancy):
            assert await reference.result(20) == {"paid": SECRET}
        job = await reference.get()
    assert job is not None
    assert key_of(job.arguments) == key_of(job.result) == "k1"


async def test_errors_are_encrypted_in_tables_and_logs_but_not_in_the_exception_of_the_result(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with application(dsn) as chancy, Worker(chancy):
        reference = await chancy.push(secret_jobs.refuse.job(card=SECRET))
        with pytest.raises(JobFailed, match=f"{SECRET} is refused") as failed:
            await reference.result(20)
        assert failed.value.type_name == "builtins.PermissionError"
        assert "is refused" in failed.value.trace
        (letter,) = await DeadLetters().find(chancy)
    assert letter.error == "builtins.PermissionError"
    assert letter.message == "encrypted (key k1)"
    assert SECRET not in dump(dsn)
    assert "job_failed" in caplog.text
    assert SECRET not in caplog.text


async def test_a_retry_finds_the_values_of_its_checkpoints(dsn: str) -> None:
    secret_jobs.charged.clear()
    async with application(dsn) as chancy, Worker(chancy):
        reference = await chancy.push(secret_jobs.pay_twice.job(card=SECRET))
        assert await reference.result(20) == SECRET.upper()
    assert secret_jobs.charged == [SECRET]
    assert SECRET.upper() not in dump(dsn)


async def test_a_job_of_an_unknown_key_is_a_dead_letter_that_names_the_key(dsn: str) -> None:
    async with application(dsn) as chancy:
        reference = await chancy.push(secret_jobs.pay.job(card=SECRET))
    async with application(dsn, {"k2": K2}) as other, Worker(other):
        job = await other.wait_for(reference.id, 20)
        assert job.attempt == 1
        (letter,) = await DeadLetters().find(other)
        assert "encrypted with the key 'k1'" in letter.message
        assert letter.error == "chancy.errors.UnreadablePayload"
    # The same without the plugin, with another message.
    async with application(dsn) as chancy:
        again = present(await DeadLetters().replay(chancy, reference.id))
    async with Chancy(dsn, queues=ASYNC) as bare, Worker(bare):
        assert (
            "no plugin of this application"
            in (await bare.wait_for(again, 20)).errors[-1]["message"]
        )


async def test_a_result_without_its_key_is_an_error_that_names_the_key(dsn: str) -> None:
    async with application(dsn) as chancy, Worker(chancy):
        reference = await chancy.push(secret_jobs.pay.job(card=SECRET))
        await reference.wait(20)
    for other in (application(dsn, {"k2": K2}), Chancy(dsn)):
        async with other:
            job = present(await other.get_job(reference.id))
            with pytest.raises(UnreadablePayload, match="with the key 'k1'"):
                other.read_result(job)
            with pytest.raises(UnreadablePayload, match="with the key 'k1'"):
                result_of(job)  # of a function that is not loaded here


async def test_checks_and_unique_keys_are_of_the_plain_arguments(dsn: str) -> None:
    async with application(dsn) as chancy:
        with pytest.raises(InvalidArguments, match="card"):
            await chancy.push(
                Job(func=secret_jobs.pay.job.template.func, queue="async", arguments={"card": 1})
            )
        unique = secret_jobs.pay.job(card=SECRET).with_unique(Unique())
        first = await chancy.push(unique)
        again = await chancy.push(unique)
        assert (again.id, again.created) == (first.id, False)


async def test_chosen_functions_results_and_errors_only(dsn: str) -> None:
    settings: dict[str, Any] = {
        "functions": ["*.secret_jobs.pay*", "*.refuse"],
        "results": False,
        "errors": False,
    }
    async with application(dsn, **settings) as chancy, Worker(chancy):
        pay = await chancy.push(secret_jobs.pay.job(card=SECRET))
        refuse = await chancy.push(secret_jobs.refuse.job(card=SECRET))
        plain = await chancy.push(secret_jobs.plain.job(value="readable"))
        assert await pay.result(20) == {"paid": SECRET}
        assert await plain.result(20) == "readable"
        with pytest.raises(JobFailed):
            await refuse.result(20)
        found = {
            job.id: job for job in (await chancy.get_jobs([pay.id, refuse.id, plain.id])).values()
        }
        assert found[plain.id].arguments == {"value": "readable"}
        assert SECRET not in str(found[pay.id].arguments)
        assert found[pay.id].result == {"paid": SECRET}
        assert SECRET in found[refuse.id].errors[-1]["message"]
        forged = {"$chancy": {"encrypted": "k1", "data": "x"}}
        with pytest.raises(InvalidArguments, match="reserved"):
            await chancy.push(secret_jobs.plain.job(value=forged))


async def test_steps_callbacks_and_ticks_are_encrypted(dsn: str) -> None:
    flows, batches, cron = Workflows(), Batches(), Cron()
    app = Chancy(dsn, queues=ASYNC, plugins=[Encryption(BOTH), flows, batches, cron])
    app.sync_migrate()
    workflows = ("workflows_steps", "workflows_signals")
    tables = (*TABLES, *workflows, "batches_callbacks", "cron_entries")
    workflow = Workflow("pay")
    workflow.add(secret_jobs.pay.job(card=SECRET), "pay")
    last = secret_jobs.many.job(first=From("pay"), rest=Each("pay"))
    last = last.with_arguments(plain=From("go"))
    workflow.wait_for("go", after="pay").add(last, "last", after=["pay", "go"])
    batch = Batch(name="pay", on_finish=secret_jobs.pay.job(card=SECRET))
    async with app:
        await cron.add(app, Entry("pay", "@yearly", secret_jobs.pay.job(card=SECRET)))
        flow = await app.push(workflow)
        await batches.push(app, batch, [secret_jobs.pay.job(card=SECRET)])
        waiting = dump(dsn, tables)
        keyring = Encryption({"k1": K1, "k2": K2}).keyring
        await flow.signal("go", SECRET)
        assert (await Rotation(app, keyring).run()).changed == 6
        async with Worker(app):
            ticked = present(await cron.run(app, "pay"))
            assert app.read_result(await app.wait_for(ticked, 20)) == {"paid": SECRET}
            paid = {"paid": SECRET}
            assert await flow.result(20) == [paid, [paid], SECRET]
            await eventually(lambda: dump(dsn, ("finished_jobs",)).count("k1") > 4)
    assert SECRET not in waiting + dump(dsn, tables)


async def test_the_default_of_a_signal_is_encrypted(dsn: str) -> None:
    app = Chancy(dsn, queues=ASYNC, plugins=[Encryption(ONE), Workflows()])
    app.sync_migrate()
    tables = (*TABLES, "workflows_steps")
    workflow = Workflow("pay").wait_for("card", timeout_s=0.01, default=SECRET)
    workflow.add(secret_jobs.pay.job(card=From("card")), "pay")
    async with app:
        flow = await app.push(workflow)
        waiting = dump(dsn, tables)
        async with Worker(app):
            assert await flow.result(20) == {"paid": SECRET}
    assert SECRET not in waiting + dump(dsn, tables)


async def test_rotation_beside_a_worker_loses_nothing(dsn: str) -> None:
    """Waiting jobs, retries and dead letters get the new key, in small batches, more than once."""
    async with application(dsn) as chancy:
        dead = await chancy.push(secret_jobs.refuse.job(card=SECRET))
        async with Worker(chancy):
            await dead.wait(20)
        # The oldest are rotated first.
        jobs = [secret_jobs.pay.job(card=f"{SECRET} {n}") for n in range(300)]
        references = await chancy.push_many(jobs)
        later = [secret_jobs.pay.job(card=SECRET).with_delay(3_600) for _ in range(30)]
        held = await chancy.push_many(later)
    async with application(dsn, BOTH) as chancy:
        keyring = Encryption(BOTH).keyring
        counted = await Rotation(chancy, keyring).run(dry_run=True)
        assert (counted.old, counted.changed) == (331, 0)
        rotation = Rotation(chancy, keyring, batch=7)
        rotating = asyncio.create_task(rotation.run())
        await eventually(lambda: '"encrypted": "k2"' in dump(dsn, ("jobs",)))
        async with Worker(chancy):
            counts = await rotating
            assert counts.changed > 31
            assert not counts.unreadable
            await eventually(lambda: _no_more(rotation))
            done = await asyncio.gather(*[chancy.wait_for(one.id, 20) for one in references])
        assert [chancy.read_result(job) for job in done] == [
            {"paid": f"{SECRET} {n}"} for n in range(300)
        ]
    assert '"encrypted": "k1"' not in dump(dsn, ("jobs", "dead_letters"))
    async with application(dsn, {"k2": K2}) as chancy:
        (letter,) = await DeadLetters().find(chancy)
        assert letter.message == "encrypted (key k2)"
        await chancy.run_now(*[one.id for one in held])
        async with Worker(chancy):
            for one in held:
                job = await chancy.wait_for(one.id, 20)
                assert chancy.read_result(job) == {"paid": SECRET}


async def test_a_checkpoint_is_read_after_its_key_is_gone(dsn: str) -> None:
    async with application(dsn) as chancy:
        reference = await chancy.push(secret_jobs.pay_twice.job(card=SECRET, retry_s=3_600))
        async with Worker(chancy):
            await eventually(lambda: _scheduled(reference))
    async with application(dsn, BOTH) as chancy:
        counts = await Rotation(chancy, Encryption(BOTH).keyring).run()
        assert (counts.changed, counts.old) == (1, 1)
    assert '"encrypted": "k1"' not in dump(dsn, ("jobs",))
    async with application(dsn, {"k2": K2}) as chancy:
        await chancy.run_now(reference.id)
        async with Worker(chancy):
            job = await chancy.wait_for(reference.id, 20)
    assert (job.state, job.attempt) == (State.SUCCEEDED, 2)


async def _scheduled(reference: Reference[Any]) -> bool:
    return await reference.status() is State.SCHEDULED


async def test_rotation_leaves_rows_alone_that_changed_since_it_read_them(dsn: str) -> None:
    async with application(dsn) as chancy:
        await chancy.push(secret_jobs.pay.job(card=SECRET))
        rotation = Rotation(chancy, Encryption(BOTH).keyring)
        fetch = rotation.store.fetch

        async def late(sql: str, *parameters: object) -> Any:
            if "update" in sql:
                ask(dsn, "update chancy.jobs set errors = '[1]'")
            return await fetch(sql, *parameters)

        rotation.store.fetch = late  # type: ignore[method-assign]
        counts = await rotation.run()
    assert (counts.old, counts.changed, counts.busy) == (1, 0, 1)
    assert '"errors": [1]' in dump(dsn, ("jobs",))


async def test_an_encrypted_job_that_runs_can_be_cancelled(dsn: str) -> None:
    queues = [Queue(name="thread", executor="thread"), Queue(name="async", executor="async")]
    async with application(dsn, queues=queues) as chancy, Worker(chancy):
        reference = await chancy.push(secret_jobs.wait.job(card=SECRET))
        await asyncio.to_thread(secret_jobs.waiting.wait, 20)
        await chancy.cancel(reference.id)
        assert (await reference.wait(20)).state is State.CANCELLED


async def _no_more(rotation: Rotation) -> bool:
    return not (await rotation.run()).old


async def test_commands_rotate_count_and_redact(
    dsn: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault.py").write_text(
        "from chancy import Chancy\nfrom chancy.plugins.encryption import Encryption\n"
        "def make():\n    return Chancy(plugins=[Encryption()])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    async with application(dsn) as chancy:
        reference = await chancy.push(secret_jobs.pay.job(card=SECRET))
    settings = {"app": "vault:make", "dsn": dsn, "encryption_keys": f"k2:{K2},k1:{K1}"}

    def run(*words: str, code: int = 0, **changed: str) -> command.Answer:
        return command.inside(*words, code=code, **{**settings, **changed})

    def inside() -> None:
        assert run("encryption", "status", "--json").json == [
            {"table": "jobs", "key": "k1", "use": "decrypts", "rows": 1}
        ]
        assert "1 of 1" in run("encryption", "rotate", "--dry-run").out
        shown = run("job", "show", str(reference.id)).out
        assert "encrypted (key k1)" in shown
        assert "gAAAA" not in shown
        unknown = run("encryption", "rotate", code=1, encryption_keys=f"k3:{K2}")
        assert "'k1' (1)" in unknown.err
        assert "1 of 1 rows encrypted again" in run("encryption", "rotate").out
        assert "0 of 1" in run("encryption", "rotate").out

    await asyncio.to_thread(inside)
    assert '"encrypted": "k2"' in dump(dsn)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "there are 0 keys"),
        ({"a b": K1}, "the id of a key"),
        ([f"k1:{K1}", f"k1:{K2}"], "two keys have the id 'k1'"),
        ([K1], "number 1 is not 'ID:KEY'"),
        ({"k1": K1[:-8]}, "the key 'k1' is not a Fernet key"),
        (K1, "must be a dict"),
    ],
    ids=["none", "space", "twice", "no-id", "short", "text"],
)
def test_wrong_keys_are_refused_without_showing_them(keys: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        Encryption(keys)
    assert K1[:10] not in str(refused.value)


def test_a_choice_of_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"functions=\[\] would encrypt nothing"):
        Encryption({"k1": K1}, functions=[])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"table": "jobs as t; drop"}, "'jobs as t; drop' is not a valid name"),
        ({"id": "id)"}, "'id\\)' is not a valid name"),
        ({"payloads": ["meta.it's"]}, '"meta.it\'s" is not a valid name'),
        ({"payloads": "arguments"}, "pass a list of columns"),
        ({"payloads": ["meta.a", "meta.b"]}, "each in a column of its own"),
        ({"payloads": []}, "name its payloads"),
        ({"id": None}, "name a column of its key"),
        ({"name_type": "int"}, "name_type"),
    ],
)
def test_wrong_payload_tables_are_refused(wrong: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        PayloadTable(**{"table": "notes", "id": "id", "payloads": ["text"], **wrong})


def test_keys_of_the_environment_are_not_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"k2:{K2}, k1:{K1}")
    plugin = Encryption()
    assert plugin.keyring.ids == ("k2", "k1")
    text = f"{plugin!r} {plugin.keyring!r} {vars(plugin)}"
    assert K1 not in text
    assert K2 not in text
    assert "k2" in text


async def test_a_rule_by_an_encrypted_argument_is_refused(dsn: str) -> None:
    queue = Queue(name="async", rules=(GlobalConcurrency(1, by="card"),))
    flows, batches, cron = Workflows(), Batches(), Cron()
    plugins = [Encryption(ONE), GlobalLimits(), flows, batches, cron]
    pay = secret_jobs.pay.job(card=SECRET)
    async with Chancy(dsn, queues=[queue], plugins=plugins) as chancy:
        await chancy.migrate()
        for pushing in (
            chancy.push(pay),
            chancy.push(Workflow("pay").add(pay, "pay")),
            batches.push(chancy, Batch(name="pay", on_finish=pay), []),
            cron.add(chancy, Entry("pay", "@yearly", pay)),
        ):
            with pytest.raises(PushError, match="rule by the argument 'card'"):
                await pushing
    stored = ("jobs", "workflows", "batches", "cron_entries")
    assert dump(dsn, stored) == ""


def test_the_dashboard_names_the_key_in_place_of_a_ciphertext() -> None:
    masked, value = Masked(MASKED), sealed("k1", "gAAAA")
    assert line(json.dumps(value), masked) == "encrypted (key k1)"
    for shown in (tree(value, masked), tree({"result": [value]}, masked), masked.copy([value])):
        assert "encrypted (key k1)" in repr(shown)
        assert "gAAAA" not in repr(shown)

"""Connection strings, and what is kept out of messages about them."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.postgres import dsn as dsns
from chancy.postgres.drivers.asyncpg import AsyncpgDriver, arguments

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGTARGETSESSIONATTRS", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("password", ["a b", "100%", "p@ss:w/rd?#", "é'\\", "&=+"])
@pytest.mark.parametrize("form", ["uri", "pairs"])
def test_a_password_reaches_both_drivers(password: str, form: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    text = {
        "uri": f"postgresql://me:{quote(password, safe='')}@db:5433/app?sslmode=require",
        "pairs": f"host=db port=5433 user=me password='{escaped}' dbname=app sslmode=require",
    }[form]
    parsed = dsns.parse(text)
    conninfo = conninfo_to_dict(parsed.conninfo(application_name="x"))
    assert (conninfo["password"], conninfo["dbname"]) == (password, "app")
    given = arguments(parsed, parsed.hosts[0], "x")
    assert given["password"] == password
    assert (given["host"], given["port"], given["database"]) == ("db", 5433, "app")
    assert given["dsn"] == "postgresql://?sslmode=require"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("postgresql:///app?host=/var/run/postgresql", ["/var/run/postgresql"]),
        ("postgresql://%2Ftmp%2Fsock:5433/app", ["/tmp/sock:5433"]),
        ("host=/tmp dbname=app", ["/tmp"]),
        ("postgresql://[::1]:5433/app", ["[::1]:5433"]),
        ("host=::1 dbname=app", ["[::1]"]),
        ("postgresql://a:1,b:2,[::1]:3/app", ["a:1", "b:2", "[::1]:3"]),
        ("postgresql://a,b:2/app", ["a", "b:2"]),
        ("host=a,b port=5433 dbname=app", ["a:5433", "b:5433"]),
        ("hostaddr=10.0.0.1 dbname=app", ["10.0.0.1"]),
        ("dbname=app", []),
        ("\n postgresql://a/app\r\n", ["a"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    parsed = dsns.parse(text)
    assert [str(host) for host in parsed.hosts] == hosts
    assert parsed.parameters["dbname"] == "app"
    assert parsed.parameters.get("target_session_attrs") == (
        "read-write" if len(hosts) > 1 else None
    )


def test_the_kind_of_host_that_was_asked_for_is_kept() -> None:
    parsed = dsns.parse("postgresql://a,b/app?target_session_attrs=any")
    assert parsed.parameters["target_session_attrs"] == "any"
    assert "target_session_attrs=any" in arguments(parsed, parsed.hosts[0], "x")["dsn"]


def test_libpq_only_parameters_are_not_sent_to_the_server() -> None:
    parsed = dsns.parse(
        "postgresql://db/app?connect_timeout=7&keepalives=1&keepalives_idle=3&tcp_user_timeout=9"
        "&channel_binding=disable&gssencmode=disable&application_name=mine&options=-c%20a.b%3D1"
        "&sslrootcert=/ca.pem&passfile=/pass&sslmode=verify-full"
    )
    given = arguments(parsed, parsed.hosts[0], "chancy")
    assert given.pop("dsn") == "postgresql://?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert given == {
        "host": "db",
        "port": None,
        "database": "app",
        "passfile": "/pass",
        "timeout": 7,
        "server_settings": {"application_name": "mine", "options": "-c a.b=1"},
    }
    conninfo = conninfo_to_dict(parsed.conninfo(application_name="chancy"))
    assert conninfo["keepalives_idle"] == "3"
    assert conninfo["keepalives_count"] == "3"
    assert conninfo["tcp_user_timeout"] == "9"
    assert conninfo["application_name"] == "mine"


def test_silence_is_bounded_without_a_word_about_it() -> None:
    conninfo = conninfo_to_dict(dsns.parse("dbname=app").conninfo(application_name="chancy"))
    assert conninfo == {
        "dbname": "app",
        "application_name": "chancy",
        "connect_timeout": "5",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
        "client_encoding": "UTF8",
    }
    assert dsns.parse("dbname=app").connect_timeout_s == 5
    assert dsns.parse("dbname=app connect_timeout=1").connect_timeout_s == 2
    assert dsns.parse("dbname=app connect_timeout=0").connect_timeout_s is None


def test_the_certificates_of_the_system() -> None:
    parsed = dsns.parse("host=db sslmode=verify-full sslrootcert=system")
    given = arguments(parsed, parsed.hosts[0], "x")
    assert given["ssl"] is True
    assert "dsn" not in given


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SECRET, 'no "="'),
        (f"host=db password={SECRET} {SECRET}", 'no "="'),
        (f"host=db password='{SECRET}", "quote is not closed"),
        (f"postgresql://me:{SECRET}%zz@db/app", "hexadecimal"),
        (f"postgresql://me:{SECRET}%00@db/app", "zero byte"),
        (f"postgresql://me:{SECRET}@[::1/app", "IPv6"),
        (f"postgresql://me:x@{SECRET}@db/app", "percent-encoded"),
        (f"postgresql://me:x@{SECRET}:{SECRET}@db/app", "port"),
        (f"postgresql://me:{SECRET}@db:port/app", "port"),
        (f"postgresql://me:{SECRET}@db:70000/app", "65535"),
        (f"postgresql://me:{SECRET}@db/app?{SECRET}=1", "does not support"),
        (f"postgresql://me:{SECRET}@db/app?{SECRET}", 'no "="'),
        (f"postgresql://me:{SECRET}@db/app?sslmod=require", 'did you mean "sslmode"'),
        (f"host=db pasword={SECRET}", 'did you mean "password"'),
        (f"postgresql://me:{SECRET}@a,b:1,c:2/app?port=1,2", "ports"),
        (f"postgresql+asyncpg://me:{SECRET}@db/app", 'write "postgresql://"'),
        (f"mysql://me:{SECRET}@db/app", 'begins with "mysql://"'),
        (f"host=db password={SECRET} connect_timeout={SECRET}", "connect_timeout"),
        (f"host=db password={SECRET}\0", "zero byte"),
        (f"host=db password={SECRET}\ud800", "DSN"),
    ],
)
def test_a_dsn_that_cannot_be_read_keeps_its_secret(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        dsns.parse(text)
    assert reason in str(refused.value)
    assert SECRET not in str(refused.value)
    told = "".join(traceback.format_exception_only(refused.value))
    assert SECRET not in told
    assert refused.value.__cause__ is None
    assert SECRET not in dsns.redacted(text)


async def test_a_certificate_file_that_is_missing_is_named() -> None:
    dsn = "postgresql://127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=/no/ca.crt"
    with pytest.raises(BrokerUnavailable, match=r'sslrootcert "/no/ca\.crt": No such file'):
        await AsyncpgDriver().connect(dsn, application_name="test")


def test_logged_values_are_shown() -> None:
    text = f"postgresql://me:{SECRET}@a:1,b:2/app?sslpassword={SECRET}"
    assert dsns.redacted(text) == "postgresql://me@a:1,b:2/app"
    parsed = dsns.parse(text)
    assert parsed.place == 'database "app" at a:1,b:2'
    assert SECRET not in repr(parsed)

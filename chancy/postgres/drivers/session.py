"""What the sessions of both drivers share: time limits, errors, transactions, notifications."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

from chancy.errors import BrokerError, BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.postgres.drivers import sqlstates
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Row
from chancy.postgres.drivers.deadline import Deadline
from chancy.postgres.drivers.inbox import Inbox
from chancy.postgres.drivers.transaction import Transaction

T = TypeVar("T")

# Postgres truncates a longer name after LISTEN without a word, and refuses it in NOTIFY.
_CHANNEL_BYTES = 63

# A server's message can repeat the values of a whole batch.
_MESSAGE_LENGTH = 500

# What the first statement of a session asks. The process id is compared with the one of the
# protocol's greeting: behind a pooler that one was made up by the pooler.
_GREETING: Final = """\
select pg_catalog.pg_backend_pid(),
       pg_catalog.current_setting('default_transaction_isolation')"""

# Only for a session that is ours alone: behind a pooler this would leak to its other clients.
_READ_COMMITTED: Final = "set session characteristics as transaction isolation level read committed"


class Session(ABC):
    """One connection of either driver, as `chancy.postgres.drivers.base.Connection` promises.

    Not for several tasks at once, and, `abort` included, only for the thread of its loop.

    A driver cancels a statement by asking the server to, and waits for the answer. Here
    nobody waits for a server that may be gone: a call that is cancelled or late has its
    socket cut, and its session is closed for good.
    """

    def __init__(self, place: str) -> None:
        self.pooled = False
        self.in_transaction = False
        self._place = place
        self._busy = False
        self._cut = False
        self._unconfirmed = False
        self._deadline = Deadline(self.abort)
        self._inbox = Inbox()

    # What a driver has to bring.

    @abstractmethod
    async def _fetch(self, sql: str, params: tuple[object, ...]) -> Sequence[Row]: ...

    @abstractmethod
    async def _fetch_once(self, sql: str) -> Sequence[Row]:
        """Run a statement without leaving anything of it in the server's session."""

    @abstractmethod
    async def _execute(self, sql: str) -> str:
        """Run a statement without parameters, unprepared; return its command tag."""

    @abstractmethod
    async def _listen(self, channel: str) -> None: ...

    @abstractmethod
    async def _forget_statements(self) -> None:
        """Have every statement parsed anew when it comes next."""

    @abstractmethod
    def _explain(self, error: Exception) -> tuple[str | None, str] | None:
        """The SQLSTATE, if there is one, and the message; None for a foreign exception."""

    @property
    @abstractmethod
    def _gone(self) -> bool:
        """Whether the driver has seen the end of the connection."""

    @abstractmethod
    def _cut_socket(self) -> None:
        """Wake a pending call with an error. May be called again."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the connection holds. No call is pending."""

    def _receive(self) -> None:  # noqa: B027
        """Begin to read the socket while nothing else does."""

    def _rest(self) -> None:  # noqa: B027
        """Stop what `_receive` began."""

    # The connection.

    @property
    def closed(self) -> bool:
        return self._cut or self._gone

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        # The hot path: `_call` written out.
        self._begin_call(deadline_s)
        try:
            rows = await self._fetch(sql, params)
            if self._unconfirmed:
                raise self._unconfirmed_commit()
            return rows
        except BrokerError:
            raise
        except Exception as error:
            raise await self._failure(error) from error
        except BaseException:
            self.abort()
            raise
        finally:
            self._end_call()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return Transaction(self)

    async def listen(self, channel: str) -> None:
        if len(channel.encode()) > _CHANNEL_BYTES:
            raise ConfigurationError(
                f"the channel {channel!r} is longer than {_CHANNEL_BYTES} bytes: "
                "Postgres would listen to another one"
            )
        await self._call(lambda: self._listen(channel))

    async def notifications(
        self, timeout_s: float, first: Callable[[str], None] | None = None
    ) -> list[str]:
        if not self.closed:
            self._receive()
            try:
                await self._inbox.wait(timeout_s, first)
            finally:
                self._rest()
        payloads = self._inbox.take()
        if self.closed and not payloads:
            raise BrokerUnavailable(f"{self._place}: the connection is closed")
        return payloads

    def abort(self) -> None:
        self._cut = True
        self._deadline.cancel()
        self._cut_socket()
        if not self._busy:
            self._release()
        self._inbox.wake()

    async def close(self) -> None:
        self.abort()

    async def command(self, sql: str) -> str:
        """Run a statement without parameters or rows; return the server's command tag."""
        return await self._call(lambda: self._execute(sql))

    async def greet(self, pid: int, *, deadline_s: float) -> None:
        """Learn who is at the other end, and set the isolation of a session of our own.

        :param pid: the process id of the protocol's greeting.
        """
        rows = await self._call(lambda: self._fetch_once(_GREETING), deadline_s)
        backend, isolation = rows[0]
        self.pooled = backend != pid
        if not self.pooled and isolation != "read committed":
            await self.command(_READ_COMMITTED)

    # The course of a call.

    async def _call(
        self, work: Callable[[], Awaitable[T]], deadline_s: float = STATEMENT_DEADLINE_S
    ) -> T:
        self._begin_call(deadline_s)
        try:
            result = await work()
            if self._unconfirmed:
                raise self._unconfirmed_commit()
            return result
        except BrokerError:
            raise
        except Exception as error:
            raise await self._failure(error) from error
        except BaseException:
            self.abort()
            raise
        finally:
            self._end_call()

    def _begin_call(self, deadline_s: float) -> None:
        if self._busy:
            raise RuntimeError("a session was used by two tasks at the same time")
        if self._cut or self._gone:
            raise BrokerUnavailable(f"{self._place}: the connection is closed")
        self._busy = True
        self._deadline.start(deadline_s)

    def _end_call(self) -> None:
        self._busy = False
        self._deadline.stop()
        if self._cut:
            self._release()

    async def _failure(self, error: Exception) -> Exception:
        """What the caller is told, after the session has been brought in order."""
        passed_s = self._deadline.passed_s
        if passed_s is not None:
            self.abort()
            return BrokerUnavailable(f"{self._place}: no answer within {passed_s:g} s")
        known = self._explain(error)
        if known is None:
            self.abort()
            return error
        sqlstate, text = known
        text = text[:_MESSAGE_LENGTH]
        if self.closed or sqlstate is None or sqlstates.lost(sqlstate):
            self.abort()
            code = f" (SQLSTATE {sqlstate})" if sqlstate else ""
            return BrokerUnavailable(f"{self._place}: {text}{code}")
        if sqlstate in sqlstates.STALE_STATEMENT:
            try:
                await self._forget_statements()
            except Exception:
                self.abort()  # and tell what the caller's own statement met
            except BaseException:
                self.abort()
                raise
        return StatementFailed(sqlstates.advised(sqlstate, text), sqlstate=sqlstate)

    def _noticed(self, function: str | None) -> None:
        """A warning came, from this function of the server's source."""
        if function == sqlstates.UNCONFIRMED_COMMIT:
            self._unconfirmed = True

    def _unconfirmed_commit(self) -> BrokerUnavailable:
        self.abort()
        return BrokerUnavailable(
            f"{self._place}: the commit was not confirmed by the synchronous standby"
        )


def connect_failure(place: str, sqlstate: str | None, text: str) -> Exception:
    """What is told to a caller whose connection was not made."""
    text = sqlstates.one_line(text[:_MESSAGE_LENGTH])
    if sqlstate is None or sqlstates.lost_on_connect(sqlstate):
        return BrokerUnavailable(f"{place} cannot be reached: {text}")
    text = f"{place}: {text}"
    if sqlstates.refused(sqlstate) or sqlstate == sqlstates.DATA_EXCEPTION:
        return ConfigurationError(text)
    return StatementFailed(text, sqlstate=sqlstate)

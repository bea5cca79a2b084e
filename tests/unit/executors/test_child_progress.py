"""The progress of a job in an executor process, without a process."""

from __future__ import annotations

import threading
from typing import cast

from chancy.context.host import Progress
from chancy.executors.process.call import ChildCall, pack
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.progress import ProgressBuffer
from chancy.executors.process.protocol import FrameReader
from chancy.job.limits import NO_LIMITS
from tests.contract.executor.calls import claim_of


class Line:
    """A connection on which a test holds up what other threads send."""

    forked = sending = False

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.held, self.let = threading.Event(), threading.Event()

    def send(self, frame: bytes) -> bool:
        if threading.current_thread() is not threading.main_thread():
            self.held.set()
            self.let.wait(30)
        ((_, number, fraction, _),) = FrameReader().frames(frame)
        self.sent.append((number, fraction))
        return True


def call(number: int) -> ChildCall:
    return ChildCall(pack(number, claim_of("echo"), NO_LIMITS)[0])


def in_the_middle_of_a_frame() -> tuple[Line, ChildCall, ProgressBuffer]:
    """A job whose second progress another thread is sending."""
    line, one = Line(), call(1)
    buffer = ProgressBuffer(cast("ChildConnection", line))
    buffer.begin(one)
    buffer.report(one, Progress(0.1))
    buffer.report(one, Progress(0.2))
    assert line.held.wait(30)
    return line, one, buffer


def test_the_last_progress_is_sent_before_the_end() -> None:
    """Also while the thread that sends it after the interval has begun to."""
    line, _, buffer = in_the_middle_of_a_frame()

    def end() -> None:
        buffer.end()
        line.sent.append("end")

    ending = threading.Thread(target=end)
    ending.start()
    ending.join(0.2)  # without the lock it ends
    line.let.set()
    ending.join()
    assert line.sent == [(1, 0.1), (1, 0.2), "end"]


def test_what_a_thread_reports_after_its_job_is_dropped() -> None:
    line, one, two = Line(), call(1), call(2)
    buffer = ProgressBuffer(cast("ChildConnection", line))
    buffer.begin(one)
    buffer.end()
    buffer.report(one, Progress(0.5))
    buffer.begin(two)
    buffer.report(one, Progress(0.6))
    buffer.report(two, Progress(0.7))
    buffer.end()
    assert line.sent == [(2, 0.7)]


def test_what_interrupts_a_frame_waits_for_nobody() -> None:
    """As a signal handler of the job: another thread may hold the lock, and wait for that frame."""
    line, one, buffer = in_the_middle_of_a_frame()
    line.sending = True
    handler = threading.Thread(target=buffer.report, args=[one, Progress(0.3)])
    handler.start()
    handler.join(30)
    ended = not handler.is_alive()
    line.let.set()
    handler.join()
    assert ended

"""The child's side of a supervisor: to end in good order when the supervisor is gone.

The supervisor holds the other end of a pipe and never writes to it; the kernel closes that end
when it dies, even by ``kill -9``. PR_SET_PDEATHSIG would need Linux and is cleared by a change of
user.
"""

from __future__ import annotations

import os
import signal
import threading
import time

#: The variable that holds the number of the pipe's descriptor.
LINE = "CHANCY_SUPERVISOR_LINE"


def watch_supervisor(*, grace_s: float) -> bool:
    """Watch for the supervisor's end from a thread; False if this process has none.

    Then it is as if a SIGTERM had come; what has not ended ``grace_s`` seconds later is killed.
    """
    number = os.environ.pop(LINE, "")
    if not number.isdigit():
        return False
    line = int(number)
    os.set_inheritable(line, False)
    threading.Thread(
        target=_watch, args=(line, grace_s), name="chancy supervisor line", daemon=True
    ).start()
    return True


def _watch(line: int, grace_s: float) -> None:
    while os.read(line, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)

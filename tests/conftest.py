"""The same examples on every machine, no clock in a test, and no test that waits for ever."""
import sys
import threading
from contextlib import suppress

import psutil
import pytest
from hypothesis import settings

settings.register_profile("ltf_nb", deadline=None, derandomize=True)
settings.load_profile("ltf_nb")

PATIENCE = 1200  # seconds, several times what the slowest test takes on a busy machine


def end_processes(test):
    "Kill what a test has started, and say what it was: the test then fails for want of an answer."
    processes = psutil.Process().children(recursive=True)
    print(f"{test} has not ended in {PATIENCE} seconds; these processes of it are killed:", file=sys.stderr)
    for process in processes:
        with suppress(psutil.Error):
            print(f"{process.pid} {process.status()} {' '.join(process.cmdline())}", file=sys.stderr)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    timer = threading.Timer(PATIENCE, end_processes, [item.nodeid])
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()

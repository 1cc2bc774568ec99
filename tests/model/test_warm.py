"""A thread that works while a stage waits."""

import threading

from workers.shared.messages import StageTimings
from workers.stage.warm import working

PATIENCE = 60.0


def test_work_is_done_after_a_frame_and_no_more_once_it_ends() -> None:
    timings, worked = StageTimings(), threading.Event()
    with working(worked.set, timings, PATIENCE):
        while not worked.wait(0.01):  # the thread may not have looked yet when the frame is counted
            timings.frames += 1
            if worked.wait(1.0):
                break
    worked.clear()
    assert not any(thread.name == "keeps warm" for thread in threading.enumerate())

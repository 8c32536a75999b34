"""Jobs beside training."""

import subprocess
import sys

import pytest

ENDS_EARLY = """
import time
from concurrent.futures import ThreadPoolExecutor
from jaxrl.run.job_queue import JobQueue

def job(number):
    time.sleep(0.2)
    with ThreadPoolExecutor(1) as threads:
        print(threads.submit(lambda: number).result(), flush=True)

queue = JobQueue("jobs", most_waiting=3)
for number in range(3):
    queue.submit(job, number)
"""


@pytest.mark.long
def test_jobs_of_a_program_that_ends_without_closing_are_done_with_threads_of_their_own():
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1", "2"]
    assert done.stderr == ""

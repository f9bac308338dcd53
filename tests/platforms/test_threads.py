"""OpenMP's teams: counted in the process's own list of threads, in a process that computes nothing else."""

import subprocess
import sys

SCRIPT = """
import os, torch
from reference_impl.platforms.threads import release_team

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
x = torch.randn(1000, 1000)
before = threads()
y = x @ x + x.exp()
with_team = threads()
release_team()
release_team()
after = threads()
same = torch.equal(x @ x + x.exp(), y)
print(with_team - before, after - before, threads() - before, same)
"""


def test_a_team_goes_and_comes_back():
    """Three threads are the one that asks and two more."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0", "2", "True"]

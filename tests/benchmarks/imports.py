"""What `import ppo_teach` adds to `import torch`, each time in a fresh process."""

import statistics
import subprocess
import sys
from pathlib import Path

from .timing import verdict

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import sys, time
start = time.process_time(); import torch
middle = time.process_time(); import ppo_teach
end = time.process_time()
heavy = sorted({"matplotlib", "ipywidgets", "IPython", "joblib", "transformers"} & set(sys.modules))
print(middle - start, end - middle, ",".join(heavy) or "-")
"""


def run(rounds):
    """Print the medians. Returns whether the target is met."""
    print(f"Import, in {rounds} fresh processes")
    torch_seconds, ours_seconds = [], []
    for _ in range(rounds):
        child = subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, check=True)
        first, second, heavy = child.stdout.split()
        torch_seconds.append(float(first))
        ours_seconds.append(float(second))
    base, added = statistics.median(torch_seconds), statistics.median(ours_seconds)
    text, met = verdict(added, 0.1, " s", at_least=False)
    print(f"  import torch      {base:.3f} s CPU\n  import ppo_teach  adds {text}")
    print(f"  together {(base + added) / base:.3f} times torch alone; heavy modules that came along: {heavy}")
    return met and heavy == "-"

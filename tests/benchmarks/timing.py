"""Turns, medians and the lines that are printed."""

import importlib.metadata
import statistics
import time


def cpu_seconds(call):
    """CPU time of one call in seconds. On one thread it is what the call costs, also on a machine with other work."""
    start = time.process_time()
    call()
    return time.process_time() - start


def take_turns(candidates, rounds, warm_up=2):
    """Call each candidate (dict name -> callable) in turn, `rounds` times. Returns: name -> list of CPU seconds."""
    times = {name: [] for name in candidates}
    for turn in range(warm_up + rounds):
        for name, call in candidates.items():
            seconds = cpu_seconds(call)
            if turn >= warm_up:
                times[name].append(seconds)
    return times


def version(package):
    """Installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def milliseconds(times):
    """Median and best of a list of seconds, as text."""
    return f"{1e3 * statistics.median(times):8.1f} ms (best {1e3 * min(times):.1f})"


def verdict(value, target, unit="x", at_least=True):
    """Print-ready comparison with a target, and whether it is met."""
    met = value >= target if at_least else value <= target
    sign = ">=" if at_least else "<="
    return f"{value:.2f}{unit} (target {sign} {target:g}{unit}) {'ok' if met else 'MISSED'}", met

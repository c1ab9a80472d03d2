"""Speed and learning of the package, beside its peers: run `python -m tests.benchmarks` from the top of the repository.

    python -m tests.benchmarks                       everything (about three minutes)
    python -m tests.benchmarks update generation     only these; the parts are update, generation, imports, learning

Every ratio is taken in one run: the candidates take turns, on one thread, and the median CPU time of each is compared.
What a part needs and does not find it names and leaves out. README.md says what to install and what to expect.
"""

import argparse
import os
import sys
import warnings

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")  # the peers' own deprecations

PARTS = ("imports", "generation", "update", "learning")


def main(arguments=None):
    """Run the parts that were asked for. Returns 0 if every target that was measured was met, else 1."""
    parser = argparse.ArgumentParser(description="Speed and learning of ppo_teach beside its peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each candidate (default 15)")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown or options.rounds < 3:
        parser.error(f"no such part: {', '.join(sorted(unknown))}" if unknown else "--rounds must be at least 3")
    met = True
    for part in options.parts or PARTS:
        if part == "imports":
            from .imports import run
        elif part == "generation":
            from .generation import run
        elif part == "update":
            from .update import run
        else:
            from .learning import run
        met = run(options.rounds) and met
        print(flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

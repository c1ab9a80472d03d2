"""Train every patient of the bug clinic, and three healthy runs: python figures/make_clinic.py

Writes figures/runs/clinic.json (metrics of every update, a few reviews of the last one); what is there already is kept,
so an interrupted call goes on. About four minutes of one CPU thread. The notebook's long curves come from here. Then it
prints what they show into figures/clinic_table.png.
"""

import argparse
import io
import json
from pathlib import Path

from PIL import Image

from ppo_teach.bugs import BUGS, VITALS, Patient
from ppo_teach.explorers.clinic import symptom_table
from ppo_teach.plots import plot_table

FILE = Path(__file__).parent / "runs" / "clinic.json"
CURVES = ("true_score", "entropy", "value_loss", "policy_loss", "explained_variance", "clip_fraction", "grad_norm",
          "mean_ratio", "response_length")  # fmt: skip
HEALTHY_SEEDS = (0, 1, 2)


def run(bug, seed, num_updates, batch_size):
    """One patient, or the healthy run of a seed for bug = None, as plain data."""
    log = Patient(BUGS.get(bug), num_updates=num_updates, batch_size=batch_size, seed=seed).run()
    metrics = {name: [float(f"{value:.4g}") if abs(value) > 1e-5 else 0.0 for value in log.metrics[name]]
               for name in (*CURVES, *VITALS)}  # fmt: skip
    samples = [f"{sample['prompt']} {sample['response']}" for sample in log.samples[-3:]]
    return {"bug": bug, "seed": seed, "stopped_by": log.stopped_by, "samples": samples, "metrics": metrics}


def main(file=FILE, num_updates=40, batch_size=64, bugs=tuple(BUGS)):
    """Train what is not in the file yet, and write it after every run. Returns: the data."""
    data = {"world": "review", "num_updates": num_updates, "batch_size": batch_size, "runs": []}
    if file.exists():
        found = json.loads(file.read_text())
        data["runs"] = found["runs"] if {**found, "runs": []} == data else []
    done = {(entry["bug"], entry["seed"]) for entry in data["runs"]}
    for bug, seed in [(None, seed) for seed in HEALTHY_SEEDS] + [(bug, 0) for bug in bugs]:
        if (bug, seed) not in done:
            data["runs"].append(run(bug, seed, num_updates, batch_size))
            print(f"{bug or 'healthy'} {seed}: {data['runs'][-1]['stopped_by']}", flush=True)
            rows = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in data["runs"])
            head = json.dumps({**data, "runs": "ROWS"})
            file.write_text(head.replace('"ROWS"', f"[\n{rows}\n]") + "\n", encoding="utf-8")
    return data


def table(runs):
    """The runs as a page to print: symptom, likely causes, check."""
    header = ("symptom", "likely causes", "check: a healthy run stays ...")
    title = "What the clinic's patients show after 40 updates"
    return plot_table(symptom_table(runs), header, (24, 62, 44), title=title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--num-updates", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    figure = table(main(**vars(options))["runs"])
    figure.savefig(page := io.BytesIO(), dpi=150, metadata={"Software": None})
    # a page of text needs few colours
    Image.open(page).convert("RGB").quantize(16).save(options.file.parent.parent / "clinic_table.png", optimize=True)

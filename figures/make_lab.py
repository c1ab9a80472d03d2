"""Run the live lab once with each preset and keep its last picture: python figures/make_lab.py [PRESET...]

Writes figures/lab_NAME.png and one line of numbers each. About 10 seconds of one CPU thread a preset.
"""

import asyncio
import sys
from pathlib import Path

from ppo_teach.explorers import training_lab
from ppo_teach.explorers.run import PRESETS

HERE = Path(__file__).parent
FILES = dict(zip(PRESETS, ("healthy", "no_leash", "huge_steps", "gamma", "no_critic"), strict=True))


async def main(names):
    for name in names or PRESETS:
        lab = training_lab()
        lab.load(name)
        log = await lab.start()
        lab.canvas.figure().savefig(HERE / f"lab_{FILES[name]}.png", dpi=100, metadata={"Software": None})
        print(f"{name:12s} {lab.words}  true score, highest {max(log.metrics['true_score']):.2f}")
        for sample in log.samples[-2:]:
            print(f"             {sample['prompt']} {sample['response']}")
        lab.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

"""Milliseconds from ArrowRight to the changed picture on screen, in JupyterLab.

Run `python tests/benchmarks/slider_latency.py`. Beside one another, in one run and with the same picture: our
canvas with its own range input; the same canvas behind an ipywidgets slider linked in the browser (`jslink`);
`interact` with a new pyplot figure. A key press is timed in the page, until the picture has changed and its
frame is on screen. The drag lag is how long the picture still moves after a burst of 40 keys at 30 a second.
"""

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))
from lab import Lab, browser_page  # noqa: E402

COMMON = """
import numpy as np
from ppo_teach.canvas import Explorer, FrameCanvas
from ppo_teach.marks import Panel, Slider, band, bars, line
ratio = np.linspace(0, 2, 201)
eps = [round(.01 * i, 2) for i in range(101)]
def objective(clip_epsilon, sign):
    return np.minimum(ratio * sign, np.clip(ratio, 1 - clip_epsilon, 1 + clip_epsilon) * sign)
def parts():
    return ([Slider("clip_epsilon", "ε", eps, 0.0, label="clip epsilon")],
            [Panel("A > 0", "ratio", "objective", (0, 2), (-2, 2), zero=True),
             Panel("A < 0", "ratio", "objective", (0, 2), (-2, 2), zero=True)],
            [band("clip", lambda clip_epsilon: 1 - clip_epsilon, lambda clip_epsilon: 1 + clip_epsilon),
             line("up", ratio, lambda clip_epsilon: objective(clip_epsilon, 1), "policy", label="clipped"),
             line("down", ratio, lambda clip_epsilon: objective(clip_epsilon, -1), "policy", panel=1),
             bars("share", lambda clip_epsilon: np.arange(8) * clip_epsilon / 8, "old", panel=1,
                  x=np.linspace(.2, 1.8, 8), width=.1)])
words = dict(words="The gain stops at 1 + {clip_epsilon}.", caption="The objective.", alt="Two curves.")
"""
OWN = (
    COMMON
    + """
explorer = Explorer("clip_explorer", *parts(), **words)
explorer
"""
)
LINKED = (
    COMMON
    + """
import ipywidgets, traitlets
class Linked(FrameCanvas):
    _esm = FrameCanvas._esm.replace("export default { render };", '''export default { render: (context) => {
      const { model } = context;
      model.on("change:place", () => model.set("position", [model.get("place")]));
      return render(context); } };''')
    place = traitlets.Int().tag(sync=True)
canvas = Linked("clip_explorer", *parts(), **words)
slider = ipywidgets.IntSlider(min=0, max=100, description="ε")
ipywidgets.jslink((slider, "value"), (canvas, "place"))
ipywidgets.VBox([canvas, slider])
"""
)
INTERACT = (
    COMMON
    + """
%matplotlib inline
import matplotlib.pyplot as plt
from ipywidgets import FloatSlider, interact
@interact(clip_epsilon=FloatSlider(min=0, max=1, step=.01, value=0))
def draw(clip_epsilon):
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, sign in zip(axes, (1, -1)):
        axis.plot(ratio, objective(clip_epsilon, sign))
        axis.axvspan(1 - clip_epsilon, 1 + clip_epsilon, alpha=.2)
    axes[1].bar(np.linspace(.2, 1.8, 8), np.arange(8) * clip_epsilon / 8, width=.1)
    plt.show()
"""
)
# `changed` resolves when the picture is another one: the canvas counts its frames, an image changes its source.
WATCH = """() => {
  const picture = () => document.querySelector('.ppo-canvas')?.dataset.frame ??
    [...document.querySelectorAll('.jp-OutputArea img')].map((img) => img.src.slice(-400)).join();
  window.seen = picture();
  window.log = [];
  let pressed = 0;
  document.addEventListener('keydown', ({ key, timeStamp }) => {
    if (key === 'ArrowRight') pressed = timeStamp;
  }, true);
  const check = () => {
    const now = picture();
    if (now === window.seen || !now) return;
    window.seen = now;
    requestAnimationFrame(() => setTimeout(() => {
      window.log.push({ ms: performance.now() - pressed, at: performance.now() });
    }));
  };
  new MutationObserver(check).observe(document.querySelector('.jp-Notebook'),
    { subtree: true, childList: true, attributes: true, attributeFilter: ['src', 'data-frame'] });
}"""


def measure(page, slider, moves=50):
    """Milliseconds a key press for `moves` presses, and the lag after a burst."""
    slider.focus()
    page.evaluate(WATCH)
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(1500)
    times = []
    for _ in range(moves):
        page.evaluate("() => { window.log.length = 0; }")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => window.log.length > 0", timeout=10000)
        times.append(page.evaluate("() => window.log[0].ms"))
        page.wait_for_timeout(120)
    page.keyboard.press("Home")
    page.wait_for_timeout(1500)
    page.evaluate("() => { window.log.length = 0; }")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(25)
    end = page.evaluate("() => performance.now()")
    page.wait_for_timeout(3000)
    last = page.evaluate("() => Math.max(0, ...window.log.map((entry) => entry.at))")
    return times, max(last - end, 0)


def run(cases, moves=50):
    """Technique -> {"p50", "p95", "lag"} in milliseconds."""
    found = {}
    with Lab() as lab, browser_page() as page:
        for name, (source, selector) in cases.items():
            lab.open(page, f"{name}.ipynb", [source])
            lab.run_all(page)
            page.wait_for_selector(selector)
            page.wait_for_timeout(2000)
            times, lag = measure(page, page.locator(selector).first, moves)
            cuts = statistics.quantiles(times, n=20, method="inclusive")
            found[name] = {
                "p50": round(statistics.median(times), 1),
                "p95": round(cuts[18], 1),
                "lag": round(lag, 1),
            }
            print(
                f"{name:12s} p50 {found[name]['p50']:6.1f} ms   p95 {found[name]['p95']:6.1f} ms   "
                f"lag after a 40-key burst {lag:6.1f} ms",
                flush=True,
            )
    return found


CASES = {
    "canvas": (OWN, ".ppo-canvas input[type=range]"),
    "jslinked": (LINKED, ".widget-slider [role=slider]"),
    "interact": (INTERACT, ".widget-slider [role=slider]"),
}

if __name__ == "__main__":
    print(json.dumps(run(CASES)))

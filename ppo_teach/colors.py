"""One colour, one dash, one hatch per meaning: the same in every figure of the course (Okabe-Ito palette).

Colour is never the only cue: a line also carries its dash, a filled shape its hatch, a point its marker.
"""

# What a mark stands for -> its colour. "black" is for everything without a meaning of its own.
COLORS = {
    "policy": "#0072B2",     # the policy being trained
    "old": "#56B4E9",        # the policy at rollout time
    "reference": "#595959",  # the frozen reference policy
    "score": "#009E73",      # score or reward
    "kl": "#D55E00",         # cost of leaving the reference
    "value": "#CC79A7",      # value function, critic
    "advantage": "#E69F00",
    "black": "#1A1A1A",
}

# The same hues, dark enough to be read as text on white (4.5:1 or more). Sky and orange are never text.
TEXT_COLORS = {
    "policy": "#0072B2", "old": "#333333", "reference": "#595959", "score": "#00795A",
    "kl": "#B34F00", "value": "#A3497B", "advantage": "#333333", "black": "#1A1A1A",
}

# On-off lengths in units of points; an empty tuple is a solid line.
DASHES = {
    "policy": (), "old": (6, 3), "reference": (1.5, 2.5), "score": (),
    "kl": (9, 2.5, 2, 2.5), "value": (11, 3), "advantage": (), "black": (),
}

# Filled shapes. "sign" hatches positive bars with + and negative bars with -.
HATCHES = {
    "policy": "", "old": "/", "reference": ".", "score": "", "kl": "\\",
    "value": "x", "advantage": "sign", "black": "",
}

MARKERS = {
    "policy": "o", "old": "s", "reference": "D", "score": "^", "kl": "v",
    "value": "P", "advantage": "X", "black": "o",
}

"""Credit assignment, for notebook 05 (layer 6)."""

import numpy as np
import torch

from ..advantages import gae, td_errors
from ..canvas import Explorer
from ..config import PPOConfig
from ..exact import bias_and_spread, exact_advantages, exact_values, next_token_log_probs, sequence_log_probs
from ..marks import Panel, Slider, bars, guide, line, points
from ..rewards import place_scores
from ..tensor_ops import response_values
from ..train import train_ppo
from ..worlds import ChainWorld, ReviewWorld

GAMMAS = (0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1)
LAMBDAS = (0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 0.95, 1)
QUALITIES = (0, 0.2, 0.4, 0.6, 0.8, 0.9, 1)


def train_critic(world, num_updates=6, learning_rate=4e-3, policy=None, seed=0):
    """Train the critic only, on what the policy gets from each token on: PPO with its policy held still.

    Returns: the policy, its values trained. Taught in: notebooks/05_gae.ipynb
    """
    config = PPOConfig(
        kl_coef=0, lam=1, value_warmup=num_updates, learning_rate=learning_rate, num_minibatches=4
    )  # fmt: skip
    policy = world.policy(critic="separate") if policy is None else policy
    return train_ppo(world, config, policy=policy, num_updates=num_updates, seed=seed, progress=False)[0]


class AllResponses:
    """Every response of a ChainWorld under its reference chain, so that expectations are sums.

    Args: world. Attributes: policy, a table; prompt_ids [B, 1], response_ids, mask, rewards (the score, where it
        is paid) [B, T], probabilities [B]; values, advantages [B, T], exact; `.judge`.
    Taught in: notebooks/05_gae.ipynb
    """

    def __init__(self, world):
        responses, mask = world.responses()
        prompts, self.world, self.policy = world.prompts(), world, world.table_policy()
        self.prompt_ids = prompts.repeat_interleave(len(responses), 0)
        self.response_ids, self.mask = responses.repeat(len(prompts), 1), mask.repeat(len(prompts), 1)
        tree = next_token_log_probs(self.policy, prompts, world)
        self.probabilities = sequence_log_probs(tree).exp().flatten() / len(prompts)
        self.rewards = place_scores(world.true_score(self.prompt_ids, self.response_ids), self.mask).double()
        self.values = self.exact(exact_values)
        self.advantages = self.exact(exact_advantages)

    def exact(self, function, **objective):
        """`exact_values` or `exact_advantages` of the policy, along every response: [B, T]."""
        return function(self.policy, self.prompt_ids, self.world, response_ids=self.response_ids, **objective)

    def judge(self, estimates):
        """Bias and spread of advantage estimates [B, T], against the exact ones for γ = 1."""
        return bias_and_spread(estimates, self.advantages, self.probabilities, self.prompt_ids, self.response_ids,
                               self.world)  # fmt: skip


def gae_explorer(critic=None, *, prompt="the terrace was", response="really warm but the soup was bad .",
                 gamma=1, lam=0.95, quality=0.6):
    """γ, λ and the critic: what reaches which token of a review, and how wrong the advantages are on average.

    Top: TD errors as steps from V to V + δ, and advantages, of one review. Below: the weight of a TD error
    l tokens later, and bias and spread over all responses of a ChainWorld with up to five tokens.

    Args: critic, a policy of ReviewWorld with trained values (None = train one, in a second or two); prompt,
        response, texts; gamma, lam, quality, where the sliders start. quality multiplies every value.
    Returns: Explorer. Taught in: notebooks/05_gae.ipynb
    """
    review, chain = ReviewWorld(), AllResponses(ChainWorld(max_new_tokens=5))
    critic = train_critic(review) if critic is None else critic
    x, y = review.encode(prompt).unsqueeze(0), review.encode(response).unsqueeze(0)
    T, score = y.shape[1], review.true_score(x, y)
    rewards = place_scores(score, torch.ones_like(y)).double()
    with torch.no_grad():
        values = response_values(critic(torch.cat([x, y], dim=1))[1], T).double()
    last = torch.eye(T, dtype=torch.float64)[-1:]  # one TD error of 1, at the end, and a critic that is silent
    scale = max(abs(float(score)), float(values.abs().max())) + 0.3
    exact = {g: chain.exact(exact_values, gamma=g) for g in GAMMAS}
    judged = {
        (g, w, q): chain.judge(gae(chain.rewards, q * exact[g], g, w, chain.mask)[0])
        for g in GAMMAS for w in LAMBDAS for q in QUALITIES
    }  # fmt: skip

    def surprise(gamma, quality):
        return td_errors(rewards, quality * values, gamma)[0].numpy()

    def advantage(gamma, lam, quality):
        return gae(rewards, quality * values, gamma, lam)[0][0].numpy()

    def weights(gamma, lam):
        return gae(last, torch.zeros_like(last), gamma, lam)[0][0].flip(0).numpy()

    def error(part):
        return lambda gamma, quality: [judged[gamma, w, quality][part] for w in LAMBDAS]

    def here(part):
        return lambda gamma, lam, quality: judged[gamma, lam, quality][part]

    def before(quality):
        return (quality * values)[0].numpy()

    words, at = response.split(), np.arange(T)
    strip = (-0.6, T - 0.4)
    return Explorer(
        "gae_explorer",
        [Slider("gamma", "γ", GAMMAS, gamma, label="discount", format="{:g}"),
         Slider("lam", "λ", LAMBDAS, lam, label="GAE", format="{:g}"),
         Slider("quality", "q", QUALITIES, quality, label="critic quality", format="{:g}")],
        [Panel("Each token moves the critic from V to V + δ", f"'{prompt} ...'", "expected score", (-0.6, T + 0.5),
               (-scale, scale), zero=True, xticks=words),
         Panel("The advantage also hears of later δ", f"'{prompt} ...'", "advantage", strip, (-3.2, 3.2),
               zero=True, xticks=words),
         Panel("How much of a later δ a token hears", "tokens later, l", "weight (γλ)^l", strip, (0, 1.15)),
         Panel("λ trades bias for spread; γ adds bias", "λ", "error, in units of reward",
               (-0.03, 1.2), (-0.05, 3), xticks=[(v, f"{v:g}") for v in (0, 0.5, 1)])],
        [bars("delta", lambda gamma, quality: before(quality) + surprise(gamma, quality), "value", x=at,
              base=before),
         points("after", at, lambda gamma, quality: before(quality) + surprise(gamma, quality), "black", size=6,
                label="ends at V + δ"),
         guide("score", float(score), "score", axis="y", label="score"),
         bars("advantage", advantage, "advantage", x=at, panel=1, values="{:.1f}"),
         bars("weights", weights, "black", x=at, panel=2, values="{:.2f}", alpha=0.55),
         line("bias", LAMBDAS, error(0), "black", panel=3, label="bias"),
         line("spread", LAMBDAS, error(1), "black", panel=3, label="spread", dash=(6, 3)),
         points("here", lambda lam: [lam, lam], lambda gamma, lam, quality: list(judged[gamma, lam, quality]),
                "advantage", panel=3)],
        height=260,
        words=f"'{words[0]}' hears {{reach:.2f}} of what happens at the end. All responses of a ChainWorld together: "
              "bias {mean_bias:.2f}, spread {mean_spread:.2f}.",
        readouts={"reach": lambda gamma, lam: weights(gamma, lam)[-1], "mean_bias": here(0), "mean_spread": here(1)},
        presets={"Default": {"gamma": 1, "lam": 0.95, "quality": 0.6}, "gamma 0.8": {"gamma": 0.8},
                 "lambda 0": {"lam": 0}, "lambda 1": {"lam": 1}},
        caption="Top: a review and a critic trained on others; q multiplies its values. Below, right: q = 1 is the "
                "exact critic for this γ, the truth is the advantage for γ = 1. Which slider brings the bias to 0 "
                "without a better critic?",
        alt="Top left: a staircase of bars, up at 'warm', down at 'but' and 'bad'. Top right: the advantage of each "
            "token. Bottom left: weights that fall with the distance, the faster the smaller γ and λ. Bottom right: "
            "over λ, bias falls and spread rises; with γ below 1 the bias no longer reaches 0.",
    )  # fmt: skip

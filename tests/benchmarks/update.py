"""One whole PPO update (sample, score, 4 epochs of steps) of this package and of TRL 1.12.0, in turns.

64 prompts of 8 tokens, 16 new tokens, 2 layers, d 64, 4 heads, vocabulary 256; the reward is the share of even token
ids, so that both can be seen to learn. TRL has a critic of its own; ours is measured with one and with a shared trunk.
"""

import statistics
import time

import torch

from ppo_teach import PPOConfig, PPOTrainer, TinyLM

from .timing import cpu_seconds, milliseconds, verdict, version

TRL = "1.12.0"
OURS = {"separate critic": "separate", "shared trunk": "shared"}


class EvenWorld:
    """Prompts of random tokens; the score is the share of even ids in the response; no response ever stops."""

    name, vocabulary, eos_id, pad_id = "even", 256, None, None
    prompt_length, max_new_tokens, batch_size = 8, 16, 64
    num_epochs, learning_rate, kl_coef = 4, 1e-3, 0.01

    def sample_prompts(self, n, generator):
        # TRL's end and padding tokens, the last two ids, are left out of the prompts
        return torch.randint(0, self.vocabulary - 2, (n, self.prompt_length), generator=generator)

    def true_score(self, prompt_ids, response_ids):
        return (response_ids % 2 == 0).float().mean(1)

    def decode(self, ids):
        return " ".join(str(i) for i in ids.tolist())


def our_trainer(task, critic, num_minibatches, num_updates):
    """A trainer of ours with the sizes and options of the peer's."""
    policy = TinyLM(task.vocabulary, max_length=task.prompt_length + task.max_new_tokens, critic=critic)
    config = PPOConfig(
        num_epochs=task.num_epochs, num_minibatches=num_minibatches, learning_rate=task.learning_rate,
        kl_coef=task.kl_coef,
    )  # fmt: skip
    return PPOTrainer(task, config, policy=policy, num_updates=num_updates, batch_size=task.batch_size)


def measure(num_minibatches, rounds, with_trl):
    """Take turns. Returns: times (name -> list of CPU seconds), scores (name -> list of mean scores)."""
    task, updates = EvenWorld(), 2 * (rounds + 2)  # TRL with and without its garbage collections, two to warm up
    trainers = {f"ours, {name}": our_trainer(task, critic, num_minibatches, updates) for name, critic in OURS.items()}
    times = {name: [] for name in trainers}
    for trainer in trainers.values():
        trainer.step()
    if not with_trl:
        for _ in range(rounds):
            for name, trainer in trainers.items():
                times[name].append(cpu_seconds(trainer.step))
        return times, {name: trainer.log.metrics["mean_reward"] for name, trainer in trainers.items()}

    from . import trl_peer

    peer = {True: [], False: []}
    start, turn = time.process_time(), 0

    def after_update():
        nonlocal start, turn
        peer[turn % 2 == 0].append(time.process_time() - start)
        turn += 1
        if turn % 2:
            for name, trainer in trainers.items():
                times[name].append(cpu_seconds(trainer.step))
        trl_peer.collect_garbage(turn % 2 == 0)
        start = time.process_time()

    scores = {"trl": trl_peer.train(task, num_minibatches, updates, after_update)}
    times = {f"trl {TRL}": peer[True][2:], f"trl {TRL} without gc.collect()": peer[False][2:]} | {
        name: seconds[2:] for name, seconds in times.items()
    }
    return times, scores | {name: trainer.log.metrics["mean_reward"] for name, trainer in trainers.items()}


def run(rounds):
    """Print milliseconds and ratios. Returns whether the targets are met (True if the peer is not there)."""
    torch.set_num_threads(1)
    found = version("trl")
    with_trl = found == TRL and version("transformers") is not None
    print("PPO update: 64 prompts of 8 tokens, 16 new tokens, 2 layers, d 64, vocabulary 256, 4 epochs, one thread")
    if not with_trl:
        print(f"  trl {TRL} is left out: {found or 'no version'} is installed")
    all_met = True
    for num_minibatches in (1, 4):
        times, scores = measure(num_minibatches, rounds, with_trl)
        median = {name: statistics.median(seconds) for name, seconds in times.items()}
        print(f"  {num_minibatches} minibatch{'es' if num_minibatches > 1 else ''} an epoch")
        for name, seconds in times.items():
            line = f"    {name:34} {milliseconds(seconds)}"
            if with_trl and name.startswith("ours"):
                text, met = verdict(median[f"trl {TRL}"] / median[name], 3 if "separate" in name else 5)
                all_met = all_met and met
                line += f"  {text}; {median[f'trl {TRL} without gc.collect()'] / median[name]:.2f}x without gc.collect()"
            print(line)
        learnt = ", ".join(f"{name} {s[0]:.2f} -> {s[-1]:.2f} in {len(s)}" for name, s in scores.items())
        print(f"    mean score, first -> last update: {learnt}")
    return all_met

"""A tiny PPO run of TRL 1.12.0, the last release with a PPOTrainer, on the task of update.py.

TRL wants everything as modules and data sets: the reward is a module with a backbone whose hidden state its `score`
reads, and prompts come from a `datasets.Dataset` through a tokenizer. Its defaults of bfloat16 and gradient
checkpointing are turned off: on these sizes they make it slower.
"""

import contextlib
import os
import tempfile
import types

import torch
import trl.experimental.ppo.ppo_trainer as implementation
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    logging,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer


class ShareOfEvenTokens(torch.nn.Module):
    """The rule reward in the form that TRL reads: hidden states [B, L, 1] that already are the score."""

    base_model_prefix = "backbone"

    def __init__(self, prompt_length):
        super().__init__()
        self.prompt_length = prompt_length
        self.score = torch.nn.Identity()

    def backbone(self, input_ids, **_):
        even = (input_ids % 2 == 0).float()
        even[:, : self.prompt_length] = 0.0
        counted = (torch.arange(input_ids.shape[1]) - self.prompt_length + 1).clamp(min=1)
        hidden = (even.cumsum(1) / counted).unsqueeze(-1)
        return types.SimpleNamespace(hidden_states=(hidden,))


class AfterUpdate(TrainerCallback):
    """Calls a function after each update, and keeps the mean scores."""

    def __init__(self, call):
        self.call, self.scores = call, []

    def on_step_end(self, args, state, control, **_):
        self.call()

    def on_log(self, args, state, control, logs=None, **_):
        self.scores.append(logs["objective/scores"])


def train(task, num_minibatches, num_updates, after_update):
    """Run TRL's PPO; `after_update` is called after each update. Returns: list of mean scores."""
    logging.set_verbosity_error()
    size = task.vocabulary
    words = {f"w{i}": i for i in range(size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token=f"w{size - 1}",
        eos_token=f"w{size - 2}", padding_side="left",
    )  # fmt: skip
    gpt2 = GPT2Config(
        vocab_size=size, n_positions=task.prompt_length + task.max_new_tokens, n_embd=64, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=size - 2, eos_token_id=size - 2,
        pad_token_id=size - 1, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    policy, reference, critic = GPT2LMHeadModel(gpt2), GPT2LMHeadModel(gpt2), GPT2ForSequenceClassification(gpt2)
    reference.load_state_dict(policy.state_dict())
    prompts = task.sample_prompts(8 * task.batch_size, torch.Generator().manual_seed(1))
    watch = AfterUpdate(after_update)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        config = PPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", disable_tqdm=True, logging_steps=1, num_sample_generations=0, seed=0,
            per_device_train_batch_size=task.batch_size, gradient_accumulation_steps=1,
            local_rollout_forward_batch_size=task.batch_size, num_mini_batches=num_minibatches,
            num_ppo_epochs=task.num_epochs, response_length=task.max_new_tokens,
            total_episodes=num_updates * task.batch_size, learning_rate=task.learning_rate,
            lr_scheduler_type="constant", temperature=1.0, kl_coef=task.kl_coef,
        )  # fmt: skip
        trainer = PPOTrainer(
            args=config, processing_class=tokenizer, model=policy, ref_model=reference,
            reward_model=ShareOfEvenTokens(task.prompt_length), value_model=critic,
            train_dataset=Dataset.from_dict({"input_ids": prompts.tolist()}), callbacks=[watch],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        with contextlib.redirect_stdout(nowhere):
            trainer.train()
    return watch.scores


def collect_garbage(wanted):
    """TRL calls `gc.collect()` twice an update, which costs more than the training itself; False turns that off."""
    import gc

    implementation.gc = gc if wanted else types.SimpleNamespace(collect=lambda: 0)

"""Sampling: 64 prompts of 8 tokens, 2 layers, d 64, 4 heads, vocabulary 256, against Hugging Face transformers."""

import statistics

import torch

from ppo_teach import TinyLM, generate

from .timing import take_turns, verdict, version

BATCH, PROMPT, VOCABULARY, LONGEST = 64, 8, 256, 64


def hugging_face_candidates(prompt_ids, new_tokens):
    """The same size of GPT-2, sampled by `generate` with its cache and by a loop of our own around it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=PROMPT + LONGEST, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    real = torch.ones_like(prompt_ids)

    def generate_with_cache():
        return model.generate(
            prompt_ids, attention_mask=real, do_sample=True, top_k=0, max_new_tokens=new_tokens, use_cache=True
        )

    @torch.inference_mode()
    def own_loop():
        ids, past, response = prompt_ids, None, []
        for _ in range(new_tokens):
            output = model(ids, past_key_values=past, use_cache=True)
            past = output.past_key_values
            ids = torch.multinomial(output.logits[:, -1].softmax(-1), 1)
            response.append(ids)
        return torch.cat(response, dim=1)

    return {"transformers generate, cache": generate_with_cache, "transformers model, own loop": own_loop}


def run(rounds):
    """Print tokens per second. Returns whether the target against `generate` is met (True if it cannot be measured)."""
    torch.set_num_threads(1)
    peer = version("transformers")
    print(f"Generation, {BATCH} prompts of {PROMPT} tokens, one thread, transformers {peer or 'not installed: left out'}")
    generator = torch.Generator().manual_seed(0)
    prompt_ids = torch.randint(0, VOCABULARY, (BATCH, PROMPT), generator=generator)
    policy = TinyLM(VOCABULARY, max_length=PROMPT + LONGEST)
    all_met = True
    for new_tokens in (16, 32, 64):
        candidates = {"ppo_teach": lambda: generate(policy, prompt_ids, new_tokens, generator=generator)}
        if peer:
            candidates |= hugging_face_candidates(prompt_ids, new_tokens)
        times = take_turns(candidates, rounds)
        ours = statistics.median(times["ppo_teach"])
        for name, seconds in times.items():
            speed, best = (BATCH * new_tokens / s / 1e3 for s in (statistics.median(seconds), min(seconds)))
            line = f"  n={new_tokens}  {name:30} {speed:6.1f}k tokens/s (best {best:.1f}k)"
            if name.endswith("cache"):
                text, met = verdict(statistics.median(seconds) / ours, 2.5)
                all_met, line = all_met and met, f"{line}  ours is {text}"
            elif name != "ppo_teach":
                line += f"  ours is {statistics.median(seconds) / ours:.2f}x"
            print(line)
    return all_met

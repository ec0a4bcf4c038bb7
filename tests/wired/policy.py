"""What the policy is trained for: sampling completions, rewarding lower-case letters, and the loss of one update."""

import random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3_5ForCausalLM

TEXT = b"the quick brown fox jumps over the lazy dog "
PROMPT, COMPLETION, BATCH = 4, 12, 16
TEXT_WEIGHT = 0.1


def prompts(chooser: random.Random) -> Tensor:
    """`BATCH` slices of the text: int64 [BATCH, PROMPT]."""
    starts = [chooser.randrange(len(TEXT) - PROMPT) for _ in range(BATCH)]
    return torch.tensor([list(TEXT[start : start + PROMPT]) for start in starts])


@torch.no_grad()
def sample(model: Qwen3_5ForCausalLM, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Continue `tokens`, int64 [n, PROMPT], at temperature 1 to int64 [n, PROMPT + COMPLETION]."""
    for _ in range(COMPLETION):
        odds = model(tokens).logits[:, -1].float().softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(odds, 1, generator=generator)], dim=1)
    return tokens


def rewards(tokens: Tensor) -> Tensor:
    """1 for each completion token that is a lower-case ASCII letter, else 0: fp32 [n, COMPLETION]."""
    completion = tokens[:, PROMPT:]
    return ((completion >= ord("a")) & (completion <= ord("z"))).float()


def loss(model: Qwen3_5ForCausalLM, tokens: Tensor, rewards: Tensor) -> Tensor:
    """REINFORCE (Williams, 1992) plus a little cross-entropy on the text: fp32 [].

    Each token is credited with its own reward (discount 0) over the batch mean as baseline.
    """
    logits = model(tokens).logits[:, PROMPT - 1 : -1].float()
    log_odds = -cross_entropy(logits.transpose(1, 2), tokens[:, PROMPT:], reduction="none")
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-3)
    text = torch.tensor([list(TEXT)])
    imitation = cross_entropy(model(text).logits[0, :-1].float(), text[0, 1:])
    return TEXT_WEIGHT * imitation - (advantage * log_odds).mean()

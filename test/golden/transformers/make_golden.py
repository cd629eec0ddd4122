"""Makes the checkpoints and numbers that transformers.test.ts compares the native backend with.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python test/golden/transformers/make_golden.py

Two small random models, saved as Hugging Face saves them, and what PyTorch computes from them in
float64 (norms and rotary angles are float32 in transformers, whatever the model's type): logprobs,
gradients, three AdamW steps. Deterministic; versions are written beside.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
TEMPERATURE = 0.7
SHARED = dict(
    vocab_size=64,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    rms_norm_eps=1e-6,
    initializer_range=0.2,
    attn_implementation="eager",
)
MODELS = {
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            **SHARED, num_key_value_heads=2, tie_word_embeddings=True, rope_theta=1_000_000.0
        )
    ),
    # A head size that is not hidden_size / heads.
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SHARED, num_key_value_heads=4, head_dim=8, tie_word_embeddings=False, rope_theta=10_000.0
        )
    ),
}
ADAMW = dict(lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
MAX_GRAD_NORM = 0.5
ROWS = [[(7 * t * t + 5 * t + 11 * r) % 64 for t in range(n)] for r, n in enumerate([12, 3, 40])]


def gradient_of(row: int, length: int) -> torch.Tensor:
    """d loss / d logprob of tokens 1..: any numbers that differ from token to token."""
    return torch.sin(3.0 * row + torch.arange(1, length, dtype=torch.float64)) / 8


def logprobs_of(model, row: list[int]) -> torch.Tensor:
    ids = torch.tensor([row])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]


def objective(model) -> torch.Tensor:
    return sum((gradient_of(r, len(row)) * logprobs_of(model, row)).sum() for r, row in enumerate(ROWS))


def make(name: str) -> None:
    torch.manual_seed(20)
    folder = HERE / name
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start at 1 and 0
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    logprobs = [logprobs_of(model, row).tolist() for row in ROWS]
    objective(model).backward()
    gradients = {n: p.grad.float().contiguous() for n, p in model.named_parameters()}
    save_file(gradients, folder / "gradients.safetensors")
    model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    steps = []
    for _ in range(3):
        value = objective(model)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"objective": value.item(), "gradNorm": norm.item()})
    golden = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "temperature": TEMPERATURE,
        "rows": ROWS,
        "logprobs": logprobs,
        "gradientOfLogprobs": [gradient_of(r, len(row)).tolist() for r, row in enumerate(ROWS)],
        "adamW": {
            "learningRate": ADAMW["lr"],
            "beta1": ADAMW["betas"][0],
            "beta2": ADAMW["betas"][1],
            "epsilon": ADAMW["eps"],
            "weightDecay": ADAMW["weight_decay"],
            "maxGradNorm": MAX_GRAD_NORM,
        },
        "steps": steps,
        "objectiveAfter": objective(model).item(),
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    for model_name in MODELS:
        make(model_name)

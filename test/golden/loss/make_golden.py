"""Makes vectors.json: policy losses and their gradients by PyTorch's autograd, written down here
straight from the papers' formulas over float64 tensors.

    python3 -m venv venv && venv/bin/pip install torch
    venv/bin/python test/golden/loss/make_golden.py
"""

import json
from pathlib import Path

import torch

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
# Two responses of one row: tokens 2-5 and 8-10.
RUNS = [(2, 6), (8, 11)]
LENGTH = 12
MASK = torch.zeros(LENGTH)
for a, b in RUNS:
    MASK[a:b] = 1


def f32(x):
    return x.float().double()


sampling = f32(-torch.rand(LENGTH) * 3 - 0.05)
start = f32((sampling + torch.randn(LENGTH) * 0.5).clamp(max=-0.01))
reference = f32((start + torch.randn(LENGTH) * 0.3).clamp(max=-0.01))
weights = f32(torch.rand(LENGTH))
advantages = torch.zeros(LENGTH)
for (a, b), value in zip(RUNS, [1.25, -0.75]):
    advantages[a:b] = value
    weights[a:b] = f32(torch.rand(1))


def ratios(logprobs, base, kind):
    if kind != "gspo":
        return (logprobs - base).exp()
    # GSPO-token: the response's ratio as a number, its gradient through each token's own logprob.
    out = (logprobs - logprobs.detach()).exp()
    for a, b in RUNS:
        scale = torch.ones(LENGTH)
        scale[a:b] = (logprobs[a:b] - base[a:b]).mean().exp().detach()
        out = out * scale
    return out


def factors(correction):
    if correction["kind"] == "none":
        return torch.ones(LENGTH)
    ratio = (start - sampling).exp()
    if correction["level"] == "sequence":
        for a, b in RUNS:
            ratio[a:b] = (start[a:b] - sampling[a:b]).sum().exp()
    if correction["kind"] == "truncate":
        return ratio.clamp(max=correction["max"])
    return ((ratio >= correction["min"]) & (ratio <= correction["max"])).double()


def loss_of(logprobs, loss, correction, kl):
    base = start if correction["kind"] == "truncate" else sampling
    r = ratios(logprobs, base, loss["kind"])
    A = advantages
    if loss["kind"] == "importance-sampling":
        token = -r * A
    elif loss["kind"] == "cispo":
        token = -r.clamp(loss["clipLow"], loss["clipHigh"]).detach() * logprobs * A
    else:
        token = -torch.minimum(r * A, r.clamp(loss["clipLow"], loss["clipHigh"]) * A)
        if "dualClip" in loss:
            token = torch.where(A < 0, torch.minimum(token, -loss["dualClip"] * A), token)
    total = (weights * MASK * factors(correction) * token).sum()
    d = reference - logprobs
    return total + kl * (weights * MASK * (d.exp() - d - 1)).sum()


losses = [
    {"kind": "ppo", "clipLow": 0.8, "clipHigh": 1.2},
    {"kind": "ppo", "clipLow": 0.8, "clipHigh": 1.28, "dualClip": 1.3},
    {"kind": "importance-sampling"},
    {"kind": "cispo", "clipLow": 0.0, "clipHigh": 1.5},
    {"kind": "gspo", "clipLow": 0.9, "clipHigh": 1.3},
]
corrections = [
    {"kind": "none"},
    {"kind": "truncate", "level": "token", "max": 1.2},
    {"kind": "truncate", "level": "sequence", "max": 1.5},
    {"kind": "mask", "level": "token", "min": 0.7, "max": 1.4},
    {"kind": "mask", "level": "sequence", "min": 0.2, "max": 1.5},
]
cases = []
for loss in losses:
    for correction in corrections:
        for kl in [0.0, 0.1]:
            logprobs = start.clone().requires_grad_()
            value = loss_of(logprobs, loss, correction, kl)
            value.backward()
            gradient = (logprobs.grad * MASK).tolist()
            cases.append({"loss": loss, "correction": correction, "klCoefficient": kl, "value": value.item(), "gradient": gradient})
row = {k: v.tolist() for k, v in dict(mask=MASK, sampling=sampling, start=start, reference=reference, weights=weights, advantages=advantages).items()}
golden = {"madeBy": f"torch {torch.__version__}", "row": row, "cases": cases}
(Path(__file__).parent / "vectors.json").write_text(json.dumps(golden, indent=1) + "\n")

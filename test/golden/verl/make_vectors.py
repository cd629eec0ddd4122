"""Writes golden vectors of verl's own advantage estimators, loss aggregation and policy losses.

    python make_vectors.py [--seed 0] [--batches 24] > vectors.json

Needs torch (CPU is enough) and verl. Calls `verl.trainer.ppo.core_algos` on random batches in
float64 and prints inputs and outputs as JSON. Nothing of verl is re-implemented here.
"""

import argparse
import json
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

AGGREGATIONS = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]


def random_batch(rng):
    """Rows with holes in their masks (observations), groups of one, groups of equal rewards."""
    rows = int(rng.integers(2, 13))
    width = int(rng.integers(3, 11))
    mask = np.zeros((rows, width))
    for row in range(rows):
        length = int(rng.integers(1, width + 1))
        mask[row, :length] = rng.random(length) < 0.8
        mask[row, rng.integers(0, length)] = 1
    groups = [f"g{int(rng.integers(0, max(1, rows // 3) + 1))}" for _ in range(rows)]
    rewards = np.zeros((rows, width))
    for row in range(rows):
        last = int(np.flatnonzero(mask[row])[-1])
        rewards[row, last] = rng.choice([0.0, 1.0, 0.5, float(rng.normal())])
        if rng.random() < 0.3:
            rewards[row, int(rng.integers(0, last + 1))] += float(rng.normal())
    losses = rng.normal(size=(rows, width))
    return mask, groups, rewards, losses


def advantages(mask, groups, rewards):
    index = np.array(groups, dtype=object)
    out = {}

    def run(name, fn, **kwargs):
        # verl writes into its arguments, so each call gets its own tensors.
        result, _ = fn(
            token_level_rewards=torch.tensor(rewards, dtype=torch.float64),
            response_mask=torch.tensor(mask, dtype=torch.float64),
            **kwargs,
        )
        out[name] = result.tolist()

    run("verl-grpo", core_algos.compute_grpo_outcome_advantage, index=index)
    run("verl-grpo-no-std", core_algos.compute_grpo_outcome_advantage, index=index, norm_adv_by_std_in_grpo=False)
    run("verl-rloo", core_algos.compute_rloo_outcome_advantage, index=index)
    baseline = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
    run("verl-reinforce-plus-plus-baseline", baseline, index=index)
    plain = core_algos.compute_reinforce_plus_plus_outcome_advantage
    run("verl-reinforce-plus-plus", plain, config=SimpleNamespace(gamma=1.0))
    run("verl-reinforce-plus-plus gamma 0.9", plain, config=SimpleNamespace(gamma=0.9))
    return out


def aggregations(mask, losses):
    out = {}
    for mode in AGGREGATIONS:
        loss = core_algos.agg_loss(
            torch.tensor(losses, dtype=torch.float64), torch.tensor(mask, dtype=torch.float64), mode
        )
        out[mode] = loss.item()
    return out


# Clip bounds are bounds of the ratio here, epsilons around 1 in verl.
POLICY_LOSSES = [
    ("vanilla", {"kind": "ppo", "clipLow": 0.8, "clipHigh": 1.28, "dualClip": 3.0}),
    ("vanilla", {"kind": "ppo", "clipLow": 0.5, "clipHigh": 1.5, "dualClip": 1.6}),
    ("gspo", {"kind": "gspo", "clipLow": 0.9, "clipHigh": 1.1}),
    ("cispo", {"kind": "cispo", "clipLow": 0.5, "clipHigh": 2.0}),
]


def policy_losses(rng):
    """Rows of one response each; losses are means over tokens, gradients by verl's own graph."""
    rows, width = int(rng.integers(1, 6)), int(rng.integers(2, 9))
    single = lambda values: torch.tensor(values, dtype=torch.float32).double()
    old = single(-rng.random((rows, width)) * 3 - 0.05)
    now = single(np.minimum(old.numpy() + rng.normal(size=(rows, width)) * rng.choice([0.02, 0.5]), -0.01))
    advantage = single(rng.normal(size=(rows, 1))).expand(rows, width)
    lengths = rng.integers(1, width + 1, size=rows)
    mask = torch.tensor([[1.0 if t < length else 0.0 for t in range(width)] for length in lengths]).double()
    cases = []
    for name, loss in POLICY_LOSSES:
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio_low=1 - loss["clipLow"],
            clip_ratio_high=loss["clipHigh"] - 1,
            clip_ratio_c=loss.get("dualClip", 3.0),
        )
        log_prob = now.clone().requires_grad_(True)
        value, _ = core_algos.get_policy_loss_fn(name)(
            old_log_prob=old,
            log_prob=log_prob,
            advantages=advantage,
            response_mask=mask,
            loss_agg_mode="token-mean",
            config=config,
        )
        value.backward()
        cases.append({"loss": loss, "value": value.item(), "gradient": log_prob.grad.tolist()})
    return {
        "mask": mask.int().tolist(),
        "sampling": old.tolist(),
        "logprobs": now.tolist(),
        "advantages": advantage.tolist(),
        "cases": cases,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=24)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    batches = []
    for _ in range(arguments.batches):
        mask, groups, rewards, losses = random_batch(rng)
        if mask.sum() < 2:
            continue
        batches.append(
            {
                "groups": groups,
                "mask": mask.astype(int).tolist(),
                "tokenRewards": rewards.tolist(),
                "losses": losses.tolist(),
                "advantages": advantages(mask, groups, rewards),
                "aggregations": aggregations(mask, losses),
            }
        )
    source = f"verl {version('verl')}, torch {torch.__version__.split('+')[0]}, make_vectors.py --seed {arguments.seed}"
    losses = [policy_losses(rng) for _ in range(arguments.batches)]
    print(json.dumps({"source": source, "batches": batches, "policyLosses": losses}))


main()

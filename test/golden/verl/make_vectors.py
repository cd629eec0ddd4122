"""Writes golden vectors of verl's own advantage estimators and loss aggregation.

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
    print(json.dumps({"source": source, "batches": batches}))


main()

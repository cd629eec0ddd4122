"""The official Tinker client trains on a server: supervised first, then by reinforcement.

Usage: tinker-training-loop.py URL BASE_MODEL. Prints one JSON object with what it saw.
"""

import json
import sys

import tinker
from tinker import types

GOOD = range(128)  # the tokens that are rewarded


def supervised_datum(tokens: list[int]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def rollout_datum(prompt: list[int], sequence, advantage: float) -> types.Datum:
    tokens = prompt + list(sequence.tokens)
    masked = len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": [0.0] * masked + list(sequence.logprobs),
            "advantages": [0.0] * masked + [advantage] * len(sequence.tokens),
        },
    )


def main(url: str, base_model: str) -> None:
    seen: dict = {"sdk": tinker.__version__}
    service = tinker.ServiceClient(base_url=url, api_key="tml-test-key")
    models = service.get_server_capabilities().supported_models
    seen["models"] = [model.model_name for model in models]
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    info = training.get_info()
    seen["is_lora"] = info.is_lora

    # Supervised: the loss of one row falls.
    row = [10, 20, 30, 40, 50, 60]
    adam = types.AdamParams(learning_rate=0.01, eps=1e-8)
    losses = []
    for _ in range(8):
        forward = training.forward_backward([supervised_datum(row)], "cross_entropy")
        step = training.optim_step(adam)
        losses.append(forward.result().metrics["loss:sum"])
        seen["optim_metrics"] = sorted((step.result().metrics or {}).keys())
    seen["losses"] = losses

    # Reinforcement: rewarded tokens come more often. Both losses, one after the other.
    prompt = [1, 2, 3]
    rewards = []
    gaps = []
    for iteration in range(12):
        sampler = training.save_weights_and_get_sampling_client(name=f"rl-{iteration}")
        params = types.SamplingParams(max_tokens=8, temperature=1.0, seed=iteration, stop=[0])
        reply = sampler.sample(
            prompt=types.ModelInput.from_ints(prompt), num_samples=16, sampling_params=params
        ).result()
        got = [sum(t in GOOD for t in s.tokens) / 8 for s in reply.sequences]
        mean = sum(got) / len(got)
        rewards.append(mean)
        data = [rollout_datum(prompt, s, r - mean) for s, r in zip(reply.sequences, got)]
        if iteration % 2 == 0:
            forward = training.forward_backward(data, "importance_sampling")
        else:
            config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
            forward = training.forward_backward(data, "ppo", config)
        output = forward.result()
        for sequence, fields in zip(reply.sequences, output.loss_fn_outputs):
            trained = fields["logprobs"].data[len(prompt) - 1 :]
            gaps += [abs(a - b) for a, b in zip(trained, sequence.logprobs)]
        training.optim_step(types.AdamParams(learning_rate=0.02, eps=1e-8)).result()
    seen["rewards"] = rewards
    seen["max_gap"] = max(gaps)

    # A saved state goes on where it was, and its logprobs are the sampler's.
    path = training.save_state("checkpoint").result().path
    seen["path"] = path
    again = service.create_training_client_from_state_with_optimizer(path)
    datum = [supervised_datum(row)]
    first = training.forward(datum, "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    second = again.forward(datum, "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    seen["restored"] = max(abs(a - b) for a, b in zip(first, second)) < 1e-6
    sampler = again.save_weights_and_get_sampling_client(name="last")
    third = sampler.compute_logprobs(types.ModelInput.from_ints(row)).result()
    seen["prompt_gap"] = max(abs(a - b) for a, b in zip(first, third[1:]))

    # A wrong row is the client's fault, said in words.
    try:
        training.forward_backward([rollout_datum([1], reply.sequences[0], 1.0)], "cispo").result()
        bad = supervised_datum([1, 2, 9999])
        training.forward_backward([bad], "cross_entropy").result()
    except Exception as error:  # noqa: BLE001
        seen["refusal"] = str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

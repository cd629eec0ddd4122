"""Makes what safetensors.test.ts compares with: what Hugging Face's libraries read from a
checkpoint that the native backend wrote, and a file that the `safetensors` package wrote.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python test/golden/safetensors/make_golden.py

Needs `npm ci` before, since it starts the writer with `npx tsx`.
"""

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent

with tempfile.TemporaryDirectory() as directory:
    writer = [str(HERE / "golden-checkpoint.ts"), directory]
    inputs = json.loads(subprocess.check_output(["npx", "tsx", *writer], text=True))
    checkpoint = Path(directory) / "checkpoint"
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    rendered = tokenizer.apply_chat_template(
        inputs["messages"], tools=inputs["tools"], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model.double()(torch.tensor([ids])).logits[0]
    logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    weights = (checkpoint / "model.safetensors").read_bytes()
    golden = {
        "madeBy": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "sha256": hashlib.sha256(weights).hexdigest(),
        "rendered": rendered,
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=True),
        "logprobs": logprobs.tolist(),
    }
(HERE / "checkpoint.json").write_text(json.dumps(golden, indent=1) + "\n")

torch.manual_seed(0)
values = torch.cat([torch.randn(10) * 3, torch.tensor([0.0, -0.0, 1e-7, 65504.0, -1e-3, 3.14159])])
tensors = {
    "f32": values.reshape(4, 4),
    "f16": values.to(torch.float16).reshape(2, 8),
    "bf16": values.to(torch.bfloat16),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
}
save_file(tensors, HERE / "types.safetensors", {"format": "pt", "note": "golden"})
expected = {name: {"shape": list(t.shape), "data": t.float().flatten().tolist()} for name, t in tensors.items()}
(HERE / "types.json").write_text(json.dumps(expected, indent=1) + "\n")

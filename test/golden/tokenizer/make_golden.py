"""Makes the tokenizers and vectors of tokenizer.test.ts with Hugging Face `tokenizers`.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python test/golden/tokenizer/make_golden.py

`byte-level` is built as Qwen's and Llama 3's are, `byte-fallback` as Llama 2's; both tiny.
"""

import json
import random
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
CORPUS = [
    "The quick brown fox jumps over the lazy dog. 12345 + 678 = 13023!",
    "def add(a, b):\n    return a + b\n\n# naïve café — “quotes” … 東京 😀",
    '{"name": "calculator", "arguments": {"expression": "12 * 7"}}',
    "Grüße aus München, добрый день, مرحبا",
] * 5
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>"]


def add(tokenizer):
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    return tokenizer


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|\s*[\r\n]+|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]+"
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False))
    return add(tokenizer)


def byte_fallback():
    vocab = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    for character in sorted(set("▁" + "".join(CORPUS[:2]).replace(" ", "▁"))):
        vocab.setdefault(character, len(vocab))
    merges = [("▁", "t"), ("T", "h"), ("o", "v"), ("▁", "a")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return add(tokenizer)


random.seed(1)
texts = CORPUS[:4] + [
    "",
    " leading and trailing  ",
    "<|im_start|>user\nhi<|im_end|>\n<tool_call>\n{}\n</tool_call>",
    "😀é\u0301 nul\u0000 tab\t",
]
result = {"madeBy": f"tokenizers {tokenizers.__version__}"}
for name, tokenizer in {"byte-level": byte_level(), "byte-fallback": byte_fallback()}.items():
    tokenizer.save(str(HERE / f"{name}.json"))
    encoded = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in texts]
    size = tokenizer.get_vocab_size()
    decoded = []
    for _ in range(40):
        ids = [random.randrange(size) for _ in range(random.randrange(1, 9))]
        decoded.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)})
    result[name] = {"encoded": encoded, "decoded": decoded}
(HERE / "vectors.json").write_text(json.dumps(result, ensure_ascii=True, indent=1) + "\n")

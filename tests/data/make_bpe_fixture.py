#!/usr/bin/env python3
"""Makes bpe_tokenizer.json, a small byte-level BPE vocabulary, and bpe_cases.json, texts and what they become, with
Hugging Face's tokenizers (pip install tokenizers), an implementation that Sailor's is compared with.

Run in this folder; the README is the text that the vocabulary is trained on."""

import json
import random
import unicodedata

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with open("../../README.md", encoding="utf-8") as text:
        tokenizer.train_from_iterator([text.read()], trainer)
    return tokenizer


def texts():
    yield from [
        "",
        " ",
        "  ",
        "a",
        " a",
        "  a",
        "the trainer trains the plan",
        "They're, we'll, I'm, it's 'twas don't I'd you've 'S 'LL x's",
        "a  b   c    d\n\n  e\t\tf \n g  ",
        "\r\n\r\n x\r\n",
        "12345 1 2 3 4.5e-6 1,000 \u00bd \u2167 \u0663\u0664",
        "$%^&*() !? ... -- [x] {y} <z> #!/bin/bash",
        "na\u00efve caf\u00e9 \u00e9\u0301 \u03b1\u03b2\u03b3 \u0414\u0430 \u65e5\u672c\u8a9e \u0e20\u0e32\u0e29\u0e32",
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ok\U0001f44d\U0001f3fd",
        "nbsp\u00a0nbsp \u2003em\u2003 \u3000ideographic\u3000 \u2028line \u0085next \u1680ogham",
        "\x00\x01\x1c\x1d \x7f \ufeffbom \u200bzero",
        "a" * 300 + " " * 50 + "b",
        "x " * 40 + " " + "the" * 60,
        "the end" + END + "the beginning",
    ]
    generator = random.Random(20260101)
    letters = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn")]
    pieces = ["'s", "'ll", "'", " ", "  ", "\n", "\t", "\u00a0", "the", "in", "train", "1", "23", "\u00b2", "-", "!", "e"]
    for _ in range(60):
        count = generator.randrange(1, 30)
        yield "".join(
            generator.choice(pieces) if generator.random() < 0.8 else generator.choice(letters) for _ in range(count)
        )


def main():
    tokenizer = train()
    tokenizer.save("bpe_tokenizer.json", pretty=False)
    # Special tokens in a text are text for Sailor, as for Megatron-LM.
    plain = Tokenizer.from_file("bpe_tokenizer.json")
    state = json.loads(plain.to_str())
    state["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(state))
    cases = [{"text": text, "tokens": plain.encode(text).ids} for text in texts()]
    with open("bpe_cases.json", "w", encoding="ascii") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()

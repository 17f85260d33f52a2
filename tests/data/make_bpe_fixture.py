#!/usr/bin/env python3
"""Makes bpe_tokenizer.json, a small byte-level BPE vocabulary, and bpe_cases.json, texts and what they become, with
Hugging Face's tokenizers (pip install tokenizers), an implementation that Sailor's is compared with. llama3_* and
qwen2_* are the same with the pre-tokenizers, normalizers and post-processors of LLaMA-3 and Qwen2.

Run in this folder, with the names of those to make (gpt2, llama3, qwen2); the README is the text that the vocabularies
are trained on."""

import json
import random
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
LLAMA3_BEGIN, LLAMA3_END = "<|begin_of_text|>", "<|end_of_text|>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Trained on as well, so that tokens go across line ends, digits and marks wherever pieces do.
MORE_TEXT = [
    "x = 100 + 2345;\r\n\r\n\tif (x) {\r\n\t\treturn 1000;\r\n\t}\r\n" * 4,
    "IT'S WE'LL DON'T it's we'll don't\n\n  \n    the end\n" * 4,
    unicodedata.normalize("NFD", "na\u00efve caf\u00e9 \u00fcber \u00c5ngstr\u00f6m \ud55c\uad6d\uc5b4 ") * 4,
]


def split(numbers):
    pattern = Regex(SPLIT % numbers)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_modern(name):
    llama3 = name == "llama3"
    tokenizer = Tokenizer(models.BPE(ignore_merges=llama3))
    tokenizer.pre_tokenizer = split(r"\p{N}{1,3}" if llama3 else r"\p{N}")
    tokenizer.decoder = decoders.ByteLevel()
    if not llama3:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    with open("../../README.md", encoding="utf-8") as text:
        tokenizer.train_from_iterator([text.read()] + MORE_TEXT, trainer)
    if llama3:  # a token that only ignore_merges makes
        state = json.loads(tokenizer.to_str())
        state["model"]["vocab"]["\u0120zebras"] = len(state["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(state))
    # Behind the vocabulary, as in the originals.
    tokenizer.add_special_tokens([LLAMA3_BEGIN, LLAMA3_END] if llama3 else [END, "<|im_start|>", "<|im_end|>"])
    byte_level = processors.ByteLevel(trim_offsets=False)
    if llama3:
        number = tokenizer.token_to_id(LLAMA3_BEGIN)
        template = processors.TemplateProcessing(
            single=f"{LLAMA3_BEGIN} $A", pair=f"{LLAMA3_BEGIN} $A {LLAMA3_BEGIN}:1 $B:1",
            special_tokens=[(LLAMA3_BEGIN, number)],
        )
        tokenizer.post_processor = processors.Sequence([byte_level, template])
        assert tokenizer.encode("").ids == [number]
    else:
        tokenizer.post_processor = byte_level
    return tokenizer


def train_gpt2():
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


def modern_texts():
    """Further texts, on which the newer pre-tokenizers differ from GPT-2's."""
    yield from [
        "it's IT'S iT'Ll WE'VE You'RE I'M he'D can'T 'SS 'lL '\u017f '\u017fa \u017f'\u017f o'\u017fo 'st 'x 'L 'V",
        "1 12 123 1234 12345678 \u0663\u0664\u0665\u0666 \u00bd\u2167\u00b2\u00b3 a1b22c333d4444",
        "a\r\n\r\nb\n\n\nc\r\rd \n e\t\n\tf  \n  g   \n   \n   ",
        "!\n?\r\n\r\n...\n\n- x\n - y;\n\t// z\n",
        "$x @name #tag (word) \"quoted\" _under \tTab \u00a0nbsp \u3000wide !a !!a \n!a",
        "\u2028line \u2029paragraph \u0085next\u0085\n\u2028\n x",
        "e\u0301 a\u0301\u0327 \u0301 \u0301x o\u0308\n\u0301 \u1112\u1161\u11ab\u1100\u116e\u11a8 \u2126 \u212b \uf900 \u0958",
        "q\u0323\u0307 q\u0307\u0323 \u0c46\u0c56 \u09c7\u09be \U0001d15e \U000110ba \u0344 \u0f71\u0f72\u0f74",
        "e\u1df6\u0301 a\u0327\u1df6\u0301 \u0898\u0301\u0327\u1abf\u0327 \U0001133b\u0301\u0327",  # newer than Unicode 9
        "the zebras zebras the zebra",
        "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940 \u05e2\u05b4\u05d1 \u0627\u0644\u0639\u064e",
        "",
        " ",
        "\n",
        "\r",
        "'",
        "1",
    ]
    generator = random.Random(20260202)
    letters = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    marks = [letter for letter in letters if unicodedata.combining(letter)]
    pieces = "'s|'LL|'Re|'|\u017f| |  |\n|\r|\r\n|\t|\u00a0|\u2028|the|in|E|o|1|23|\u00b2|-|!|zebras|\u1112|\u1161|\u11ab".split("|")
    for _ in range(150):
        count = generator.randrange(1, 30)
        yield "".join(
            generator.choice(pieces if generator.random() < 0.7 else marks if generator.random() < 0.5 else letters)
            for _ in range(count)
        )


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
    for name in sys.argv[1:]:
        tokenizer = train_gpt2() if name == "gpt2" else train_modern(name)
        prefix = "bpe" if name == "gpt2" else name
        tokenizer.save(f"{prefix}_tokenizer.json", pretty=False)
        # Special tokens in a text are text for Sailor, as for Megatron-LM.
        plain = Tokenizer.from_file(f"{prefix}_tokenizer.json")
        state = json.loads(plain.to_str())
        state["added_tokens"] = []
        state["post_processor"] = None
        plain = Tokenizer.from_str(json.dumps(state))
        all_texts = list(texts()) + ([] if name == "gpt2" else list(modern_texts()))
        cases = [{"text": text, "tokens": plain.encode(text).ids} for text in all_texts]
        if name != "gpt2":
            for case in cases:  # bytes of each piece: in the alphabet of ByteLevel, a character is a byte
                text = plain.normalizer.normalize_str(case["text"]) if plain.normalizer else case["text"]
                case["pieces"] = [len(piece) for piece, _ in plain.pre_tokenizer.pre_tokenize_str(text)]
        with open(f"{prefix}_cases.json", "w", encoding="ascii") as out:
            out.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()

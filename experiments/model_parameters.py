#!/usr/bin/env python3
"""Parameters and FLOP of Hugging Face's models as Sailor reads them from config.json, beside transformers and PyTorch.

Usage: experiments/model_parameters.py

For each public model below: its configuration is built by transformers, written as config.json and read by
`sailor-profile model` ($PATH, else build/bin). Parameters are compared with the model that transformers builds on the
meta device, without weights. FLOP of the forward pass are compared with torch.utils.flop_counter on a small model of the
same family, which is computed on the CPU with attention that is not fused: products, scores of all pairs of tokens
included; those that make rotary tables are left out. A minute in all. Needs Python with transformers 5 and torch; says so
otherwise and ends with 77.

Exit status 1 when a number differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode
except ImportError as error:
    print(f"model_parameters.py: skipped: {error}")
    sys.exit(77)

from planning_time import MODELS as PLANNED, llama_like

HERE = pathlib.Path(__file__).resolve().parent.parent
# The sizes that the publishers' config.json have.
MODELS = {
    "LLaMA-2-7B": ("llama", llama_like(4096, 32, 32, 32, 11008, vocab_size=32000, max_position_embeddings=4096)),
    "LLaMA-3-8B": PLANNED["LLaMA-3-8B"],
    "LLaMA-3-70B": PLANNED["LLaMA-3-70B"],
    "LLaMA-3.2-1B": ("llama", llama_like(2048, 16, 32, 8, 8192, vocab_size=128256, max_position_embeddings=131072,
                                         head_dim=64, tie_word_embeddings=True)),
    "Mistral-7B-v0.1": ("mistral", llama_like(4096, 32, 32, 8, 14336, vocab_size=32000, sliding_window=4096,
                                              max_position_embeddings=32768)),
    "Qwen2.5-0.5B": ("qwen2", llama_like(896, 24, 14, 2, 4864, vocab_size=151936, max_position_embeddings=32768,
                                         tie_word_embeddings=True)),
    "Qwen2.5-7B": ("qwen2", llama_like(3584, 28, 28, 4, 18944, vocab_size=152064, max_position_embeddings=131072,
                                       tie_word_embeddings=False)),
    "Qwen1.5-MoE-A2.7B": ("qwen2_moe", llama_like(
        2048, 24, 16, 16, 5632, vocab_size=151936, max_position_embeddings=8192, moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632, num_experts_per_tok=4, num_experts=60)),
    "Qwen3-8B": ("qwen3", llama_like(4096, 36, 32, 8, 12288, vocab_size=151936, max_position_embeddings=40960,
                                     head_dim=128)),
    "Qwen3-30B-A3B": PLANNED["Qwen3-30B-A3B"],
    "Mixtral-8x7B": PLANNED["Mixtral-8x7B"],
    "DeepSeek-V3": PLANNED["DeepSeek-V3"],
    "Gemma-7B": ("gemma", llama_like(3072, 28, 16, 16, 24576, vocab_size=256000, max_position_embeddings=8192,
                                     head_dim=256)),
    "Gemma-2-9B": ("gemma2", llama_like(3584, 42, 16, 8, 14336, vocab_size=256000, max_position_embeddings=8192,
                                        head_dim=256, sliding_window=4096)),
    "Gemma-3-1B": ("gemma3_text", llama_like(1152, 26, 4, 1, 6912, vocab_size=262144, max_position_embeddings=32768,
                                             head_dim=256, sliding_window=512)),
    "GPT-OSS-20B": ("gpt_oss", llama_like(2880, 24, 64, 8, 2880, vocab_size=201088, max_position_embeddings=131072,
                                          head_dim=64, num_local_experts=32, num_experts_per_tok=4,
                                          sliding_window=128)),
    "GPT-2": ("gpt2", {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}),
    "GPT-NeoX-20B": ("gpt_neox", {"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
                                  "num_attention_heads": 64, "intermediate_size": 24576,
                                  "max_position_embeddings": 2048}),
    "OPT-350M": ("opt", {"vocab_size": 50272, "hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096,
                         "num_attention_heads": 16, "word_embed_proj_dim": 512, "do_layer_norm_before": False,
                         "max_position_embeddings": 2048}),
    "OPT-6.7B": ("opt", {"vocab_size": 50272, "hidden_size": 4096, "num_hidden_layers": 32, "ffn_dim": 16384,
                         "num_attention_heads": 32, "word_embed_proj_dim": 4096, "max_position_embeddings": 2048}),
}

# A small model of the same family computes fast, and shows the same products.
SMALL = {"vocab_size": 320, "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 160,
         "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
         "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 16, "num_experts_per_tok": 4,
         "first_k_dense_replace": 1, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 20,
         "qk_rope_head_dim": 12, "v_head_dim": 16, "n_embd": 96, "n_layer": 4, "n_head": 6, "ffn_dim": 160,
         "word_embed_proj_dim": 64, "sliding_window": 512}
SEQUENCE = 64


def small(sizes):
    changed = {key: SMALL.get(key, value) for key, value in sizes.items()}
    if changed.get("num_key_value_heads") and sizes["num_key_value_heads"] == sizes["num_attention_heads"]:
        changed["num_key_value_heads"] = changed["num_attention_heads"]
    if sizes.get("word_embed_proj_dim") == sizes.get("hidden_size"):
        changed.pop("word_embed_proj_dim", None)
    return changed


def configuration(family, sizes):
    return transformers.AutoConfig.for_model(family, **sizes)


def read_by_sailor(config, folder, sequence):
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    done = subprocess.run(["sailor-profile", "model", "--model", path, "--sequence-length", str(sequence), "--format",
                           "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"model_parameters.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def parameters_of(config):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def counted_flop(config):
    """Of one sequence, without what makes rotary tables."""
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tokens = torch.arange(SEQUENCE).remainder(config.vocab_size).unsqueeze(0)
    with torch.no_grad(), FlopCounterMode(display=False, depth=None) as counter:
        model(input_ids=tokens, use_cache=False)
    counts = counter.get_flop_counts()
    rotary = sum(sum(operations.values()) for module, operations in counts.items() if module.endswith("rotary_emb"))
    return counter.get_total_flops() - rotary


def expected_flop(config, folder):
    """Sailor's, with attention to all tokens instead of the half that a causal mask leaves. It is linear in the length."""
    one, two = (read_by_sailor(config, folder, length)["forward_flop_per_token"] for length in (1, 2))
    return (one - (two - one) + 2.0 * (two - one) * SEQUENCE) * SEQUENCE


def main():
    os.environ["PATH"] += os.pathsep + str(HERE / "build/bin")
    wrong = 0
    print(f"# Models of Hugging Face as Sailor reads them\n\ntransformers {transformers.__version__}, torch "
          f"{torch.__version__}; experiments/model_parameters.py. FLOP: of the forward pass of {SEQUENCE} tokens through "
          "a small model of\nthe family, all pairs of tokens.\n\n| model | family | parameters, Sailor | transformers | "
          "active | FLOP, Sailor | flop_counter | equal |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (family, sizes) in MODELS.items():
            config = configuration(family, sizes)
            ours = read_by_sailor(config, folder, 1)
            theirs = parameters_of(config)
            little = configuration(family, small(sizes))
            flop, counted = expected_flop(little, folder), counted_flop(little)
            equal = ours["parameters"] == theirs and round(flop) == counted
            wrong += not equal
            print(f"| {name} | {family} | {ours['parameters']:,} | {theirs:,} | {ours['active_parameters']:,} | "
                  f"{flop:,.0f} | {counted:,} | {'yes' if equal else 'NO'} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

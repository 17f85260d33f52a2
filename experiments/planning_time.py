#!/usr/bin/env python3
"""Plans for models that people train, on 16 to 256 GH200 and on A100 with V100, and how long finding them takes.

Usage: experiments/planning_time.py [--framework NAME] [--only TEXT] [--threads N] [PROGRAM]

LLaMA-3-8B and -70B, Mixtral-8x7B, DeepSeek-V3 and Qwen3-30B-A3B by their publishers' config.json, 256 sequences of 4,096
tokens. Prints for each the best plan, its throughput, what is known of better ones, and seconds of the whole process;
where a model does not fit, what sailor-plan says that it takes. NAME: as for sailor-plan [megatron-core]. TEXT: only
inputs whose name contains it. PROGRAM: sailor-plan [that of $PATH, else of build/bin]. No profile is needed: times come
from the catalogue of GPU types.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def llama_like(*sizes, **more):
    return dict(zip(SIZES, sizes), **more)


# The sizes that the publishers' config.json have.
MODELS = {
    "LLaMA-3-8B": ("llama", llama_like(4096, 32, 32, 8, 14336, vocab_size=128256, max_position_embeddings=8192)),
    "LLaMA-3-70B": ("llama", llama_like(8192, 80, 64, 8, 28672, vocab_size=128256, max_position_embeddings=8192)),
    "Mixtral-8x7B": ("mixtral", llama_like(4096, 32, 32, 8, 14336, vocab_size=32000, max_position_embeddings=32768,
                                           num_experts_per_tok=2, num_local_experts=8)),
    "Qwen3-30B-A3B": ("qwen3_moe", llama_like(
        2048, 48, 32, 4, 6144, vocab_size=151936, max_position_embeddings=40960, head_dim=128, moe_intermediate_size=768,
        num_experts_per_tok=8, num_experts=128)),
    "DeepSeek-V3": ("deepseek_v3", llama_like(
        7168, 61, 128, 128, 18432, vocab_size=129280, max_position_embeddings=163840, moe_intermediate_size=2048,
        n_shared_experts=1, n_routed_experts=256, num_experts_per_tok=8, first_k_dense_replace=3, q_lora_rank=1536,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)),
}
# Nodes of four GPUs, and a precision that all of them compute in.
CLUSTERS = {
    "16 GH200": ("4x4:GH200", "bf16"),
    "64 GH200": ("16x4:GH200", "bf16"),
    "256 GH200": ("64x4:GH200", "bf16"),
    "64 A100-80 + 64 V100-32": ("16x4:A100-80,16x4:V100-32", "fp16"),
}


def configuration(kind, sizes):
    """config.json as Hugging Face's files have it; what is left out has transformers' default."""
    return {"model_type": kind, "tie_word_embeddings": False, **sizes}


def search(command):
    """(text, seconds)"""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        return " ".join(done.stderr[max(done.stderr.find("error: "), 0):].split()), seconds  # after what is warned of
    answer = json.loads(done.stdout)
    plan = answer["plans"][0]
    gap = answer.get("bound", {}).get("gap")
    known = "no bound" if gap is None else f"none is more than {gap:.1%} faster"
    return f"{plan['throughput_iterations_per_s']:.4f} it/s, {known}: {plan['description']}", seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="megatron-core", metavar="NAME")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--threads", default=None, metavar="N")
    parser.add_argument("program", nargs="?", default=shutil.which("sailor-plan") or str(HERE.parent / "build/bin/sailor-plan"))
    options = parser.parse_args()
    longest = (0.0, "")
    with tempfile.TemporaryDirectory() as scratch:
        for model, sizes in MODELS.items():
            where = pathlib.Path(scratch) / model / "config.json"
            where.parent.mkdir()
            where.write_text(json.dumps(configuration(*sizes)))
            for cluster, (gpus, precision) in CLUSTERS.items():
                name = f"{model}, {cluster}"
                if options.only not in name:
                    continue
                threads = [] if options.threads is None else ["--threads", options.threads]
                text, seconds = search([options.program, "--model", where, "--gpus", gpus, "--precision", precision, "--framework",
                                        options.framework, "--global-batch", "256", "--sequence-length", "4096", "--top", "1",
                                        "--format", "json", *threads])
                print(f"{name:40} {seconds:6.1f} s  {text}", flush=True)
                longest = max(longest, (seconds, name))
    print(f"longest: {longest[0]:.1f} s, {longest[1]}")


if __name__ == "__main__":
    main()

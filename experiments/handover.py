#!/usr/bin/env python3
"""Whether the frameworks that plans are handed over to take what `--format` writes.

Usage: experiments/handover.py [--plans N]      (python with megatron-core, torchtitan and torch; no GPU)

Plans of LLaMA-3-8B and of a model with experts for several clusters are made by `sailor-plan --framework megatron-core`
or `torch-fsdp` ($PATH, else build/bin) and handed over by `sailor-simulate --format`. Then
- Megatron-Core: its TransformerConfig is built from the arguments, as arguments.py does it, and its
  PipelineParallelLayerLayout from the layout; the layers of every stage, every size and the groups of ranks that its
  RankGenerator makes are compared with the plan.
- torchtitan: its configuration manager parses the overrides, or (release 0.2) the file; degrees, batch and modules of every
  stage are compared. Both releases: pip install --no-deps --target DIR torchtitan==0.2.2; PYTHONPATH=DIR once more.
What differs is an error: exit status 1. Without the frameworks it is skipped: exit status 77.
"""
import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent.parent
MODEL_WITH_EXPERTS = """schema_version = 1
name = "experts"
source = "made for experiments/handover.py"
blocks = 30
hidden = 2048
attention_heads = 16
key_value_heads = 4
feed_forward = 8192
vocabulary = 102400
max_sequence_length = 4096
norm = "rms_norm"
norm_placement = "pre"
final_norm = "in_head"
activation = "swiglu"
position = "rotary"
linear_bias = false
tied_embedding = false
[experts]
count = 16
per_token = 2
feed_forward = 1408
shared_feed_forward = 2816
first_dense = 1
"""
# GPUs, model, global batch, more options
CASES = [
    ("8x4:GH200-96", "llama-3-8b", 64, []),
    ("8x4:GH200-96", "llama-3-8b", 64, ["--pin", "pipeline_parallel=4"]),
    ("8x4:GH200-96", "llama-3-8b", 64, ["--pin", "pipeline_parallel=5,tensor_parallel=2"]),
    ("8x4:GH200-96", "llama-3-8b", 96, ["--pin", "pipeline_parallel=4,schedule=interleaved-1f1b"]),
    ("4x4:A100-40", "llama-3-8b", 32, []),
    ("4x4:A100-40", "llama-3-8b", 32, ["--pin", "recompute=full,data_parallel=2"]),
    ("4x4:GH200-96,4x4:A100-40", "llama-3-8b", 64, []),
    ("4x4:GH200-96", "experts", 64, ["--pin", "pipeline_parallel=2"]),
    ("4x4:GH200-96", "experts", 64, ["--pin", "pipeline_parallel=2,expert_parallel=4"]),
    ("4x4:GH200-96", "llama-3-8b", 64, ["--pin", "pipeline_parallel=2,context_parallel=2"]),
    ("8x4:GH200-96", "llama-3-8b", 64, ["--pin", "sharding_degree=4,pipeline_parallel=1"]),
    ("8x4:GH200-96", "llama-3-8b", 64, ["--pin", "sharding_degree=4,pipeline_parallel=2,tensor_parallel=1"]),
]


def can_import(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def program(name):
    return shutil.which(name) or str(HERE / "build/bin" / name)


def error_of(done):
    """What a program that failed says last."""
    return done.stderr.strip().splitlines()[-1]


def run(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode not in (0, 2, 3):  # 2, 3: there is no such plan
        raise SystemExit(f"{shlex.join(arguments)}: exit status {done.returncode}\n{done.stderr}")
    return done


def words_of(script, array):
    """The words of an array that bash gets from `script`."""
    text = subprocess.run(["bash", "-c", f'source /dev/stdin; printf "%s\\n" "${{{array}[@]}}"'], input=script,
                          capture_output=True, text=True, check=True).stdout
    return text.splitlines()


def options_of(words):
    options = {}
    for word in words:
        if word.startswith("--"):
            name = word
            options[name] = []
        else:
            options[name].append(word)
    return options


def chunks_of(plan, blocks):
    """Blocks of every chunk in the order of the pipeline, as ranges, of the first pipeline."""
    stages = plan["pipelines"][0]["stages"]
    chunks = [[stage["layers"]] if not isinstance(stage["layers"][0], list) else stage["layers"] for stage in stages]
    for turn in range(len(chunks[0])):
        for chunk in chunks:
            first, last = chunk[turn]
            yield range(max(first, 1) - 1, min(last, blocks + 1) - 1)


def check(errors, what, got, wanted):
    if got != wanted:
        errors.append(f"{what}: {got}, the plan has {wanted}")


def rank_groups(Generator, by_pipeline, tensor, context, experts, data, stages):
    """What is wrong with the groups that initialize_model_parallel() of Megatron-Core makes of its ranks.

    `Generator` is its RankGenerator. Ranks stand for (stage, pipeline, part of the sequence, part of the layer), numbered as
    the hand-over says: by pipeline (--use-tp-pp-dp-mapping), as plans are, or by stage."""
    order = "tp-cp-ep-pp-dp" if by_pipeline else "tp-cp-ep-dp-pp"
    replicas = data * context // experts  # of the experts; their tensor parallelism is that of the rest
    if by_pipeline and stages > 1 and replicas != data:
        return ["Megatron-Core refuses the order of ranks: experts and the rest have other numbers of replicas"]
    everything = Generator(tp=tensor, ep=1, dp=data, pp=stages, cp=context, order=order)
    of_experts = Generator(tp=tensor, ep=experts, dp=replicas, pp=stages, cp=1, order=order)

    def number(stage, pipeline, part, shard):
        outer = pipeline * stages + stage if by_pipeline else stage * data + pipeline
        return (outer * context + part) * tensor + shard

    places = [(pipeline, part, shard) for pipeline in range(data) for part in range(context) for shard in range(tensor)]
    wanted = {
        "pp": [[number(stage, *place) for stage in range(stages)] for place in places],
        "dp": [[number(stage, pipeline, part, shard) for pipeline in range(data)]
               for stage in range(stages) for part in range(context) for shard in range(tensor)],
        "tp": [[number(stage, pipeline, part, shard) for shard in range(tensor)]
               for stage in range(stages) for pipeline in range(data) for part in range(context)],
    }
    copies = [(pipeline, part) for pipeline in range(data) for part in range(context)]
    members = [[number(stage, *copy, shard) for copy in copies[first:first + experts]]
               for stage in range(stages) for shard in range(tensor) for first in range(0, len(copies), experts)]
    errors = []
    for name, groups in wanted.items():
        check(errors, f"{name} groups of ranks", sorted(everything.get_ranks(name)), sorted(groups))
    check(errors, "pp groups of experts", sorted(of_experts.get_ranks("pp")), sorted(wanted["pp"]))
    check(errors, "groups of ranks that divide experts", sorted(of_experts.get_ranks("ep")), sorted(members))
    return errors


def megatron(script, plan, model):
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    options = options_of(words_of(script, "SAILOR_MEGATRON_ARGS"))
    value = lambda name, default=None: (options[name][0] if options[name] else True) if name in options else default
    number = lambda name, default=None: int(value(name)) if name in options else default
    pipeline = plan["pipelines"][0]
    stages = number("--pipeline-model-parallel-size")
    layout = value("--pipeline-model-parallel-layout")
    virtual = number("--num-virtual-stages-per-pipeline-rank")
    if layout:
        count = PipelineParallelLayerLayout.get_num_stages_from_str(layout)
        virtual = count // stages if count > stages else None
    frequency = value("--moe-layer-freq", "1")
    config = TransformerConfig(
        num_layers=number("--num-layers"), hidden_size=number("--hidden-size"),
        ffn_hidden_size=number("--ffn-hidden-size"), num_attention_heads=number("--num-attention-heads"),
        num_query_groups=number("--num-query-groups"), kv_channels=number("--kv-channels"),
        normalization=value("--normalization"), layernorm_epsilon=float(value("--norm-epsilon")),
        gated_linear_unit=value("--swiglu", False), activation_func=torch.nn.functional.silu,
        add_bias_linear=not value("--disable-bias-linear", False), add_qkv_bias=value("--add-qkv-bias", False),
        tensor_model_parallel_size=number("--tensor-model-parallel-size"), pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=virtual, pipeline_model_parallel_layout=layout,
        sequence_parallel=value("--sequence-parallel", False), bf16=value("--bf16", False),
        pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16,
        recompute_granularity=value("--recompute-granularity"), recompute_method=value("--recompute-method"),
        recompute_num_layers=number("--recompute-num-layers"), num_moe_experts=number("--num-experts"),
        moe_router_topk=number("--moe-router-topk", 2), moe_ffn_hidden_size=number("--moe-ffn-hidden-size"),
        moe_shared_expert_intermediate_size=number("--moe-shared-expert-intermediate-size"),
        moe_layer_freq=eval(frequency, {"__builtins__": {}}),
        moe_token_dispatcher_type=value("--moe-token-dispatcher-type", "allgather"))
    errors = []
    expected = [list(blocks) for blocks in chunks_of(plan, model["blocks"])]
    if layout:
        held = config.pipeline_model_parallel_layout
        held.validate_layer_layout(num_layers=config.num_layers, mtp_num_layers=0)
        # get_layer_id_list() asks the process groups for their size; without them, by the table that it reads.
        count, got = 0, []
        for turn in range(held.virtual_pipeline_model_parallel_size):
            for rank in range(stages):
                here = held.layout[rank][turn].count(LayerType.decoder)
                got.append(list(range(count, count + here)))
                count += here
    else:
        each = config.num_layers // (stages * (virtual or 1))
        got = [list(range(each * i, each * (i + 1))) for i in range(stages * (virtual or 1))]
    check(errors, "blocks of the stages", got, expected)
    tensor = pipeline["stages"][0]["tensor_parallel"]
    check(errors, "stages", stages, len(pipeline["stages"]))
    check(errors, "tensor parallelism", config.tensor_model_parallel_size, tensor)
    check(errors, "micro-batch", number("--micro-batch-size"), pipeline.get("micro_batch", plan["micro_batch"]))
    check(errors, "global batch", number("--global-batch-size"), plan["job"]["global_batch"])
    replicas = sum(each.get("count", 1) for each in plan["pipelines"])
    check(errors, "sharding groups", number("--num-distributed-optimizer-instances", 1),
          replicas // plan.get("sharding_degree", replicas))
    check(errors, "micro-batches",
          number("--global-batch-size") // (replicas * number("--micro-batch-size")), pipeline["micro_batches"])
    return errors + rank_groups(parallel_state.RankGenerator, "--use-tp-pp-dp-mapping" in options, tensor,
                                number("--context-parallel-size", 1), number("--expert-model-parallel-size", 1), replicas,
                                stages)


def torchtitan(script, plan, model):
    from torchtitan.config.manager import ConfigManager

    if torchtitan_format() == "torchtitan":
        config = ConfigManager().parse_args(
            ["--module", "llama3", "--config", "llama3_8b", *words_of(script, "SAILOR_TORCHTITAN_ARGS")])
        recomputes, head = type(config.activation_checkpoint).__qualname__ == "FullAC.Config", "lm_head"
    else:
        pathlib.Path("torchtitan.toml").write_text(script)
        config = ConfigManager().parse_args(["--job.config_file", "torchtitan.toml"])
        recomputes, head = config.activation_checkpoint.mode == "full", "output"
    errors = []
    pipeline = plan["pipelines"][0]
    stages = len(pipeline["stages"])
    replicas = sum(each.get("count", 1) for each in plan["pipelines"])
    check(errors, "stages", config.parallelism.pipeline_parallel_degree, stages)
    check(errors, "tensor parallelism", config.parallelism.tensor_parallel_degree,
          pipeline["stages"][0]["tensor_parallel"])
    check(errors, "data parallelism", config.parallelism.data_parallel_replicate_degree *
          config.parallelism.data_parallel_shard_degree, replicas)
    check(errors, "sharding groups", config.parallelism.data_parallel_shard_degree,
          plan.get("sharding_degree", replicas))
    check(errors, "global batch", config.training.global_batch_size, plan["job"]["global_batch"])
    check(errors, "recomputation", recomputes, pipeline["stages"][0].get("recompute") == "full")
    if stages > 1:
        parts = config.parallelism.module_fqns_per_model_part
        blocks = [[int(name.removeprefix("layers.")) for name in part if name.startswith("layers.")] for part in parts]
        check(errors, "blocks of the stages", blocks, [list(each) for each in chunks_of(plan, model["blocks"])])
        check(errors, "ends", (parts[0][0], parts[-1][-2:]), ("tok_embeddings", ["norm", head]))
    return errors


def torchtitan_format():
    """The form that this release reads."""
    return "torchtitan-toml" if importlib.metadata.version("torchtitan").startswith("0.2") else "torchtitan"


def versions():
    names = ["megatron-core", "torchtitan", "torch"]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=len(CASES), help="how many of the cases [all]")
    arguments = parser.parse_args()
    for name in ("megatron.core", "torchtitan"):
        if not can_import(name):
            print(f"skipped: python has no module {name}")
            return 77
    print(f"# {run(program('sailor-plan'), '--version').stdout.splitlines()[0]}; {versions()}")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.mkdir("models")
        pathlib.Path("models/experts.toml").write_text(MODEL_WITH_EXPERTS)
        for gpus, model_name, batch, more in CASES[:arguments.plans]:
            own = pathlib.Path(f"models/{model_name}.toml")
            where = ["--models", "models"] if own.exists() else []
            model = tomllib.loads((own if where else HERE / "profiles" / own).read_text())
            for format_name, framework, pins, take in (
                    ("megatron", "megatron-core", [], megatron),
                    (torchtitan_format(), "torch-fsdp", ["--pin", "optimizer_sharding=zero2"], torchtitan)):
                title = f"{format_name:15} {gpus}, {model_name}, batch {batch} {' '.join(more)}".rstrip()
                if format_name != "megatron" and model_name != "llama-3-8b":
                    continue
                made = run(program("sailor-plan"), "--gpus", gpus, "--model", model_name, "--global-batch", str(batch),
                           "--sequence-length", "4096", "--precision", "bf16", "--framework", framework, "--top", "1",
                           "--time-limit", "20", "-o", "plan.toml", *where, *pins, *more)
                if made.returncode != 0:
                    print(f"{title}: no plan, {error_of(made)}")
                    continue
                plan = tomllib.loads(pathlib.Path("plan.toml").read_text())
                done = subprocess.run([program("sailor-simulate"), "plan.toml", "--profile", "published", "--format",
                                       format_name, *where], capture_output=True, text=True)
                if done.returncode == 2:
                    print(f"{title}: refused, {error_of(done)}")
                    continue
                if done.returncode != 0:
                    raise SystemExit(f"{title}: exit status {done.returncode}\n{done.stderr}")
                errors = take(done.stdout, plan, model)
                failures += len(errors)
                described = done.stdout.splitlines()[1].split(": ", 1)[1]
                print(f"{title}: {'; '.join(errors) or 'taken as planned'} ({described})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

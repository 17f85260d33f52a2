# Overrides of a configuration of torchtitan 0.3 for a plan of Sailor.
# Written by a test from a plan for llama-3-8b in bf16: 4 pipelines of 4 stages on H200-141 x2, micro-batch 2, zero1.
# 32 ranks: 0-31 on H200-141; 8 micro-batches per iteration.
# FSDP shards gradients, too, so that it needs no more memory than the plan's ZeRO-1.
# torchtitan numbers ranks by stage: rank r has stage r / 8.
# Source this file in bash. Name a registered configuration of
# llama-3-8b: 32 blocks, hidden size 4096, 32 heads; overrides of your own go before the array:
#   torchrun ... -m torchtitan.train --module M --config C "${SAILOR_TORCHTITAN_ARGS[@]}"
SAILOR_TORCHTITAN_ARGS=(
  --parallelism.module_fqns_per_model_part
    tok_embeddings,layers.0
    layers.1,layers.2
    layers.3,layers.4,layers.5,layers.6,layers.7,layers.8,layers.9,layers.10,layers.11,layers.12,layers.13,layers.14,layers.15,layers.16,layers.17
    layers.18,layers.19,layers.20,layers.21,layers.22,layers.23,layers.24,layers.25,layers.26,layers.27,layers.28,layers.29,layers.30,layers.31,norm,lm_head
  --training.disable_cuda_graphs
  --training.local_batch_size 16
  --training.global_batch_size 64
  --training.seq_len 4096
  --training.dtype float32
  --training.mixed_precision_param bfloat16
  --parallelism.data_parallel_replicate_degree 1
  --parallelism.data_parallel_shard_degree 4
  --parallelism.tensor_parallel_degree 2
  --parallelism.context_parallel_degree 1
  --parallelism.pipeline_parallel_degree 4
  --parallelism.fsdp_reshard_after_forward never
  --parallelism.pipeline_parallel_schedule 1F1B
  --parallelism.pipeline_parallel_microbatch_size 2
  activation-checkpoint:none
)

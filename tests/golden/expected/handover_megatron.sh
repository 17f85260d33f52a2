# Arguments of Megatron-Core 0.13 to 0.16 (pretrain_gpt.py of Megatron-LM) for a plan of Sailor.
# Written by a test from a plan for llama-3-8b in bf16: 2 pipelines of 4 stages on H200-141 x4, micro-batch 2, zero1.
# 32 ranks: 0-31 on H200-141; 16 micro-batches per iteration.
# Predicted for framework megatron-core: 4.5 s per iteration, 61 GiB on the fullest GPU.
# Source this file in bash, and add what a plan does not say: data, tokenizer, learning rate,
# --train-iters:
#   torchrun ... pretrain_gpt.py "${SAILOR_MEGATRON_ARGS[@]}" --train-iters N ...
export CUDA_DEVICE_MAX_CONNECTIONS=1
SAILOR_MEGATRON_ARGS=(
  # parallelism
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 4
  --context-parallel-size 1
  --sequence-parallel
  --pipeline-model-parallel-layout 'Et*8|t*9|t*8|t*7L'
  --use-tp-pp-dp-mapping
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  # batch
  --seq-length 4096
  --micro-batch-size 2
  --global-batch-size 64
  # precision and recomputation
  --bf16
  # model
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --group-query-attention
  --num-query-groups 8
  --position-embedding-type rope
  --rotary-base 500000
  --max-position-embeddings 8192
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --vocab-size 128256
  --attention-dropout 0.0
  --hidden-dropout 0.0
)

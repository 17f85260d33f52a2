// plan.toml, model files and the GPU catalogue.
#include "apps/reference/formats.hpp"

namespace sailor::apps {

FileKey schema_version_key() { return {"schema_version", "integer", "required", "1; any other version is refused"}; }

FileFormat plan_format() {
  return {
      .name = "plan.toml",
      .purpose = "training plan of Sailor: which GPUs train which layers, and in which order",
      .paragraphs =
          {"sailor-plan writes plan.toml; sailor-simulate, sailor-submit, sailor-train, sailor-launch, sailor-check "
           "and "
           "the SPANK plugin read it. It may be written or edited by hand: what is wrong is refused with file, line "
           "and "
           "reason.",
           "A plan is a set of pipelines. A pipeline is a chain of stages that together hold every layer once; each "
           "stage is one tensor-parallel group of GPUs of one type inside one node, or several that divide each "
           "sequence among them (context_parallel). Pipelines may differ in "
           "everything. "
           "Identical ones are written once, with a count: that is data parallelism.",
           "The sum over all pipelines of count x micro_batches x micro_batch is the global batch. Layers are numbered "
           "from 0: the embedding, the transformer blocks, the final norm where it is a layer of its own, and the "
           "head. "
           "Ranges of layers are half-open: [0, 3] holds the layers 0, 1 and 2."},
      .tables =
          {{.name = "",
            .keys =
                {schema_version_key(),
                 {"micro_batch", "integer", "required", "sequences of a micro-batch"},
                 {"schedule", "string", "required", "1f1b, gpipe or interleaved-1f1b"},
                 {"optimizer_sharding", "string", "none",
                  "zero1 divides the optimizer state of a stage among its replicas, zero2 also its gradients, zero3 "
                  "also its weights"},
                 {"sharding_degree", "integer", "0",
                  "replicas that share what optimizer_sharding divides: groups of so many consecutive replicas hold "
                  "everything, and all-reduce the gradients of their shards with the other groups (hybrid sharding, "
                  "HSDP). It divides the replicas (pipelines x context_parallel); 0: all replicas are one group, "
                  "which is what sailor-train does"},
                 {"keep_together", "string", "pipelines",
                  "what is placed at one leaf switch: the stages of a pipeline (pipelines), or the replicas of a "
                  "stage (replicas)"},
                 {"context_parallel", "integer", "1",
                  "tensor-parallel groups of every stage, which divide each sequence: a stage takes "
                  "tensor_parallel x context_parallel GPUs. Twice this divides sequence_length; for sailor-train "
                  "tensor_parallel x context_parallel divides the model's key-value heads"},
                 {"expert_parallel", "integer", "1",
                  "GPUs that divide the experts of a layer, out of the count x context_parallel that hold the same "
                  "layers: it divides them, and the experts, and takes no further GPUs"}}},
           {.name = "[job]",
            .about = "What is trained.",
            .keys =
                {{"model", "string", "required",
                  "name or alias of a model, or the path of a model file (*.toml), seen from the working directory"},
                 {"global_batch", "integer", "required", "sequences per iteration"},
                 {"sequence_length", "integer", "required", "tokens of a sequence"},
                 {"precision", "string", "required",
                  "fp32, tf32 (GPUs only), bf16 or fp16, these two with fp32 master weights, or fp8: bf16, but the "
                  "linear layers of blocks multiply numbers of 8 bits"},
                 {"optimizer", "string", "required", "adamw"}}},
           {.name = "[[pipelines]]",
            .keys = {{"count", "integer", "1", "number of identical pipelines"},
                     {"micro_batches", "integer", "required", "micro-batches of each of them in an iteration"},
                     {"micro_batch", "integer", "the plan's", "sequences of a micro-batch of this pipeline"},
                     {"stages", "list of tables", "required", "at least one, in the order of the layers"}}},
           {.name = "[[pipelines.stages]]",
            .keys = {{"layers", "list of 2 integers", "required",
                      "first layer, and the one after the last; with interleaved-1f1b one such pair for each chunk: "
                      "[[0, 3], [12, 15]]"},
                     {"gpu", "string", "required", "GPU type: a name or alias of the GPU catalogue; cpu for CPU cores"},
                     {"tensor_parallel", "integer", "1", "GPUs that share every layer of the stage"},
                     {"zone", "string", "any zone", "zone or partition in which the stage runs"},
                     {"recompute", "string", "none",
                      "what is computed again in the backward pass instead of being kept: none, selective (attention), "
                      "full (the forward pass of each block)"}}},
           {.name = "[origin]",
            .about = "Where the plan came from; sailor-plan writes it.",
            .keys = {{"tool", "string", "none", "program and version"},
                     {"cluster", "string", "none", "name of the cluster"},
                     {"partition", "string", "none", "partitions that it was planned for"},
                     {"profile_store", "string", "none", "profile store"},
                     {"framework", "string", "none", "training framework that was predicted"},
                     {"cluster_hash", "string", "none", "hash of what was known of the cluster"},
                     {"profile_hash", "string", "none", "hash of the measurements"},
                     {"model_file", "string", "none",
                      "absolute path of the model's description, where --model named a file; later commands read it"}}},
           {.name = "[prediction]",
            .about =
                "What sailor-plan predicts. It is void when the plan was edited since; sailor-simulate makes a new "
                "one.",
            .keys = {{"iteration_time_s", "number", "required", "seconds of an iteration"},
                     {"pipeline_time_s", "number", "required", "seconds of the forward and backward passes"},
                     {"synchronization_time_s", "number", "required",
                      "seconds of the reduction of gradients that are not hidden behind the backward passes"},
                     {"update_time_s", "number", "required", "seconds of the optimizer step"},
                     {"peak_memory_bytes", "number", "required", "bytes of the rank that needs most"},
                     {"cost_usd_per_iteration", "number", "required", "USD"},
                     {"origin", "string", "none",
                      "the weakest source of the times: measured, published, interpolated or estimated"},
                     {"plan_fingerprint", "string", "required", "hash of the plan that was predicted"}}}},
      .example = R"(schema_version = 1
micro_batch = 2               # sequences
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 16             # sequences per iteration: count x micro_batches x micro_batch
sequence_length = 128         # tokens
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 4
[[pipelines.stages]]
layers = [0, 3]               # layers 0, 1 and 2
gpu = "cpu"
[[pipelines.stages]]
layers = [3, 6]
gpu = "cpu"
)"};
}

FileFormat model_format() {
  return {
      .name = "sailor-model",
      .purpose = "model file of Sailor: the architecture of a transformer",
      .paragraphs =
          {"The files of profiles/models describe the models that --model and plan.toml name; `sailor models` "
           "lists them. A file of your own is named by its path, or lies in a folder that --models or "
           "SAILOR_PROFILES names."},
      .tables =
          {{.name = "",
            .keys =
                {schema_version_key(),
                 {"name", "string", "required", "name of the model"},
                 {"aliases", "list of strings", "none", "further names"},
                 {"source", "string", "required", "where the sizes come from"},
                 {"blocks", "integer", "required", "transformer blocks"},
                 {"hidden", "integer", "required", "width of the hidden states; attention_heads divides it"},
                 {"embedding_width", "integer", "hidden",
                  "width of the embedding, which is projected to hidden where it is narrower"},
                 {"attention_heads", "integer", "required", "heads of the queries"},
                 {"key_value_heads", "integer", "attention_heads", "heads of keys and values"},
                 {"feed_forward", "integer", "required", "inner width of the MLP"},
                 {"vocabulary", "integer", "required", "tokens of the vocabulary"},
                 {"max_sequence_length", "integer", "required", "longest sequence, tokens"},
                 {"norm", "string", "required", "layer_norm or rms_norm"},
                 {"norm_placement", "string", "required", "pre or post"},
                 {"final_norm", "string", "required",
                  "none, in_head, separate (a layer of its own) or separate_and_in_head"},
                 {"activation", "string", "required", "relu, gelu or swiglu"},
                 {"position", "string", "required", "learned or rotary"},
                 {"rotary_base", "number", "10000", "base of rotary positions; with position = \"rotary\" only"},
                 {"norm_epsilon", "number", "1e-5", "added to the variance in norms"},
                 {"linear_bias", "boolean", "required", "the linear layers have biases"},
                 {"attention_input_bias", "boolean", "linear_bias", "those of queries, keys and values have"},
                 {"attention_output_bias", "boolean", "linear_bias", "that after the attention has"},
                 {"tied_embedding", "boolean", "required", "the head uses the matrix of the embedding"},
                 {"scale_attention", "boolean", "true", "scores are divided by the root of a head's width"},
                 {"local_attention_window", "integer", "0",
                  "tokens that every second block looks back; 0: all of them"},
                 {"sliding_window", "integer", "0",
                  "tokens that a block sees, whose attention skips all others; 0: all"},
                 {"full_attention_period", "integer", "0",
                  "with sliding_window: of so many blocks the last one sees all; 0: none does"},
                 {"head_width", "integer", "hidden / attention_heads", "width of an attention head"},
                 {"gated", "boolean", "false",
                  "the activation function's output is multiplied by a second product, as SwiGLU's always is"},
                 {"norms_per_block", "integer", "2", "4: outputs of the attention and of the MLP are normalized, too"},
                 {"query_key_norm", "boolean", "false", "RMS norms over each head's query and key"},
                 {"attention_sinks", "boolean", "false", "a learned score for each head beside those of the keys"},
                 {"learned_positions", "integer", "max_sequence_length", "rows of the table of learned positions"}}},
           {.name = "[experts]",
            .keys = {{"count", "integer", "required", "experts; the table may be missing: there are none"},
                     {"per_token", "integer", "required", "experts that a token goes through"},
                     {"feed_forward", "integer", "required", "inner width of one"},
                     {"shared_feed_forward", "integer", "0",
                      "inner width of the experts that all tokens go through, together"},
                     {"shared_gate", "boolean", "false", "the shared experts' output is weighted by a gate"},
                     {"bias", "boolean", "false", "the experts' products have biases"},
                     {"router_bias", "boolean", "false", "the router has biases"},
                     {"capacity_factor", "number", "0: dropless",
                      "an expert computes so many times its equal share, padded, and drops the rest"},
                     {"first_dense", "integer", "0", "so many leading blocks have a plain MLP"},
                     {"period", "integer", "1", "behind those, every so many-th block has experts"}}},
           {.name = "[latent_attention]",
            .keys = {{"query_rank", "integer", "0: none", "rank of the queries' latent state"},
                     {"key_value_rank", "integer", "required", "rank of that of keys and values"},
                     {"content_width", "integer", "required", "width of a head's query and key without position"},
                     {"position_width", "integer", "required", "and of their part with rotary position"},
                     {"value_width", "integer", "required", "width of a head's value"}}}},
      .example = R"(schema_version = 1
name = "my-gpt"
source = "our own"
blocks = 12
hidden = 768
attention_heads = 12
feed_forward = 3072
vocabulary = 50257
max_sequence_length = 1024
norm = "layer_norm"
norm_placement = "pre"
final_norm = "in_head"
activation = "gelu"
position = "learned"
linear_bias = true
tied_embedding = true
)"};
}

FileFormat gpu_format() {
  return {.name = "sailor-gpus",
          .purpose = "GPU catalogue of Sailor: memory, rates and prices of GPU types",
          .paragraphs =
              {"The catalogue is profiles/gpus.toml; `sailor gpus` lists it. Copy the folder profiles, change it, "
               "and name it with SAILOR_PROFILES, or name a file with --gpus. Prices whose source says "
               "\"assumed\" are to be replaced by your own, here or in cluster.toml and the site file."},
          .tables = {{.name = "", .keys = {schema_version_key()}},
                     {.name = "[[gpus]]",
                      .keys = {{"name", "string", "required", "name of the type"},
                               {"aliases", "list of strings", "none", "further names, in letters of either case"},
                               {"kind", "string", "gpu", "gpu, or cpu: a core"},
                               {"memory_bytes", "number", "required for a GPU", "bytes of its memory"},
                               {"peak_fp32_flop_per_s", "number", "required", "peak rate in fp32, FLOP/s"},
                               {"peak_tf32_flop_per_s", "number", "0: not there", "peak rate in tf32, dense, FLOP/s"},
                               {"peak_bf16_flop_per_s", "number", "0: not there", "peak rate in bf16, dense, FLOP/s"},
                               {"peak_fp16_flop_per_s", "number", "0: not there",
                                "peak rate in fp16 with fp32 accumulation, dense, FLOP/s"},
                               {"peak_fp8_flop_per_s", "number", "0: not there",
                                "peak rate in fp8 with fp32 accumulation, dense, FLOP/s"},
                               {"memory_bandwidth_bytes_per_s", "number", "required", "bytes per second"},
                               {"node_link_bytes_per_s", "number", "0: not known",
                                "bytes per second in one direction to the other GPUs of a node"},
                               {"price_usd_per_hour", "number", "required", "USD per device and hour"},
                               {"slurm_gres", "list of strings", "none", "GRES types that mean this very type"},
                               {"driver_names", "list of strings", "none", "what the driver calls it"},
                               {"backend", "string", "cuda", "what computes on it: cuda or hip; not of a CPU"},
                               {"source", "string", "required", "where the figures come from"}}}},
          .example = R"(schema_version = 1
[[gpus]]
name = "GH200-96"
aliases = ["gh200"]
memory_bytes = 102625181696.0
peak_fp32_flop_per_s = 67e12
peak_tf32_flop_per_s = 494.7e12
peak_bf16_flop_per_s = 989.4e12
peak_fp16_flop_per_s = 989.4e12
memory_bandwidth_bytes_per_s = 4.0e12
node_link_bytes_per_s = 150e9
price_usd_per_hour = 11.06
slurm_gres = ["gh200"]
source = "an example"
)"};
}

}  // namespace sailor::apps

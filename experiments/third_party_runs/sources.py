"""What the sets of measured runs are as plans: shapes of models, layouts, links. Used by third_party.py.

Every set names the framework description that predicts it, and what its publisher leaves open stands here as an
assumption. A run that has no form yet gets a reason instead of a plan.
"""
import dataclasses
import itertools
import math

# Device and links of a node, as the sets mean them. Links between nodes: bytes/s of one device's share of the node's
# network, one direction.
NODE_LINK = {"A100-40": 300e9, "A100-80": 300e9, "H100-80": 450e9, "H200-141": 450e9, "B200": 900e9, "GB200": 900e9,
             "GB300": 900e9}  # profiles/gpus.toml
# Devices that NVLink joins; of a rack's 72 GB200 or GB300, the power of two that runs use.
NODE_SIZE = {"GB200": 64, "GB300": 64}


def node_size(gpu):
    return NODE_SIZE.get(gpu, 8)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The keys of a model file that sets differ in."""
    name: str
    blocks: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    sequence: int
    llama: bool  # RMS norms, SwiGLU, rotary positions and no biases; else GPT-2
    tied: bool
    relative_positions: bool = False  # ALiBi: no parameters
    key_value_heads: int = 0  # 0: as many as heads
    squared_relu: bool = False  # Nemotron: layer norms, rotary positions and no biases

    def toml(self):
        rotary = self.llama or self.relative_positions or self.squared_relu
        kind = {"norm": "rms_norm" if self.llama else "layer_norm",
                "activation": "swiglu" if self.llama else "relu" if self.squared_relu else "gelu",
                "position": "rotary" if rotary else "learned"}
        lines = ["schema_version = 1", f'name = "{self.name}"', 'source = "a set of measured runs"',
                 f"blocks = {self.blocks}", f"hidden = {self.hidden}", f"attention_heads = {self.heads}",
                 f"key_value_heads = {self.key_value_heads or self.heads}",
                 f"feed_forward = {self.feed_forward}", f"vocabulary = {self.vocabulary}",
                 f"max_sequence_length = {self.sequence}", 'norm_placement = "pre"', 'final_norm = "separate"',
                 f"linear_bias = {str(not rotary).lower()}",
                 f"tied_embedding = {str(self.tied).lower()}"]
        return "\n".join(lines + [f'{key} = "{value}"' for key, value in kind.items()]) + "\n"

    def forward_flop(self, tokens):
        """Matrix products, attention's causal half included, as Model::forward_flop."""
        gates = 3 if self.llama else 2
        shared = (self.key_value_heads or self.heads) / self.heads  # width of keys, and of values, over that of queries
        linear = 2 * ((2 + 2 * shared) * self.hidden ** 2 + gates * self.hidden * self.feed_forward)
        return tokens * (self.blocks * (linear + 2 * self.sequence * self.hidden) + 2 * self.hidden * self.vocabulary)


def shape_said(row, name, **kinds):
    """The shape of a row that has all of its sizes."""
    return Shape(name, *(int(row[key]) for key in ("layers", "hidden", "heads", "ffn", "vocab", "sequence_length")), **kinds)


def evenly(shape, stages):
    """As many blocks on every stage; the embedding on the first, norm and head on the last."""
    if shape.blocks % stages:
        return None
    ends = [0] + [1 + shape.blocks // stages * (i + 1) for i in range(stages - 1)] + [shape.blocks + 3]
    return [list(pair) for pair in itertools.pairwise(ends)]


def by_cost(shape, stages):
    """nanotron: the block at which the sum of costs passes a stage's share of the whole is the last of that stage
    (nanotron/models/base.py, build_model). Costs are parameters of a block and of the head. Where the head passes the
    last but one share, nanotron computes the loss on a stage of its own; here the head moves there with it."""
    block = 4 * shape.hidden ** 2 + 3 * shape.hidden * shape.feed_forward
    costs = [0] + [block] * shape.blocks + [0, shape.vocabulary * shape.hidden]
    ends, total, passed = [0], sum(costs), 0
    for layer, cost in enumerate(costs):
        passed += cost
        if len(ends) < stages and passed > total * len(ends) / stages:
            ends.append(min(layer + 1, len(costs) - 1))
    ends.append(len(costs))
    divided = [list(pair) for pair in itertools.pairwise(ends)]
    return divided if len(divided) == stages and all(first < last for first, last in divided) else None


class Source:
    """A set of runs. `layout` divides a model into stages."""
    framework = None
    gpu = None
    precision = None
    layout = staticmethod(evenly)
    # Title of the source whose rates predict this one, which has no runs to calibrate with.
    rates_of = None
    # Bandwidth of collectives between nodes by their number, bytes/s that one device sends, of 8 on a node.
    between_nodes = {2: 25e9}
    # Of the framework's description; not 0 where runs say so, and then the run that it is read from is left out.
    launch_delay_across_nodes = 0.0
    assumptions = ""

    def shape(self, row):
        raise NotImplementedError

    def gpu_of(self, row):
        return self.gpu

    def number(self, row, key, default=1):
        return int(row[key]) if row.get(key, "") not in ("", "NA") else default

    def replicas(self, row):
        """As the row says, else what the other degrees leave of the devices."""
        degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        return self.number(row, "data_parallel",
                           int(row["gpus"]) // math.prod(self.number(row, degree) for degree in degrees))

    def takes(self, row):
        """Whether a run belongs here: a set may have several sources."""
        return True

    def reason(self, row):
        """Why a run has no plan; None where it has."""
        if row["status"] == "ok" and not row["iteration_time_s"] and not row["tokens_per_s_per_gpu"]:
            return "no time"
        return None

    def prepare(self, rows):
        """Looks at all rows of the set before anything is asked of one."""

    def calibrates(self, row):
        return (row["status"] == "ok" and self.number(row, "pipeline_parallel") == 1
                and self.replicas(row) == 1 and self.number(row, "gpus") <= 8)

    def recompute(self, row):
        return "full" if row["recompute"].startswith("full") else "none"

    def sharding(self, row):
        text = row["sharding"]
        if text.startswith("fsdp"):
            return "zero2" if text == "fsdp gradients and optimizer" else "zero3"
        return "zero1" if text.startswith("zero1") else "none"

    def sharding_degree(self, row):
        """Replicas that share; 0: all."""
        return 0

    def global_batch(self, row):
        return int(row["global_batch"])

    def time(self, row):
        if row["iteration_time_s"]:
            return float(row["iteration_time_s"])
        tokens = self.global_batch(row) * int(row["sequence_length"])
        return tokens / (float(row["tokens_per_s_per_gpu"]) * int(row["gpus"]))

    def plan(self, row):
        """The plan as a table of a cases file, or a reason why there is none."""
        shape = self.shape(row)
        tensor, stages = (self.number(row, key) for key in ("tensor_parallel", "pipeline_parallel"))
        replicas = self.replicas(row)
        micro_batch = self.number(row, "micro_batch")
        batch = self.global_batch(row)
        if batch % (replicas * micro_batch):
            return "the batch is no multiple of replicas x micro-batch"
        if tensor > 8:
            return "tensor parallelism over two nodes"
        experts = self.number(row, "expert_parallel")
        if replicas % experts:
            return "experts are divided among tensor-parallel ranks, too"
        chunks = self.number(row, "virtual_stages")
        chosen = self.layout(shape, stages * chunks)
        if chosen is None:
            return "the division of layers into stages is not said"
        if chunks > 1:
            chosen = [[chosen[stage + chunk * stages] for chunk in range(chunks)] for stage in range(stages)]
        return {"micro_batch": micro_batch, "schedule": "1f1b" if chunks == 1 else "interleaved-1f1b",
                "optimizer_sharding": self.sharding(row),
                "sharding_degree": self.sharding_degree(row),
                "context_parallel": self.number(row, "context_parallel"),
                "expert_parallel": experts,
                "job": {"model": shape.name, "global_batch": batch, "sequence_length": int(row["sequence_length"]),
                        "precision": self.precision, "optimizer": "adamw"},
                "pipelines": [{"count": replicas, "micro_batches": batch // replicas // micro_batch,
                               "stages": [{"layers": layers, "gpu": self.gpu_of(row), "tensor_parallel": tensor,
                                           "recompute": self.recompute(row)} for layers in chosen]}]}

    def node_counts(self, rows, gpu):
        rows = [row for row in rows if self.gpu_of(row) == gpu]
        return sorted({max(1, self.number(row, "gpus") // node_size(gpu)) for row in rows})


class ShardedSource(Source):
    """Optimizers shard: all runs on one node calibrate."""

    def calibrates(self, row):
        return row["status"] == "ok" and self.number(row, "gpus") <= 8


class VTrain(Source):
    framework = "megatron-lm"
    gpu = "A100-40"
    precision = "fp16"
    assumptions = "precision fp16 and vocabulary 51,200 (neither is said)"

    def shape(self, row):
        hidden, blocks = int(row["hidden"]), int(row["layers"])
        return Shape(f"gpt-{hidden}-{blocks}", blocks, hidden, int(row["heads"]), 4 * hidden, 51200,
                     int(row["sequence_length"]), llama=False, tied=True)


class Nanotron(Source):
    framework = "nanotron"
    gpu = "H100-80"
    precision = "bf16"
    layout = staticmethod(by_cost)
    # Bus bandwidth of all-reduces of 256 MB between nodes of 8, an eighth for each device (nanotron's own figures).
    between_nodes = {2: 362e9 / 8, 4: 160e9 / 8, 8: 100e9 / 8, 16: 85e9 / 8, 32: 65e9 / 8, 64: 33e9 / 8}
    # Of the 1B model in two stages of eight ranks on two nodes, whose layers compute for less time than this.
    launch_delay_across_nodes = 0.47e-3
    delay_read_from = {"model": "llama-1B", "gpus": "16", "tensor_parallel": "8", "pipeline_parallel": "2",
                       "micro_batch": "1"}
    assumptions = "no recomputation (not said); stages divided by nanotron's own rule"

    def reason(self, row):
        if row["status"] == "ok" and all(row.get(key) == value for key, value in self.delay_read_from.items()):
            return "the launch delay of pipelines across nodes is read from it"
        return super().reason(row)

    def shape(self, row):
        return shape_said(row, row["model"].lower(), llama=True, tied="tied" in row["note"])


class LlmFoundry(Source):
    """Fully sharded: the smallest number of GPUs of each model calibrates."""
    framework = "torch-fsdp"
    gpu = "H100-80"
    precision = "bf16"
    between_nodes = {2: 40e9}  # four fifths of a 400 Gb/s adapter for each device
    assumptions = ("MPT without biases, tied embeddings (its published configurations); four fifths of 400 Gb/s for each "
                   "GPU between nodes")

    def prepare(self, rows):
        self.smallest = {}
        for row in rows:
            if self.reason(row) is None:
                gpus = int(row["gpus"])
                self.smallest[row["model"]] = min(gpus, self.smallest.get(row["model"], gpus))

    def takes(self, row):
        return "fp8" not in row["precision"]

    def calibrates(self, row):
        return int(row["gpus"]) == self.smallest[row["model"]]

    def shape(self, row):
        return shape_said(row, f"{row['model']}-{row['sequence_length']}", llama=False, tied=True, relative_positions=True)


class InternEvo(ShardedSource):
    """7B on up to 1,024 A100: only runs that shard the optimizer inside a node (Hybrid ZeRO)."""
    framework = "internevo"
    gpu = "A100-80"
    precision = "bf16"
    between_nodes = {2: 5e9}  # four fifths of 4 x 100 Gb/s of a node, for each of 8 devices
    assumptions = "four fifths of 4 x 100 Gb/s for a node between nodes"

    def reason(self, row):
        if row["sharding"] == "zero1 over all":
            return "owners of shards broadcast to all nodes one after the other"
        return super().reason(row)

    def sharding_degree(self, row):
        return min(int(row["sharding"].removeprefix("zero1 over ")), self.replicas(row))

    def global_batch(self, row):
        accumulated = int(row["note"].removeprefix("gradient accumulation "))
        return self.number(row, "micro_batch") * self.number(row, "data_parallel") * accumulated

    def shape(self, row):
        return shape_said(row, row["model"], llama=True, tied=False)


class NvidiaDgxc(ShardedSource):
    """Recipes of NVIDIA DGX Cloud Benchmarking, of three releases whose times differ by up to 8 %. The distributed
    optimizer shards: the smallest number of GPUs of a model calibrates, where that is one node (Llama-3.1-8B)."""
    framework = "megatron-core"
    gpu = "H100-80"
    precision = "bf16"
    between_nodes = {2: 40e9}  # four fifths of a 400 Gb/s adapter for each device
    assumptions = ("shapes of the published configurations; the distributed optimizer, no recomputation (neither is said); "
                   "four fifths of 400 Gb/s for each GPU between nodes")
    SHAPES = {"llama3.1-8b": Shape("llama3.1-8b", 32, 4096, 32, 14336, 128256, 8192, llama=True, tied=False,
                                   key_value_heads=8),
              "gpt3-175b": Shape("gpt3-175b", 96, 12288, 96, 49152, 51200, 2048, llama=False, tied=True)}

    def takes(self, row):
        return row["precision"] == self.precision

    def sharding(self, row):
        return "zero1"

    def shape(self, row):
        return self.SHAPES[row["model"]]


class NvidiaDgxcFp8(NvidiaDgxc):
    """The same recipes with linear layers in fp8."""
    precision = "fp8"


class Nemo(ShardedSource):
    """NeMo 24.07 on H100 in fp8: pre-training of seven sizes, and of LLaMA-2-7B with sequences of 4,096 to 1,048,576
    tokens. Runs of one stage on one node calibrate."""
    framework = "megatron-core"
    gpu = "H100-80"
    precision = "fp8"
    between_nodes = {2: 40e9}
    assumptions = ("shapes of the published configurations; the distributed optimizer, no recomputation (neither is said); "
                   "four fifths of 400 Gb/s for each GPU between nodes")
    LLAMA_2 = {"llama": True, "tied": False}
    GPT = {"llama": False, "tied": True}
    NEMOTRON = {"llama": False, "tied": False, "squared_relu": True}
    SHAPES = {"GPT3-5B": ((24, 4096, 32, 16384, 51200), GPT), "GPT3-20B": ((44, 6144, 48, 24576, 51200), GPT),
              "GPT3-175B": ((96, 12288, 96, 49152, 51200), GPT),
              "LLAMA2-7B": ((32, 4096, 32, 11008, 32000), LLAMA_2), "LLAMA2-13B": ((40, 5120, 40, 13824, 32000), LLAMA_2),
              "LLAMA2-70B": ((80, 8192, 64, 28672, 32000), LLAMA_2 | {"key_value_heads": 8}),
              "LLAMA3-8B": ((32, 4096, 32, 14336, 128256), LLAMA_2 | {"key_value_heads": 8}),
              "LLAMA3-70B": ((80, 8192, 64, 28672, 128256), LLAMA_2 | {"key_value_heads": 8}),
              "Nemotron-8B": ((32, 4096, 32, 16384, 256000), NEMOTRON),
              "Nemotron-22B": ((40, 6144, 48, 24576, 256000), NEMOTRON),
              "Nemotron-340B": ((96, 18432, 96, 73728, 256000), NEMOTRON | {"key_value_heads": 8})}

    def reason(self, row):
        return "fine-tuning" if row["note"].startswith("Finetuning") else super().reason(row)

    def calibrates(self, row):
        return super().calibrates(row) and self.number(row, "pipeline_parallel") == 1

    def sharding(self, row):
        return "zero1"

    def shape(self, row):
        sizes, kind = self.SHAPES[row["model"]]
        length = int(row["sequence_length"])
        return Shape(f"{row['model'].lower()}-{length}", *sizes, length, **kind)


class MlPerf(NvidiaDgxc):
    """NVIDIA's submissions of GPT-3 to MLPerf Training 4.0 and 4.1 on H100, of which the chunks are said. Nothing
    calibrates: the rates are those of NVIDIA's recipes in fp8."""
    precision = "fp8"
    rates_of = "nvidia-dgxc, fp8"
    assumptions = ("the shape of GPT-3 175B; precision fp8; the distributed optimizer, no recomputation; four fifths of "
                   "400 Gb/s for each GPU between nodes; rates of nvidia-dgxc in fp8")

    def takes(self, row):
        return True

    def reason(self, row):
        if not row.get("virtual_stages"):
            return "chunks of layers are not said"
        return None if "H100" in row["gpu"] else "another device"

    def calibrates(self, row):
        return False

    def shape(self, row):
        return self.SHAPES["gpt3-175b"]


@dataclasses.dataclass(frozen=True)
class ExpertsShape:
    """The keys of a model file of LLaMA's kind with experts that models differ in."""
    name: str
    blocks: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    sequence: int
    experts: dict
    latent: dict = None  # of DeepSeek; else:
    key_value_heads: int = 0
    head_width: int = 0
    more: tuple = ("linear_bias = false",)  # further keys

    def toml(self):
        lines = ["schema_version = 1", f'name = "{self.name}"', 'source = "its published configuration"',
                 f"blocks = {self.blocks}", f"hidden = {self.hidden}", f"attention_heads = {self.heads}",
                 f"feed_forward = {self.feed_forward}", f"vocabulary = {self.vocabulary}",
                 f"max_sequence_length = {self.sequence}", 'norm = "rms_norm"', 'norm_placement = "pre"',
                 'final_norm = "separate"', 'activation = "swiglu"', 'position = "rotary"', "tied_embedding = false",
                 *self.more]
        if not self.latent:
            lines += [f"key_value_heads = {self.key_value_heads}", f"head_width = {self.head_width}"]
        lines += ["[experts]"] + [f"{key} = {value}" for key, value in self.experts.items()]
        if self.latent:
            lines += ["[latent_attention]"] + [f"{key} = {value}" for key, value in self.latent.items()]
        return "\n".join(lines) + "\n"

    def forward_flop(self, tokens):
        """As Shape's; blocks without experts have a feed-forward part as wide as those that a token goes through."""
        experts = self.experts
        if self.latent:
            rank, wide = self.latent, self.latent["content_width"] + self.latent["position_width"]
            value = rank["value_width"]
            projections = (self.hidden * (rank["query_rank"] + rank["key_value_rank"] + rank["position_width"])
                           + self.heads * (rank["query_rank"] * wide
                                           + rank["key_value_rank"] * (rank["content_width"] + value)
                                           + value * self.hidden))
        else:
            wide = value = self.head_width
            projections = 2 * self.hidden * wide * (self.heads + self.key_value_heads)
        inner = experts["per_token"] * experts["feed_forward"] + experts.get("shared_feed_forward", 0)
        attention = self.sequence * self.heads * (wide + value)
        return tokens * (self.blocks * (2 * (projections + 3 * self.hidden * inner) + attention)
                         + 2 * self.hidden * self.vocabulary)


def spread(shape, stages):
    """As evenly as possible, the first stages with one block more."""
    blocks = [shape.blocks // stages + (i < shape.blocks % stages) for i in range(stages)]
    ends = [0] + [1 + done for done in itertools.accumulate(blocks)]
    ends[-1] = shape.blocks + 3
    return [list(pair) for pair in itertools.pairwise(ends)] if blocks[-1] else None


class MegatronBridge(ShardedSource):
    """Mixtures of experts by Megatron Bridge 25.11, whose benchmarks balance the load of experts. Nothing calibrates."""
    framework = "megatron-core"
    layout = staticmethod(spread)
    between_nodes = {2: 40e9}
    rates_of = "nvidia-dgxc"
    precision = "bf16"
    assumptions = ("shapes of the published configurations, without DeepSeek's prediction of a second token; blocks spread "
                   "evenly; the distributed optimizer, no recomputation; four fifths of 400 Gb/s for each GPU between "
                   "nodes and racks; rates of nvidia-dgxc, as shares of each device's")
    QWEN = {"key_value_heads": 4, "head_width": 128, "more": ("linear_bias = false", "query_key_norm = true")}
    SHAPES = {
        "DeepSeekV3": ExpertsShape(
            "deepseek-v3", 61, 7168, 128, 18432, 129280, 4096,
            {"count": 256, "per_token": 8, "feed_forward": 2048, "shared_feed_forward": 2048, "first_dense": 3},
            {"query_rank": 1536, "key_value_rank": 512, "content_width": 128, "position_width": 64, "value_width": 128}),
        "Qwen3_30B_a3B": ExpertsShape("qwen3-30b", 48, 2048, 32, 6144, 151936, 4096,
                                      {"count": 128, "per_token": 8, "feed_forward": 768}, **QWEN),
        "Qwen3_235B_a22B": ExpertsShape("qwen3-235b", 94, 4096, 64, 12288, 151936, 4096,
                                        {"count": 128, "per_token": 8, "feed_forward": 1536}, **QWEN),
        "GPT OSS 120B": ExpertsShape(
            "gpt-oss-120b", 36, 2880, 64, 2880, 201088, 8192,
            {"count": 128, "per_token": 4, "feed_forward": 2880, "bias": "true", "router_bias": "true"},
            key_value_heads=8, head_width=64,
            more=("linear_bias = true", "sliding_window = 128", "full_attention_period = 2", "attention_sinks = true"))}
    DEVICES = {"DGX-H100": "H100-80", "DGX-B200": "B200", "DGX-GB200": "GB200", "DGX-GB300": "GB300"}

    def takes(self, row):
        return self.model(row) in self.SHAPES and row["precision"].startswith(self.precision.upper())

    def model(self, row):
        return row["model"].split(" (")[0]

    def reason(self, row):
        return "it predicts a second token, too" if "w/ MTP" in row["model"] else super().reason(row)

    def gpu_of(self, row):
        return self.DEVICES[row["gpu"]]

    def calibrates(self, row):
        return False

    def sharding(self, row):
        return "zero1"

    def shape(self, row):
        return self.SHAPES[self.model(row)]


class MegatronBridgeFp8(MegatronBridge):
    precision = "fp8"
    rates_of = "nvidia-dgxc, fp8"


class TorchTitan(Source):
    """LLaMA-3.1 in torchtitan on H100 limited to 500 W, compiled: the smallest number of GPUs of each model
    calibrates."""
    framework = "torch-fsdp"
    gpu = "H100-80"
    precision = "bf16"
    between_nodes = {2: 40e9}  # four fifths of a 400 Gb/s adapter for each device
    assumptions = ("shapes of the published configurations; its recomputation of every second product as none; four fifths "
                   "of 400 Gb/s for each GPU between nodes")
    LLAMA = {"llama": True, "tied": False, "key_value_heads": 8}
    SHAPES = {"llama3.1-8b": (32, 4096, 32, 14336, 128256), "llama3.1-70b": (80, 8192, 64, 28672, 128256),
              "llama3.1-405b": (126, 16384, 128, 53248, 128256)}

    def takes(self, row):
        return row["precision"].startswith(self.precision)

    def reason(self, row):
        if row["model"] not in self.SHAPES:
            return "the number of GPUs is not said"
        if "async" in row["note"]:
            return "tensor parallelism that overlaps"
        if "eager" in row["note"]:
            return "not compiled, unlike the others"
        if row["precision"].endswith("rowwise"):
            return "a scale for each row"
        return super().reason(row)

    def calibrates(self, row):
        smallest = {"llama3.1-8b": 8, "llama3.1-70b": 256}
        return self.gpu_of(row) == self.gpu and int(row["gpus"]) == smallest[row["model"]]

    def gpu_of(self, row):
        return "H200-141" if row["gpu"].startswith("H200") else self.gpu

    def recompute(self, row):
        return "full" if row["recompute"] == "full" else "none"

    def sharding(self, row):
        return "zero3"

    def shape(self, row):
        length = int(row["sequence_length"])
        return Shape(f"{row['model']}-{length}", *self.SHAPES[row["model"]], length, **self.LLAMA)


class TorchTitanFp8(TorchTitan):
    precision = "fp8"


SOURCES = {"llm-foundry": [LlmFoundry()], "internevo": [InternEvo()], "nvidia-dgxc": [NvidiaDgxc(), NvidiaDgxcFp8()],
           "vtrain-1-node": [VTrain()], "nanotron": [Nanotron()], "nemo-24.07": [Nemo()],
           "torchtitan-olmo": [TorchTitan(), TorchTitanFp8()], "mlperf": [MlPerf()], "megatron-bridge": [MegatronBridge(), MegatronBridgeFp8()]}
LEFT_OUT = {
    "bloom": "rows name a size and no shape",
    "megatron-bridge": "no experts, or of release 25.09, which does not say the precision",
}

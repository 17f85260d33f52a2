// Plans that several golden tests simulate.
#pragma once

namespace sailor::testing {

/// Two pipelines of two stages each of tiny-gpt, on CPUs.
inline constexpr const char* two_stages = R"(schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 4
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 2
[[pipelines.stages]]
layers = [0, 3]
gpu = "cpu"
[[pipelines.stages]]
layers = [3, 6]
gpu = "cpu"
)";

}  // namespace sailor::testing

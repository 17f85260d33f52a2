// A profile of tiny-gpt on CPU cores in round numbers, for arithmetic by hand.
//
// Per sequence of 64 tokens: embedding 1 s forward + 1 s backward, block 2 + 4, head 1 + 2. Updates 0.5, 0.25, 0.125 s.
// Every message takes 0.5 s one way, every all-reduce of two ranks 3 s. 1 MB of base memory.
#pragma once

#include "profile/measurements.hpp"

namespace sailor::testing {

inline TimeStatistics exactly(double seconds) {
  return {.median = Seconds(seconds),
          .p10 = Seconds(seconds),
          .p90 = Seconds(seconds),
          .low = Seconds(seconds),
          .high = Seconds(seconds),
          .samples = 1};
}

inline ProfileData round_numbers_profile() {
  ProfileData data;
  data.sessions = {{.id = "round-numbers",
                    .provenance = {.tool = "a test",
                                   .command = "round_numbers_profile",
                                   .host = "nowhere",
                                   .device = "none",
                                   .versions = "none",
                                   .date = "2026-01-01T00:00:00Z",
                                   .source = ""}}};
  auto add_layer = [&](LayerKind kind, int micro_batch, double forward, double backward, double update, int parameters,
                       double activation) {
    const LayerKey key{
        .model = "tiny-gpt", .gpu = "cpu", .micro_batch = micro_batch, .sequence_length = 64, .kind = kind};
    data.layer_times.push_back({.key = key,
                                .forward = exactly(forward * micro_batch),
                                .backward = exactly(backward * micro_batch),
                                .update = exactly(update)});
    data.layer_memory.push_back({.key = key,
                                 .parameters = parameters,
                                 .activation = Bytes(activation * micro_batch),
                                 .output = Bytes(0),
                                 .workspace = Bytes(7)});
  };
  for (const int micro_batch : {1, 2}) {
    add_layer(LayerKind::embedding, micro_batch, 1, 1, 0.5, 1000, 10);
    add_layer(LayerKind::block, micro_batch, 2, 4, 0.25, 2000, 100);
    add_layer(LayerKind::head, micro_batch, 1, 2, 0.125, 256, 50);
  }
  for (const double bytes : {1.0, 1e12})
    for (const LinkOperation operation : {LinkOperation::send_receive, LinkOperation::all_reduce})
      data.links.push_back({.key = {.from = {.gpu = "cpu"},
                                    .to = {.gpu = "cpu"},
                                    .scope = LinkScope::inter_node,
                                    .operation = operation,
                                    .ranks = 2},
                            .message = Bytes(bytes),
                            .time = exactly(operation == LinkOperation::all_reduce ? 3.0 : 0.5)});
  data.processes.push_back({.gpu = "cpu", .framework = "sailor", .base_memory = Bytes(1e6)});
  return data;
}

}  // namespace sailor::testing

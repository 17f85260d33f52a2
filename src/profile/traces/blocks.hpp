// Finds the forward passes of a model's blocks in a recording, and its backward pass. Private to this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "profile/traces/recording.hpp"

namespace sailor::traces {

/// An autograd node on its thread. Nodes that others contain are left out, so no two of a thread overlap.
struct Node {
  Span span{};
  std::int64_t sequence = -1;
  int pass = -1;  ///< with block: the range of an annotation, which stands for the nodes of a block
  int block = -1;
};

/// The forward pass of one block for one micro-batch.
struct BlockRange {
  double begin = 0.0;
  double end = 0.0;
  int block = 0;
  int pass = 0;  ///< micro-batches are counted over all iterations
};

/// Where a recording has what. Spans of each list are in the order of (thread, begin) and do not overlap within a
/// thread.
struct Timeline {
  std::vector<Span> steps{};      ///< iterations; empty: the recording does not say
  std::vector<Span> optimizer{};  ///< steps of the optimizer, zeroing of gradients, loading of data: no layer computes
  std::vector<Node> backward{};
  std::vector<BlockRange> blocks{};  ///< in the order of time; complete passes only
  int forward_thread = 0;
  int passes = 0;
  bool recomputes = false;  ///< forward passes run again within the backward pass
  bool by_annotation = false;
  std::string found_by{};  ///< "annotations 'layers.#'"
};

/// Whether the time lies in a step; true if there are none.
bool is_in_step(const Timeline& timeline, double time);
/// The span of the thread that contains the time; null: none. `spans` as those of a Timeline.
const Span* span_at(const std::vector<Span>& spans, int thread, double time);
const Node* node_at(const std::vector<Node>& nodes, int thread, double time);

/// `count`: number of blocks that the recording is of, at least 2. Errors: invalid_input, saying what the recording
/// lacks and how to record it.
Result<Timeline> find_timeline(const Recording& recording, int count, std::string_view file);

}  // namespace sailor::traces

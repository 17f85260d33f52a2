#include "profile/traces/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/text.hpp"
#include "profile/traces/blocks.hpp"

namespace sailor::traces {

namespace {

// Work between the blocks belongs to the block before it; more of it than this share means that the annotations are of
// parts of the blocks.
constexpr double largest_gap = 0.2;

/// Where work belongs: `layer` as the index of PassTimes; -1: to no layer.
struct Place {
  int pass = -1;
  int layer = -1;
  bool between_blocks = false;
};

/// Work of the device that belongs to a layer.
struct Work {
  double begin = 0.0;
  double end = 0.0;
  int pass = -1;
  int layer = -1;
  bool backward = false;
  [[nodiscard]] auto owner() const { return std::tuple(pass, layer, backward); }
};

bool is_communication(const std::string& name) {
  const std::string lower = to_lower(name);
  return lower.find("nccl") != std::string::npos || lower.find("rccl") != std::string::npos ||
         lower.find("nvshmem") != std::string::npos;
}

/// "tp", "mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP": whether the name of a process group says tensor parallelism;
/// nullopt: it says nothing.
std::optional<bool> is_tensor_parallel_group(const std::string& name) {
  const std::string lower = to_lower(name);
  if (lower.empty() || lower == "default_pg" || lower == "undefined" ||
      std::all_of(lower.begin(), lower.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  if (lower.find("tensor") != std::string::npos) return true;
  for (std::size_t at = lower.find("tp"); at != std::string::npos; at = lower.find("tp", at + 1)) {
    auto letter = [&](std::size_t i) { return i < lower.size() && lower[i] >= 'a' && lower[i] <= 'z'; };
    if ((at == 0 || !letter(at - 1)) && !letter(at + 2)) return true;
  }
  return false;
}

/// Length of the union of intervals, which are sorted in place.
double length_of(std::vector<std::pair<double, double>>& intervals) {
  std::sort(intervals.begin(), intervals.end());
  double length = 0.0;
  double until = -std::numeric_limits<double>::infinity();
  for (const auto& [begin, end] : intervals) {
    if (end <= until) continue;
    length += end - std::max(begin, until);
    until = end;
  }
  return length;
}

class Measurer {
 public:
  Measurer(const Recording& recording, Timeline timeline, int blocks, int tensor_parallel)
      : recording_(recording), timeline_(std::move(timeline)), blocks_(blocks), tensor_parallel_(tensor_parallel) {
    for (const Operation& operation : recording.operations)
      if (operation.sequence >= 0 && operation.thread == timeline_.forward_thread &&
          node_at(timeline_.backward, operation.thread, operation.begin) == nullptr) {
        // Of operations with one number the last one made the autograd node.
        const auto [found, is_new] = forward_.emplace(operation.sequence, operation.begin);
        if (!is_new) found->second = std::max(found->second, operation.begin);
      }
    for (const Node& node : timeline_.backward) backward_begins_.push_back(node.span.begin);
    std::sort(backward_begins_.begin(), backward_begins_.end());
    find_bounds();
  }

  RecordedTimes measure() {
    if (recording_.kernels.empty())
      measure_operations();
    else
      measure_kernels();
    return add_up();
  }
  [[nodiscard]] double work_between_blocks() const { return between_blocks_; }
  [[nodiscard]] double work_in_blocks() const { return in_blocks_; }

 private:
  /// The earliest times at which what comes before the first block of each pass may begin.
  void find_bounds() {
    for (const BlockRange& range : timeline_.blocks) {
      if (range.block != 0) continue;
      double bound = -std::numeric_limits<double>::infinity();
      for (const std::vector<Span>* spans : {&timeline_.steps, &timeline_.optimizer})
        for (const Span& span : *spans)
          if (span.begin <= range.begin) bound = std::max(bound, spans == &timeline_.steps ? span.begin : span.end);
      const auto after = std::lower_bound(backward_begins_.begin(), backward_begins_.end(), range.begin);
      if (after != backward_begins_.begin()) bound = std::max(bound, *std::prev(after));
      bounds_.push_back(bound);
    }
  }

  /// Where an operation of the forward pass belongs.
  [[nodiscard]] Place place_of(double time) const {
    const auto& ranges = timeline_.blocks;
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), time,
                                        [](double value, const BlockRange& range) { return value < range.begin; });
    if (after != ranges.begin()) {
      const BlockRange& range = *std::prev(after);
      if (time < range.end || range.block + 1 < blocks_)
        return {.pass = range.pass, .layer = range.block + 1, .between_blocks = time >= range.end};
      const auto backward = std::lower_bound(backward_begins_.begin(), backward_begins_.end(), range.end);
      const double next = after == ranges.end() ? std::numeric_limits<double>::infinity() : after->begin;
      const bool ends = backward != backward_begins_.end() && *backward < next;
      if (ends ? time < *backward : after == ranges.end()) return {.pass = range.pass, .layer = blocks_ + 1};
    }
    if (after == ranges.end() || time < bounds_[static_cast<std::size_t>(after->pass)]) return {};
    return {.pass = after->pass, .layer = 0};
  }

  /// Where an autograd node belongs. Nodes without a forward operation accumulate gradients of the node before them.
  [[nodiscard]] Place place_of(const Node& node, std::map<int, Place>& last) const {
    Place& place = last[node.span.thread];
    if (node.block >= 0) {
      place = {.pass = node.pass, .layer = node.block + 1};
    } else if (const auto found = forward_.find(node.sequence); node.sequence >= 0 && found != forward_.end()) {
      place = place_of(found->second);
    }
    return place;
  }

  /// Backward passes that only annotations of the blocks show: what a thread of their own does before the first of
  /// them is of the head, after the last one of the embedding.
  [[nodiscard]] Place place_beside_annotations(int thread, double time) const {
    const auto& nodes = timeline_.backward;
    if (nodes.empty() || nodes.front().block < 0 || nodes.front().span.thread != thread ||
        thread == timeline_.forward_thread)
      return {};
    const auto after = std::upper_bound(nodes.begin(), nodes.end(), time,
                                        [](double value, const Node& node) { return value < node.span.begin; });
    if (after != nodes.end() && after->block == blocks_ - 1) {
      // After the forward pass of its own micro-batch: the loss. Otherwise the end of the pass before.
      const auto of_pass = std::find_if(timeline_.blocks.rbegin(), timeline_.blocks.rend(),
                                        [&](const BlockRange& range) { return range.pass == after->pass; });
      if (of_pass != timeline_.blocks.rend() && time >= of_pass->end)
        return {.pass = after->pass, .layer = blocks_ + 1};
    }
    if (after == nodes.begin()) return {};
    const Node& before = *std::prev(after);
    return {
        .pass = before.pass, .layer = before.block == 0 ? 0 : before.block + 1, .between_blocks = before.block != 0};
  }

  void add(const Place& place, double begin, double end, bool backward) {
    if (place.layer < 0) return;
    if (!backward && place.layer >= 1 && place.layer <= blocks_)
      (place.between_blocks ? between_blocks_ : in_blocks_) += end - begin;
    work_.push_back({.begin = begin, .end = end, .pass = place.pass, .layer = place.layer, .backward = backward});
  }

  void add_update(int thread, double time, double begin, double end) {
    if (const Span* span = span_at(timeline_.optimizer, thread, time);
        span != nullptr && to_lower(recording_.name(span->name)).starts_with("optimizer"))
      updates_[step_of(span->begin)].emplace_back(begin, end);
  }

  /// Number of passes that began before: what an iteration's updates have in common.
  [[nodiscard]] int step_of(double time) const {
    const auto& ranges = timeline_.blocks;
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), time,
                                        [](double value, const BlockRange& range) { return value < range.begin; });
    return after == ranges.begin() ? -1 : std::prev(after)->pass;
  }

  void measure_operations() {
    std::map<int, Place> last;
    for (const Node& node : timeline_.backward) add(place_of(node, last), node.span.begin, node.span.end, true);
    std::vector<Operation> operations;
    for (const Operation& operation : recording_.operations)
      if (operation.thread == timeline_.forward_thread &&
          node_at(timeline_.backward, operation.thread, operation.begin) == nullptr)
        operations.push_back(operation);
    std::sort(operations.begin(), operations.end(), [](const Operation& a, const Operation& b) {
      return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
    });
    double until = -std::numeric_limits<double>::infinity();
    for (const Operation& operation : operations) {
      if (operation.begin < until) continue;  // a part of the operation before
      until = operation.end;
      if (span_at(timeline_.optimizer, operation.thread, operation.begin) != nullptr)
        add_update(operation.thread, operation.begin, operation.begin, operation.end);
      else
        add(place_of(operation.begin), operation.begin, operation.end, false);
    }
  }

  void measure_kernels() {
    std::vector<const Kernel*> kernels;
    for (const Kernel& kernel : recording_.kernels)
      if (kernel.launcher >= 0) kernels.push_back(&kernel);
    std::stable_sort(kernels.begin(), kernels.end(), [](const Kernel* a, const Kernel* b) {
      return std::pair(a->launcher, a->launched) < std::pair(b->launcher, b->launched);
    });
    std::map<int, Place> last;
    std::unordered_map<const Node*, Place> places;
    for (const Node& node : timeline_.backward) places.emplace(&node, place_of(node, last));
    for (const Kernel* kernel : kernels) {
      const Node* node = node_at(timeline_.backward, kernel->launcher, kernel->launched);
      if (is_communication(recording_.name(kernel->name)) && !belongs_to_layer(*kernel, node)) {
        communication_.emplace_back(kernel->begin, kernel->end);
        continue;
      }
      if (node != nullptr) {
        add(places.at(node), kernel->begin, kernel->end, true);
      } else if (kernel->launcher == timeline_.forward_thread) {
        if (span_at(timeline_.optimizer, kernel->launcher, kernel->launched) != nullptr)
          add_update(kernel->launcher, kernel->launched, kernel->begin, kernel->end);
        else
          add(place_of(kernel->launched), kernel->begin, kernel->end, false);
      } else {
        add(place_beside_annotations(kernel->launcher, kernel->launched), kernel->begin, kernel->end, true);
      }
    }
  }

  /// Whether a communication kernel is a collective of tensor parallelism.
  [[nodiscard]] bool belongs_to_layer(const Kernel& kernel, const Node* node) const {
    if (tensor_parallel_ == 1) return false;
    if (kernel.group >= 0)
      if (const auto known = is_tensor_parallel_group(recording_.name(kernel.group))) return *known;
    if (kernel.group_size > 0 && kernel.group_size != tensor_parallel_) return false;
    // Collectives that accumulating a gradient starts sum it over the data-parallel ranks.
    return node == nullptr || recording_.name(node->span.name).find("AccumulateGrad") == std::string::npos;
  }

  RecordedTimes add_up() {
    RecordedTimes times;
    times.on_cpu = recording_.kernels.empty();
    times.found_by = timeline_.found_by;
    times.recomputes = timeline_.recomputes;
    const auto layers = static_cast<std::size_t>(blocks_) + 2;
    PassTimes empty;
    for (auto* list : {&empty.forward, &empty.backward, &empty.forward_idle, &empty.backward_idle})
      list->assign(layers, 0.0);
    std::vector<PassTimes> passes(static_cast<std::size_t>(timeline_.passes), empty);

    // Idle times: between two pieces of work of one layer, without the communication in between.
    std::sort(work_.begin(), work_.end(), [](const Work& a, const Work& b) { return a.begin < b.begin; });
    times.communication = length_of(communication_);
    double until = -std::numeric_limits<double>::infinity();
    auto owner = std::tuple(-1, -1, false);
    std::size_t message = 0;
    for (const Work& work : work_) {
      if (work.begin > until && work.owner() == owner) {
        double idle = work.begin - until;
        while (message < communication_.size() && communication_[message].second <= until) ++message;
        double covered = until;
        for (std::size_t i = message; i < communication_.size() && communication_[i].first < work.begin; ++i) {
          const double begin = std::max(communication_[i].first, covered);
          const double end = std::min(communication_[i].second, work.begin);
          if (end > begin) {
            idle -= end - begin;
            covered = end;
          }
        }
        PassTimes& pass = passes[static_cast<std::size_t>(work.pass)];
        (work.backward ? pass.backward_idle : pass.forward_idle)[static_cast<std::size_t>(work.layer)] += idle;
      }
      if (work.end > until) {
        until = work.end;
        owner = work.owner();
      }
    }

    // Busy times: the union, as kernels of several streams overlap.
    std::sort(work_.begin(), work_.end(), [](const Work& a, const Work& b) { return a.owner() < b.owner(); });
    std::vector<std::pair<double, double>> intervals;
    for (std::size_t first = 0; first < work_.size();) {
      std::size_t last = first;
      intervals.clear();
      for (; last < work_.size() && work_[last].owner() == work_[first].owner(); ++last)
        intervals.emplace_back(work_[last].begin, work_[last].end);
      PassTimes& pass = passes[static_cast<std::size_t>(work_[first].pass)];
      (work_[first].backward ? pass.backward : pass.forward)[static_cast<std::size_t>(work_[first].layer)] =
          length_of(intervals);
      first = last;
    }
    for (PassTimes& pass : passes) {
      const bool complete =
          std::all_of(pass.forward.begin() + 1, pass.forward.end() - 1, [](double t) { return t > 0; }) &&
          std::all_of(pass.backward.begin() + 1, pass.backward.end() - 1, [](double t) { return t > 0; });
      if (complete)
        times.passes.push_back(std::move(pass));
      else
        ++times.left_out;
    }
    for (auto& [step, spans] : updates_) times.updates.push_back(length_of(spans));
    return times;
  }

  const Recording& recording_;
  Timeline timeline_;
  int blocks_;
  int tensor_parallel_;
  std::unordered_map<std::int64_t, double> forward_;  // begin of the forward operation, by sequence number
  std::vector<double> backward_begins_;
  std::vector<double> bounds_;  // by pass
  std::vector<Work> work_;
  std::vector<std::pair<double, double>> communication_;
  std::map<int, std::vector<std::pair<double, double>>> updates_;
  double between_blocks_ = 0.0;  // of the forward pass
  double in_blocks_ = 0.0;
};

}  // namespace

Result<RecordedTimes> measure(const Recording& recording, int blocks, int tensor_parallel, std::string_view file) {
  if (recording.operations.empty() && recording.annotations.empty())
    return fail(ErrorCode::invalid_input, fmt::format("{}: it has neither operations nor annotations of layers", file),
                "record the CPU, too (ProfilerActivity.CPU), or name the layers with NVTX ranges");
  std::set<int> devices;
  bool launched = recording.kernels.empty();
  for (const Kernel& kernel : recording.kernels) {
    devices.insert(kernel.device);
    launched = launched || kernel.launcher >= 0;
  }
  if (devices.size() > 1)
    return fail(ErrorCode::invalid_input, fmt::format("{}: it has kernels of {} GPUs", file, devices.size()),
                "record each rank in a file of its own; several files may be imported together");
  if (!launched)
    return fail(ErrorCode::invalid_input, fmt::format("{}: it does not say what launched its kernels", file),
                "record the CPU, too: ProfilerActivity.CPU, or nsys with --trace=cuda,nvtx");
  auto timeline = find_timeline(recording, blocks, file);
  if (!timeline) return fail(timeline.error());
  const bool by_annotation = timeline->by_annotation;
  const std::string found_by = timeline->found_by;
  const int passes = timeline->passes;
  Measurer measurer(recording, *std::move(timeline), blocks, tensor_parallel);
  RecordedTimes times = measurer.measure();
  if (by_annotation && measurer.work_between_blocks() > largest_gap * measurer.work_in_blocks())
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: {:.0f}% of the work between the first and the last block lies outside of the {}", file,
                            100.0 * measurer.work_between_blocks() /
                                (measurer.work_between_blocks() + measurer.work_in_blocks()),
                            found_by),
                "annotate whole blocks, not parts of them");
  if (times.passes.empty())
    return fail(
        ErrorCode::invalid_input,
        fmt::format("{}: in none of {} passes every block has work in its forward and its backward pass", file, passes),
        "record without CUDA graphs and without compiling the whole model at once (compile its blocks), and "
        "whole steps of a training");
  return times;
}

}  // namespace sailor::traces

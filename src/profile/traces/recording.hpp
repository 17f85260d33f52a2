// What profilers of other programs recorded of a training, as far as layer times are made of it. The readers of this
// folder fill it; measure.hpp makes times of it. Does no I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sailor::traces {

/// A range of time on a thread of the CPU. Times of a recording are seconds since its first event.
struct Span {
  double begin = 0.0;
  double end = 0.0;
  int thread = 0;  ///< number of the thread within the recording
  int name = 0;    ///< index into Recording::names
};

/// An operation of PyTorch, with the sequence number that an operation of the forward pass and the autograd node of its
/// backward pass have in common; -1: none.
struct Operation : Span {
  std::int64_t sequence = -1;
};

/// A kernel on a GPU.
struct Kernel {
  double begin = 0.0;
  double end = 0.0;
  double launched = 0.0;  ///< when the CPU launched it
  int launcher = -1;      ///< thread that did; -1: not recorded
  int name = 0;
  int device = 0;
  int group = -1;      ///< of a communication kernel: name of its process group; -1: not recorded
  int group_size = 0;  ///< of a communication kernel: ranks of its process group; 0: not recorded
};

struct Recording {
  std::vector<std::string> names{};
  std::vector<Span> annotations{};  ///< record_function(), modules, NVTX ranges
  std::vector<Operation> operations{};
  std::vector<Kernel> kernels{};  ///< empty: the training computed on the CPU
  std::string device{};           ///< "NVIDIA H100 80GB HBM3"; empty: not recorded
  std::string host{};
  std::string versions{};  ///< "CUDA 12.4"

  [[nodiscard]] const std::string& name(int index) const { return names[static_cast<std::size_t>(index)]; }
};

/// Gives equal texts one number.
class Names {
 public:
  int number(std::string_view text) {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) return found->second;
    names_.emplace_back(text);
    return numbers_.emplace(names_.back(), static_cast<int>(names_.size()) - 1).first->second;
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::vector<std::string> names_;
  std::unordered_map<std::string, int, Hash, std::equal_to<>> numbers_;
};

/// Names of operations that begin with this are autograd nodes: the backward pass.
inline constexpr std::string_view autograd_node = "autograd::engine::evaluate_function: ";

}  // namespace sailor::traces

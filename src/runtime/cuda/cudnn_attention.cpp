// Graphs of scaled dot-product attention for cuDNN, built by its C++ frontend. Queries, keys and values are read where
// the projection has put them, and their gradients are written in the same layout, without transposition.
#include <cudnn.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "core/log.hpp"
#include "runtime/cuda/fused_attention.hpp"

namespace sailor::runtime::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Graph = fe::graph::Graph;

/// Ids of the tensors of a graph in cuDNN.
enum Name : std::int64_t {
  queries = 1,
  keys,
  values,
  output,
  statistics,
  output_gradient,
  query_gradient,
  key_gradient,
  value_gradient
};

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("cuDNN: {}: {}", what, cudnnGetErrorString(status)));
}
/// The first of the reasons that cuDNN gives for rejecting each kernel.
std::string first_reason(const std::string& message) {
  constexpr std::string_view label = "Reason: ";
  const std::size_t reason = message.find(label);
  const std::size_t begin = reason == std::string::npos ? 0 : reason + label.size();
  return message.substr(begin, message.find('\n', begin) - begin);
}
void check(fe::error_t error, const char* what) {
  if (error.is_bad()) throw std::runtime_error(fmt::format("cuDNN: {}: {}", what, first_reason(error.get_message())));
}

/// (sequences, heads, sequence_length, head_width) inside rows of `row` values, one per token.
fe::graph::Tensor_attributes heads_of(const AttentionShape& shape, Name name, std::int64_t heads, std::int64_t row) {
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(name)
      .set_dim({shape.sequences, heads, shape.sequence_length, shape.head_width})
      .set_stride({shape.sequence_length * row, shape.head_width, row, 1});
  return tensor;
}
/// (sequences, heads, sequence_length, 1) of float32
fe::graph::Tensor_attributes statistics_of(const AttentionShape& shape) {
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(statistics)
      .set_dim({shape.sequences, shape.heads, shape.sequence_length, 1})
      .set_stride({shape.heads * shape.sequence_length, shape.sequence_length, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
  return tensor;
}
void make_output(const Tensor& tensor, const fe::graph::Tensor_attributes& like) {
  tensor->set_output(true)
      .set_uid(like.get_uid())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride())
      .set_data_type(like.get_data_type());
}

/// Causal mask: a token sees itself and earlier tokens, limited to `window` if set.
template <class Attributes>
Attributes masked(const AttentionShape& shape) {
  Attributes attributes;
  attributes.set_attn_scale(shape.score_scale)
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (shape.window > 0 && shape.window < shape.sequence_length)
    attributes.set_diagonal_band_left_bound(static_cast<int>(shape.window));
  return attributes;
}

void* at(void* memory, std::int64_t values_before, DataType type) {
  return static_cast<char*>(memory) + bytes_of(type, values_before);
}
/// cuDNN takes inputs and outputs alike, as pointers to non-const memory.
void* memory_of(const void* memory) { return const_cast<void*>(memory); }

struct Graphs final : FusedAttention::Plan {
  std::shared_ptr<Graph> forward;
  std::shared_ptr<Graph> backward;
};

class CudnnAttention final : public FusedAttention {
 public:
  explicit CudnnAttention(bool deterministic) : deterministic_(deterministic) { check(cudnnCreate(&handle_), "start"); }
  CudnnAttention(bool deterministic, const DescribedDevice& device)
      : deterministic_(deterministic),
        described_(std::make_shared<fe::DeviceProperties>()),
        compute_capability_(device.compute_capability) {
    check(described_->deserialize({device.json.begin(), device.json.end()}), "description of a device");
  }
  ~CudnnAttention() override {
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  std::string version() const override {
    const std::size_t number = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }

  const Plan* plan_for(const AttentionShape& shape, DataType type) override {
    if (type != DataType::bfloat16 && type != DataType::float16) return nullptr;
    const Key key{shape.sequences,  shape.sequence_length,
                  shape.heads,      shape.key_value_heads,
                  shape.head_width, static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(shape.score_scale)),
                  shape.window,     static_cast<std::int64_t>(type)};
    const auto [entry, is_new] = graphs_.try_emplace(key);
    if (is_new) {
      try {
        entry->second = make_graphs(shape, type);
      } catch (const std::runtime_error& error) {
        log_warning(
            "attention of {} heads of {} values over {} tokens is computed by a kernel without tensor cores, which is "
            "many times slower: {}",
            shape.heads, shape.head_width, shape.sequence_length, error.what());
      }
    }
    return entry->second.get();
  }

  void forward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected, Values to,
               float* to_statistics, void* workspace) override {
    Pointers pointers = inputs_of(shape, projected);
    pointers[output] = to.data;
    pointers[statistics] = to_statistics;
    run(queue, *static_cast<const Graphs&>(plan).forward, pointers, workspace);
  }
  void backward(const Queue& queue, const Plan& plan, const AttentionShape& shape, ConstValues projected,
                ConstValues from, const float* from_statistics, ConstValues gradient, Values projected_gradient,
                void* workspace) override {
    Pointers pointers = inputs_of(shape, projected);
    pointers[output] = memory_of(from.data);
    pointers[statistics] = memory_of(from_statistics);
    pointers[output_gradient] = memory_of(gradient.data);
    pointers[query_gradient] = projected_gradient.data;
    pointers[key_gradient] = at(projected_gradient.data, shape.width(), projected.type);
    pointers[value_gradient] = at(projected_gradient.data, shape.width() + shape.key_value_width(), projected.type);
    run(queue, *static_cast<const Graphs&>(plan).backward, pointers, workspace);
  }

 private:
  using Key = std::array<std::int64_t, 8>;
  using Pointers = std::unordered_map<std::int64_t, void*>;

  static Pointers inputs_of(const AttentionShape& shape, ConstValues projected) {
    void* const memory = memory_of(projected.data);
    return {{queries, memory},
            {keys, at(memory, shape.width(), projected.type)},
            {values, at(memory, shape.width() + shape.key_value_width(), projected.type)}};
  }

  void run(const Queue& queue, const Graph& graph, Pointers& pointers, void* workspace) {
    check(cudnnSetStream(handle_, queue.stream), "stream");
    check(graph.execute(handle_, pointers, workspace), "attention");
  }

  std::shared_ptr<Graph> new_graph(DataType type) const {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(type == DataType::bfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (described_ != nullptr) graph->set_device_properties(described_).set_sm_version(compute_capability_);
    return graph;
  }
  /// Chooses kernels; returns bytes of workspace.
  std::size_t finish(Graph& graph) const {
    check(graph.validate(), "graph of attention");
    check(described_ != nullptr ? graph.build_operation_graph() : graph.build_operation_graph(handle_),
          "graph of attention");
    check(graph.create_execution_plans({fe::HeurMode_t::A}), "choice of kernels for attention");
    check(graph.check_support(), "choice of kernels for attention");
    check(graph.build_plans(), "kernels for attention");
    std::int64_t bytes = 0;
    check(graph.get_workspace_size(bytes), "workspace of attention");
    return static_cast<std::size_t>(bytes);
  }

  std::unique_ptr<Graphs> make_graphs(const AttentionShape& shape, DataType type) const {
    const auto rows = [&](Name name) {
      return heads_of(shape, name, name == queries || name == query_gradient ? shape.heads : shape.key_value_heads,
                      shape.projected_width());
    };
    const auto result = [&](Name name) { return heads_of(shape, name, shape.heads, shape.width()); };
    auto graphs = std::make_unique<Graphs>();
    {
      graphs->forward = new_graph(type);
      Graph& graph = *graphs->forward;
      const auto [o, stats] =
          graph.sdpa(graph.tensor(rows(queries)), graph.tensor(rows(keys)), graph.tensor(rows(values)),
                     masked<fe::graph::SDPA_attributes>(shape).set_generate_stats(true));
      make_output(o, result(output));
      make_output(stats, statistics_of(shape));
      graphs->forward_workspace = finish(graph);
    }
    {
      graphs->backward = new_graph(type);
      Graph& graph = *graphs->backward;
      const auto [dq, dk, dv] = graph.sdpa_backward(
          graph.tensor(rows(queries)), graph.tensor(rows(keys)), graph.tensor(rows(values)),
          graph.tensor(result(output)), graph.tensor(result(output_gradient)), graph.tensor(statistics_of(shape)),
          masked<fe::graph::SDPA_backward_attributes>(shape).set_deterministic_algorithm(deterministic_));
      make_output(dq, rows(query_gradient));
      make_output(dk, rows(key_gradient));
      make_output(dv, rows(value_gradient));
      graphs->backward_workspace = finish(graph);
    }
    return graphs;
  }

  bool deterministic_;
  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<fe::DeviceProperties> described_;  // null: the current device
  int compute_capability_ = 0;                       // of the described device
  std::map<Key, std::unique_ptr<Graphs>> graphs_;    // null: cuDNN has no kernels
};

}  // namespace

std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic) {
  return std::make_unique<CudnnAttention>(deterministic);
}
std::unique_ptr<FusedAttention> make_cudnn_attention(bool deterministic, const DescribedDevice& device) {
  return std::make_unique<CudnnAttention>(deterministic, device);
}

}  // namespace sailor::runtime::cuda

// From kinds of pipelines to plans: how many of each, and how many micro-batches each gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "planner/templates.hpp"

namespace sailor::planner {

/// Pipelines of one kind.
struct Group {
  PipelineTemplate column;
  int count = 0;
};

/// A plan without its numbers of micro-batches.
struct TemplateMix {
  Schedule schedule = Schedule::one_f_one_b;
  OptimizerSharding sharding = OptimizerSharding::none;
  /// Under the interleaved schedule, of the search's layers: virtual stage v, in the order in which a micro-batch
  /// passes them, holds [chunk_cuts[v], chunk_cuts[v + 1]); there are as many for each stage.
  std::vector<int> chunk_cuts{};
  std::vector<Group> groups;
};

/// `count` pipelines of a group with `micro_batches` each.
struct Share {
  std::size_t group = 0;
  int count = 0;
  int micro_batches = 0;
};

/// Times of the pipelines of a group: fixed + round x (micro-batches - 1) seconds.
struct GroupTime {
  double fixed = 0.0;
  double round = 0.0;
  int micro_batch = 1;
  int max_micro_batches = INT_MAX;
  int count = 0;
};

/// Divides `batch` sequences so that the last pipeline is done as early as possible; every pipeline gets at least one
/// micro-batch. Exact when all micro-batches are of one size or there are few groups and sequences, else at most one
/// micro-batch off. std::nullopt if there are too many pipelines, they cannot take the whole batch, or no numbers of
/// micro-batches add up to it.
std::optional<std::vector<Share>> share_batch(std::span<const GroupTime> groups, int batch);

/// Lower bound of the time in which the groups process the batch; infinite if they cannot.
double min_deadline(std::span<const GroupTime> groups, int batch);

/// Min seconds of the reduction of a pipeline's first stage over `pipelines` pipelines. 0 where reductions overlap with
/// passes.
double min_reduction(StagePrices& prices, const PipelineTemplate& column, int pipelines);

/// Lower bound of the iteration time of the template mix, however the batch is divided; infinite if it cannot be
/// divided.
double least_time(StagePrices& prices, const TemplateMix& mix, int batch);

Plan make_plan(const Request& request, const SearchSpace& space, const TemplateMix& mix, std::span<const Share> shares);

/// Max sequences that the devices of a pool can process in a given time, by the number of devices used: an unbounded
/// knapsack over templates (Gilmore & Gomory 1966), exact when tensor-parallel groups fill their nodes.
class Knapsack {
 public:
  /// Templates of the pool's type; `node` devices in each node.
  void fill(std::span<const PipelineTemplate* const> columns, int devices, int node, double deadline);
  [[nodiscard]] int sequences(int devices) const { return value_[static_cast<std::size_t>(devices)]; }
  /// Min devices that process at least `sequences`; -1 if none do.
  [[nodiscard]] int devices_for(int sequences) const;
  /// The templates behind sequences(devices), with their numbers.
  [[nodiscard]] std::vector<std::pair<const PipelineTemplate*, int>> columns(int devices) const;

 private:
  struct Item {
    const PipelineTemplate* column;
    int weight;
    int value;
  };
  std::vector<Item> items_;
  std::vector<int> value_;
  std::vector<int> pick_;  // index into items_; -1: as with one device less
};

/// Devices of a node that a template occupies, including those that no other group could use.
int weight_of(const PipelineTemplate& column, int node);

/// Max pipelines of this kind, with all stages in one pool, on at most `devices` of it, under the limits on devices and
/// nodes of the space.
int max_copies(const PipelineTemplate& column, const DevicePool& pool, const SearchSpace& space, int devices);
inline int max_copies(const PipelineTemplate& column, const DevicePool& pool, const SearchSpace& space) {
  return max_copies(column, pool, space, pool.devices());
}

/// Pools that may be used together, and the templates for them.
struct MixRequest {
  std::vector<std::size_t> pools;
  std::vector<std::vector<const PipelineTemplate*>> columns;  ///< by type of GPU
  std::vector<Group> given;                                   ///< part of the template mix, with pools of their own
  int batch = 0;
};

/// Builds template mixes of templates that each stay in one pool.
class MixBuilder {
 public:
  explicit MixBuilder(const SearchSpace& space) : space_(space) {}

  /// The fastest mix on all devices, or on as many as the limits allow; of those devices it takes no more than it
  /// needs.
  std::optional<TemplateMix> fastest(const MixRequest& request);
  /// A mix done by `deadline` at the min total price of devices (`by_price`) or number of devices. std::nullopt if
  /// there is none.
  std::optional<TemplateMix> cheapest(const MixRequest& request, double deadline, bool by_price);
  /// The fastest mix of this number of pipelines, those in one pool of one kind (mix_of_size.cpp). std::nullopt if
  /// there is none, or for more than 128 pipelines.
  std::optional<TemplateMix> of_size(const MixRequest& request, int pipelines) const;
  /// Lower bound of the time of any template mix: all devices of every pool at the pool's best rate.
  double min_deadline(const MixRequest& request) const;
  /// Upper bound of the sequences per device of this type by a deadline.
  [[nodiscard]] double best_rate(const MixRequest& request, std::size_t type, double deadline) const;

 private:
  int fill(const MixRequest& request, double deadline);
  TemplateMix pick(const MixRequest& request, const std::vector<int>& devices) const;
  /// Devices of each pool under the limits on devices and nodes, and the sequences that they process.
  std::vector<int> limited(const MixRequest& request, std::int64_t& sequences) const;
  /// Devices of each pool that the given groups leave.
  [[nodiscard]] std::vector<int> free_devices(const MixRequest& request) const;

  const SearchSpace& space_;
  std::vector<Knapsack> knapsacks_;  // by position in MixRequest::pools
};

}  // namespace sailor::planner

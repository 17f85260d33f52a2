// Searches the plans of one micro-batch and one data-parallel degree for the artifact's evaluator: dynamic programming
// over the layers from the last to the first, with Pareto labels, pruned by bounds against the best plan so far.
//
// A label is a suffix of the pipeline. Another one with the same first stage is dropped when it has no more devices
// left and its time cannot become better, whatever comes before. Stages are of one GPU type and tensor-parallel degree
// in one zone, over several zones, of two GPU types, or of three where two are not enough.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/artifact/evaluator.hpp"
#include "planner/artifact/relaxation.hpp"
#include "planner/request.hpp"

namespace sailor::planner::artifact {

/// Devices of one type in one zone, in blocks of `chunk` = 2^n that hold tensor-parallel groups.
struct Pool {
  int gpu = 0;
  int zone = 0;
  int chunk = 1;
  std::int64_t devices = 0;
};

/// The value of a plan, smaller is better, and the limits that it must keep.
struct Goal {
  Objective objective = Objective::throughput;
  double max_time = unlimited;  ///< seconds per iteration
  double max_cost = unlimited;  ///< USD per iteration
  std::int64_t max_devices = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_nodes = std::numeric_limits<std::int64_t>::max();
  double max_node_time = unlimited;  ///< nodes x seconds per iteration

  [[nodiscard]] bool counts_money() const { return objective != Objective::throughput || max_cost < unlimited; }
  [[nodiscard]] bool counts_nodes() const {
    return most_nodes < std::numeric_limits<std::int64_t>::max() || max_node_time < unlimited;
  }
  /// Seconds, USD, or USD x seconds.
  [[nodiscard]] double value(double time, double cost) const {
    return objective == Objective::throughput ? time : objective == Objective::cost ? cost : time * cost;
  }
};

/// Shared by the whole search.
struct Inputs {
  const Tables& tables;
  std::vector<Pool> pools;
  Goal goal;
  double memory_share = 1.0;  ///< of each GPU's memory that a plan may use
  std::optional<int> stages;  ///< exactly
  bool uniform = false;       ///< layers divided as by partition_sailor(): floor(L/P), the last L mod P stages one more
  std::optional<int> tensor_parallel;
  std::optional<int> max_tensor_parallel;
};

struct Counters {
  std::uint64_t considered = 0;
  std::uint64_t did_not_fit = 0;
  std::uint64_t effort = 0;  ///< like considered, plus the work of finding the stages
};

/// Shared by all searches of one micro-batch size.
class Kinds {
 public:
  struct StageCandidate {
    int gpu = 0;
    int degree = 1;
    int room = 1;  ///< devices that a group takes: the next power of two
    const Times* times = nullptr;
    const Sizes* sizes = nullptr;
    double memory = 0.0;
    double price = 0.0;  ///< USD per second of one group
  };
  Kinds(const Inputs& inputs, int micro_batch);

  [[nodiscard]] const std::vector<StageCandidate>& candidates() const { return candidates_; }
  [[nodiscard]] int zones() const { return zones_; }
  /// Layers whose outputs have the same size have the same class.
  [[nodiscard]] int size_class(int layer) const { return size_class_[layer]; }
  [[nodiscard]] int classes() const { return classes_; }
  /// Number of a candidate in a zone where it has devices.
  [[nodiscard]] int place(int candidate, int zone) const { return place_[candidate * zones_ + zone]; }
  /// Seconds of a message by class; null when there is no link.
  [[nodiscard]] const double* message(int from_place, int to_place) const {
    const std::size_t at = static_cast<std::size_t>(from_place) * places_ + to_place;
    return linked_[at] ? &messages_[at * classes_] : nullptr;
  }
  /// By candidate: the fastest message to any neighbour.
  [[nodiscard]] const std::vector<double>& fastest_send() const { return fastest_send_; }
  /// Links over which gradients may go, each once.
  [[nodiscard]] const std::vector<const Curve*>& rings() const { return rings_; }

 private:
  std::vector<StageCandidate> candidates_;
  int zones_ = 0;
  int places_ = 0;
  int classes_ = 0;
  std::vector<int> size_class_;
  std::vector<int> place_;
  std::vector<char> linked_;
  std::vector<double> messages_;
  std::vector<double> fastest_send_;
  std::vector<const Curve*> rings_;
};

/// Called with a plan that is better than the bound at that time. Returns the value that the next plan must beat.
using Solution = std::function<double(const Pipelines&)>;
/// True: stop now.
using Interrupt = std::function<bool()>;

/// Devices that a team may take.
struct Draw {
  int team = 0;
  std::size_t first = 0;  // in Workspace::devices
  std::size_t last = 0;
};
/// The last stages of a pipeline.
struct Label {
  double open = 0.0;  // first stage without its messages to the previous stage
  double slowest = 0.0;
  double sum = 0.0;
  double update = 0.0;
  double reduction = 0.0;
  double price = 0.0;
  double egress = 0.0;
  double bound = 0.0;
  int first = 0;
  int last = 0;
  int stages = 0;
  int mixed = 0;  // stages of several GPU types
  int team = -1;
  int parent = -1;
  bool dead = false;
};
/// Memory of a search, reused by the next one.
struct Workspace {
  std::vector<Label> labels;
  std::vector<std::int64_t> left;                        // devices left, pool by pool, label by label
  std::vector<std::map<int, std::vector<int>>> by_team;  // by first layer: bucket of the team -> labels
  std::vector<double> left_by_gpu;
  std::vector<Draw> draws;
  std::vector<std::pair<int, std::int64_t>> devices;  // of the draws: pool, number
  std::vector<std::int64_t> parent_left;
  std::vector<std::int64_t> rest;
  std::vector<std::int64_t> filled;
  std::vector<Run> runs;
  std::vector<int> counts;
};

class StageSearch {
 public:
  StageSearch(const Inputs& inputs, std::shared_ptr<const Kinds> kinds, int micro_batch, int replicas);

  /// No plan of this micro-batch and degree has a smaller value (Goal::value), whatever its stages mix.
  [[nodiscard]] double bound() const { return root_bound_; }
  /// Finds plans with values below `to_beat`. At most `width` labels for each number of layers. `order`: the order in
  /// which stages over several zones fill the pools. True: complete, there is no plan below the last value returned by
  /// `found`, among those that the file comment describes.
  bool run(double to_beat, std::size_t width, const std::vector<int>& order, const Solution& found,
           const Interrupt& interrupt, Counters& counters, Workspace& workspace);

 private:
  using StageCandidate = Kinds::StageCandidate;
  /// Replicas of a stage: their candidates, places and order.
  struct Team {
    std::vector<Run> runs;
    std::vector<int> candidates;  // distinct
    std::vector<int> places;      // by run
    int ring = 0;
    int bucket = 0;  // labels with the same bucket are compared
    double price = 0.0;
    double ring_egress = 0.0;  // USD per byte of gradients
    bool linked = true;
    bool mixed = false;
  };
  /// How gradients are reduced: over which links, and by which tensor-parallel degree their bytes are divided.
  struct Ring {
    std::vector<const Curve*> curves;
    int smallest_degree = 4;
    std::vector<double> reductions;  // by range of layers; negative: not computed yet
  };
  struct Link {
    std::size_t times = 0;  // in link_times_: to the next stage by class of sizes, then to the previous stage
    double egress = 0.0;    // USD per byte, both directions
    bool there = true;
  };
  struct HashRuns {
    std::size_t operator()(const std::vector<Run>& runs) const;
  };

  void prepare_bounds();
  /// A relaxation for plans below to_beat_.
  void relax();
  [[nodiscard]] std::vector<double> by_gpu(const std::int64_t* left) const;
  [[nodiscard]] double bound_of(const Label& label, const std::int64_t* left);
  void find_draws(const std::int64_t* left, int layers_left);
  void draw_type(const std::int64_t* left, int candidate);
  void draw_mixed(const std::int64_t* left, int a, int b);
  void draw_triple(const std::int64_t* left, int a, int b, int c);
  /// Takes `count` groups in the order of the pools from `start` on; false when there are not enough.
  bool fill(std::vector<std::int64_t>& left, int candidate, int count, std::size_t start);
  /// Adds a draw with Workspace::runs and what was added to Workspace::devices since the last draw.
  void add_draw();
  void take(int pool, std::int64_t devices, const Run& run);
  void start_draw();
  int team_of(const std::vector<Run>& runs);
  const Link& link(int from, int to);
  double reduction(Ring& ring, const LayerRange& layers);
  [[nodiscard]] std::int64_t groups(const std::int64_t* left, int candidate) const;
  [[nodiscard]] std::int64_t nodes_used(const std::int64_t* left) const;
  [[nodiscard]] bool dominates(const Label& a, const std::int64_t* left_a, const Label& b,
                               const std::int64_t* left_b) const;
  void extend(int parent, int fixed_stages, const Solution& found, Counters& counters);
  void insert(const Label& label, const std::int64_t* left);
  [[nodiscard]] Pipelines pipelines(const Label& last) const;
  bool search(int fixed_stages, std::size_t width, const Solution& found, const Interrupt& interrupt,
              Counters& counters);

  /// Computes what plans of `stages` uniform stages need at least; false: none is below to_beat_.
  bool prepare_uniform(int stages);

  const Inputs& inputs_;
  const Tables& tables_;
  std::shared_ptr<const Kinds> kinds_;
  const std::vector<StageCandidate>& candidates_;
  int micro_batch_;
  int replicas_;
  int batches_;
  int layers_;
  std::vector<std::int64_t> whole_;  // devices of each pool
  std::vector<int> order_;           // of the pools
  std::vector<Team> teams_;
  std::unordered_map<std::vector<Run>, int, HashRuns> team_index_;
  std::unordered_map<std::vector<Run>, int, HashRuns> bucket_index_;
  std::vector<Ring> rings_;
  std::map<std::pair<std::vector<const Curve*>, int>, int> ring_index_;
  std::unordered_map<std::uint64_t, Link> links_;
  std::vector<double> link_times_;
  // Lower bounds for the layers [0, l).
  std::vector<double> min_compute_;
  std::vector<double> min_work_;   // in units of the middle layer's work
  std::vector<double> min_money_;  // USD per replica set and micro-batch
  std::vector<double> speed_;      // by pool: units of work per device and second
  double min_send_ = 0.0;
  double min_update_ = 0.0;
  double min_price_ = 0.0;
  double min_reduction_ = unlimited;
  double root_bound_ = unlimited;
  std::vector<double> gpu_speed_;
  std::optional<Relaxation> relaxation_;
  double relaxed_for_ = unlimited;  // to_beat_ at that time
  // Uniform stages: min needs of the stages before a label, by the first layer of the label.
  std::vector<double> uniform_time_;
  std::vector<double> uniform_devices_;  // in units of gpu_speed_

  std::vector<std::int64_t> max_room_;  // by pool: devices of the largest group

  double to_beat_ = unlimited;
  Workspace* work_ = nullptr;  // of this run
};

}  // namespace sailor::planner::artifact

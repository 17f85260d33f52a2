// Pricing problem of the bound: the max worth of pipelines by a deadline, for the price of their devices, in a branch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "core/worker_threads.hpp"
#include "planner/bound/bound.hpp"
#include "planner/bound/ready_labels.hpp"
#include "planner/bound/stages.hpp"

namespace sailor::planner {

/// Plans with a number of pipelines in a range. If `pure` has two or more pools, each of them holds whole pipelines, so
/// that every layer is held in all of them; with fewer, nothing is known about where layers are held.
struct Branch {
  std::vector<std::size_t> pure;
  /// By layer, empty if nothing is known: the only zone (PricingProblem::zone()) that holds it, or one of these
  /// constants.
  std::vector<int> holders;
  static constexpr int unknown = -2;
  static constexpr int several = -1;  ///< it is held in more than one zone
  bool one_pool = false;              ///< all devices are those of the pure pool
  bool all_cross = false;             ///< every pipeline has devices of two pools or more
  int min_pipelines = 1;
  int max_pipelines = 1;
  /// Range of the longest reduction of a first stage, over all pipelines.
  double reduction_over = 0.0;
  double reduction_up_to = infinity;

  bool operator==(const Branch&) const = default;
};

/// Range of the iteration times of a branch's plans, in seconds. The bound counts the sequences that pipelines process
/// by `longest`. A pipeline that is done at t < longest counts longest / max(t, shortest) times: devices are paid per
/// second, so that this leaves the plan's cost unchanged (docs/design/planner.md).
struct TimeRange {
  double shortest = 0.0;
  double longest = 0.0;
};

/// Cache of min reduction times, shared by all threads: each computes the same values.
class KnownReductions {
 public:
  /// Negative: not yet known.
  struct Times {
    Times(std::size_t of_times, std::size_t of_linked);
    std::vector<std::atomic<double>> times;   ///< of several layers, by pool, degree, amount and rings
    std::vector<std::atomic<double>> linked;  ///< of layers that are held elsewhere too, by pool, degree and amount
  };
  KnownReductions(std::size_t times, std::size_t linked) : times_(times), linked_(linked) {}
  /// The times of a branch, by the properties that they depend on.
  std::shared_ptr<Times> of(const Branch& branch);

 private:
  using Key = std::tuple<int, std::vector<std::size_t>, bool>;  // pipelines, pools that hold everything, all in one
  std::size_t times_;
  std::size_t linked_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Times>> known_;
};

/// A pipeline that is worth more than its price.
struct ViolatedColumn {
  double sequences = 0.0;    ///< by the longest time (TimeRange)
  std::vector<double> uses;  ///< devices by pool; no more than it takes, perhaps less
};

class PricingProblem {
 public:
  static constexpr double slack = 1.0 + 1e-12;  ///< against rounding

  /// `stop` is polled; once it returns true, results are no longer valid.
  PricingProblem(StagePrices& prices, const std::function<bool()>& stop);
  /// A copy for another thread, with empty caches; it uses `prices`, which are of the same request.
  PricingProblem(const PricingProblem& other, StagePrices& prices);
  PricingProblem(const PricingProblem&) = delete;
  PricingProblem& operator=(const PricingProblem&) = delete;

  /// The min price of a device of `pool` at which no pipeline of one stage there is worth more than its devices and
  /// `each`.
  double single(std::size_t pool, const TimeRange& times, const Branch& branch, double each, ViolatedColumn& violated);
  /// The same for pipelines of more stages inside the pool, if that is more than `needed`; else `needed`. `violated`:
  /// the pipeline that determines the price.
  double inside(std::size_t pool, const TimeRange& times, const Branch& branch, double each, double needed,
                ViolatedColumn& violated);
  /// The factor by which the prices of devices must rise so that no pipeline across pools is worth more; `needed` if
  /// the factor is not more than that.
  double across(const std::vector<double>& device_price, const TimeRange& times, const Branch& branch, double each,
                double needed, ViolatedColumn& violated);
  /// Max event-driven seconds of a plan that the user's limits allow; infinite if there are none.
  [[nodiscard]] double latest() const { return latest_; }
  /// Max sequences per second and device, whatever the schedule is, and without reductions.
  [[nodiscard]] double fluid_rate(std::size_t pool) const { return fluid_rate_[pool]; }
  /// The same by pool, but at least a hundredth of the fastest, as a pool too small for whole pipelines may hold parts;
  /// empty if no pool holds whole ones.
  [[nodiscard]] std::vector<double> fluid_rates() const;
  /// Min over all pipelines of the price of their devices times their seconds for a sequence, however many
  /// micro-batches they have, and without reductions. So no plan processes more sequences per second than the price of
  /// its devices divided by this.
  double min_price_per_sequence(const std::vector<double>& device_price);
  /// The max value of Branch::reduction_up_to that makes a difference.
  double longest_reduction(const Branch& branch);

  /// From now on, results may be wrong, to the safe side, by a part of this share.
  void set_precision(double share);
  /// Zone of a pool, by number; where all pools are in one zone, the pool itself.
  [[nodiscard]] std::size_t zone(std::size_t pool) const { return zone_[pool]; }
  [[nodiscard]] std::size_t zones() const { return zones_; }
  [[nodiscard]] bool any_across() const { return !across_.empty(); }
  [[nodiscard]] bool any_inside() const;
  /// From now on, pipelines of two stages or more are priced by labels, too (ready_labels.hpp), as long as that takes
  /// no more than so much work.
  void use_labels(std::uint64_t max_work) { label_work_left_ = max_work; }
  /// From now on, labels price several boxes at once with these threads.
  void use_threads(WorkerThreads& threads) { threads_ = &threads; }
  /// Whether stages hold several ranges of layers (interleaved schedule): then only interleaved_prices() holds.
  [[nodiscard]] bool interleaves() const { return interleaves_; }
  /// Prices of devices, by pool, at which no interleaved pipeline processes more sequences by the deadline than its
  /// devices are worth.
  std::vector<double> interleaved_prices(double deadline, const Branch& branch);
  /// Steps of the innermost loops so far: stages that were priced, labels that were extended.
  [[nodiscard]] std::uint64_t work() const;
  /// From now on, the best pipelines across pools, and those that labels find inside one, are noted in `hints`; null:
  /// no longer.
  void note_hints(std::vector<Hint>* hints) { hints_ = hints; }

 private:
  struct Single {
    int micro_batch = 1;
    int devices = 1;
    double time = 0.0;
    double backward = 0.0;  // of `time`, where reductions overlap it
    double update = 0.0;
  };
  /// The least that a layer takes of a stage of interleaved pipelines: seconds and bytes.
  struct HeldLayer {
    double time = 0.0;
    double fixed = 0.0;       ///< workspace and buffers of its stage
    double activation = 0.0;  ///< of a micro-batch
    double exchanged = 0.0;   ///< gradients and weights after the passes, of all ranks together
    struct State {
      double whole = 0.0;
      double shared = 0.0;  ///< divided among the replicas
      [[nodiscard]] double of(int replicas) const { return whole + shared / replicas; }
    };
    std::vector<State> states{};  ///< by sharding of the space; empty: the layer takes nothing
  };
  /// Interleaved pipelines of one micro-batch size and degree.
  struct Interleaved {
    int micro_batch = 1;
    int tensor_parallel = 1;
    double work = 0.0;           // min seconds of all layers
    double longest_layer = 0.0;  // min seconds of the one that takes longest
    int blocks = 0;              // layers that take the same time, of the most frequent kind
    int others = 0;              // layers that are none of them, but for the first and last layer
    HeldLayer block{};           // each of them
    HeldLayer first{};           // the first layer, where it is none of them
    HeldLayer last{};            // the last layer, where it is none of them
    double memory = infinity;    // bytes of a device without the process itself
    double backward = 0.0;       // max share of backward passes in a layer's time
    double message = infinity;   // min of a message forward and its gradient back
  };
  /// The most that a stage of an interleaved pipeline may hold.
  struct StageLimit {
    int blocks = 0;       ///< max number of them
    double beside = 0.0;  ///< seconds of what it holds beside them, at least
  };
  /// The most blocks that stages hold, by stage, if none takes longer than a time; from `next` on one holds more.
  struct HeldBlocks {
    std::vector<int> most{};
    double next = infinity;
    [[nodiscard]] int all() const { return std::accumulate(most.begin(), most.end(), 0); }
  };
  /// Pipelines whose slowest stage takes between two levels and that have between two numbers of micro-batches.
  struct Box {
    double worth = 0.0;
    int from = 0;
    int to = 0;
    int min_micro_batches = 1;
    int max_micro_batches = 1;
    int count = 0;           // micro-batches of the best pipeline
    double sequences = 0.0;  // of the best pipeline, as often as until_deadline()
    std::size_t limits = 0;  // StageProgram::remember()
    std::size_t candidate = 0;
    int last = 0;
    std::vector<TemplateStage> stages{};  // of the best pipeline, if labels found it
    /// Min seconds until a pipeline of one micro-batch is done, if labels have yet to price the box; else 0.
    double quickest_of_one = 0.0;
    bool operator<(const Box& other) const { return worth < other.worth; }
  };

  /// How often a pipeline that is done at a time counts (TimeRange).
  [[nodiscard]] double until_deadline(double done) const {
    return done < deadline_ ? deadline_ / std::max(done, shortest_) : 1.0;
  }
  /// Seconds before the deadline at which a pipeline of the branch has passed, apart from its own reductions.
  [[nodiscard]] PassDelay delay_of(const StageProgram& program, const Branch& branch) const;
  /// Whether the box is no longer split by the slowest stage.
  [[nodiscard]] bool is_narrow(const StageProgram& program, const Box& box, double deadline, double times) const {
    return box.to - box.from <= 1 || (box.max_micro_batches - 1) * (program.level(box.to) - program.level(box.from)) <=
                                         times * narrow_ * deadline;
  }
  /// The least price of devices per micro-batch, over pipelines of two stages or more.
  double min_price_per_micro_batch(StageProgram& program) const;
  double longer(StageProgram& program, double deadline, const Branch& branch, double each, double needed,
                ViolatedColumn& violated);
  void find_worth(StageProgram& program, Box& box, double deadline, const Branch& branch, double each, double needed);
  /// Lowers the worth of boxes to that of pipelines with time for the reductions of all stages. None of them waits for
  /// labels afterwards.
  void find_ready_worth(StageProgram& program, std::vector<Box>& boxes, double deadline, const Branch& branch,
                        double each, double needed);
  /// Messages between the stages of a program.
  const std::vector<ReadyMessages>& messages(const StageProgram& program);
  /// Min price per sequence of the devices' seconds of pipelines that may have every layer in another pool and whose
  /// devices never wait; infinite if there is none.
  [[nodiscard]] double fluid_price(const std::vector<double>& device_price) const;
  double max_interleaved(double deadline, const Branch& branch);
  double reduction_of_share(int tensor_parallel, int parts, const Branch& branch);
  double reduction_of_first(const Interleaved& row, int blocks, const Branch& branch);
  bool can_end(const Interleaved& row, const std::vector<StageLimit>& limits, double shortest, double longest,
               int micro_batches, int chunks, double deadline, const Branch& branch);
  void lower(HeldLayer& held, const StageTable& table, int layer, double time, int micro_batch) const;
  static std::vector<StageLimit> stage_limits(const Interleaved& row, int stages, int chunks, bool one_round,
                                              int replicas);
  static HeldBlocks held_by(double time, const Interleaved& row, const std::vector<StageLimit>& limits);
  static double least_slowest(const Interleaved& row, const std::vector<StageLimit>& limits);
  /// Whether reductions that follow the passes are counted. With sharding groups they may be quicker.
  [[nodiscard]] bool counts_reductions() const { return !request_.effort.bounds_groups || order_.after == 0.0; }
  void add_interleaved(const std::vector<StageCandidate>& candidates, int micro_batch);
  void number_amounts(const std::vector<double>& amounts);
  /// Sets the current branch; what is looked up for it is valid until the next call.
  void enter(const Branch& branch, const TimeRange& times);
  /// Stages that pipelines of so many micro-batches or more may have with `left` seconds besides the rounds of
  /// micro-batches. Valid until enter().
  const StageLimits& limits(StageProgram& program, double left, int micro_batches, double deadline,
                            const Branch& branch);
  StageLimits stages_in_time(const StageProgram& program, int micro_batches, const Branch& branch);
  /// Several threads may call it while labels are set.
  double reduction(std::size_t pool, int tensor_parallel, int first, int last, std::size_t way, const Branch& branch);
  int longest_first_stage(const Branch& branch);
  double reduction_of(std::size_t pool, int tensor_parallel, int rings, double amount, const Branch& branch);
  /// Reduction of layers that are held in other zones, too; `amount`: index into distinct_amounts_.
  double linked_reduction(std::size_t pool, int tensor_parallel, std::size_t amount, const Branch& branch);
  double over_link(std::size_t a, std::size_t b, int node, int degree, int rings, int replicas, double amount);

  StagePrices& prices_;
  const SearchSpace& space_;
  const Request& request_;
  const std::function<bool()>& stop_;
  std::vector<std::size_t> zone_;  // by pool
  std::size_t zones_ = 0;
  bool shares_update_ = false;
  ReductionOrder order_;
  bool interleaves_ = false;
  std::vector<int> degrees_;                       // of all pools
  std::vector<std::vector<Single>> singles_;       // by pool
  std::vector<std::vector<StageProgram>> inside_;  // by pool, prices in devices
  std::vector<StageProgram> across_;
  std::vector<Interleaved> interleaved_;  // of the only pool, with one degree; else empty
  std::vector<double> fluid_rate_;
  /// Min seconds times devices of every layer, at pool x layers + layer.
  struct LayerWork {
    int micro_batch = 1;
    std::vector<double> work{};
  };
  std::vector<LayerWork> layer_work_;
  std::map<std::array<int, 3>, double> reductions_of_shares_;  // by pipelines, degree and parts
  std::map<std::array<int, 3>, double> reductions_of_first_;   // by pipelines, degree and blocks
  std::vector<Hint>* hints_ = nullptr;
  std::shared_ptr<KnownReductions> reductions_;  // all threads'
  std::shared_ptr<KnownReductions::Times> reductions_here_;
  std::vector<double> amounts_before_;       // of layers [0, i), bytes that all ranks exchange
  std::vector<double> several_before_;       // the same of those that several zones of branch_ hold; empty: of none
  std::vector<std::size_t> amount_numbers_;  // of layers [first, last): at first x (layers + 1) + last
  std::vector<double> distinct_amounts_;
  int largest_node_ = 1;
  double latest_ = infinity;  // seconds of the event-driven time that the user's limits allow
  double fixed_delay_ = 0.0;  // min seconds of a deadline that are not for rounds of micro-batches
  double narrow_ = 0.001;     // share of the deadline that differences between slowest stages may make
  std::uint64_t label_work_left_ = 0;
  double step_ = 1e-5;   // of the deadline, to which times of labels are rounded down
  double steps_ = 64.0;  // per deadline, to which the time left for reductions is rounded up
  Branch branch_;        // of the last call of enter()
  double deadline_ = 0.0;
  double shortest_ = 0.0;         // of the last call of enter()
  std::vector<int> alone_until_;  // by zone and layer: first layer from there on that another zone alone holds
  /// Of branch_, by program, time left and, where latest_ counts, micro-batches.
  std::map<std::tuple<const StageProgram*, double, int>, StageLimits> limits_;
  /// Pipelines of up to such a price, of branch_.
  struct KnownReady {
    double max_price = 0.0;
    ReadyAnswer answer{};
  };
  /// By program, levels of the slowest stage, and numbers of micro-batches.
  std::map<std::tuple<const StageProgram*, int, int, int, int>, KnownReady> ready_;
  std::map<const StageProgram*, std::vector<ReadyMessages>> messages_;
  std::mutex prices_mutex_;  ///< of prices_, while labels of several threads ask for reductions that are not yet known
  WorkerThreads* threads_ = nullptr;
  std::uint64_t work_ = 0;
};

}  // namespace sailor::planner

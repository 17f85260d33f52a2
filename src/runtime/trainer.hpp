// Trains on one rank: its part of its stage, the exchange with the neighbouring stages, the sums over replicas and the
// optimizer. Every rank of the plan runs one; they stay in step by what they exchange.
//
// An iteration: zero gradients; the micro-batches in the order of the schedule, while activations and gradients cross
// stages; sums of gradients over replicas, which begin in the last backward passes; the norm of all gradients; AdamW,
// unless the norm is not finite; agreement on the loss. The plan changes how fast that goes, never what comes out (but
// for the order of sums and where they are rounded).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "profile/run_file.hpp"
#include "runtime/communicator.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/device.hpp"
#include "runtime/gradient_reducer.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/stage.hpp"
#include "runtime/timeline.hpp"

namespace sailor::runtime {

/// Linear from 0 to `peak` over the warm-up, then a cosine down to `least` at `decay_iterations` (Radford et al. 2018);
/// constant after the warm-up when that is 0.
struct LearningRate {
  float peak = 1e-3f;
  float least = 0.0f;
  std::int64_t warm_up_iterations = 0;
  std::int64_t decay_iterations = 0;  ///< counted from the start of training; constant from there on

  /// Of iteration `iteration`, counted from 0.
  [[nodiscard]] float at(std::int64_t iteration) const;
};

struct TrainerSettings {
  std::uint64_t seed = 0;  ///< of the initial parameters
  AdamWStep optimizer;     ///< but its learning rate
  LearningRate learning_rate;
  /// Gradients are scaled down together so that the norm of all of them is this at most; 0: never (Pascanu et al.
  /// 2013).
  double clip_norm = 0.0;
  bool overlap_reduction = true;
  // For a rehearsal, which spends there what they take on the devices that are rehearsed.
  std::function<void(int layer, Pass pass)> after_layer{};  ///< called before anything that follows the layer
  std::function<void()> after_update{};                     ///< and this after the optimizer step
};

struct IterationResult {
  double loss = 0.0;           ///< mean cross-entropy over the tokens of the global batch; the same on all ranks
  double gradient_norm = 0.0;  ///< of all gradients, before clipping; the same on all ranks
  float learning_rate = 0.0f;
  bool updated = true;    ///< false: the norm is not finite, and values and moments are as they were
  bool diverged = false;  ///< loss or norm are not finite; the same on all ranks
  Seconds time{};         ///< slowest rank; the same on all ranks
  bool stop = false;      ///< some rank was asked to stop
};

/// The plan must fit the model and this runtime, and have as many ranks as were started.
Result<void> check_trainable(const Plan& plan, const Model& model, int started_ranks);

class Trainer {
 public:
  /// Collective. check_trainable() must have succeeded; device, world and samples must outlive the trainer.
  Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device, Communicator& world,
          const Samples& samples);
  /// Without samples for a rehearsal, on a device that does not compute: parameters have no values, no tokens are read.
  Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device, Communicator& world,
          const Samples* samples);

  /// Collective: runs iteration `iteration`, counted from 0. `stop` asks all ranks to stop after it.
  IterationResult run(std::int64_t iteration, bool stop = false);

  /// Collective: what every rank needed so far, on rank 0; empty elsewhere.
  [[nodiscard]] std::vector<RankRecord> rank_records();

  [[nodiscard]] ParameterStorage& parameters() { return stage_->parameters(); }
  [[nodiscard]] AdamW& optimizer() { return *optimizer_; }
  [[nodiscard]] const GradientReducer& reducer() const { return *reducer_; }
  [[nodiscard]] const RankRole& role() const { return role_; }
  /// Of the last run().
  [[nodiscard]] TimelineRecorder& timeline() { return timeline_; }
  /// Collective: of the last run(), over all ranks; on rank 0.
  [[nodiscard]] Timeline gather_timeline() { return runtime::gather_timeline(timeline_, world_); }
  [[nodiscard]] IterationSummary summary() { return gather_summary(timeline_, device_, world_); }
  /// That this rank is in, besides the one of all ranks.
  [[nodiscard]] std::size_t communicators() const;

 private:
  /// Whom this rank's stage exchanges with on one side of a chunk.
  struct Neighbour {
    int first_rank = -1;  ///< of its tensor-parallel group; -1: there is none
    int degree = 1;
    int stage = -1;
  };
  /// A micro-batch between its forward and its backward pass through a chunk.
  struct InFlight {
    Tensor tokens;   // for the embedding
    Tensor targets;  // for the head
    MicroBatch description;
  };
  struct Transfer {
    Tensor data;
    std::vector<std::unique_ptr<Request>> requests;
    bool gather = false;  // each rank of the tensor-parallel group received its slice
    // Of what is sent, for the timeline:
    ScheduleStep step{};
    int peer = -1;
    TimelineRecorder::Clock::time_point begin{};
  };

  void find_neighbours();
  [[nodiscard]] bool is_model_start(int chunk) const { return before_[static_cast<std::size_t>(chunk)].first_rank < 0; }
  [[nodiscard]] bool is_model_end(int chunk) const { return behind_[static_cast<std::size_t>(chunk)].first_rank < 0; }
  void load(std::int64_t iteration, int chunk, int micro_batch);
  void post_receive(std::size_t step);
  [[nodiscard]] Tensor received(const ScheduleStep& step);
  void send(Tensor data, const Neighbour& to, const ScheduleStep& step);
  void sent(const Transfer& transfer);
  void progress();
  void after_layer(int layer, Pass pass);

  Plan plan_;
  Model model_;
  TrainerSettings settings_;
  Device& device_;
  Communicator& world_;
  const Samples* samples_;
  DataType type_;  // of what crosses stages
  ParameterMap map_;
  RankRole role_;
  TimelineRecorder timeline_;
  int stages_ = 1;                 // of this rank's pipeline
  int micro_batch_ = 1;            // sequences, of this rank's pipeline
  std::int64_t first_sample_ = 0;  // of this pipeline in the global batch
  std::vector<ScheduleStep> steps_;
  std::vector<Neighbour> before_;  // by chunk
  std::vector<Neighbour> behind_;
  std::unique_ptr<Communicator> group_;  // the tensor-parallel group, if it has several ranks
  TensorParallel tensor_parallel_;
  std::unique_ptr<StageLayers> stage_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<AdamW> optimizer_;
  Tensor loss_sum_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by chunk and micro-batch
  bool is_last_backward_ = false;                      // of the running chunk in this iteration
  Transfer incoming_;                                  // for the next step
  std::deque<Transfer> outgoing_;
};

}  // namespace sailor::runtime

// Trains on one rank: its part of its stage, the exchange with the neighbouring stages, the sums over replicas and the
// optimizer. Every rank of the plan runs one; they stay in step by what they exchange.
//
// An iteration: zero gradients; the micro-batches in the order of the schedule, while activations and gradients cross
// stages; sums of gradients over replicas, which begin in the last backward passes; the norm of all gradients and the
// loss; AdamW, unless the norm is not finite. All of it is asked of the device's streams at once; then the host waits,
// once. The plan changes how fast that goes, never what comes out (but for the order of sums and where they are
// rounded).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/device.hpp"
#include "runtime/gradient_reducer.hpp"
#include "runtime/links.hpp"
#include "runtime/loss_scale.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/stage.hpp"
#include "runtime/timeline.hpp"
#include "runtime/token_feed.hpp"
#include "runtime/world.hpp"

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
  LossScaleSettings loss_scale{};  ///< of plans in fp16
  bool overlap_reduction = true;
  // For a rehearsal, which spends there what they take on the devices that are rehearsed.
  std::function<void(int layer, Pass pass)> after_layer{};  ///< called before anything that follows the layer
  std::function<void()> after_update{};                     ///< and this after the optimizer step
};

/// What a rank needed.
struct RankUse {
  RankRole role;
  std::string host;
  Bytes peak_tensor_memory{};    ///< of its device
  Bytes peak_resident_memory{};  ///< of its process
};

struct IterationResult {
  double loss = 0.0;           ///< mean cross-entropy over the tokens of the global batch; the same on all ranks
  double gradient_norm = 0.0;  ///< of all gradients, before clipping; the same on all ranks
  float learning_rate = 0.0f;
  bool updated = true;  ///< false: the norm is not finite, and values and moments are as they were
  /// Loss or norm are not finite; in fp16, though the loss scale is the least already. The same on all ranks.
  bool diverged = false;
  Seconds time{};     ///< of this rank; all ranks are in step
  bool stop = false;  ///< some rank was asked to stop
};

/// The plan must fit the model and this runtime, and have as many ranks as were started.
Result<void> check_trainable(const Plan& plan, const Model& model, int started_ranks);

class Trainer {
 public:
  /// Collective. check_trainable() must have succeeded; device, world and samples must outlive the trainer.
  Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device, const World& world,
          const Samples& samples);
  /// Without samples for a rehearsal, on a device that does not compute: parameters have no values, no tokens are read.
  Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device, const World& world,
          const Samples* samples);
  ~Trainer();

  /// Collective: runs iteration `iteration`, counted from 0. `stop` asks all ranks to stop after it.
  IterationResult run(std::int64_t iteration, bool stop = false);
  /// The values of all parameters are here: with ZeRO-1 others may still be on their way after run(). Before they are
  /// read other than by run().
  void settle();

  /// Collective: what every rank needed so far, on rank 0; empty elsewhere.
  [[nodiscard]] std::vector<RankUse> rank_uses();

  [[nodiscard]] ParameterStorage& parameters() { return stage_->parameters(); }
  [[nodiscard]] AdamW& optimizer() { return *optimizer_; }
  /// For the next iteration. Other precisions than fp16 have the factor 1.
  [[nodiscard]] const LossScale& loss_scale() const { return loss_scale_; }
  /// Goes on from a checkpoint. Of another precision only the skipped iterations count, of which the optimizer knows
  /// nothing.
  void restore(const LossScale& scale);
  [[nodiscard]] const GradientReducer& reducer() const { return *reducer_; }
  [[nodiscard]] const RankRole& role() const { return role_; }
  /// Of the last run().
  [[nodiscard]] TimelineRecorder& timeline() { return timeline_; }
  /// Collective: of the last run(), over all ranks; on rank 0.
  [[nodiscard]] Timeline gather_timeline() { return runtime::gather_timeline(timeline_, world_.control); }
  [[nodiscard]] IterationSummary summary() { return gather_summary(timeline_, device_, world_.control); }
  /// Groups that this rank is in, besides the one of all ranks.
  [[nodiscard]] std::size_t communicators() const;

 private:
  /// A micro-batch between its forward and its backward pass through a chunk.
  struct InFlight {
    Tensor tokens;   // for the embedding
    Tensor targets;  // for the head
    MicroBatch description;
  };
  /// The links of a chunk of this stage; null at the model's ends.
  struct ChunkLinks {
    std::unique_ptr<IncomingLink> activations_in;
    std::unique_ptr<OutgoingLink> activations_out;
    std::unique_ptr<IncomingLink> gradients_in;
    std::unique_ptr<OutgoingLink> gradients_out;
  };
  /// What an iteration ends with, summed over all ranks: on the device, and on the host.
  struct Totals {
    double squared_norm = 0.0;  ///< of the gradients
    double loss = 0.0;          ///< over the tokens of the global batch
    double stop = 0.0;          ///< ranks that are to stop
  };

  void make_links();
  [[nodiscard]] bool is_model_start(int chunk) const { return links_at(chunk).gradients_out == nullptr; }
  [[nodiscard]] bool is_model_end(int chunk) const { return links_at(chunk).activations_out == nullptr; }
  [[nodiscard]] const ChunkLinks& links_at(int chunk) const { return links_[static_cast<std::size_t>(chunk)]; }
  [[nodiscard]] IncomingLink* incoming(const ScheduleStep& step) const;
  void load(std::int64_t iteration, int chunk, int micro_batch);
  [[nodiscard]] Tensor received(const ScheduleStep& step);
  void send(OutgoingLink* to, Tensor data, const ScheduleStep& step);
  void before_layer(int layer, Pass pass);
  void after_layer(int layer, Pass pass);

  Plan plan_;
  Model model_;
  TrainerSettings settings_;
  Device& device_;
  World world_;
  DataType type_;  // of what crosses stages
  ParameterMap map_;
  RankRole role_;
  TimelineRecorder timeline_;
  int micro_batch_ = 1;  // sequences, of this rank's pipeline
  std::vector<ScheduleStep> steps_;
  std::unique_ptr<Group> group_;  // the tensor-parallel group, if it has several ranks
  std::unique_ptr<Group> all_;    // all ranks, if there are several
  TensorParallel tensor_parallel_;
  std::vector<ChunkLinks> links_;    // by chunk
  std::unique_ptr<TokenFeed> feed_;  // of a stage that has an end of the model
  std::unique_ptr<StageLayers> stage_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<AdamW> optimizer_;
  Tensor loss_sum_;
  Tensor totals_;           // Totals
  Tensor gradient_factor_;  // of clipping
  Totals* host_totals_ = nullptr;
  double* host_stop_ = nullptr;
  std::unique_ptr<Event> finished_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by chunk and micro-batch
  LossScale loss_scale_;
  bool is_last_backward_ = false;  // of the running chunk in this iteration
};

}  // namespace sailor::runtime

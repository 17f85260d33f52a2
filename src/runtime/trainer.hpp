// Trains on one rank: its stage of its pipeline, the exchange with the neighbouring stages, the sums over replicas and
// the optimizer. Every rank of the plan runs one; they stay in step by what they exchange.
//
// An iteration: zero gradients; the micro-batches in the order of the schedule, while activations and gradients cross
// stages; sum of gradients over replicas (blocking, after the last backward pass); AdamW; agreement on the loss.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
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
#include "runtime/stage.hpp"

namespace sailor::runtime {

struct TrainerSettings {
  std::uint64_t seed = 0;               ///< of the initial parameters
  AdamWStep optimizer;                  ///< its learning rate is reached after the warm-up
  std::int64_t warm_up_iterations = 0;  ///< the learning rate rises linearly over them
};

struct IterationResult {
  double loss = 0.0;  ///< mean cross-entropy over the tokens of the global batch; the same on all ranks
  Seconds time{};     ///< slowest rank; the same on all ranks
  bool stop = false;  ///< some rank was asked to stop
};

/// The plan must fit the model and this runtime, and have as many ranks as were started.
Result<void> check_trainable(const Plan& plan, const Model& model, int started_ranks);

class Trainer {
 public:
  /// Collective. check_trainable() must have succeeded; device, world and samples must outlive the trainer.
  Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device, Communicator& world,
          const Samples& samples);

  /// Collective: runs iteration `iteration`, counted from 0. `stop` asks all ranks to stop after it.
  IterationResult run(std::int64_t iteration, bool stop = false);

  /// Collective: what every rank needed so far, on rank 0; empty elsewhere.
  [[nodiscard]] std::vector<RankRecord> rank_records();

  [[nodiscard]] ParameterStorage& parameters() { return stage_->parameters(); }
  [[nodiscard]] const RankRole& role() const { return role_; }

 private:
  /// A micro-batch between its forward and its backward pass on this stage.
  struct InFlight {
    Tensor tokens;   // on the first stage
    Tensor targets;  // on the last
    MicroBatch description;
  };
  struct Transfer {
    Tensor data;
    std::unique_ptr<Request> request;
  };

  [[nodiscard]] bool is_first() const { return role_.stage == 0; }
  [[nodiscard]] bool is_last() const { return role_.stage + 1 == stages_; }
  void load(std::int64_t iteration, int micro_batch);
  void post_receive(std::size_t step);
  [[nodiscard]] Tensor received();
  void send(Tensor data, int to, MessageKind kind);
  void forget_sent();

  Plan plan_;
  Model model_;
  TrainerSettings settings_;
  Device& device_;
  Communicator& world_;
  const Samples& samples_;
  RankRole role_;
  int stages_ = 1;                 // of this rank's pipeline
  int micro_batch_ = 1;            // sequences, of this rank's pipeline
  std::int64_t first_sample_ = 0;  // of this pipeline in the global batch
  std::vector<ScheduleStep> steps_;
  std::unique_ptr<StageLayers> stage_;
  std::unique_ptr<GradientReducer> reducer_;
  Tensor loss_sum_;
  std::map<int, InFlight> in_flight_;
  Transfer incoming_;  // for the next step
  std::deque<Transfer> outgoing_;
};

}  // namespace sailor::runtime

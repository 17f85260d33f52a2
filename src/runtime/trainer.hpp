// Trainer of one rank: its part of its stage, the exchange with the neighbouring stages, gradient synchronisation among
// replicas and the optimizer. Every rank of the plan runs one; their messages keep them in step.
//
// An iteration: zero gradients; run the micro-batches in the order of the schedule, while activations and gradients
// cross stages; all-reduce gradients over replicas, beginning in the last backward passes; compute the norm of all
// gradients and the loss. All of this is enqueued on the device's streams at once; then the host waits, once. AdamW is
// enqueued only after all ranks have come this far, and involves no other rank: so a rank that dies leaves the others
// with complete states. The plan changes the speed, never the result (except for the order of sums and where they are
// rounded).
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "runtime/stage.hpp"
#include "runtime/state_copies.hpp"
#include "runtime/timeline.hpp"
#include "runtime/token_feed.hpp"
#include "runtime/trainer_settings.hpp"
#include "runtime/training_state.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

/// Memory use of a rank.
struct RankUse {
  RankRole role;
  std::string host;
  Bytes peak_tensor_memory{};    ///< of its device
  Bytes peak_resident_memory{};  ///< of its process, see Device::peak_memory_of_process()
};

struct IterationResult {
  double loss = 0.0;           ///< mean cross-entropy over the tokens of the global batch; the same on all ranks
  double gradient_norm = 0.0;  ///< of all gradients, before clipping; the same on all ranks
  float learning_rate = 0.0f;
  bool updated = true;  ///< false: the norm is not finite, and values and moments are as they were
  /// Loss or norm is not finite; in fp16, although the loss scale is already at its minimum. The same on all ranks.
  bool diverged = false;
  Seconds time{};     ///< of this rank; all ranks are in step
  bool stop = false;  ///< some rank was asked to stop
};

/// The plan must fit the model and this runtime, and have as many ranks as were started.
Result<void> check_trainable(const Plan& plan, const Model& model, int started_ranks);

class Trainer {
 public:
  /// Collective over all ranks of the state's plan. State, world, samples and copies must outlive the trainer.
  /// `samples` is null in a rehearsal, on a device that does not compute: no tokens are read. `copies` is null if no
  /// state is kept in peers' memory, on all ranks or on none.
  Trainer(TrainingState& state, const TrainerSettings& settings, const World& world, const Samples* samples,
          CopyExchange* copies = nullptr);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Collective: runs the state's next iteration. `stop` asks all ranks to stop after it. After a TransportError the
  /// trainer can no longer be used, and the state is that before or that after the iteration.
  IterationResult run(bool stop = false);
  /// The main stream waits for the values of all parameters: with ZeRO-1 those of other ranks may still be in transit
  /// after run(). To be called before they are read other than by run().
  void settle();

  /// Collective: memory use of every rank so far, on rank 0; empty on other ranks.
  [[nodiscard]] std::vector<RankUse> rank_uses();

  [[nodiscard]] TrainingState& state() { return state_; }
  [[nodiscard]] const GradientReducer& reducer() const { return *reducer_; }
  [[nodiscard]] const RankRole& role() const { return role_; }
  /// Timeline of the last run().
  [[nodiscard]] TimelineRecorder& timeline() { return timeline_; }
  /// Collective: timeline and summary of the last run() over all ranks, on rank 0.
  [[nodiscard]] Timeline gather_timeline() { return runtime::gather_timeline(timeline_, world_.control); }
  [[nodiscard]] IterationSummary summary() { return gather_summary(timeline_, device_, loads_, world_.control); }
  /// Number of communicators of this rank, not counting the world.
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
  void make_links();
  /// Tokens of each sequence on this rank.
  [[nodiscard]] std::int64_t part_length() const { return plan_.job.sequence_length / plan_.context_parallel; }
  [[nodiscard]] bool is_model_start(int chunk) const { return links_at(chunk).gradients_out == nullptr; }
  [[nodiscard]] bool is_model_end(int chunk) const { return links_at(chunk).activations_out == nullptr; }
  [[nodiscard]] const ChunkLinks& links_at(int chunk) const { return links_[static_cast<std::size_t>(chunk)]; }
  [[nodiscard]] IncomingLink* incoming(const ScheduleStep& step) const;
  void load(std::int64_t iteration, int chunk, int micro_batch);
  [[nodiscard]] Tensor received(const ScheduleStep& step);
  void send(OutgoingLink* to, Tensor data, const ScheduleStep& step);
  void before_layer(int layer, Pass pass);
  void after_layer(int layer, Pass pass);

  TrainingState& state_;
  const Plan& plan_;
  const Model& model_;
  const RankRole& role_;
  Device& device_;
  TrainerSettings settings_;
  World world_;
  CopyExchange* copies_;  // null: none
  TimelineRecorder timeline_;
  int micro_batch_ = 1;  // sequences per micro-batch of this rank's pipeline
  std::vector<ScheduleStep> steps_;
  std::unique_ptr<Group> group_;          // the tensor-parallel group, if it has several ranks
  std::unique_ptr<Group> context_group_;  // the ranks that divide the same sequences, if there are several
  std::unique_ptr<Group> expert_group_;   // the ranks that divide the same experts, if there are several
  std::unique_ptr<Group> all_;            // all ranks, if there are several
  TensorParallel tensor_parallel_;
  std::unique_ptr<ReceiveBuffers> buffers_;
  std::vector<ChunkLinks> links_;  // by chunk
  std::vector<OutgoingLink*> outgoing_;
  std::unique_ptr<TokenFeed> feed_;  // only on stages at an end of the model
  RoutingLoads loads_;               // of this iteration
  std::unique_ptr<StageLayers> stage_;
  std::unique_ptr<GradientReducer> reducer_;
  Tensor loss_sum_;
  double* host_stop_ = nullptr;
  std::unique_ptr<Event> totals_known_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by chunk and micro-batch
  bool is_last_backward_ = false;                      // of the running chunk in this iteration
};

}  // namespace sailor::runtime

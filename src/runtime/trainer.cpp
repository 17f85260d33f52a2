#include "runtime/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "core/stopwatch.hpp"
#include "core/terminal.hpp"
#include "runtime/waits.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;

/// Position in the global batch of the first sample of pipeline `pipeline`: pipelines take consecutive slices.
std::int64_t first_sample(const Plan& plan, int pipeline) {
  std::int64_t sample = 0;
  int index = 0;
  for (const Pipeline& entry : plan.pipelines)
    for (int copy = 0; copy < entry.count && index < pipeline; ++copy, ++index)
      sample += std::int64_t{entry.micro_batches} * plan.micro_batch_of(entry);
  return sample;
}

}  // namespace

Result<void> check_trainable(const Plan& plan, const Model& model, int started_ranks) {
  SAILOR_CHECK(check_plan(plan, model));
  SAILOR_CHECK(check_supported(plan, model));
  if (plan.ranks() != started_ranks)
    return fail(ErrorCode::invalid_input,
                fmt::format("the plan has {} but {} {} started", plural(static_cast<std::size_t>(plan.ranks()), "rank"),
                            started_ranks, started_ranks == 1 ? "was" : "were"),
                fmt::format("start with srun -n {}", plan.ranks()));
  return {};
}

Trainer::Trainer(TrainingState& state, const TrainerSettings& settings, const World& world, const Samples* samples,
                 CopyExchange* copies)
    : state_(state),
      plan_(state.plan()),
      model_(state.model()),
      role_(state.role()),
      device_(state.device()),
      settings_(settings),
      world_(world),
      copies_(copies),
      timeline_(device_, role_),
      totals_known_(device_.make_event()) {
  if (world.size() != plan_.ranks() || world.rank() != role_.rank)
    throw std::logic_error("a trainer is made for another rank's state");
  const Pipeline& pipeline = plan_.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  const Stage& stage = stage_of(plan_, role_);
  micro_batch_ = plan_.micro_batch_of(pipeline);
  steps_ = schedule_steps(plan_.schedule, role_.stage, static_cast<int>(pipeline.stages.size()), pipeline.chunks(),
                          pipeline.micro_batches);
  tensor_parallel_.shard = {role_.tensor_parallel_index, stage.tensor_parallel};
  world.control.barrier();  // with a timeout, unlike the calls that make groups
  if (stage.tensor_parallel > 1) {
    std::vector<int> ranks(static_cast<std::size_t>(stage.tensor_parallel));
    std::iota(ranks.begin(), ranks.end(), role_.rank - role_.tensor_parallel_index);
    group_ = world.transport.make_group(ranks);
    tensor_parallel_.group = group_.get();
  }
  if (plan_.context_parallel > 1) {
    std::vector<int> ranks;
    for (int index = 0; index < plan_.context_parallel; ++index)
      ranks.push_back(role_.rank + (index - role_.context_parallel_index) * stage.tensor_parallel);
    context_group_ = world.transport.make_group(ranks);
  }
  if (plan_.expert_parallel > 1) expert_group_ = world.transport.make_group(expert_group(plan_, role_));
  if (world.size() > 1) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    all_ = world.transport.make_group(ranks);
  }
  make_links();
  stage_ = std::make_unique<StageLayers>(
      model_, stage,
      LayerContext{.device = &device_,
                   .tensor_parallel = tensor_parallel_,
                   .context_parallel = {.shard = {role_.context_parallel_index, plan_.context_parallel},
                                        .group = context_group_.get()},
                   .expert_parallel = {.shard = {role_.expert_parallel_index, plan_.expert_parallel},
                                       .group = expert_group_.get()},
                   .router_aux_loss = settings.router_aux_loss,
                   .loads = &loads_,
                   .type = state.type()},
      StageHooks{.before_layer = [this](int layer, Pass pass) { before_layer(layer, pass); },
                 .after_layer = [this](int layer, Pass pass) { after_layer(layer, pass); }},
      &state.parameters());
  reducer_ =
      std::make_unique<GradientReducer>(state.sums(),
                                        ReducerSettings{.sharding = plan_.optimizer_sharding,
                                                        .overlap = settings.overlap_reduction,
                                                        .share = 1.0f / static_cast<float>(stage.tensor_parallel)},
                                        world, device_, state.parameters(), timeline_);
  if (is_model_start(0) || is_model_end(pipeline.chunks() - 1))
    feed_ = std::make_unique<TokenFeed>(device_, samples,
                                        FeedShape{.global_batch = plan_.job.global_batch,
                                                  .first_sample = first_sample(plan_, role_.pipeline),
                                                  .samples = std::int64_t{pipeline.micro_batches} * micro_batch_,
                                                  .sequence_length = plan_.job.sequence_length});
  loss_sum_ = Tensor(device_, {1}, DataType::float64);
  world_.transport.connect();
  host_stop_ = static_cast<double*>(device_.allocate_host(sizeof(double)));
}

Trainer::~Trainer() { device_.release_host(host_stop_); }

std::size_t Trainer::communicators() const {
  return reducer_->groups() + (group_ != nullptr ? 1 : 0) + (context_group_ != nullptr ? 1 : 0) +
         (expert_group_ != nullptr ? 1 : 0);
}

// A chunk is followed by the same chunk of the next stage; on the last stage, by the next chunk of the first stage.
void Trainer::make_links() {
  const Pipeline& pipeline = plan_.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  const int stages = static_cast<int>(pipeline.stages.size());
  const int chunks = pipeline.chunks();
  std::vector<StageRanks> ranks(static_cast<std::size_t>(stages));
  for (const RankRole& role : state_.map().roles())
    if (role.pipeline == role_.pipeline && role.context_parallel_index == role_.context_parallel_index &&
        role.tensor_parallel_index == 0)
      ranks[static_cast<std::size_t>(role.stage)] = {role.rank, stage_of(plan_, role).tensor_parallel, role.stage};
  const Shape shape{micro_batch_ * part_length(), model_.boundary_width()};
  const Shard& shard = tensor_parallel_.shard;
  buffers_ = std::make_unique<ReceiveBuffers>(device_, shape, state_.type());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ChunkLinks& links = links_.emplace_back();
    // Boundary i follows place i in the sequence of the stages of all chunks.
    const auto link = [&](int boundary, bool gradient) -> LinkShape {
      const StageRanks& upstream = ranks[static_cast<std::size_t>(boundary % stages)];
      const StageRanks& downstream = ranks[static_cast<std::size_t>((boundary + 1) % stages)];
      return {.from = gradient ? downstream : upstream,
              .to = gradient ? upstream : downstream,
              .name = {.id = 2 * boundary + (gradient ? 1 : 0),
                       .kind = gradient ? MessageKind::gradient : MessageKind::activation},
              .values = element_count(shape),
              .type = state_.type()};
    };
    const int place = chunk * stages + role_.stage;
    if (place > 0) {
      links.activations_in = std::make_unique<IncomingLink>(link(place - 1, false), *buffers_, shard, group_.get(),
                                                            device_, world_.transport);
      links.gradients_out = std::make_unique<OutgoingLink>(link(place - 1, true), shard, device_, world_.transport);
    }
    if (place + 1 < chunks * stages) {
      links.activations_out = std::make_unique<OutgoingLink>(link(place, false), shard, device_, world_.transport);
      links.gradients_in =
          std::make_unique<IncomingLink>(link(place, true), *buffers_, shard, group_.get(), device_, world_.transport);
    }
    for (OutgoingLink* const out : {links.activations_out.get(), links.gradients_out.get()})
      if (out != nullptr) outgoing_.push_back(out);
  }
}

IncomingLink* Trainer::incoming(const ScheduleStep& step) const {
  const ChunkLinks& links = links_at(step.chunk);
  return (step.pass == Pass::forward ? links.activations_in : links.gradients_in).get();
}

IterationResult Trainer::run(bool stop) {
  const auto start = Clock::now();
  const std::int64_t iteration = state_.iteration();
  timeline_.begin();
  loads_ = {};
  Stream& main = device_.main();
  stage_->parameters().zero_gradients();
  main.zero(loss_sum_.data(), loss_sum_.bytes());
  main.zero(state_.totals(), sizeof(IterationTotals));
  if (copies_ != nullptr) copies_->begin();

  std::vector<int> backward_left(links_.size(), 0);
  for (const ScheduleStep& step : steps_)
    if (step.pass == Pass::backward) ++backward_left[static_cast<std::size_t>(step.chunk)];
  const auto expect = [this](std::size_t step) {
    if (step >= steps_.size()) return;
    if (IncomingLink* const from = incoming(steps_[step])) from->expect();
  };
  expect(0);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto [pass, micro_batch, chunk] = steps_[i];
    const std::pair key{chunk, micro_batch};
    Tensor input = received(steps_[i]);
    for (OutgoingLink* const link : outgoing_) link->release_sent();  // frees memory for the next pass
    expect(i + 1);
    if (pass == Pass::forward) {
      load(iteration, chunk, micro_batch);
      Tensor output;
      {
        const auto span = timeline_.pass(steps_[i]);
        output = stage_->forward(micro_batch, in_flight_.at(key).description, std::move(input), chunk);
      }
      send(links_at(chunk).activations_out.get(), std::move(output), steps_[i]);
    } else {
      is_last_backward_ = --backward_left[static_cast<std::size_t>(chunk)] == 0;
      Tensor gradient;
      {
        const auto span = timeline_.pass(steps_[i]);
        gradient = stage_->backward(micro_batch, in_flight_.at(key).description, std::move(input), chunk);
      }
      in_flight_.erase(key);
      send(links_at(chunk).gradients_out.get(), std::move(gradient), steps_[i]);
    }
  }
  for (OutgoingLink* const link : outgoing_) link->finish();
  if (feed_ != nullptr) feed_->read_ahead(iteration + 1);

  double* const totals = state_.totals();
  {
    const auto span = timeline_.reduction(false);
    reducer_->finish();
    reducer_->add_squares(totals + offsetof(IterationTotals, squared_norm) / sizeof(double));
    // The loss is the same on all ranks of a tensor-parallel group, where only that of index 0 counts; context-parallel
    // ranks have that of their own tokens.
    if (role_.tensor_parallel_index == 0)
      main.copy(totals + offsetof(IterationTotals, loss) / sizeof(double), loss_sum_.data(), sizeof(double));
    *host_stop_ = stop ? 1.0 : 0.0;
    main.copy_from_host(totals + offsetof(IterationTotals, stop) / sizeof(double), host_stop_, sizeof(double));
    if (copies_ != nullptr) copies_->finish();
    if (all_ != nullptr)
      all_->all_reduce_sum(main, {totals, DataType::float64}, sizeof(IterationTotals) / sizeof(double));
    main.copy_to_host(&state_.host_totals(), totals, sizeof(IterationTotals));
  }
  timeline_.in_step();
  main.record(*totals_known_);
  if (waits(Wait::host_for_the_totals)) device_.wait(*totals_known_);
  const IterationTotals known = state_.host_totals();
  Update update;
  {
    const auto span = timeline_.update();
    update = state_.update(settings_, known);
    if (settings_.after_update) settings_.after_update();
  }
  reducer_->gather_values();
  timeline_.end();
  IterationResult result{.loss = known.loss / plan_.job.tokens(),
                         .gradient_norm = update.gradient_norm,
                         .learning_rate = update.learning_rate,
                         .updated = update.updated,
                         .stop = known.stop > 0.0};
  result.diverged = update.updated ? !std::isfinite(result.loss) : update.diverged;
  result.time = Seconds(seconds_since(start));
  return result;
}

void Trainer::settle() { reducer_->wait_for_values(); }

void Trainer::load(std::int64_t iteration, int chunk, int micro_batch) {
  const std::int64_t sequence_length = plan_.job.sequence_length;
  InFlight& entry = in_flight_[{chunk, micro_batch}];
  entry.description = {
      .sequences = micro_batch_,
      .sequence_length = part_length(),
      .loss_sum = loss_sum_.doubles(),
      .loss_weight = static_cast<float>(state_.loss_scale().factor) /
                     (static_cast<float>(plan_.job.global_batch) * static_cast<float>(sequence_length))};
  if (!is_model_start(chunk) && !is_model_end(chunk)) return;
  const TokenFeed::View view = feed_->at(iteration, std::int64_t{micro_batch} * micro_batch_, micro_batch_);
  const auto to_device = [&](std::span<const std::int32_t> values) {
    const std::int64_t part = part_length();
    Tensor tensor(device_, {micro_batch_, part}, DataType::int32);
    if (part == sequence_length) {
      device_.main().copy_from_host(tensor.data(), values.data(), tensor.bytes());
      return tensor;
    }
    for (std::int64_t sequence = 0; sequence < micro_batch_; ++sequence)
      device_.main().copy_from_host(tensor.integers() + sequence * part,
                                    values.data() + sequence * sequence_length + role_.context_parallel_index * part,
                                    static_cast<std::size_t>(part) * sizeof(std::int32_t));
    return tensor;
  };
  if (is_model_start(chunk)) {
    entry.tokens = to_device(view.tokens);
    entry.description.tokens = entry.tokens.integers();
  }
  if (is_model_end(chunk)) {
    entry.targets = to_device(view.targets);
    entry.description.targets = entry.targets.integers();
  }
}

Tensor Trainer::received(const ScheduleStep& step) {
  IncomingLink* const from = incoming(step);
  if (from == nullptr) return {};
  const auto span = timeline_.wait(step, from->stage());
  return from->take();
}

void Trainer::send(OutgoingLink* to, Tensor data, const ScheduleStep& step) {
  if (to == nullptr) return;
  std::size_t shown = 0;
  to->send(
      std::move(data),
      [&](Stream& stream) { shown = timeline_.begin_overlapped(stream, Activity::send, step, to->stage()); },
      [&](Stream& stream) { timeline_.end_overlapped(shown, stream); });
}

void Trainer::before_layer(int layer, Pass pass) {
  if (pass != Pass::forward) return;
  reducer_->wait_for_values(layer);
  // A tied head may work with a copy of the embedding.
  if (layer + 1 == model_.layers()) reducer_->wait_for_values();
}

void Trainer::after_layer(int layer, Pass pass) {
  if (settings_.after_layer) settings_.after_layer(layer, pass);
  if (pass == Pass::backward && is_last_backward_) reducer_->finished(layer);
  // Large messages of host transports progress only while both sides poll them: polling after each layer keeps them
  // moving.
  device_.progress();
}

std::vector<RankUse> Trainer::rank_uses() {
  const auto whole = [](Bytes bytes) { return static_cast<std::int64_t>(bytes.value()); };
  const std::string mine = fmt::format("{} {} {}", world_.control.host(), whole(device_.memory_use().peak),
                                       whole(device_.peak_memory_of_process()));
  std::vector<RankUse> uses;
  const std::vector<std::string> texts = world_.control.gather(mine);
  const std::vector<RankRole> roles = rank_roles(plan_);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream text(texts[rank]);
    std::string host;
    double tensors = 0.0;
    double resident = 0.0;
    text >> host >> tensors >> resident;
    uses.push_back({.role = roles[rank],
                    .host = host,
                    .peak_tensor_memory = Bytes(tensors),
                    .peak_resident_memory = Bytes(resident)});
  }
  return uses;
}

}  // namespace sailor::runtime

#include "runtime/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>
#include <sstream>

#include "core/terminal.hpp"
#include "runtime/process_memory.hpp"
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

float LearningRate::at(std::int64_t iteration) const {
  if (iteration < warm_up_iterations)
    return peak * static_cast<float>(iteration + 1) / static_cast<float>(warm_up_iterations);
  if (decay_iterations <= warm_up_iterations) return peak;
  const double done = std::min(1.0, static_cast<double>(iteration - warm_up_iterations) /
                                        static_cast<double>(decay_iterations - warm_up_iterations));
  return least + (peak - least) * static_cast<float>(0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

Trainer::Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device,
                 const World& world, const Samples& samples)
    : Trainer(plan, model, settings, device, world, &samples) {}

Trainer::Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device,
                 const World& world, const Samples* samples)
    : plan_(plan),
      model_(model),
      settings_(settings),
      device_(device),
      world_(world),
      type_(working_type(plan.job.precision)),
      map_(plan, model, device),
      role_(map_.roles()[static_cast<std::size_t>(world.rank())]),
      timeline_(device, role_),
      finished_(device.make_event()) {
  if (type_ == DataType::float16) loss_scale_.factor = settings.loss_scale.initial;
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  const Stage& stage = stage_of(plan, role_);
  micro_batch_ = plan.micro_batch_of(pipeline);
  steps_ = schedule_steps(plan.schedule, role_.stage, static_cast<int>(pipeline.stages.size()), pipeline.chunks(),
                          pipeline.micro_batches);
  tensor_parallel_.shard = {role_.tensor_parallel_index, stage.tensor_parallel};
  world.control.barrier();  // with a timeout, unlike the calls that make groups
  if (stage.tensor_parallel > 1) {
    std::vector<int> ranks(static_cast<std::size_t>(stage.tensor_parallel));
    std::iota(ranks.begin(), ranks.end(), role_.rank - role_.tensor_parallel_index);
    group_ = world.transport.make_group(ranks);
    tensor_parallel_.group = group_.get();
  }
  if (world.size() > 1) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    all_ = world.transport.make_group(ranks);
  }
  make_links();
  stage_ = std::make_unique<StageLayers>(
      model, stage, tensor_parallel_, device, type_,
      StageHooks{.before_layer = [this](int layer, Pass pass) { before_layer(layer, pass); },
                 .after_layer = [this](int layer, Pass pass) { after_layer(layer, pass); }});
  if (samples != nullptr) stage_->parameters().initialize(settings.seed);
  reducer_ = std::make_unique<GradientReducer>(
      map_,
      ReducerSettings{
          .sharding = plan.optimizer_sharding, .overlap = settings.overlap_reduction, .timeline = &timeline_},
      world, device, stage_->parameters());
  optimizer_ = std::make_unique<AdamW>(device, stage_->parameters(), reducer_->owned());
  if (samples != nullptr) optimizer_->initialize(settings.seed);
  if (is_model_start(0) || is_model_end(pipeline.chunks() - 1))
    feed_ = std::make_unique<TokenFeed>(device, samples,
                                        FeedShape{.global_batch = plan.job.global_batch,
                                                  .first_sample = first_sample(plan, role_.pipeline),
                                                  .samples = std::int64_t{pipeline.micro_batches} * micro_batch_,
                                                  .sequence_length = plan.job.sequence_length});
  loss_sum_ = Tensor(device, {1}, DataType::float64);
  totals_ = Tensor(device, {sizeof(Totals) / sizeof(double)}, DataType::float64);
  gradient_factor_ = Tensor(device, {1});
  host_totals_ = static_cast<Totals*>(device.allocate_host(sizeof(Totals)));
  host_stop_ = static_cast<double*>(device.allocate_host(sizeof(double)));
}

Trainer::~Trainer() {
  device_.release_host(host_totals_);
  device_.release_host(host_stop_);
}

std::size_t Trainer::communicators() const { return reducer_->groups() + (group_ != nullptr ? 1 : 0); }

// A chunk is followed by the same chunk of the next stage, on the last stage by the next chunk of the first.
void Trainer::make_links() {
  const Pipeline& pipeline = plan_.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  const int stages = static_cast<int>(pipeline.stages.size());
  const int chunks = pipeline.chunks();
  std::vector<StageRanks> ranks(static_cast<std::size_t>(stages));
  for (const RankRole& role : map_.roles())
    if (role.pipeline == role_.pipeline && role.tensor_parallel_index == 0)
      ranks[static_cast<std::size_t>(role.stage)] = {role.rank, stage_of(plan_, role).tensor_parallel, role.stage};
  const Shape shape{std::int64_t{micro_batch_} * plan_.job.sequence_length, model_.boundary_width()};
  const Shard& shard = tensor_parallel_.shard;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ChunkLinks& links = links_.emplace_back();
    // Boundary i is behind place i among the stages of all chunks.
    const auto link = [&](int boundary, bool gradient) -> LinkShape {
      const StageRanks& upstream = ranks[static_cast<std::size_t>(boundary % stages)];
      const StageRanks& downstream = ranks[static_cast<std::size_t>((boundary + 1) % stages)];
      return {.from = gradient ? downstream : upstream,
              .to = gradient ? upstream : downstream,
              .name = {.id = 2 * boundary + (gradient ? 1 : 0),
                       .kind = gradient ? MessageKind::gradient : MessageKind::activation},
              .values = element_count(shape),
              .type = type_};
    };
    const int place = chunk * stages + role_.stage;
    if (place > 0) {
      links.activations_in =
          std::make_unique<IncomingLink>(link(place - 1, false), shape, shard, group_.get(), device_, world_.transport);
      links.gradients_out = std::make_unique<OutgoingLink>(link(place - 1, true), shard, device_, world_.transport);
    }
    if (place + 1 < chunks * stages) {
      links.activations_out = std::make_unique<OutgoingLink>(link(place, false), shard, device_, world_.transport);
      links.gradients_in =
          std::make_unique<IncomingLink>(link(place, true), shape, shard, group_.get(), device_, world_.transport);
    }
  }
}

IncomingLink* Trainer::incoming(const ScheduleStep& step) const {
  const ChunkLinks& links = links_at(step.chunk);
  return (step.pass == Pass::forward ? links.activations_in : links.gradients_in).get();
}

IterationResult Trainer::run(std::int64_t iteration, bool stop) {
  const auto start = Clock::now();
  timeline_.begin();
  Stream& main = device_.main();
  stage_->parameters().zero_gradients();
  main.zero(loss_sum_.data(), loss_sum_.bytes());
  main.zero(totals_.data(), totals_.bytes());

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
  for (const ChunkLinks& links : links_)
    for (OutgoingLink* link : {links.activations_out.get(), links.gradients_out.get()})
      if (link != nullptr) link->finish();
  if (feed_ != nullptr) feed_->read_ahead(iteration + 1);

  double* const totals = totals_.doubles();
  {
    const auto span = timeline_.reduction(false);
    reducer_->finish();
    reducer_->add_squares(totals + offsetof(Totals, squared_norm) / sizeof(double));
    // On all ranks of a tensor-parallel group the same: that of index 0 counts.
    if (role_.tensor_parallel_index == 0)
      main.copy(totals + offsetof(Totals, loss) / sizeof(double), loss_sum_.data(), sizeof(double));
    *host_stop_ = stop ? 1.0 : 0.0;
    main.copy_from_host(totals + offsetof(Totals, stop) / sizeof(double), host_stop_, sizeof(double));
    if (all_ != nullptr) all_->all_reduce_sum(main, {totals_.data(), DataType::float64}, totals_.elements());
    main.copy_to_host(host_totals_, totals_.data(), sizeof(Totals));
  }
  timeline_.in_step();
  IterationResult result;
  result.learning_rate = settings_.learning_rate.at(iteration);
  AdamWStep step = settings_.optimizer;
  step.step = iteration + 1 - loss_scale_.skipped;
  step.learning_rate = result.learning_rate;
  {
    const auto span = timeline_.update();
    main.clip_factor(totals + offsetof(Totals, squared_norm) / sizeof(double), loss_scale_.factor, settings_.clip_norm,
                     gradient_factor_.floats());
    optimizer_->step(step, gradient_factor_.floats());
    if (settings_.after_update) settings_.after_update();
  }
  main.record(*finished_);
  reducer_->gather_values();
  if (waits(Wait::host_for_the_iteration)) device_.wait(*finished_);
  timeline_.finish();
  result.time = Seconds(std::chrono::duration<double>(Clock::now() - start).count());
  const double tokens = static_cast<double>(plan_.job.global_batch) * plan_.job.sequence_length;
  result.loss = host_totals_->loss / tokens;
  result.gradient_norm = std::sqrt(host_totals_->squared_norm) / loss_scale_.factor;
  result.stop = host_totals_->stop > 0.0;
  result.updated = std::isfinite(result.gradient_norm);
  result.diverged = !result.updated || !std::isfinite(result.loss);
  if (type_ == DataType::float16) {
    const bool can_go_on = loss_scale_.update(settings_.loss_scale, !result.updated);
    if (!result.updated) result.diverged = !can_go_on;
  }
  return result;
}

void Trainer::restore(const LossScale& scale) {
  if (type_ == DataType::float16)
    loss_scale_ = scale;
  else
    loss_scale_.skipped = scale.skipped;
}

void Trainer::settle() { reducer_->wait_for_values(); }

void Trainer::load(std::int64_t iteration, int chunk, int micro_batch) {
  const std::int64_t sequence_length = plan_.job.sequence_length;
  InFlight& entry = in_flight_[{chunk, micro_batch}];
  entry.description = {
      .sequences = micro_batch_,
      .sequence_length = sequence_length,
      .loss_sum = loss_sum_.doubles(),
      .loss_weight = static_cast<float>(loss_scale_.factor) /
                     (static_cast<float>(plan_.job.global_batch) * static_cast<float>(sequence_length))};
  if (!is_model_start(chunk) && !is_model_end(chunk)) return;
  const TokenFeed::View view = feed_->at(iteration, std::int64_t{micro_batch} * micro_batch_, micro_batch_);
  const auto to_device = [&](std::span<const std::int32_t> values) {
    Tensor tensor(device_, {micro_batch_, sequence_length}, DataType::int32);
    device_.main().copy_from_host(tensor.data(), values.data(), tensor.bytes());
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
  // Large messages of the host move only while both sides look after them: a look after each layer keeps them moving.
  device_.progress();
}

std::vector<RankUse> Trainer::rank_uses() {
  const auto whole = [](Bytes bytes) { return static_cast<std::int64_t>(bytes.value()); };
  const std::string mine =
      fmt::format("{} {} {}", world_.control.host(), whole(device_.memory_use().peak), whole(resident_memory().peak));
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

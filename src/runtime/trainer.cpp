#include "runtime/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>
#include <sstream>

#include "core/terminal.hpp"
#include "runtime/process_memory.hpp"

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

Range overlap(const Range& a, const Range& b) { return {std::max(a.first, b.first), std::min(a.last, b.last)}; }

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
                 Communicator& world, const Samples& samples)
    : Trainer(plan, model, settings, device, world, &samples) {}

Trainer::Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device,
                 Communicator& world, const Samples* samples)
    : plan_(plan),
      model_(model),
      settings_(settings),
      device_(device),
      world_(world),
      samples_(samples),
      type_(working_type(plan.job.precision)),
      map_(plan, model, device),
      role_(map_.roles()[static_cast<std::size_t>(world.rank())]),
      timeline_(role_) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  const Stage& stage = stage_of(plan, role_);
  stages_ = static_cast<int>(pipeline.stages.size());
  micro_batch_ = plan.micro_batch_of(pipeline);
  first_sample_ = first_sample(plan, role_.pipeline);
  steps_ = schedule_steps(plan.schedule, role_.stage, stages_, pipeline.chunks(), pipeline.micro_batches);
  find_neighbours();
  tensor_parallel_.shard = {role_.tensor_parallel_index, stage.tensor_parallel};
  world.barrier();  // with a timeout, unlike the calls that make communicators
  if (stage.tensor_parallel > 1) {
    std::vector<int> ranks(static_cast<std::size_t>(stage.tensor_parallel));
    std::iota(ranks.begin(), ranks.end(), role_.rank - role_.tensor_parallel_index);
    group_ = world.subgroup(ranks);
    tensor_parallel_.group = group_.get();
  }
  stage_ = std::make_unique<StageLayers>(model, stage, tensor_parallel_, device, type_,
                                         [this](int layer, Pass pass) { after_layer(layer, pass); });
  if (samples != nullptr) stage_->parameters().initialize(settings.seed);
  reducer_ = std::make_unique<GradientReducer>(
      map_,
      ReducerSettings{
          .sharding = plan.optimizer_sharding, .overlap = settings.overlap_reduction, .timeline = &timeline_},
      world, device, stage_->parameters());
  optimizer_ = std::make_unique<AdamW>(device, stage_->parameters(), reducer_->owned());
  if (samples != nullptr) optimizer_->initialize(settings.seed);
  loss_sum_ = Tensor(device, {1}, DataType::float64);
}

std::size_t Trainer::communicators() const { return reducer_->communicators() + (group_ != nullptr ? 1 : 0); }

// A chunk is followed by the same chunk of the next stage, on the last stage by the next chunk of the first.
void Trainer::find_neighbours() {
  const Pipeline& pipeline = plan_.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  std::vector<Neighbour> stages(static_cast<std::size_t>(stages_));
  for (const RankRole& role : map_.roles())
    if (role.pipeline == role_.pipeline && role.tensor_parallel_index == 0)
      stages[static_cast<std::size_t>(role.stage)] = {role.rank, stage_of(plan_, role).tensor_parallel, role.stage};
  const int chunks = pipeline.chunks();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto stage_at = [&](int place) -> Neighbour {  // among the stages of all chunks
      if (place < 0 || place >= chunks * stages_) return {};
      return stages[static_cast<std::size_t>(place % stages_)];
    };
    const int place = chunk * stages_ + role_.stage;
    before_.push_back(stage_at(place - 1));
    behind_.push_back(stage_at(place + 1));
  }
}

IterationResult Trainer::run(std::int64_t iteration, bool stop) {
  const auto start = Clock::now();
  timeline_.begin();
  stage_->parameters().zero_gradients();
  device_.zero(loss_sum_.data(), loss_sum_.bytes());

  std::vector<int> backward_left(before_.size(), 0);
  for (const ScheduleStep& step : steps_)
    if (step.pass == Pass::backward) ++backward_left[static_cast<std::size_t>(step.chunk)];
  post_receive(0);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto [pass, micro_batch, chunk] = steps_[i];
    const std::pair key{chunk, micro_batch};
    Tensor input = received(steps_[i]);
    post_receive(i + 1);
    if (pass == Pass::forward) {
      load(iteration, chunk, micro_batch);
      Tensor output;
      {
        const auto span = timeline_.pass(steps_[i]);
        output = stage_->forward(micro_batch, in_flight_.at(key).description, std::move(input), chunk);
      }
      if (!is_model_end(chunk)) send(std::move(output), behind_[static_cast<std::size_t>(chunk)], steps_[i]);
    } else {
      is_last_backward_ = --backward_left[static_cast<std::size_t>(chunk)] == 0;
      Tensor gradient;
      {
        const auto span = timeline_.pass(steps_[i]);
        gradient = stage_->backward(micro_batch, in_flight_.at(key).description, std::move(input), chunk);
      }
      in_flight_.erase(key);
      if (!is_model_start(chunk)) send(std::move(gradient), before_[static_cast<std::size_t>(chunk)], steps_[i]);
    }
  }
  for (const Transfer& transfer : outgoing_) {
    for (const auto& request : transfer.requests) request->wait();
    sent(transfer);
  }
  outgoing_.clear();

  IterationResult result;
  {
    const auto span = timeline_.reduction(false);
    reducer_->finish();
    result.gradient_norm = std::sqrt(world_.sum(reducer_->squared_norm()));
  }
  result.learning_rate = settings_.learning_rate.at(iteration);
  AdamWStep step = settings_.optimizer;
  step.step = iteration + 1;
  step.learning_rate = result.learning_rate;
  if (settings_.clip_norm > 0.0 && result.gradient_norm > settings_.clip_norm)
    step.gradient_scale = static_cast<float>(settings_.clip_norm / result.gradient_norm);
  // A step along what is no direction would leave no good value; all ranks know the same norm.
  result.updated = std::isfinite(result.gradient_norm);
  if (result.updated) {
    const auto span = timeline_.update();
    optimizer_->step(step);
    if (settings_.after_update) settings_.after_update();
    device_.synchronize();
  }
  if (result.updated && plan_.optimizer_sharding == OptimizerSharding::zero1) {
    const auto span = timeline_.reduction(true);
    reducer_->gather_values();
    device_.synchronize();
  }
  const std::chrono::duration<double> time = Clock::now() - start;

  // These three also keep the ranks in step: none starts its clock long before the others.
  double loss_sum = 0.0;
  device_.copy_to_host(&loss_sum, loss_sum_.data(), sizeof(loss_sum));
  if (role_.tensor_parallel_index > 0) loss_sum = 0.0;  // the same as that of index 0
  const double tokens = static_cast<double>(plan_.job.global_batch) * plan_.job.sequence_length;
  result.loss = world_.sum(loss_sum) / tokens;
  result.diverged = !result.updated || !std::isfinite(result.loss);
  result.time = Seconds(world_.max(time.count()));
  result.stop = world_.max(stop ? 1.0 : 0.0) > 0.0;
  timeline_.in_step();
  return result;
}

void Trainer::load(std::int64_t iteration, int chunk, int micro_batch) {
  const std::int64_t sequence_length = plan_.job.sequence_length;
  InFlight& entry = in_flight_[{chunk, micro_batch}];
  entry.description = {
      .sequences = micro_batch_,
      .sequence_length = sequence_length,
      .loss_sum = loss_sum_.doubles(),
      .loss_weight = 1.0f / (static_cast<float>(plan_.job.global_batch) * static_cast<float>(sequence_length))};
  if (!is_model_start(chunk) && !is_model_end(chunk)) return;
  const auto count = static_cast<std::size_t>(entry.description.token_count());
  std::vector<std::int32_t> tokens(count);
  std::vector<std::int32_t> targets(count);
  const std::int64_t first =
      iteration * plan_.job.global_batch + first_sample_ + std::int64_t{micro_batch} * micro_batch_;
  const auto length = static_cast<std::size_t>(sequence_length);
  for (int sequence = 0; sequence < micro_batch_ && samples_ != nullptr; ++sequence) {
    const std::size_t offset = static_cast<std::size_t>(sequence) * length;
    const auto read = samples_->read(first + sequence, std::span(tokens).subspan(offset, length),
                                     std::span(targets).subspan(offset, length));
    if (!read) world_.abort(read.error().message());  // the other ranks are in the middle of an iteration
  }
  const auto to_device = [&](const std::vector<std::int32_t>& values) {
    Tensor tensor(device_, {micro_batch_, sequence_length}, DataType::int32);
    device_.copy_from_host(tensor.data(), values.data(), tensor.bytes());
    return tensor;
  };
  if (is_model_start(chunk)) {
    entry.tokens = to_device(tokens);
    entry.description.tokens = entry.tokens.integers();
  }
  if (is_model_end(chunk)) {
    entry.targets = to_device(targets);
    entry.description.targets = entry.targets.integers();
  }
}

// Every value crosses the boundary once: of a sender of degree a and a receiver of degree b each rank of the receiver
// gets its slice, in parts from the ranks of the sender whose slices overlap it; then the receiver's ranks gather.
void Trainer::post_receive(std::size_t step) {
  if (step >= steps_.size()) return;
  const bool forward = steps_[step].pass == Pass::forward;
  const Neighbour& from = (forward ? before_ : behind_)[static_cast<std::size_t>(steps_[step].chunk)];
  if (from.first_rank < 0) return;
  incoming_.data =
      Tensor(device_, {std::int64_t{micro_batch_} * plan_.job.sequence_length, model_.boundary_width()}, type_);
  const std::int64_t count = incoming_.data.elements();
  const Range mine = cut(count, tensor_parallel_.shard);
  for (int index = 0; index < from.degree; ++index) {
    const Range part = overlap(mine, cut(count, {index, from.degree}));
    if (part.size() <= 0) continue;
    incoming_.requests.push_back(world_.receive_later((incoming_.data.values() + part.first).data,
                                                      bytes_of(type_, part.size()), from.first_rank + index,
                                                      forward ? MessageKind::activation : MessageKind::gradient));
  }
  incoming_.gather = tensor_parallel_.shard.count > 1;
}

Tensor Trainer::received(const ScheduleStep& step) {
  const Neighbour& from = (step.pass == Pass::forward ? before_ : behind_)[static_cast<std::size_t>(step.chunk)];
  if (from.first_rank < 0) return {};
  const auto span = timeline_.wait(step, from.stage);
  for (const auto& request : incoming_.requests) request->wait();
  incoming_.requests.clear();
  if (std::exchange(incoming_.gather, false))
    tensor_parallel_.group->all_gather(incoming_.data.values(), incoming_.data.elements());
  return std::move(incoming_.data);
}

void Trainer::send(Tensor data, const Neighbour& to, const ScheduleStep& step) {
  device_.synchronize();  // before another party reads the memory
  const std::int64_t count = data.elements();
  const Range mine = cut(count, tensor_parallel_.shard);
  Transfer transfer;
  transfer.step = step;
  transfer.peer = to.stage;
  transfer.begin = TimelineRecorder::Clock::now();
  const MessageKind kind = step.pass == Pass::forward ? MessageKind::activation : MessageKind::gradient;
  for (int index = 0; index < to.degree; ++index) {
    const Range part = overlap(mine, cut(count, {index, to.degree}));
    if (part.size() <= 0) continue;
    transfer.requests.push_back(world_.send_later((data.values() + part.first).data, bytes_of(type_, part.size()),
                                                  to.first_rank + index, kind));
  }
  transfer.data = std::move(data);
  outgoing_.push_back(std::move(transfer));
}

void Trainer::sent(const Transfer& transfer) {
  timeline_.overlapped(Activity::send, transfer.begin, transfer.step, transfer.peer);
}

// Large messages move only while both sides are inside MPI: a look after each layer keeps them moving.
void Trainer::progress() {
  for (const auto& request : incoming_.requests) static_cast<void>(request->test());
  const auto is_sent = [](const Transfer& transfer) {
    return std::all_of(transfer.requests.begin(), transfer.requests.end(),
                       [](const auto& request) { return request->test(); });
  };
  while (!outgoing_.empty() && is_sent(outgoing_.front())) {
    sent(outgoing_.front());
    outgoing_.pop_front();
  }
  reducer_->progress();
}

void Trainer::after_layer(int layer, Pass pass) {
  if (settings_.after_layer) settings_.after_layer(layer, pass);
  if (pass == Pass::backward && is_last_backward_) reducer_->finished(layer);
  progress();
}

std::vector<RankRecord> Trainer::rank_records() {
  const auto whole = [](Bytes bytes) { return static_cast<std::int64_t>(bytes.value()); };
  const std::string mine =
      fmt::format("{} {} {}", world_.host(), whole(device_.memory_use().peak), whole(resident_memory().peak));
  std::vector<RankRecord> records;
  const std::vector<std::string> texts = world_.gather(mine);
  const std::vector<RankRole> roles = rank_roles(plan_);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream text(texts[rank]);
    std::string host;
    double tensors = 0.0;
    double resident = 0.0;
    text >> host >> tensors >> resident;
    records.push_back({.rank = roles[rank].rank,
                       .pipeline = roles[rank].pipeline,
                       .stage = roles[rank].stage,
                       .tensor_parallel_index = roles[rank].tensor_parallel_index,
                       .host = host,
                       .peak_tensor_memory = Bytes(tensors),
                       .peak_resident_memory = Bytes(resident)});
  }
  return records;
}

}  // namespace sailor::runtime

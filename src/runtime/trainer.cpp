#include "runtime/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

Trainer::Trainer(const Plan& plan, const Model& model, const TrainerSettings& settings, Device& device,
                 Communicator& world, const Samples& samples)
    : plan_(plan), model_(model), settings_(settings), device_(device), world_(world), samples_(samples) {
  role_ = rank_roles(plan)[static_cast<std::size_t>(world.rank())];
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role_.pipeline_entry)];
  stages_ = static_cast<int>(pipeline.stages.size());
  micro_batch_ = plan.micro_batch_of(pipeline);
  first_sample_ = first_sample(plan, role_.pipeline);
  steps_ = schedule_steps(plan.schedule, role_.stage, stages_, pipeline.chunks(), pipeline.micro_batches);
  // Large messages move only while both sides are inside MPI: a look after each layer keeps them moving.
  stage_ = std::make_unique<StageLayers>(model, stage_of(plan, role_).layers, device, [this] { forget_sent(); });
  stage_->parameters().initialize(settings.seed);
  reducer_ = std::make_unique<GradientReducer>(plan, model, world, stage_->parameters());
  loss_sum_ = Tensor(device, {1}, DataType::float64);
}

IterationResult Trainer::run(std::int64_t iteration, bool stop) {
  const auto start = Clock::now();
  stage_->parameters().zero_gradients();
  device_.zero(loss_sum_.data(), loss_sum_.bytes());

  post_receive(0);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const int micro_batch = steps_[i].micro_batch;
    Tensor input = received();
    post_receive(i + 1);
    if (steps_[i].pass == Pass::forward) {
      load(iteration, micro_batch);
      Tensor output = stage_->forward(micro_batch, in_flight_.at(micro_batch).description, std::move(input));
      if (!is_last()) send(std::move(output), world_.rank() + 1, MessageKind::activation);
    } else {
      Tensor gradient = stage_->backward(micro_batch, in_flight_.at(micro_batch).description, std::move(input));
      in_flight_.erase(micro_batch);
      if (!is_first()) send(std::move(gradient), world_.rank() - 1, MessageKind::gradient);
    }
  }
  for (Transfer& transfer : outgoing_) transfer.request->wait();
  outgoing_.clear();

  reducer_->reduce();

  AdamWStep step = settings_.optimizer;
  step.step = iteration + 1;
  if (iteration < settings_.warm_up_iterations)
    step.learning_rate *= static_cast<float>(iteration + 1) / static_cast<float>(settings_.warm_up_iterations);
  stage_->parameters().update(step);
  device_.synchronize();
  const std::chrono::duration<double> time = Clock::now() - start;

  // These three also keep the ranks in step: none starts its clock long before the others.
  double loss_sum = 0.0;
  device_.copy_to_host(&loss_sum, loss_sum_.data(), sizeof(loss_sum));
  const double tokens = static_cast<double>(plan_.job.global_batch) * plan_.job.sequence_length;
  IterationResult result;
  result.loss = world_.sum(loss_sum) / tokens;
  result.time = Seconds(world_.max(time.count()));
  result.stop = world_.max(stop ? 1.0 : 0.0) > 0.0;
  return result;
}

void Trainer::load(std::int64_t iteration, int micro_batch) {
  const std::int64_t sequence_length = plan_.job.sequence_length;
  InFlight& entry = in_flight_[micro_batch];
  entry.description = {
      .sequences = micro_batch_,
      .sequence_length = sequence_length,
      .loss_sum = loss_sum_.doubles(),
      .loss_weight = 1.0f / (static_cast<float>(plan_.job.global_batch) * static_cast<float>(sequence_length))};
  if (!is_first() && !is_last()) return;
  const auto count = static_cast<std::size_t>(entry.description.token_count());
  std::vector<std::int32_t> tokens(count);
  std::vector<std::int32_t> targets(count);
  const std::int64_t first =
      iteration * plan_.job.global_batch + first_sample_ + std::int64_t{micro_batch} * micro_batch_;
  const auto length = static_cast<std::size_t>(sequence_length);
  for (int sequence = 0; sequence < micro_batch_; ++sequence) {
    const std::size_t offset = static_cast<std::size_t>(sequence) * length;
    const auto read = samples_.read(first + sequence, std::span(tokens).subspan(offset, length),
                                    std::span(targets).subspan(offset, length));
    if (!read) world_.abort(read.error().message());  // the other ranks are in the middle of an iteration
  }
  const auto to_device = [&](const std::vector<std::int32_t>& values) {
    Tensor tensor(device_, {micro_batch_, sequence_length}, DataType::int32);
    device_.copy_from_host(tensor.data(), values.data(), tensor.bytes());
    return tensor;
  };
  if (is_first()) {
    entry.tokens = to_device(tokens);
    entry.description.tokens = entry.tokens.integers();
  }
  if (is_last()) {
    entry.targets = to_device(targets);
    entry.description.targets = entry.targets.integers();
  }
}

void Trainer::post_receive(std::size_t step) {
  if (step >= steps_.size()) return;
  const bool forward = steps_[step].pass == Pass::forward;
  if (forward ? is_first() : is_last()) return;
  incoming_.data = Tensor(device_, {std::int64_t{micro_batch_} * plan_.job.sequence_length, model_.boundary_width()});
  incoming_.request = world_.receive_later(incoming_.data.data(), incoming_.data.bytes(),
                                           forward ? world_.rank() - 1 : world_.rank() + 1,
                                           forward ? MessageKind::activation : MessageKind::gradient);
}

Tensor Trainer::received() {
  if (incoming_.request != nullptr) incoming_.request->wait();
  incoming_.request.reset();
  return std::move(incoming_.data);
}

void Trainer::send(Tensor data, int to, MessageKind kind) {
  device_.synchronize();  // before another party reads the memory
  auto request = world_.send_later(data.data(), data.bytes(), to, kind);
  outgoing_.push_back({std::move(data), std::move(request)});
}

void Trainer::forget_sent() {
  if (incoming_.request != nullptr) static_cast<void>(incoming_.request->test());
  while (!outgoing_.empty() && outgoing_.front().request->test()) outgoing_.pop_front();
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

#include "runtime/state_copies.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/waits.hpp"

namespace sailor::runtime {

namespace {

constexpr int copies_channel = (1 << 20) + 1;  // channels of a trainer have lower ids, that of a recovery has 1 << 20

}  // namespace

KeptGeneration::KeptGeneration(Device& device, const Plan& plan_kept, const Model& model,
                               const std::vector<std::string>& hosts_of_ranks, int own_rank, std::uint64_t in_epoch)
    : plan(plan_to_toml(plan_kept)),
      hosts(hosts_of_ranks),
      rank(own_rank),
      epoch(in_epoch),
      layout(ParameterMap(plan_kept, model), hosts) {
  if (rank < 0 || layout.copies().empty()) return;
  const ParameterMap map(plan_kept, model);
  own = std::make_unique<KeptState>(device, rank, stepped_parts(map, map.groups(), rank));
  for (const CopyLayout::Copy& copy : layout.copies())
    if (copy.keeper == rank) of_others.push_back(std::make_unique<KeptState>(device, copy.owner, copy.parts));
}

StateCopies::StateCopies(Device& device) : device_(device) {}

void StateCopies::begin(std::unique_ptr<KeptGeneration> generation, std::unique_ptr<TrainingState> state) {
  generations_.push_back(std::move(generation));
  if (state != nullptr) states_.push_back(std::move(state));
}

std::unique_ptr<TrainingState> StateCopies::confirm() {
  generations_.erase(generations_.begin(), std::prev(generations_.end()));
  std::unique_ptr<TrainingState> state;
  if (!states_.empty() && states_.back()->epoch() == generations_.back()->epoch) state = std::move(states_.back());
  states_.clear();
  return state;
}

CopyExchange::CopyExchange(TrainingState& state, StateCopies& copies, const World& world)
    : state_(state), device_(state.device()), world_(world), ready_(device_.make_event()) {
  kept_ = copies.current();
  if (kept_ == nullptr || kept_->epoch != state.epoch() || kept_->plan != plan_to_toml(state.plan())) {
    // After a recovery, no rank comes here.
    copies.begin(
        std::make_unique<KeptGeneration>(device_, state.plan(), state.model(),
                                         all_texts(world.control, world.control.host()), world.rank(), state.epoch()),
        nullptr);
    (void)copies.confirm();
    kept_ = copies.current();
  }
  if (kept_->own == nullptr) return;
  kept_->own->reserve();
  for (const std::unique_ptr<KeptState>& other : kept_->of_others) other->reserve();
  mark_ = Tensor(device_, {KeptState::mark_bytes / sizeof(double)}, DataType::float64);
  host_mark_ = static_cast<std::int64_t*>(device_.allocate_host(KeptState::mark_bytes));
  add(Direction::save, world.rank(), kept_->own.get(), kept_->own->runs());
  for (const CopyLayout::Copy& copy : kept_->layout.copies())
    if (copy.owner == world.rank()) {
      sent_ = std::make_unique<KeptState>(device_, copy.owner, copy.parts);
      add(Direction::send, copy.keeper, nullptr, sent_->runs());
    }
  for (const std::unique_ptr<KeptState>& other : kept_->of_others)
    add(Direction::receive, other->owner(), other.get(), other->runs());
}

CopyExchange::~CopyExchange() {
  // Even if transfers were broken off, nothing writes the buffers or reads the state once the host has waited for the
  // main stream.
  for (const Way& way : ways_) try {
      device_.main().wait(*way.done);
    } catch (const TransportError&) {  // the earlier failure
    }
  if (host_mark_ != nullptr) device_.release_host(host_mark_);
}

void CopyExchange::add(Direction direction, int peer, KeptState* kept, const std::vector<KeptState::Run>& runs) {
  Way way{.direction = direction,
          .kept = kept,
          .runs = &runs,
          .stream = device_.make_stream(),
          .channel = nullptr,
          .done = device_.make_event(),
          .staging = {}};
  const ChannelName name{.id = copies_channel, .kind = MessageKind::other};
  if (direction == Direction::send) way.channel = world_.transport.make_channel(world_.rank(), peer, name);
  if (direction == Direction::receive) {
    way.channel = world_.transport.make_channel(peer, world_.rank(), name);
    if (!device_.computes_on_host()) {
      const auto longest = std::max_element(
          runs.begin(), runs.end(), [](const KeptState::Run& a, const KeptState::Run& b) { return a.count < b.count; });
      way.staging = Tensor(device_, {std::max(longest->count, std::int64_t{KeptState::mark_bytes / sizeof(float)})});
    }
  }
  ways_.push_back(std::move(way));
}

const float* CopyExchange::memory_of(StoredArray array, const KeptState::Run& run) {
  if (array == StoredArray::value && state_.type() == DataType::float32)
    return state_.parameters().values().floats() + run.value;
  return moments_of(state_.optimizer(), array) + run.moment;
}

void CopyExchange::receive(Way& way, float* host, std::int64_t count) {
  const std::size_t bytes = bytes_of(DataType::float32, count);
  if (way.staging.empty()) return way.channel->receive(*way.stream, host, bytes);
  way.channel->receive(*way.stream, way.staging.data(), bytes);
  way.stream->copy_to_host(host, way.staging.data(), bytes);
}

void CopyExchange::begin() {
  if (ways_.empty()) return;
  const StateVersion version = state_.version();
  *host_mark_ = KeptState::mark_of(version);
  device_.main().copy_from_host(mark_.data(), host_mark_, KeptState::mark_bytes);
  device_.main().record(*ready_);
  for (Way& way : ways_) {
    if (waits(Wait::copies_for_update)) way.stream->wait(*ready_);
    const KeptState::Buffer* const buffer =
        way.kept == nullptr ? nullptr : &way.kept->begin(version, state_.loss_scale());
    for (const StoredArray array : stored_arrays)
      for (const KeptState::Run& run : *way.runs) {
        const std::size_t bytes = bytes_of(DataType::float32, run.count);
        switch (way.direction) {
          case Direction::save:
            way.stream->copy_to_host(buffer->memory(array, run.first), memory_of(array, run), bytes);
            break;
          case Direction::send:
            way.channel->send(*way.stream, memory_of(array, run), bytes);
            break;
          case Direction::receive:
            receive(way, buffer->memory(array, run.first), run.count);
            break;
        }
      }
    switch (way.direction) {
      case Direction::save:
        way.stream->copy_to_host(buffer->mark(), mark_.data(), KeptState::mark_bytes);
        break;
      case Direction::send:
        way.channel->send(*way.stream, mark_.data(), KeptState::mark_bytes);
        break;
      case Direction::receive:
        receive(way, reinterpret_cast<float*>(buffer->mark()), KeptState::mark_bytes / sizeof(float));
        break;
    }
    way.stream->record(*way.done);
  }
}

void CopyExchange::finish() {
  if (waits(Wait::update_for_copies))
    for (const Way& way : ways_) device_.main().wait(*way.done);
}

CopyCost CopyExchange::cost() const { return kept_->layout.cost(world_.rank()); }

}  // namespace sailor::runtime

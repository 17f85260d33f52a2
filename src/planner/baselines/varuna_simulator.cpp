#include "planner/baselines/varuna_simulator.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

namespace sailor::planner::baselines::varuna_detail {
namespace {

constexpr int most_sends = 4;
constexpr double compute_deviation = 2000.0;  // microseconds
constexpr double send_deviation = 10'000.0;
constexpr std::int64_t keys_per_microsecond = 1000;

enum class EventKind {
  forward_start,
  forward_done,
  backward_start,
  backward_done,
  send_activation,
  send_gradient,
  send_done,
  receive_activation,
  receive_gradient
};
struct Event {
  EventKind kind;
  int stage;
  int micro_batch;
};

struct Task {
  bool is_forward;
  int micro_batch;
};
struct Waiting {
  int micro_batch;
  std::int64_t ready;  // microseconds
};

struct StageState {
  bool busy = false;
  int sends = 0;
  std::size_t next_task = 0;
  std::vector<Task> schedule;
  std::deque<Waiting> forwards, backwards, activations, gradients;
};

std::vector<Task> schedule_of(int stages, int stage, int micro_batches, Faults faults) {
  int warm_up = stages - stage - 1;
  std::vector<Task> schedule;
  if (faults == Faults::fixed) warm_up = std::min(warm_up, micro_batches);
  for (int i = 0; i < std::min(warm_up, micro_batches); ++i) schedule.push_back({true, i});
  if (micro_batches < warm_up) return schedule;  // never leaves the warm-up
  for (int i = warm_up; i < micro_batches; ++i) {
    schedule.push_back({true, i});
    schedule.push_back({false, i - warm_up});
  }
  for (int i = micro_batches - warm_up; i < micro_batches; ++i) schedule.push_back({false, i});
  return schedule;
}

template <class Before>
void insert_sorted(std::deque<Waiting>& queue, Waiting entry, Before before) {
  queue.insert(
      std::upper_bound(queue.begin(), queue.end(), entry,
                       [&](const Waiting& a, const Waiting& b) { return before(a.micro_batch, b.micro_batch); }),
      entry);
}

class Simulation {
 public:
  Simulation(const PipelineTimes& times, Faults faults)
      : times_(times), faults_(faults), stages_(times.forward.size()) {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      stages_[stage].schedule =
          schedule_of(static_cast<int>(stages_.size()), static_cast<int>(stage), times.micro_batches, faults);
    for (int i = 0; i < times.micro_batches; ++i) stages_.front().forwards.push_back({i, 0});
  }

  double run() {
    serve(0);
    while (!events_.empty()) {
      const auto first = events_.begin();
      const Event event = first->second;
      clock_ = first->first / keys_per_microsecond;
      events_.erase(first);
      process(event);
      serve(event.stage);
    }
    const StageState& front = stages_.front();
    return front.next_task == front.schedule.size() ? static_cast<double>(clock_) : 0.0;
  }

 private:
  /// As published, two events at one time are ordered by a random number, else as they come.
  void insert(std::int64_t time, Event event) {
    constexpr int tries = 10;
    const std::int64_t key = time * keys_per_microsecond;
    std::int64_t free = key;
    if (faults_ == Faults::kept)
      for (int i = 0; i < tries && events_.contains(free); ++i) free = key + random_() % keys_per_microsecond;
    events_.emplace(free, event);
  }

  /// As published the sum is in single precision.
  [[nodiscard]] std::int64_t after(int duration) const {
    if (faults_ == Faults::fixed) return clock_ + duration;
    return static_cast<std::int64_t>(static_cast<float>(clock_) + static_cast<float>(duration));
  }

  int compute_time(int base) {
    if (faults_ == Faults::fixed) return base;
    Normal normal(compute_deviation);
    int offset = static_cast<int>(normal(engine_));
    while (base + offset < 0) offset = static_cast<int>(normal(engine_));
    return base + offset;
  }

  int send_time(int from, int to) {
    const bool inside = from / times_.workers_per_node == to / times_.workers_per_node;
    const int base = inside ? 0 : times_.send;
    if (faults_ == Faults::fixed) return base;
    Normal normal(send_deviation);
    int offset = static_cast<int>(normal(engine_));
    while (offset < 0) offset = static_cast<int>(normal(engine_));
    return base + offset;
  }

  void serve(int index) {
    StageState& stage = stages_[static_cast<std::size_t>(index)];
    if (!stage.busy && stage.next_task < stage.schedule.size()) {
      const Task task = stage.schedule[stage.next_task];
      std::deque<Waiting>& queue = task.is_forward ? stage.forwards : stage.backwards;
      if (!queue.empty() && queue.front().ready <= clock_ && queue.front().micro_batch == task.micro_batch) {
        ++stage.next_task;
        queue.pop_front();
        insert(clock_,
               {task.is_forward ? EventKind::forward_start : EventKind::backward_start, index, task.micro_batch});
      }
    }
    serve_sends(stage, stage.activations, EventKind::send_activation, index);
    serve_sends(stage, stage.gradients, EventKind::send_gradient, index);
  }

  void serve_sends(const StageState& stage, std::deque<Waiting>& queue, EventKind kind, int index) {
    if (stage.sends >= most_sends || queue.empty() || queue.front().ready > clock_) return;
    const int micro_batch = queue.front().micro_batch;
    queue.pop_front();
    insert(clock_, {kind, index, micro_batch});
  }

  void process(const Event& event) {
    const auto index = static_cast<std::size_t>(event.stage);
    StageState& stage = stages_[index];
    const int micro_batch = event.micro_batch;
    switch (event.kind) {
      case EventKind::forward_start:
        stage.busy = true;
        insert(after(compute_time(times_.forward[index])), {EventKind::forward_done, event.stage, micro_batch});
        break;
      case EventKind::forward_done:
        stage.busy = false;
        if (index + 1 == stages_.size())
          insert_sorted(stage.backwards, {micro_batch, clock_}, std::less<>());
        else
          stage.activations.push_back({micro_batch, clock_});
        break;
      case EventKind::backward_start:
        stage.busy = true;
        insert(after(compute_time(times_.backward[index])), {EventKind::backward_done, event.stage, micro_batch});
        break;
      case EventKind::backward_done:
        stage.busy = false;
        if (index > 0) stage.gradients.push_back({micro_batch, clock_});
        break;
      case EventKind::send_activation:
        send(stage, event, event.stage + 1, EventKind::receive_activation);
        break;
      case EventKind::send_gradient:
        send(stage, event, event.stage - 1, EventKind::receive_gradient);
        break;
      case EventKind::send_done:
        --stage.sends;
        break;
      case EventKind::receive_activation:
        insert_sorted(stage.forwards, {micro_batch, clock_}, std::less<>());
        break;
      case EventKind::receive_gradient:
        if (faults_ == Faults::kept)
          insert_sorted(stage.backwards, {micro_batch, clock_}, std::greater<>());
        else
          insert_sorted(stage.backwards, {micro_batch, clock_}, std::less<>());
        break;
    }
  }

  void send(StageState& stage, const Event& event, int to, EventKind received) {
    ++stage.sends;
    const std::int64_t arrival = after(send_time(event.stage, to));
    insert(arrival, {EventKind::send_done, event.stage, event.micro_batch});
    insert(arrival, {received, to, event.micro_batch});
  }

  const PipelineTimes& times_;
  Faults faults_;
  std::vector<StageState> stages_;
  std::multimap<std::int64_t, Event> events_;
  std::int64_t clock_ = 0;  // microseconds
  GlibcRandom random_;
  Minstd engine_;
};

}  // namespace

// The words of the seed come from the minimal standard generator; the first 310 sums are thrown away.
GlibcRandom::GlibcRandom() {
  constexpr std::int64_t modulus = 2147483647;
  constexpr int thrown_away = 310;
  std::int64_t word = 1;
  for (std::uint32_t& value : state_) {
    value = static_cast<std::uint32_t>(word);
    word = 16807 * word % modulus;
  }
  for (int i = 0; i < thrown_away; ++i) (*this)();
}

std::uint32_t GlibcRandom::operator()() {
  constexpr std::size_t lag = 3;
  const std::size_t size = state_.size();
  state_[next_] += state_[(next_ + size - lag) % size];
  const std::uint32_t value = state_[next_] >> 1U;
  next_ = (next_ + 1) % size;
  return value;
}

std::uint32_t Minstd::operator()() {
  state_ = static_cast<std::uint32_t>(std::uint64_t{16807} * state_ % 2147483647);
  return state_;
}

double Minstd::canonical() {
  constexpr double range = 2147483646.0;
  double sum = (*this)() - 1.0;
  sum += ((*this)() - 1.0) * range;
  const double value = sum / (range * range);
  return value < 1.0 ? value : std::nextafter(1.0, 0.0);
}

double Normal::operator()(Minstd& engine) {
  double value = 0.0;
  if (has_saved_) {
    has_saved_ = false;
    value = saved_;
  } else {  // Marsaglia's polar method
    double x = 0.0;
    double y = 0.0;
    double square = 0.0;
    do {
      x = 2.0 * engine.canonical() - 1.0;
      y = 2.0 * engine.canonical() - 1.0;
      square = x * x + y * y;
    } while (square > 1.0 || square == 0.0);
    const double factor = std::sqrt(-2.0 * std::log(square) / square);
    saved_ = x * factor;
    has_saved_ = true;
    value = y * factor;
  }
  return value * deviation_;
}

double simulate_varuna(const PipelineTimes& times, Faults faults) {
  if (times.forward.empty() || times.micro_batches < 1) return 0.0;
  return Simulation(times, faults).run();
}

}  // namespace sailor::planner::baselines::varuna_detail

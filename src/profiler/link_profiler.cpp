#include "profiler/link_profiler.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>

#include "core/stopwatch.hpp"
#include "profiler/layer_profiler.hpp"
#include "profiler/pooling.hpp"
#include "runtime/process_memory.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t smallest_message = 1024;
constexpr std::size_t acknowledgement = sizeof(float);

/// Short messages are repeated within a sample: a single one takes little longer than reading the clock.
int repetitions(std::size_t bytes) { return bytes <= std::size_t{64} * 1024 ? 10 : 1; }

/// The ranks of a group, and the channels between them.
class Ends {
 public:
  /// Collective over the group's ranks; `number` is the index of the group in the plan.
  Ends(const LinkGroup& group, std::size_t number, runtime::Device& device, const runtime::World& world)
      : device_(device),
        control_(world.control.subgroup(group.ranks)),
        stream_(device.make_stream()),
        done_(device.make_event()) {
    bool has_collectives = false;
    for (const LinkSeries& series : group.series) {
      has_collectives = has_collectives || series.key.operation != LinkOperation::send_receive;
      for (const auto& [sender, receiver] : series.pairs) {
        if (control_->rank() != sender && control_->rank() != receiver) continue;
        const auto connect = [&](int from, int to) {
          auto& way = ways_[{from, to}];
          if (way != nullptr) return;
          way =
              world.transport.make_channel(group.ranks[static_cast<std::size_t>(from)],
                                           group.ranks[static_cast<std::size_t>(to)], {.id = static_cast<int>(number)});
        };
        connect(sender, receiver);
        connect(receiver, sender);
      }
    }
    if (has_collectives) group_ = world.transport.make_group(group.ranks);
  }

  [[nodiscard]] runtime::Control& control() { return *control_; }
  [[nodiscard]] int rank() const { return control_->rank(); }
  [[nodiscard]] int size() const { return control_->size(); }

  void send(const void* data, std::size_t bytes, int to) {
    ways_.at({rank(), to})->send(*stream_, data, bytes);
    wait();
  }
  void receive(void* data, std::size_t bytes, int from) {
    ways_.at({from, rank()})->receive(*stream_, data, bytes);
    wait();
  }
  void collective(LinkOperation operation, float* data, std::int64_t count) {
    if (operation == LinkOperation::all_reduce) group_->all_reduce_sum(*stream_, data, count);
    if (operation == LinkOperation::all_gather) group_->all_gather(*stream_, data, count);
    if (operation == LinkOperation::reduce_scatter) group_->reduce_scatter_sum(*stream_, data, count);
    wait();
  }

 private:
  void wait() {
    stream_->record(*done_);
    device_.wait(*done_);
  }

  runtime::Device& device_;
  std::unique_ptr<runtime::Control> control_;
  std::unique_ptr<runtime::Stream> stream_;
  std::unique_ptr<runtime::Event> done_;
  std::map<std::pair<int, int>, std::unique_ptr<runtime::Channel>> ways_;  // by sender and receiver
  std::unique_ptr<runtime::Group> group_;
};

/// Seconds from the first of `times` messages there and back until the last is back, on the rank that sends first.
double round_trips(Ends& ends, int peer, bool first, void* data, std::size_t there, std::size_t back, int times) {
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) {
    if (first) ends.send(data, there, peer);
    ends.receive(data, first ? back : there, peer);
    if (!first) ends.send(data, back, peer);
  }
  return seconds_since(start);
}

/// Seconds of one message of this rank's pair; 0 on ranks without one. Between equal ends, half a round trip; otherwise
/// the message in its direction only, followed by a short answer whose time is subtracted.
double send(Ends& ends, const LinkSeries& series, void* data, std::size_t bytes) {
  const int me = ends.rank();
  ends.control().barrier();
  for (const auto& [sender, receiver] : series.pairs) {
    if (me != sender && me != receiver) continue;
    const bool first = me == sender;
    const int peer = first ? receiver : sender;
    const int times = repetitions(bytes);
    if (series.key.from == series.key.to)
      return round_trips(ends, peer, first, data, bytes, bytes, times) / (2.0 * times);
    const double message = round_trips(ends, peer, first, data, bytes, acknowledgement, times) / times;
    const int short_times = repetitions(acknowledgement);
    const double answer =
        round_trips(ends, peer, first, data, acknowledgement, acknowledgement, short_times) / (2.0 * short_times);
    // A message takes no less than an answer. The receiver's clock starts early, so the sender's counts.
    return first ? std::max(message - answer, answer) : 0.0;
  }
  return 0.0;
}

/// Number of floats in an array of about `bytes` of which every rank has an equal slice.
std::int64_t array_count(std::size_t bytes, int ranks) {
  const auto count = static_cast<std::int64_t>(bytes / sizeof(float));
  return (count + ranks - 1) / ranks * ranks;
}

double collective(Ends& ends, LinkOperation operation, float* data, std::size_t bytes) {
  const std::int64_t count = array_count(bytes, ends.size());
  const int times = repetitions(bytes);
  ends.control().barrier();
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) ends.collective(operation, data, count);
  return seconds_since(start) / times;
}

/// Growing device memory filled with zeros: all-reduces of zeros stay zero, however often.
class Buffer {
 public:
  explicit Buffer(runtime::Device& device) : device_(device) {}
  float* floats(std::int64_t count) {
    if (tensor_.empty() || static_cast<std::int64_t>(tensor_.bytes() / sizeof(float)) < count) {
      tensor_.reset();
      tensor_ = runtime::Tensor(device_, {count});
      device_.main().zero(tensor_.data(), tensor_.bytes());
      device_.synchronize();
    }
    return tensor_.floats();
  }

 private:
  runtime::Device& device_;
  runtime::Tensor tensor_;
};

/// Samples of one size of a series. All ranks of the group have the same sizes.
struct SizeSamples {
  std::size_t bytes = 0;
  int per_round = 1;
  bool done = false;
  std::vector<double> seconds;  ///< per_round for each round
};

std::vector<std::vector<double>> rounds_of(const std::vector<double>& seconds, std::size_t per_round) {
  std::vector<std::vector<double>> rounds;
  for (std::size_t i = 0; i + per_round <= seconds.size(); i += per_round)
    rounds.emplace_back(seconds.begin() + static_cast<std::ptrdiff_t>(i),
                        seconds.begin() + static_cast<std::ptrdiff_t>(i + per_round));
  return rounds;
}

/// One group on a rank that belongs to it.
class GroupMeasurement {
 public:
  GroupMeasurement(const LinkGroup& group, std::size_t number, runtime::Device& device, const runtime::World& world)
      : group_(group), ends_(group, number, device, world), curves_(group.series.size()) {}

  /// Measures each size once, the smallest first, and selects those of which `rounds` fit into `share` seconds.
  void choose_sizes(const std::vector<std::size_t>& sizes, Buffer& buffer, double share, int rounds) {
    constexpr double of_largest = 0.75;  // a quarter for all smaller sizes, each four times shorter than the next
    constexpr double short_round = 1e-3;
    constexpr int most_per_round = 5;
    const double longest = of_largest * share / rounds;
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      double before = 0.0;
      for (std::size_t s = 0; s < sizes.size(); ++s) {
        const double expected =
            s == 0 ? 0.0 : before * static_cast<double>(sizes[s]) / static_cast<double>(sizes[s - 1]);
        // The first three sizes are always measured: a curve needs them.
        if (s >= 3 && expected * repetitions(sizes[s]) > longest) {
          curves_[i].left_out = sizes[s];
          curves_[i].expected = expected;
          break;
        }
        before = sample(i, sizes[s], buffer);
        const double round = std::max(before * repetitions(sizes[s]), 1e-9);
        curves_[i].sizes.push_back(
            {.bytes = sizes[s], .per_round = std::clamp(static_cast<int>(short_round / round), 1, most_per_round)});
      }
    }
  }

  /// One round of all unfinished sizes.
  void measure(Buffer& buffer, bool counts, double narrow_enough) {
    for (std::size_t i = 0; i < curves_.size(); ++i)
      for (SizeSamples& size : curves_[i].sizes) {
        if (size.done) continue;
        const int samples = counts ? size.per_round : 1;
        for (int k = 0; k < samples; ++k) {
          const double seconds = sample(i, size.bytes, buffer);
          if (counts) size.seconds.push_back(seconds);
        }
        if (counts) size.done = is_narrow(size, narrow_enough);
      }
  }

  [[nodiscard]] bool done() const {
    return std::all_of(curves_.begin(), curves_.end(), [](const Curve& curve) {
      return std::all_of(curve.sizes.begin(), curve.sizes.end(), [](const SizeSamples& size) { return size.done; });
    });
  }

  /// Data for rank 0, read by decode(): for each series its sizes with their samples, and what was left out.
  [[nodiscard]] std::vector<double> encode() const {
    std::vector<double> numbers;
    if (ends_.rank() != 0) return numbers;
    for (const Curve& curve : curves_) {
      numbers.insert(numbers.end(),
                     {static_cast<double>(curve.left_out), curve.expected, static_cast<double>(curve.sizes.size())});
      for (const SizeSamples& size : curve.sizes) {
        numbers.insert(numbers.end(), {static_cast<double>(size.bytes), static_cast<double>(size.per_round),
                                       static_cast<double>(size.seconds.size())});
        numbers.insert(numbers.end(), size.seconds.begin(), size.seconds.end());
      }
    }
    return numbers;
  }

 private:
  struct Curve {
    std::vector<SizeSamples> sizes;
    std::size_t left_out = 0;
    double expected = 0.0;
  };

  /// One sample takes as long as its slowest rank or pair.
  double sample(std::size_t series, std::size_t bytes, Buffer& buffer) {
    const LinkSeries& one = group_.series[series];
    float* data = buffer.floats(array_count(bytes, ends_.size()));
    return ends_.control().max(one.key.operation == LinkOperation::send_receive
                                   ? send(ends_, one, data, bytes)
                                   : collective(ends_, one.key.operation, data, bytes));
  }

  static bool is_narrow(const SizeSamples& size, double narrow_enough) {
    constexpr std::size_t fewest_rounds = 6;
    std::vector<double> medians;
    for (const std::vector<double>& round : rounds_of(size.seconds, static_cast<std::size_t>(size.per_round)))
      medians.push_back(quantile(round, 0.5));
    return medians.size() >= fewest_rounds && summarize(medians).relative_interval() <= narrow_enough;
  }

  const LinkGroup& group_;
  Ends ends_;
  std::vector<Curve> curves_;
};

/// For each group, whether all ranks synchronise before it.
std::vector<bool> meetings(const LinkPlan& plan, bool groups_at_once) {
  std::vector<bool> meet;
  std::set<int> busy;
  for (const LinkGroup& group : plan.groups) {
    meet.push_back(!groups_at_once || meet.empty() ||
                   std::any_of(group.ranks.begin(), group.ranks.end(), [&](int rank) { return busy.contains(rank); }));
    if (meet.back()) busy.clear();
    busy.insert(group.ranks.begin(), group.ranks.end());
  }
  return meet;
}

void decode(const LinkGroup& group, const std::vector<double>& numbers, MeasuredLinks& result) {
  std::size_t at = 0;
  for (const LinkSeries& series : group.series) {
    const Bytes left_out(numbers[at++]);
    const Seconds expected(numbers[at++]);
    if (left_out.value() > 0.0) result.left_out.push_back({series.key, left_out, expected});
    const auto sizes = static_cast<std::size_t>(numbers[at++]);
    for (std::size_t i = 0; i < sizes; ++i) {
      const auto bytes = static_cast<std::size_t>(numbers[at++]);
      const auto per_round = static_cast<std::size_t>(numbers[at++]);
      const auto count = static_cast<std::size_t>(numbers[at++]);
      const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(at);
      at += count;
      const auto rounds = rounds_of({begin, begin + static_cast<std::ptrdiff_t>(count)}, per_round);
      const bool is_message = series.key.operation == LinkOperation::send_receive;
      const double size = is_message || series.key.operation == LinkOperation::all_reduce
                              ? static_cast<double>(bytes)
                              : static_cast<double>(array_count(bytes, series.key.ranks)) * sizeof(float);
      result.links.push_back({.key = series.key, .message = Bytes(size), .time = summarize_batches(rounds)});
    }
  }
}

}  // namespace

std::size_t LinkPlan::series() const {
  std::size_t count = 0;
  for (const LinkGroup& group : groups) count += group.series.size();
  return count;
}

std::vector<std::size_t> message_sizes(Bytes largest) {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = smallest_message; static_cast<double>(bytes) <= largest.value(); bytes *= 4)
    sizes.push_back(bytes);
  return sizes;
}

Result<LinkPlan> plan_links(const LinkSettings& settings, const runtime::Device& device, runtime::Control& control) {
  if (control.size() < 2)
    return fail(ErrorCode::usage, "links need at least 2 ranks but there is 1",
                "start it with srun -n 2 (one task per node for the network), or mpirun -n 2");
  const std::vector<std::string> nodes = runtime::all_texts(control, settings.rank.node);
  const std::vector<std::string> gpus = runtime::all_texts(control, settings.rank.gpu);
  const std::vector<std::string> zones = runtime::all_texts(control, settings.rank.zone);
  std::vector<LinkRank> ranks;
  for (std::size_t i = 0; i < nodes.size(); ++i) ranks.push_back({nodes[i], gpus[i], zones[i]});

  Bytes largest = settings.largest_message.value_or(gib);
  if (!settings.largest_message) {
    // Besides the array, collectives keep up to two copies of it; some memory is left for others.
    constexpr double copies = 4.0;
    constexpr Bytes unknown = 64.0 * mib;
    const auto neighbours = static_cast<int>(std::count(nodes.begin(), nodes.end(), settings.rank.node));
    const Bytes available = device.available_memory(neighbours);
    const Bytes mine = available.value() > 0.0 ? available / copies : unknown;
    largest = Bytes(control.min(std::clamp(mine.value(), static_cast<double>(smallest_message), gib.value())));
  }
  return LinkPlan{plan_link_groups(std::move(ranks), settings.scope), message_sizes(largest)};
}

MeasuredLinks measure_links(const LinkPlan& plan, const LinkSettings& settings, runtime::Device& device,
                            const runtime::World& world,
                            const std::function<void(std::size_t done, std::size_t of)>& round_done) {
  const auto start = Clock::now();
  const int rounds = settings.warm_up + settings.samples;
  // The selection of sizes is a round, too.
  const auto steps = static_cast<std::size_t>(rounds) + 1;
  const double share = settings.time_budget.value() / static_cast<double>(std::max<std::size_t>(plan.series(), 1));
  Buffer buffer(device);
  std::vector<std::unique_ptr<GroupMeasurement>> mine;  // null if this rank takes no part
  const std::vector<bool> meet = meetings(plan, settings.groups_at_once);
  for (const LinkGroup& group : plan.groups) {
    const bool member = std::binary_search(group.ranks.begin(), group.ranks.end(), world.rank());
    mine.push_back(member ? std::make_unique<GroupMeasurement>(group, mine.size(), device, world) : nullptr);
  }
  world.transport.connect();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (meet[i]) world.control.idle_barrier();
    if (mine[i] != nullptr) mine[i]->choose_sizes(plan.sizes, buffer, share, settings.warm_up + fewest_samples + 1);
  }
  world.control.idle_barrier();
  if (world.rank() == 0) round_done(1, steps);
  for (int round = 0; round < rounds; ++round) {
    const bool counts = round >= settings.warm_up;
    bool done = true;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      GroupMeasurement* const group = mine[i].get();
      if (meet[i]) world.control.idle_barrier();  // ranks outside the group sleep
      if (group == nullptr) continue;
      group->measure(buffer, counts, settings.narrow_enough);
      done = done && group->done();
    }
    world.control.idle_barrier();
    if (world.rank() == 0) round_done(static_cast<std::size_t>(round) + 2, steps);
    const bool enough = round + 1 >= settings.warm_up + fewest_samples;
    const bool late = world.control.max(seconds_since(start)) > settings.time_budget.value();
    const bool all_done = world.control.min(done ? 1.0 : 0.0) > 0.0;
    if (all_done || (late && enough)) break;
  }

  MeasuredLinks result;
  // The first rank of each group sends its results: the group, how many numbers, the numbers.
  std::vector<double> told;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] == nullptr || plan.groups[i].ranks[0] != world.rank()) continue;
    const std::vector<double> numbers = mine[i]->encode();
    told.insert(told.end(), {static_cast<double>(i), static_cast<double>(numbers.size())});
    told.insert(told.end(), numbers.begin(), numbers.end());
  }
  std::vector<std::vector<double>> by_group(plan.groups.size());
  for (const std::vector<double>& numbers : gather_numbers(world.control, told))
    for (auto at = numbers.begin(); at != numbers.end();) {
      std::vector<double>& group = by_group[static_cast<std::size_t>(*at++)];
      const auto count = static_cast<std::ptrdiff_t>(*at++);
      group.assign(at, at + count);
      at += count;
    }
  if (world.rank() == 0)
    for (std::size_t i = 0; i < plan.groups.size(); ++i) decode(plan.groups[i], by_group[i], result);
  if (world.rank() == 0) result.fits = fit_links(result.links);
  return result;
}

std::vector<LinkFit> fit_links(const std::vector<LinkMeasurement>& links) {
  std::map<LinkKey, std::vector<LinkPoint>> points;
  for (const LinkMeasurement& link : links) points[link.key].push_back({link.message, link.time.median});
  std::vector<LinkFit> fits;
  for (const auto& [key, measured] : points) {
    if (const auto fit = fit_link_curve(measured, key.from.ranks))  // fewer than three sizes have no curve
      fits.push_back({.key = key,
                      .curve = fit->curve,
                      .median_error = fit->median_error,
                      .largest_error = fit->largest_error,
                      .points = fit->points});
  }
  return fits;
}

}  // namespace sailor::profiler

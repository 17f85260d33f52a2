#include "planner/alike_pipelines.hpp"

#include <algorithm>
#include <cstdint>

#include "planner/fleet.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t beam = 4;  // labels that go on, of each first layer, kind of devices and number of stages
// Fleets, of each number of pipelines and micro-batch. More over several places lead local searches elsewhere: as often
// to worse plans as to better ones.
constexpr std::size_t most_of_each = 4;
constexpr std::size_t most_of_each_in_one_place = 16;
constexpr std::size_t most_fleets = 48;
constexpr std::size_t most_fleets_in_one_place = 200;
// Stages tried: with an eighth of the least, plans of 2,048 and more devices of two types were up to 15 % slower.
constexpr std::uint64_t least_work = 8'000'000;
constexpr std::uint64_t work_per_cube = 130'000;  // of the number of places
constexpr double level_ratio = 1.2;               // between limits on the slowest stage
constexpr int most_stages = 12;
constexpr int deepest = 8;  // micro-batches in flight that are told apart

class AlikePipelines {
 public:
  AlikePipelines(StagePrices& prices, const ChainRules& rules, OptimizerSharding sharding, double bar,
                 const StopCheck& stop)
      : prices_(prices),
        space_(prices.space()),
        request_(prices.request()),
        rules_(rules),
        zero1_(sharding == OptimizerSharding::zero1),
        blocks_(!prices.env().framework.overlaps_transfers),
        reduces_(!prices.env().framework.overlaps_reduction),
        bar_(bar),
        stop_(stop),
        layers_(prices.layers()),
        most_of_each_(space_.places.size() == 1 ? most_of_each_in_one_place : most_of_each),
        most_fleets_(space_.places.size() == 1 ? most_fleets_in_one_place : most_fleets),
        work_limit_(
            std::max(least_work, work_per_cube * space_.places.size() * space_.places.size() * space_.places.size())) {}

  std::vector<Group> run() {
    for (const int micro_batch : space_.micro_batches) {
      if (stop_()) return {};
      find_options(micro_batch);
      if (options_.empty()) continue;
      const int all = request_.job.global_batch / micro_batch;
      int before = 0;
      for (int rounds = 1; rounds <= all; ++rounds) {
        const int count = (all + rounds - 1) / rounds;
        if (request_.pins.data_parallel && count != *request_.pins.data_parallel) continue;
        if (count == before) continue;
        before = count;
        rounds_.push_back(
            {.micro_batch = micro_batch, .count = count, .rounds = rounds, .least = least_of(count, rounds)});
      }
    }
    std::erase_if(rounds_, [&](const Rounds& rounds) { return rounds.least >= bar_; });
    std::stable_sort(rounds_.begin(), rounds_.end(),
                     [](const Rounds& a, const Rounds& b) { return a.least < b.least; });
    for (const Rounds& rounds : rounds_) {
      if (work_ >= work_limit_ || stop_()) break;
      if (rounds.micro_batch != micro_batch_) find_options(rounds.micro_batch);
      grow(rounds);
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Rated& a, const Rated& b) { return a.score < b.score; });
    std::vector<Group> groups;
    for (Rated& rated : found_) {
      if (groups.size() == most_fleets_) break;
      if (auto chain = finish_chain(prices_, rules_, std::move(rated.stages), rated.micro_batch))
        groups.push_back({.chain = std::move(*chain), .count = rated.count});
    }
    return groups;
  }

 private:
  /// A place and degree for a stage at one micro-batch size.
  struct Option {
    std::size_t place = 0;
    int degree = 1;
    const StageTable* table = nullptr;
    /// By micro-batches in flight (element 0: one), at first x (layers + 1) + last: the quickest way that fits.
    std::vector<std::vector<double>> time;
    std::vector<BoundaryCost> to;  ///< by option of the stage behind
  };
  struct Rounds {
    int micro_batch = 1;
    int count = 1;
    int rounds = 1;
    double least = 0.0;  ///< score of such fleets
  };
  /// The stages from layer `first` on.
  struct Label {
    double least = 0.0;    ///< score of fleets that end with it
    double order = 0.0;    ///< the same but for the slowest stage
    double through = 0.0;  ///< seconds from end to end and back
    double ready = 0.0;    ///< when the first reductions of all are done, had there been no other micro-batch
    double after = 0.0;    ///< the longest of the reductions behind the update (ZeRO-1)
    double round = 0.0;    ///< of the slowest stage, but for what the first one sends to a stage before it
    double head = 0.0;     ///< of the first stage
    double usd_per_s = 0.0;
    int stages = 0;
    int first = 0;
    std::size_t option = 0;
    std::int32_t behind = -1;  ///< label of the next stage
    int devices = 0;
  };
  struct Rated {
    double score = 0.0;
    std::vector<ChainStage> stages;
    int micro_batch = 1;
    int count = 1;
  };

  void find_options(int micro_batch) {
    micro_batch_ = micro_batch;
    options_.clear();
    const std::size_t width = at(layers_) + 1;
    for (std::size_t p = 0; p < space_.places.size(); ++p)
      for (const int degree : space_.places[p].tensor_parallel) {
        Option option{.place = p, .degree = degree};
        for (const Recompute recompute : space_.recompute) {
          const StageTable* table = prices_.table(space_.places[p].type, degree, micro_batch, recompute);
          if (table == nullptr) continue;
          if (option.table == nullptr) {
            option.table = table;
            option.time.assign(at(deepest), std::vector<double>(width * width, never));
          }
          for (int first = 0; first < layers_; ++first)
            for (int last = first + 1; last <= layers_; ++last) {
              const int fit = prices_.most_in_flight(*table, space_.places[p], first, last, micro_batch, 1,
                                                     rules_.sharing, rules_.copies_gradients, deepest);
              const double time = table->time(first, last);
              for (int depth = 0; depth < fit; ++depth) {
                double& least = option.time[at(depth)][at(first) * width + at(last)];
                least = std::min(least, time);
              }
            }
        }
        if (option.table != nullptr) options_.push_back(std::move(option));
      }
    for (Option& option : options_)
      for (const Option& next : options_) {
        const bool one_node =
            option.place == next.place && option.degree + next.degree <= space_.places[option.place].largest_node();
        option.to.push_back(
            prices_.boundary(option.place, option.degree, next.place, next.degree, micro_batch, one_node));
      }
    quickest_.assign(at(layers_) + 1, 0.0);
    forward_.assign(at(layers_) + 1, 0.0);
    work_per_micro_batch_ = 0.0;
    slowest_layer_ = 0.0;
    for (int layer = 0; layer < layers_; ++layer) {
      double time = never;
      double forward = never;
      double work = never;
      for (const Option& option : options_) {
        const auto& times = option.table->times;
        const double pass = option.table->time(layer, layer + 1);
        time = std::min(time, pass);
        forward = std::min(forward, (times[at(layer + 1)].forward - times[at(layer)].forward).value());
        work = std::min(work, pass * option.degree);
      }
      quickest_[at(layer + 1)] = quickest_[at(layer)] + time;
      forward_[at(layer + 1)] = forward_[at(layer)] + forward;
      slowest_layer_ = std::max(slowest_layer_, time);
      work_per_micro_batch_ += work;
    }
    cheapest_ = never;
    for (const Place& place : space_.places) cheapest_ = std::min(cheapest_, place.price.value() / 3600.0);
  }

  [[nodiscard]] double score(double time, double usd_per_s) const {
    return score_of(request_.objective, Seconds(time), Usd(time * usd_per_s));
  }

  /// Of fleets of so many pipelines with so many micro-batches.
  [[nodiscard]] double least_of(int count, int rounds) const {
    const int devices = std::min(space_.devices(), space_.most_gpus.value_or(space_.devices())) / count;
    if (devices < 1) return never;
    const double round = std::max(slowest_layer_, work_per_micro_batch_ / devices);
    return score(quickest_.back() + (rounds - 1) * round, cheapest_ * count);
  }

  void grow(const Rounds& rounds) {
    done_.clear();
    most_.clear();
    for (const Place& place : space_.places) most_.push_back(place.devices() / rounds.count);
    most_devices_ = space_.most_gpus.value_or(space_.devices()) / rounds.count;
    reductions_.assign(options_.size() * (at(layers_) + 1) * (at(layers_) + 1), -1.0);
    // Under a limit on the slowest stage what is left to compare is from end to end.
    if (rounds.rounds == 1) {
      slowest_ = never;
      grow_within(rounds);
    } else {
      const int devices = std::min(space_.devices(), space_.most_gpus.value_or(space_.devices())) / rounds.count;
      slowest_ = std::max(slowest_layer_, work_per_micro_batch_ / devices) * level_ratio;
      while (work_ < work_limit_ &&
             score(quickest_.back() + (rounds.rounds - 1) * slowest_ / level_ratio, cheapest_ * rounds.count) < bar_) {
        grow_within(rounds);
        slowest_ *= level_ratio;
      }
    }
    found_.insert(found_.end(), done_.begin(), done_.end());
  }

  void grow_within(const Rounds& rounds) {
    const std::size_t kinds = options_.size();
    labels_.clear();
    uses_.clear();
    open_.assign((at(layers_) + 1) * kinds * most_stages, {});
    extend(nullptr, -1, layers_, rounds);
    for (int first = layers_ - 1; first > 0; --first)
      for (std::size_t list = at(first) * kinds * most_stages; list < at(first + 1) * kinds * most_stages; ++list) {
        for (const std::int32_t index : open_[list]) {
          const Label label = labels_[static_cast<std::size_t>(index)];
          extend(&label, index, first, rounds);
        }
        if (work_ >= work_limit_ || stop_()) return;
      }
  }

  /// By a stage that ends before layer `last`.
  void extend(const Label* behind, std::int32_t index, int last, const Rounds& rounds) {
    const std::size_t width = at(layers_) + 1;
    const int stages = behind == nullptr ? 1 : behind->stages + 1;
    const auto pinned = request_.pins.pipeline_parallel;
    if (stages > most_stages) return;
    if (pinned && stages > *pinned) return;
    const auto depth = at(std::min({stages, rounds.rounds, deepest}) - 1);
    const std::size_t places = space_.places.size();
    for (std::size_t kind = 0; kind < options_.size(); ++kind) {
      const Option& option = options_[kind];
      const int used = behind == nullptr ? 0 : uses_[static_cast<std::size_t>(index) * places + option.place];
      if (used + option.degree > most_[option.place]) continue;
      if ((behind == nullptr ? 0 : behind->devices) + option.degree > most_devices_) continue;
      BoundaryCost link;
      if (behind != nullptr) link = option.to[behind->option];
      if (link.forward == never) continue;
      const double usd_per_s = (behind == nullptr ? 0.0 : behind->usd_per_s) +
                               space_.places[option.place].price.value() / 3600.0 * option.degree * rounds.count;
      const double behind_round =
          behind == nullptr ? 0.0 : std::max(behind->round, behind->head + (blocks_ ? link.both() : 0.0));
      for (int first = last - 1; first >= 0; --first) {
        if (first > 0 && (stages == most_stages || (pinned && stages == *pinned))) continue;
        ++work_;
        const double pass = option.time[depth][at(first) * width + at(last)];
        if (pass == never) break;  // longer ones need more memory
        const auto& times = option.table->times;
        const double forward = (times[at(last)].forward - times[at(first)].forward).value();
        Label label{.through = pass + link.both() + (behind == nullptr ? 0.0 : behind->through),
                    .head = pass + (blocks_ ? link.both() : 0.0),
                    .usd_per_s = usd_per_s,
                    .stages = stages,
                    .first = first,
                    .option = kind,
                    .behind = index,
                    .devices = option.degree + (behind == nullptr ? 0 : behind->devices)};
        label.round = std::max({label.head, behind_round, blocks_ ? 0.0 : std::max(link.forward, link.backward)});
        if (label.round > slowest_) break;
        const double rest = (rounds.rounds - 1) * label.round;
        if (score(label.through + rest + quickest_[at(first)], usd_per_s) >= bar_) break;
        const double reduction = this->reduction(kind, first, last, rounds.count);
        if (reduction == never) continue;
        const double share = zero1_ ? 0.5 : 1.0;
        label.ready = std::max(label.through + reduction * share,
                               behind == nullptr ? 0.0 : behind->ready + forward + link.forward);
        label.after = zero1_ ? std::max(reduction * share, behind == nullptr ? 0.0 : behind->after) : 0.0;
        const double once =
            std::max(label.ready + forward_[at(first)], label.through + quickest_[at(first)]) + label.after;
        label.least = score(once + rest, usd_per_s);
        label.order = score(once + (rounds.rounds == 1 ? 0.0 : (rounds.rounds - 1) * slowest_), usd_per_s);
        if (label.least >= bar_) continue;
        if (first == 0)
          finish(label, rounds);
        else
          add(label, used);
      }
    }
  }

  double reduction(std::size_t kind, int first, int last, int count) {
    if (!reduces_ || count < 2) return 0.0;
    const std::size_t width = at(layers_) + 1;
    double& known = reductions_[(kind * width + at(first)) * width + at(last)];
    if (known < 0.0) {
      const Option& option = options_[kind];
      known = prices_.least_reduction(option.place, option.place, option.degree, count,
                                      space_.places[option.place].largest_node(),
                                      prices_.summed(first, last, option.degree));
    }
    return known;
  }

  std::int32_t store(const Label& label) {
    const std::size_t places = space_.places.size();
    const auto index = static_cast<std::int32_t>(labels_.size());
    labels_.push_back(label);
    for (std::size_t p = 0; p < places; ++p)
      uses_.push_back(label.behind < 0 ? 0 : uses_[static_cast<std::size_t>(label.behind) * places + p]);
    uses_[uses_.size() - places + options_[label.option].place] += options_[label.option].degree;
    return index;
  }

  /// Unless one that is open is no worse in anything, or the beam is full of better ones.
  void add(const Label& label, int used) {
    auto& open = open_[(at(label.first) * options_.size() + label.option) * most_stages + at(label.stages)];
    if (open.size() == beam && labels_[static_cast<std::size_t>(open.back())].order <= label.order) return;
    const std::size_t places = space_.places.size();
    for (const std::int32_t index : open) {
      const Label& other = labels_[static_cast<std::size_t>(index)];
      if (other.through > label.through || other.ready > label.ready || other.after > label.after ||
          other.head > label.head || other.usd_per_s > label.usd_per_s || other.stages > label.stages)
        continue;
      bool fewer = true;
      for (std::size_t p = 0; p < places && fewer; ++p) {
        int uses = label.behind < 0 ? 0 : uses_[static_cast<std::size_t>(label.behind) * places + p];
        if (p == options_[label.option].place) uses = used + options_[label.option].degree;
        fewer = uses_[static_cast<std::size_t>(index) * places + p] <= uses;
      }
      if (fewer) return;
    }
    const std::int32_t index = store(label);
    open.insert(std::upper_bound(open.begin(), open.end(), index,
                                 [&](std::int32_t a, std::int32_t b) {
                                   return labels_[static_cast<std::size_t>(a)].order <
                                          labels_[static_cast<std::size_t>(b)].order;
                                 }),
                index);
    if (open.size() > beam) open.pop_back();
  }

  void finish(const Label& label, const Rounds& rounds) {
    if (request_.pins.pipeline_parallel && label.stages != *request_.pins.pipeline_parallel) return;
    if (done_.size() == most_of_each_ && done_.back().score <= label.least) return;
    Rated rated{.score = label.least, .stages = {}, .micro_batch = rounds.micro_batch, .count = rounds.count};
    for (const Label* stage = &label; stage != nullptr;) {
      const Label* behind = stage->behind < 0 ? nullptr : &labels_[static_cast<std::size_t>(stage->behind)];
      rated.stages.push_back({.place = options_[stage->option].place,
                              .tensor_parallel = options_[stage->option].degree,
                              .first = stage->first,
                              .last = behind == nullptr ? layers_ : behind->first});
      stage = behind;
    }
    if (std::any_of(done_.begin(), done_.end(), [&](const Rated& other) { return other.stages == rated.stages; }))
      return;
    done_.insert(std::upper_bound(done_.begin(), done_.end(), rated,
                                  [](const Rated& a, const Rated& b) { return a.score < b.score; }),
                 std::move(rated));
    if (done_.size() > most_of_each_) done_.pop_back();
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const Request& request_;
  const ChainRules& rules_;
  bool zero1_;
  bool blocks_;
  bool reduces_;
  double bar_;
  const StopCheck& stop_;
  int layers_;
  std::size_t most_of_each_;
  std::size_t most_fleets_;
  std::uint64_t work_ = 0;
  std::uint64_t work_limit_;
  int micro_batch_ = 0;
  std::vector<Option> options_;
  std::vector<double> quickest_;  // layers [0, i) at least
  std::vector<double> forward_;   // of those, forward
  double work_per_micro_batch_ = 0.0;
  double slowest_layer_ = 0.0;
  double cheapest_ = 0.0;
  std::vector<Rounds> rounds_;
  // Of one number of pipelines.
  std::vector<Label> labels_;
  std::vector<int> uses_;  // devices, at label x places + place
  std::vector<std::vector<std::int32_t>> open_;
  std::vector<Rated> done_;
  double slowest_ = 0.0;   // limit on stages
  std::vector<int> most_;  // devices of a place for each pipeline
  int most_devices_ = 0;
  std::vector<double> reductions_;  // negative: not yet known
  std::vector<Rated> found_;
};

}  // namespace

std::vector<Group> alike_pipelines(StagePrices& prices, const ChainRules& rules, OptimizerSharding sharding, double bar,
                                   const StopCheck& stop) {
  return AlikePipelines(prices, rules, sharding, bar, stop).run();
}

}  // namespace sailor::planner

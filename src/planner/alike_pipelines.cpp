#include "planner/alike_pipelines.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "planner/index.hpp"
#include "planner/template_mix.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t beam = 4;  // labels that are extended, per first layer, kind of devices and number of stages
// Template mixes per number of pipelines and micro-batch size. Over several pools, more of them lead local searches
// elsewhere: as often to worse plans as to better ones.
constexpr std::size_t max_of_each = 4;
constexpr std::size_t max_of_each_in_one_pool = 16;
constexpr std::size_t max_mixes = 48;
constexpr std::size_t max_mixes_in_one_pool = 200;
// Min number of stages tried: with an eighth of it, plans of 2,048 and more devices of two types were up to 15 %
// slower.
constexpr std::uint64_t min_work = 8'000'000;
constexpr std::uint64_t work_per_cube = 130'000;  // of the number of pools
// Divisor of the work of brief searches.
constexpr std::uint64_t brief_divisor = 16;
constexpr double level_ratio = 1.2;  // between limits on the slowest stage
constexpr int max_stages = 12;
constexpr std::size_t max_bytes_of_tables = std::size_t{64} << 20;
constexpr int deepest = 8;  // micro-batches in flight that are told apart

class AlikePipelines {
 public:
  AlikePipelines(StagePrices& prices, const TemplateRules& rules, OptimizerSharding sharding, double bar, bool is_brief,
                 const StopCheck& stop)
      : prices_(prices),
        space_(prices.space()),
        request_(prices.request()),
        rules_(rules),
        shards_(sharding != OptimizerSharding::none),
        blocks_(!prices.env().framework.overlaps_transfers),
        reduces_(!prices.env().framework.overlaps_reduction),
        bar_(bar),
        stop_(stop),
        layers_(prices.layers()),
        max_of_each_(space_.pools.size() == 1 ? max_of_each_in_one_pool : max_of_each),
        max_mixes_(space_.pools.size() == 1 ? max_mixes_in_one_pool : max_mixes),
        work_limit_(
            std::max(min_work, work_per_cube * space_.pools.size() * space_.pools.size() * space_.pools.size())) {
    if (is_brief) work_limit_ /= brief_divisor;
    const Limits& limits = request_.limits;
    if (limits.throughput) max_time_ = usual_above_events / *limits.throughput;
    if (limits.wall_time)
      max_time_ = std::min(max_time_, usual_above_events * limits.wall_time->value() / *request_.iterations);
    std::size_t kinds = 0;
    for (const DevicePool& pool : space_.pools) kinds += pool.tensor_parallel.size();
    const std::size_t width = at(layers_) + 1;
    max_tables_ =
        std::max<std::size_t>(2, max_bytes_of_tables / (kinds * deepest * width * width * sizeof(double) + 1));
    for (const DevicePool& pool : space_.pools) cheapest_ = std::min(cheapest_, pool.price.value() / 3600.0);
    if (limits.cost) max_cost_ = usual_above_events * limits.cost->value();
  }

  std::vector<Group> run() {
    for (const int micro_batch : space_.micro_batches) {
      if (stop_()) return {};
      const int all = request_.job.global_batch / micro_batch;
      use_tables(micro_batch, std::min(all, space_.devices()));
      if (now_->candidates.empty()) continue;
      int before = 0;
      for (int rounds = 1; rounds <= all; ++rounds) {
        const int count = (all + rounds - 1) / rounds;
        if (request_.pins.data_parallel && count != *request_.pins.data_parallel) continue;
        if (count == before) continue;
        before = count;
        rounds_.push_back(
            {.micro_batch = micro_batch, .count = count, .rounds = rounds, .least = min_of(count, rounds)});
      }
    }
    std::erase_if(rounds_, [&](const Rounds& rounds) { return rounds.least >= bar_; });
    std::stable_sort(rounds_.begin(), rounds_.end(),
                     [](const Rounds& a, const Rounds& b) { return a.least < b.least; });
    for (const Rounds& rounds : rounds_) {
      if (work_ >= work_limit_ || stop_()) break;
      use_tables(rounds.micro_batch, rounds.count);
      grow(rounds);
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Rated& a, const Rated& b) { return a.score < b.score; });
    std::vector<Group> groups;
    for (Rated& rated : found_) {
      if (groups.size() == max_mixes_) break;
      TemplateRules rules = rules_;
      rules.share_of_pipelines = 0.0;
      rules.sharing = sharing_of(rated.count);
      if (auto column = finish_template(prices_, rules, std::move(rated.stages), rated.micro_batch))
        groups.push_back({.column = std::move(*column), .count = rated.count});
    }
    return groups;
  }

 private:
  /// A pool and degree for a stage at one micro-batch size.
  struct StageCandidate {
    std::size_t pool = 0;
    int degree = 1;
    const StageTable* table = nullptr;
    /// Time of the quickest way that fits, by micro-batches in flight (element 0: one), at first x (layers + 1) + last.
    std::vector<std::vector<double>> time;
    std::vector<BoundaryCost> to;  ///< by candidate of the next stage
  };
  /// Stages at one micro-batch size and one number of replicas that share gradients.
  struct StageTables {
    std::vector<StageCandidate> candidates;
    std::vector<double> quickest;  ///< min time of layers [0, i)
    std::vector<double> forward;   ///< the forward part of that
    double work_per_micro_batch = 0.0;
    double slowest_layer = 0.0;
  };
  struct Rounds {
    int micro_batch = 1;
    int count = 1;
    int rounds = 1;
    double least = 0.0;  ///< min score of such template mixes
  };
  /// The stages from layer `first` on.
  struct Label {
    double least = 0.0;    ///< min score of template mixes that end with it
    double order = 0.0;    ///< the same without the slowest stage
    double through = 0.0;  ///< seconds from end to end and back
    double ready = 0.0;    ///< end of the first reductions of all stages, if there were only one micro-batch
    double after = 0.0;    ///< the longest of the reductions after the update (ZeRO-1 and ZeRO-2)
    double round = 0.0;    ///< of the slowest stage, without what the first one sends to a previous stage
    double head = 0.0;     ///< of the first stage
    double usd_per_s = 0.0;
    int stages = 0;
    int first = 0;
    std::size_t candidate = 0;
    std::int32_t behind = -1;  ///< label of the next stage
    int devices = 0;
  };
  struct Rated {
    double score = 0.0;
    std::vector<TemplateStage> stages;
    int micro_batch = 1;
    int count = 1;
  };

  [[nodiscard]] Sharing sharing_of(int pipelines) const {
    if (!shards_gradients(rules_.sharing.sharding)) return rules_.sharing;
    return {rules_.sharing.sharding, static_cast<double>(pipelines)};
  }

  /// Finds the tables of stages for this size and number of pipelines.
  void use_tables(int micro_batch, int pipelines) {
    const Sharing sharing = sharing_of(pipelines);
    const std::pair key(micro_batch, sharing.replicas);
    if (tables_.size() >= max_tables_ && !tables_.contains(key)) tables_.clear();
    const auto [entry, is_new] = tables_.try_emplace(key);
    if (is_new) fill(entry->second, micro_batch, sharing);
    now_ = &entry->second;
  }

  void fill(StageTables& tables, int micro_batch, const Sharing& sharing) const {
    const std::size_t width = at(layers_) + 1;
    for (std::size_t p = 0; p < space_.pools.size(); ++p)
      for (const int degree : space_.pools[p].tensor_parallel) {
        StageCandidate candidate{.pool = p, .degree = degree};
        for (const StageChoice& choice : space_.choices) {
          const StageTable* table = prices_.table(space_.pools[p].type, degree, micro_batch, choice);
          if (table == nullptr) continue;
          if (candidate.table == nullptr) {
            candidate.table = table;
            candidate.time.assign(at(deepest), std::vector<double>(width * width, infinity));
          }
          for (int first = 0; first < layers_; ++first)
            for (int last = first + 1; last <= layers_; ++last) {
              const int fit = prices_.max_in_flight(*table, space_.pools[p], first, last, micro_batch, 1, sharing,
                                                    rules_.copies_gradients, deepest);
              const double time = table->time(first, last);
              for (int depth = 0; depth < fit; ++depth) {
                double& least = candidate.time[at(depth)][at(first) * width + at(last)];
                least = std::min(least, time);
              }
            }
        }
        if (candidate.table != nullptr) tables.candidates.push_back(std::move(candidate));
      }
    for (StageCandidate& candidate : tables.candidates)
      for (const StageCandidate& next : tables.candidates) {
        const bool one_node = candidate.pool == next.pool &&
                              candidate.degree + next.degree <= space_.pools[candidate.pool].largest_node();
        candidate.to.push_back(
            prices_.boundary(candidate.pool, candidate.degree, next.pool, next.degree, micro_batch, one_node));
      }
    tables.quickest.assign(at(layers_) + 1, 0.0);
    tables.forward.assign(at(layers_) + 1, 0.0);
    tables.work_per_micro_batch = 0.0;
    tables.slowest_layer = 0.0;
    for (int layer = 0; layer < layers_; ++layer) {
      double time = infinity;
      double forward = infinity;
      double work = infinity;
      for (const StageCandidate& candidate : tables.candidates) {
        const auto& times = candidate.table->times;
        const double pass = candidate.table->time(layer, layer + 1);
        time = std::min(time, pass);
        forward = std::min(forward, (times[at(layer + 1)].forward - times[at(layer)].forward).value());
        work = std::min(work, pass * candidate.degree);
      }
      tables.quickest[at(layer + 1)] = tables.quickest[at(layer)] + time;
      tables.forward[at(layer + 1)] = tables.forward[at(layer)] + forward;
      tables.slowest_layer = std::max(tables.slowest_layer, time);
      tables.work_per_micro_batch += work;
    }
  }

  [[nodiscard]] double score(double time, double usd_per_s) const {
    return score_of(request_.objective, Seconds(time), Usd(time * usd_per_s));
  }

  /// The same, infinite where limits are broken. Without it the best that is found breaks them.
  [[nodiscard]] double score_within(double time, double usd_per_s) const {
    return time > max_time_ || time * usd_per_s > max_cost_ ? infinity : score(time, usd_per_s);
  }

  /// Min score of template mixes of `count` pipelines with `rounds` micro-batches each.
  [[nodiscard]] double min_of(int count, int rounds) const {
    const int devices = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices())) / count;
    if (devices < 1) return infinity;
    const double round = std::max(now_->slowest_layer, now_->work_per_micro_batch / devices);
    return score_within(now_->quickest.back() + (rounds - 1) * round, cheapest_ * count);
  }

  void grow(const Rounds& rounds) {
    done_.clear();
    max_.clear();
    for (const DevicePool& pool : space_.pools) max_.push_back(pool.devices() / rounds.count);
    max_devices_ = space_.max_gpus.value_or(space_.devices()) / rounds.count;
    reductions_.assign(now_->candidates.size() * (at(layers_) + 1) * (at(layers_) + 1), -1.0);
    // Under a limit on the slowest stage, only the time from end to end is left to compare.
    if (rounds.rounds == 1) {
      slowest_ = infinity;
      grow_within(rounds);
    } else {
      limited_ = true;
      const int devices = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices())) / rounds.count;
      slowest_ = std::max(now_->slowest_layer, now_->work_per_micro_batch / devices) * level_ratio;
      while (limited_ && work_ < work_limit_ &&
             score_within(now_->quickest.back() + (rounds.rounds - 1) * slowest_ / level_ratio,
                          cheapest_ * rounds.count) < bar_) {
        limited_ = false;
        grow_within(rounds);
        slowest_ *= level_ratio;
      }
    }
    found_.insert(found_.end(), done_.begin(), done_.end());
  }

  void grow_within(const Rounds& rounds) {
    const std::size_t kinds = now_->candidates.size();
    labels_.clear();
    uses_.clear();
    for (std::vector<std::int32_t>& list : open_) list.clear();
    open_.resize((at(layers_) + 1) * kinds * max_stages);
    extend(nullptr, -1, layers_, rounds);
    for (int first = layers_ - 1; first > 0; --first)
      for (std::size_t list = at(first) * kinds * max_stages; list < at(first + 1) * kinds * max_stages; ++list) {
        if (open_[list].empty()) continue;  // most of them
        for (const std::int32_t index : open_[list]) {
          const Label label = labels_[static_cast<std::size_t>(index)];
          extend(&label, index, first, rounds);
        }
        if (work_ >= work_limit_ || stop_()) return;
      }
  }

  /// Extends a label by a stage that ends before layer `last`.
  void extend(const Label* behind, std::int32_t index, int last, const Rounds& rounds) {
    const std::size_t width = at(layers_) + 1;
    const int stages = behind == nullptr ? 1 : behind->stages + 1;
    const auto pinned = request_.pins.pipeline_parallel;
    if (stages > max_stages) return;
    if (pinned && stages > *pinned) return;
    const auto depth = at(std::min({stages, rounds.rounds, deepest}) - 1);
    const std::size_t pools = space_.pools.size();
    for (std::size_t kind = 0; kind < now_->candidates.size(); ++kind) {
      const StageCandidate& candidate = now_->candidates[kind];
      const int used = behind == nullptr ? 0 : uses_[static_cast<std::size_t>(index) * pools + candidate.pool];
      if (used + candidate.degree > max_[candidate.pool]) continue;
      if ((behind == nullptr ? 0 : behind->devices) + candidate.degree > max_devices_) continue;
      BoundaryCost link;
      if (behind != nullptr) link = candidate.to[behind->candidate];
      if (link.forward == infinity) continue;
      const double usd_per_s = (behind == nullptr ? 0.0 : behind->usd_per_s) +
                               space_.pools[candidate.pool].price.value() / 3600.0 * candidate.degree * rounds.count;
      const double behind_round =
          behind == nullptr ? 0.0 : std::max(behind->round, behind->head + (blocks_ ? link.both() : 0.0));
      for (int first = last - 1; first >= 0; --first) {
        if (first > 0 && (stages == max_stages || (pinned && stages == *pinned))) continue;
        ++work_;
        const double pass = candidate.time[depth][at(first) * width + at(last)];
        if (pass == infinity) break;  // longer ones need more memory
        const auto& times = candidate.table->times;
        const double forward = (times[at(last)].forward - times[at(first)].forward).value();
        Label label{.through = pass + link.both() + (behind == nullptr ? 0.0 : behind->through),
                    .head = pass + (blocks_ ? link.both() : 0.0),
                    .usd_per_s = usd_per_s,
                    .stages = stages,
                    .first = first,
                    .candidate = kind,
                    .behind = index,
                    .devices = candidate.degree + (behind == nullptr ? 0 : behind->devices)};
        label.round = std::max({label.head, behind_round, blocks_ ? 0.0 : std::max(link.forward, link.backward)});
        if (label.round > slowest_) {
          limited_ = true;
          break;
        }
        const double rest = (rounds.rounds - 1) * label.round;
        if (score_within(label.through + rest + now_->quickest[at(first)], usd_per_s) >= bar_) break;
        const double reduction = this->reduction(kind, first, last, rounds.count);
        if (reduction == infinity) continue;
        const double share = shards_ ? 0.5 : 1.0;
        label.ready = std::max(label.through + reduction * share,
                               behind == nullptr ? 0.0 : behind->ready + forward + link.forward);
        label.after = shards_ ? std::max(reduction * share, behind == nullptr ? 0.0 : behind->after) : 0.0;
        const double once =
            std::max(label.ready + now_->forward[at(first)], label.through + now_->quickest[at(first)]) + label.after;
        label.least = score_within(once + rest, usd_per_s);
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
      const StageCandidate& candidate = now_->candidates[kind];
      known = prices_.min_reduction(candidate.pool, candidate.pool, candidate.degree, count,
                                    space_.pools[candidate.pool].largest_node(),
                                    prices_.summed(first, last, candidate.degree));
    }
    return known;
  }

  std::int32_t store(const Label& label) {
    const std::size_t pools = space_.pools.size();
    const auto index = static_cast<std::int32_t>(labels_.size());
    labels_.push_back(label);
    for (std::size_t p = 0; p < pools; ++p)
      uses_.push_back(label.behind < 0 ? 0 : uses_[static_cast<std::size_t>(label.behind) * pools + p]);
    uses_[uses_.size() - pools + now_->candidates[label.candidate].pool] += now_->candidates[label.candidate].degree;
    return index;
  }

  /// Adds a label unless an open one is no worse in anything, or the beam is full of better ones.
  void add(const Label& label, int used) {
    auto& open = open_[(at(label.first) * now_->candidates.size() + label.candidate) * max_stages + at(label.stages)];
    if (open.size() == beam && labels_[static_cast<std::size_t>(open.back())].order <= label.order) return;
    const std::size_t pools = space_.pools.size();
    for (const std::int32_t index : open) {
      const Label& other = labels_[static_cast<std::size_t>(index)];
      if (other.through > label.through || other.ready > label.ready || other.after > label.after ||
          other.head > label.head || other.usd_per_s > label.usd_per_s || other.stages > label.stages)
        continue;
      bool fewer = true;
      for (std::size_t p = 0; p < pools && fewer; ++p) {
        int uses = label.behind < 0 ? 0 : uses_[static_cast<std::size_t>(label.behind) * pools + p];
        if (p == now_->candidates[label.candidate].pool) uses = used + now_->candidates[label.candidate].degree;
        fewer = uses_[static_cast<std::size_t>(index) * pools + p] <= uses;
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
    if (done_.size() == max_of_each_ && done_.back().score <= label.least) return;
    Rated rated{.score = label.least, .stages = {}, .micro_batch = rounds.micro_batch, .count = rounds.count};
    for (const Label* stage = &label; stage != nullptr;) {
      const Label* behind = stage->behind < 0 ? nullptr : &labels_[static_cast<std::size_t>(stage->behind)];
      rated.stages.push_back({.pool = now_->candidates[stage->candidate].pool,
                              .tensor_parallel = now_->candidates[stage->candidate].degree,
                              .first = stage->first,
                              .last = behind == nullptr ? layers_ : behind->first});
      stage = behind;
    }
    if (std::any_of(done_.begin(), done_.end(), [&](const Rated& other) { return other.stages == rated.stages; }))
      return;
    done_.insert(std::upper_bound(done_.begin(), done_.end(), rated,
                                  [](const Rated& a, const Rated& b) { return a.score < b.score; }),
                 std::move(rated));
    if (done_.size() > max_of_each_) done_.pop_back();
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const Request& request_;
  const TemplateRules& rules_;
  bool shards_;
  bool blocks_;
  bool reduces_;
  double bar_;
  // Limits on seconds and USD of an iteration, widened by usual_above_events, as the closed form is pessimistic.
  double max_time_ = infinity;
  double max_cost_ = infinity;
  const StopCheck& stop_;
  int layers_;
  std::size_t max_of_each_;
  std::size_t max_mixes_;
  std::uint64_t work_ = 0;
  std::uint64_t work_limit_;
  std::map<std::pair<int, double>, StageTables> tables_;  // by micro-batch size and Sharing::replicas
  std::size_t max_tables_ = 2;
  const StageTables* now_ = nullptr;
  double cheapest_ = infinity;  // USD per second of a device
  std::vector<Rounds> rounds_;
  // State for one number of pipelines.
  std::vector<Label> labels_;
  std::vector<int> uses_;  // devices, at label x pools + pool
  std::vector<std::vector<std::int32_t>> open_;
  std::vector<Rated> done_;
  double slowest_ = 0.0;  // limit on the time of a stage
  bool limited_ = false;  // whether a stage was left out for it: if not, a higher limit lets nothing more in
  std::vector<int> max_;  // devices of a pool for each pipeline
  int max_devices_ = 0;
  std::vector<double> reductions_;  // negative: not yet known
  std::vector<Rated> found_;
};

}  // namespace

std::vector<Group> alike_pipelines(StagePrices& prices, const TemplateRules& rules, OptimizerSharding sharding,
                                   double bar, bool is_brief, const StopCheck& stop) {
  return AlikePipelines(prices, rules, sharding, bar, is_brief, stop).run();
}

}  // namespace sailor::planner

#include "planner/bound/ready_labels.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr double rounding = 1.0 + 1e-12;
constexpr std::uint64_t max_label_work = 2'000'000;  // extensions of labels, of one question

constexpr std::uint64_t comparisons_per_work = 4;

class ReadyLabels {
 public:
  explicit ReadyLabels(const ReadyQuestion& question)
      : question_(question),
        program_(question.program),
        candidates_(question.program.candidates()),
        layers_(question.program.layers()),
        width_(at(layers_) + 1),
        slowest_(question.slowest * rounding),
        left_(question.deadline - question.round * (question.min_micro_batches - 1)),
        latest_(left_ + (rounding - 1.0) * question.deadline),
        max_price_(question.max_price) {
    for (const StageCandidate& candidate : candidates_) {
      node_ = std::max(node_, candidate.node);
      price_.push_back(program_.device_price(candidate.pool) * candidate.tensor_parallel);
      min_device_price_ = std::min(min_device_price_, program_.device_price(candidate.pool));
    }
    find_messages();
    reductions_.assign(candidates_.size() * width_ * width_ * at(node_ + 1), -1.0);
    open_.resize(candidates_.size() * width_);
    find_potentials();
  }

  ReadyAnswer answer() {
    stages_of_.push_back({.first = layers_});
    extend({});
    for (int first = layers_ - 1; first > 0; --first)
      for (std::size_t next = 0; next < candidates_.size(); ++next)
        for (const Open& open : open_[next * width_ + at(first)]) {
          extend(open);
          answer_.work += compared_ / comparisons_per_work;
          compared_ %= comparisons_per_work;
          if (answer_.work > max_label_work) return {.work = answer_.work};
        }
    answer_.complete = true;
    return answer_;
  }

 private:
  /// A label that may be extended: all that decides whether it is dominated.
  struct Open {
    double through = 0.0;
    double ready = 0.0;
    double head = 0.0;  ///< seconds of its first stage, where what it receives may make that too long; else 0
    double price = 0.0;
    int on_node = 0;       ///< devices on the node of its first stage, of that and the next ones
    int stages = 0;        ///< up to ReadyQuestion::in_flight
    bool crosses = false;  ///< has devices of two pools, where that is asked for
    int label = 0;         ///< index into stages_of_

    /// For two of which the other is as dear at least.
    [[nodiscard]] bool is_no_worse_than(const Open& other) const {
      return through <= other.through && ready <= other.ready && on_node <= other.on_node && stages <= other.stages &&
             head <= other.head && crosses >= other.crosses;
    }
  };
  /// The first stage of a label, which ends where that of the label behind begins.
  struct FirstStage {
    int first = 0;
    std::size_t candidate = 0;
    int behind = -1;  ///< label of the next stages
  };

  /// Lower bounds of the price and weighted times of the stages of layers [0, first), by `first`.
  struct Potential {
    double weight = 0.0;
    std::vector<double> pass;
    std::vector<double> forward;
  };

  /// Rounded down, so that more labels are alike.
  [[nodiscard]] static double rounded(double value, double step) {
    return step > 0.0 ? std::floor(value / step) * step : value;
  }

  /// Pool of the first stage of a label.
  [[nodiscard]] std::size_t pool_of(const Open& label) const {
    return candidates_[stages_of_[at(label.label)].candidate].pool;
  }

  double reduction(std::size_t candidate, int first, int last, int on_node) {
    double& known = reductions_[((candidate * width_ + at(first)) * width_ + at(last)) * at(node_ + 1) + at(on_node)];
    if (known < 0.0) known = question_.reduction(candidate, first, last, on_node);
    return known;
  }

  void find_messages() {
    min_message_to_.assign(candidates_.size(), infinity);
    for (std::size_t o = 0; o < candidates_.size(); ++o)
      for (std::size_t next = 0; next < candidates_.size(); ++next) {
        const auto& [near, far] = question_.messages[o * candidates_.size() + next];
        for (const double seconds : {near.both(), far.both()}) {
          if (seconds == infinity) continue;
          longest_message_ = std::max(longest_message_, seconds);
          min_message_to_[next] = std::min(min_message_to_[next], seconds);
        }
      }
  }

  /// By how late the stages from a layer on are (no delay is made up for), and by weight, what those before it take.
  void find_potentials() {
    delay_step_ = std::max(left_ - program_.pass_before(layers_), 0.0) / delays;
    const double scale =
        min_device_price_ * std::clamp(max_price_ / min_device_price_, 1.0, 4096.0) / question_.deadline;
    const auto at_least = [&](std::size_t o, int first, int last) {
      return reduction(o, first, last, candidates_[o].tensor_parallel);
    };
    for (int delay = 0; delay < delays; ++delay) {
      const double time = left_ - delay * delay_step_;
      const auto possible = [&](std::size_t o, int first, int last) {
        return at_least(o, first, last) <=
               time - program_.through_to(question_.order.passed_from(first, last)) * (1.0 - 1e-12);
      };
      const StageLimits furthest = furthest_stages(candidates_.size(), layers_, possible);
      compared_ += furthest.size();
      for (std::size_t w = 0; w < weights.size(); ++w)
        fill(potentials_[at(delay) * weights.size() + w], weights[w] * scale, furthest);
    }
  }

  /// Min over stages of layers [0, first), none of which reaches further, of their price and `weight` times their
  /// time from end to end, or only forward.
  void fill(Potential& potential, double weight, const StageLimits& furthest) {
    potential.weight = weight;
    potential.pass.assign(width_, infinity);
    potential.forward.assign(width_, infinity);
    potential.pass[0] = potential.forward[0] = 0.0;
    for (int first = 0; first < layers_ - 1; ++first)
      for (std::size_t o = 0; o < candidates_.size() && potential.pass[at(first)] < infinity; ++o) {
        const StageCandidate& candidate = candidates_[o];
        const double link = std::min(candidate.near, candidate.far);
        const std::size_t here = o * at(layers_) + at(first);
        const int last_of_all = std::min({furthest[here], question_.furthest[here], layers_ - 1});
        for (int last = first + 1; last <= last_of_all; ++last) {
          ++compared_;
          const double time = candidate.time[0][at(first) * width_ + at(last)];
          if (time == infinity) continue;
          if (time > slowest_) break;
          const double forward = candidate.forward[at(last)] - candidate.forward[at(first)];
          const auto lower = [&](std::vector<double>& values, double seconds) {
            values[at(last)] = std::min(values[at(last)], values[at(first)] + price_[o] + weight * seconds);
          };
          lower(potential.pass, time + link);
          lower(potential.forward, forward);
        }
      }
  }

  /// Min price of the stages of layers [0, first) before a label.
  [[nodiscard]] double price_before(int first, const Open& label) const {
    const double late = label.through - (program_.pass_before(layers_) - program_.pass_before(first));
    const int delay =
        delay_step_ > 0.0 ? std::clamp(static_cast<int>(late / delay_step_ * (1.0 - 1e-12)), 0, delays - 1) : 0;
    double price = 0.0;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const Potential& potential = potentials_[at(delay) * weights.size() + w];
      price = std::max({price, potential.pass[at(first)] - potential.weight * (left_ - label.through),
                        potential.forward[at(first)] - potential.weight * (left_ - label.ready)});
    }
    return price;
  }

  /// Extends a label by stages that end where it begins.
  void extend(const Open behind) {
    const FirstStage next = stages_of_[at(behind.label)];
    const double most = behind.head == 0.0 ? infinity : slowest_ - behind.head;  // seconds of a message to it
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      const int degree = candidates_[o].tensor_parallel;
      if (behind.price + price_[o] > max_price_) continue;
      if (next.first == layers_) {
        add_stages(behind, o, {0.0, 0.0}, degree);
        continue;
      }
      const auto& [near, far] = question_.messages[o * candidates_.size() + next.candidate];
      if (far.both() < infinity && far.both() <= most) add_stages(behind, o, far, degree);
      if (near.both() < infinity && near.both() <= most && behind.on_node + degree <= candidates_[o].node)
        add_stages(behind, o, near, behind.on_node + degree);
    }
  }

  /// Adds stages of candidate `o` before a label, with a message to it.
  void add_stages(const Open& behind, std::size_t o, const BoundaryCost& message, int on_node) {
    const StageCandidate& candidate = candidates_[o];
    const int last = stages_of_[at(behind.label)].first;
    const int stages = std::min(behind.stages + 1, question_.in_flight);
    const std::vector<double>& times = candidate.time[at(stages) - 1];
    const double price = rounded(behind.price + price_[o], question_.price_step);
    const bool is_last = last == layers_;
    const bool crosses = question_.crosses && (behind.crosses || (!is_last && candidate.pool != pool_of(behind)));
    for (int first = last - 1; first >= 0; --first) {
      if (first == 0 && (is_last || crosses != question_.crosses)) break;  // pipelines of one stage are priced apart
      ++answer_.work;
      if (question_.furthest[o * at(layers_) + at(first)] < last) break;
      const double time = times[at(first) * width_ + at(last)];
      if (time == infinity) continue;
      // All but the first stage wait for messages of a previous one, too.
      const double sends = time + (program_.blocks() ? message.both() : 0.0);
      if (sends > slowest_) break;
      const double receives = program_.blocks() && first > 0 ? min_message_to_[o] : 0.0;
      if (sends + receives > slowest_) continue;
      const double forward = candidate.forward[at(last)] - candidate.forward[at(first)];
      Open label{.through = behind.through + message.both() + time,
                 .price = price,
                 .on_node = on_node,
                 .stages = stages,
                 .crosses = crosses};
      const double through = label.through + program_.pass_before(first);
      if (question_.delay(through) > latest_) break;
      if (program_.blocks() && sends + longest_message_ > slowest_) label.head = sends;
      const double taken = reduction(o, first, last, on_node);
      if (taken == infinity || (first == 0 && taken > question_.max_first_reduction)) continue;
      const double begun = behind.through + message.both() + forward;  // the stage's last backward pass
      label.ready = std::max(behind.ready + message.forward + forward,
                             label.through + question_.order.after_passes(taken, label.through - begun));
      if (label.ready + program_.forward_before(first) > latest_) break;
      label.through = rounded(label.through, question_.step);
      label.ready = rounded(label.ready, question_.step);
      if (first == 0) {
        finish(label, {.first = first, .candidate = o, .behind = behind.label});
        continue;
      }
      if (price + price_before(first, label) > max_price_ * (1.0 + 1e-9)) continue;
      add(label, {.first = first, .candidate = o, .behind = behind.label});
    }
  }

  /// Lists of open labels are in the order of their prices.
  void add(Open label, const FirstStage& stage) {
    std::vector<Open>& open = open_[stage.candidate * width_ + at(stage.first)];
    auto other = open.begin();
    for (; other != open.end() && other->price <= label.price; ++other)
      if (other->is_no_worse_than(label)) break;
    compared_ += static_cast<std::uint64_t>(other - open.begin());
    if (other != open.end() && other->price <= label.price) return;
    label.label = static_cast<int>(stages_of_.size());
    stages_of_.push_back(stage);
    compared_ += static_cast<std::uint64_t>(open.end() - other);
    const auto place = open.insert(other, label);
    open.erase(std::remove_if(place + 1, open.end(), [&](const Open& worse) { return label.is_no_worse_than(worse); }),
               open.end());
  }

  void finish(const Open& label, const FirstStage& first_stage) {
    const double left = question_.deadline - std::max(label.ready, question_.delay(label.through));
    const double count =
        std::min<double>(std::floor(left / question_.round * rounding + 1e-12) + 1.0, question_.max_micro_batches);
    if (left < -1e-12 * question_.deadline || count < question_.min_micro_batches) return;
    const auto enough = static_cast<int>(count);
    auto& found = answer_.pipelines;
    if (std::any_of(found.begin(), found.end(),
                    [&](const ReadyPipeline& other) { return other.count >= enough && other.price <= label.price; }))
      return;
    std::erase_if(found,
                  [&](const ReadyPipeline& other) { return other.count <= enough && other.price >= label.price; });
    found.push_back({.count = enough, .price = label.price, .stages = {}});
    for (const FirstStage* stage = &first_stage; stage->behind >= 0;) {
      const FirstStage* next = &stages_of_[at(stage->behind)];
      found.back().stages.push_back({.pool = candidates_[stage->candidate].pool,
                                     .tensor_parallel = candidates_[stage->candidate].tensor_parallel,
                                     .first = stage->first,
                                     .last = next->first});
      stage = next;
    }
    if (enough == question_.max_micro_batches) max_price_ = std::min(max_price_, label.price * (1.0 - 1e-9));
  }

  const ReadyQuestion& question_;
  const StageProgram& program_;
  const std::vector<StageCandidate>& candidates_;
  int layers_;
  std::size_t width_;
  double slowest_;  // max seconds of a stage
  double left_;     // seconds of the deadline that are not for rounds of micro-batches
  double latest_;   // the same, with a margin for rounding
  double max_price_;
  int node_ = 1;
  std::vector<double> price_;  // by candidate
  double min_device_price_ = infinity;
  double longest_message_ = 0.0;
  std::vector<double> min_message_to_;  // by candidate
  static constexpr std::array weights{0.0, 0.7, 1.5, 3.0};
  static constexpr int delays = 8;
  double delay_step_ = 0.0;
  std::array<Potential, weights.size() * delays> potentials_;
  std::vector<double> reductions_;       // negative: not yet known
  std::vector<FirstStage> stages_of_;    // by label; the first one has no stages
  std::vector<std::vector<Open>> open_;  // not dominated, at candidate x width + first layer
  std::uint64_t compared_ = 0;           // labels with others
  ReadyAnswer answer_;
};

}  // namespace

ReadyAnswer price_ready_pipelines(const ReadyQuestion& question) { return ReadyLabels(question).answer(); }

}  // namespace sailor::planner

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
        width_(at(layers_) + 1) {
    for (const StageCandidate& candidate : candidates_) node_ = std::max(node_, candidate.node);
    max_devices_ = question.max_devices;
    reductions_.assign(candidates_.size() * width_ * width_ * at(node_ + 1), -1.0);
    open_.resize(candidates_.size() * width_);
    for (const StageCandidate& candidate : candidates_)
      for (const double link : {candidate.near, candidate.far})
        if (link < infinity) longest_link_ = std::max(longest_link_, link);
    find_potentials();
  }

  ReadyAnswer answer() {
    all_.push_back({});
    extend(0, 0, layers_);
    for (int first = layers_ - 1; first > 0; --first)
      for (std::size_t next = 0; next < candidates_.size(); ++next) {
        for (const Open& open : open_[next * width_ + at(first)]) {
          extend(open.label, next, first);
          answer_.work += compared_ / comparisons_per_work;
          compared_ %= comparisons_per_work;
          if (answer_.work > max_label_work) return {.work = answer_.work};
        }
      }
    answer_.complete = true;
    return answer_;
  }

 private:
  /// What decides whether a label is dominated.
  struct Open {
    double through = 0.0;
    double ready = 0.0;
    double head = 0.0;  ///< seconds of its first stage, where what it receives may make that too long; else 0
    int devices = 0;
    int on_node = 0;  ///< of its devices, on the node of its first stage and the next ones
    int stages = 0;   ///< up to ReadyQuestion::in_flight
    int label = 0;    ///< index into all_

    /// Needs as many devices at least as the other.
    [[nodiscard]] bool is_no_worse_than(const Open& other) const {
      return through <= other.through && ready <= other.ready && on_node <= other.on_node && stages <= other.stages &&
             head <= other.head;
    }
  };
  struct Label {
    Open open{};
    int first = 0;
    std::size_t candidate = 0;
    int behind = -1;  ///< label of the next stages
  };

  /// Rounded down, so that more labels are alike.
  [[nodiscard]] double rounded(double time) const {
    return question_.step > 0.0 ? std::floor(time / question_.step) * question_.step : time;
  }

  double reduction(std::size_t candidate, int first, int last, int on_node) {
    double& known = reductions_[((candidate * width_ + at(first)) * width_ + at(last)) * at(node_ + 1) + at(on_node)];
    if (known < 0.0) known = question_.reduction(candidate, first, last, on_node);
    return known;
  }

  /// Min over stages of layers [0, first) of their devices and `weight` times their time from end to end, or only
  /// forward, if what follows takes `delay` more from end to end than the quickest stages do: no delay is made up
  /// for.
  void find_potentials() {
    const double rounds = question_.round * (question_.min_micro_batches - 1);
    delay_step_ = std::max(question_.deadline - rounds - program_.pass_before(layers_), 0.0) / delays;
    const double scale = std::max(1, std::min(max_devices_, 1 << 12)) / question_.deadline;
    for (int delay = 0; delay < delays; ++delay) {
      const std::vector<int> furthest = furthest_after(question_.deadline - rounds - delay * delay_step_);
      for (std::size_t w = 0; w < weights.size(); ++w) {
        Potential& potential = potentials_[at(delay) * weights.size() + w];
        potential.weight = weights[w] * scale;
        potential.pass.assign(width_, infinity);
        potential.forward.assign(width_, infinity);
        potential.pass[0] = potential.forward[0] = 0.0;
        for (int first = 0; first < layers_ - 1; ++first) {
          const double pass = potential.pass[at(first)];
          const double forward = potential.forward[at(first)];
          for (std::size_t o = 0; o < candidates_.size() && pass < infinity; ++o) {
            const StageCandidate& candidate = candidates_[o];
            const double link = std::min(candidate.near, candidate.far);
            for (int last = first + 1; last <= std::min(furthest[o * width_ + at(first)], layers_ - 1); ++last) {
              ++compared_;
              const double time = candidate.time[0][at(first) * width_ + at(last)];
              if (time == infinity) continue;
              if (time > question_.slowest * rounding) break;
              potential.pass[at(last)] = std::min(potential.pass[at(last)],
                                                  pass + candidate.tensor_parallel + potential.weight * (time + link));
              potential.forward[at(last)] =
                  std::min(potential.forward[at(last)],
                           forward + candidate.tensor_parallel +
                               potential.weight * (candidate.forward[at(last)] - candidate.forward[at(first)]));
            }
          }
        }
      }
    }
  }

  /// The furthest layer that a stage may reach, by candidate and first layer, for its reductions to be done in time.
  std::vector<int> furthest_after(double time) {
    std::vector<int> all(candidates_.size() * width_, 0);
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      int furthest = 0;  // does not fall for stages that begin later
      for (int first = 0; first < layers_; ++first) {
        const double most = time - program_.through_to(first) * (1.0 - 1e-12);
        const int limit = question_.furthest[o * at(layers_) + at(first)];
        furthest = std::max(furthest, first);
        ++compared_;
        while (furthest < limit && reduction(o, first, furthest + 1, candidates_[o].tensor_parallel) <= most)
          ++furthest;
        all[o * width_ + at(first)] = std::min(furthest, limit);
      }
    }
    return all;
  }

  /// Min devices of the stages of layers [0, first) before a label.
  [[nodiscard]] double devices_before(int first, const Open& label, double rounds) const {
    const double late = label.through - (program_.pass_before(layers_) - program_.pass_before(first));
    const int delay =
        delay_step_ > 0.0 ? std::clamp(static_cast<int>(late / delay_step_ * (1.0 - 1e-12)), 0, delays - 1) : 0;
    const double pass = question_.deadline - rounds - label.through;
    const double forward = question_.deadline - rounds - label.ready;
    double devices = 0.0;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const Potential& potential = potentials_[at(delay) * weights.size() + w];
      devices = std::max({devices, potential.pass[at(first)] - potential.weight * pass,
                          potential.forward[at(first)] - potential.weight * forward});
    }
    return devices;
  }

  /// Extends a label, whose first stage is of candidate `next`, by a stage that ends before layer `last`.
  void extend(int index, std::size_t next, int last) {
    const Open behind = all_[at(index)].open;
    const bool is_end = last == layers_;
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      const StageCandidate& candidate = candidates_[o];
      const int degree = candidate.tensor_parallel;
      if (behind.devices + degree > max_devices_) continue;
      if (is_end) {
        stage(behind, index, o, last, 0.0, 0.0, degree);
        continue;
      }
      const StageCandidate& other = candidates_[next];
      const double near = std::max(candidate.near, other.near);
      const double far = std::max(candidate.far, other.far);
      const double most = behind.head == 0.0 ? infinity : question_.slowest * rounding - behind.head;
      if (far < infinity && far <= most)
        stage(behind, index, o, last, far, std::max(candidate.far_forward, other.far_forward), degree);
      if (near < infinity && near <= most && behind.on_node + degree <= candidate.node)
        stage(behind, index, o, last, near, std::max(candidate.near_forward, other.near_forward),
              behind.on_node + degree);
    }
  }

  /// Adds stages of candidate `o` that end before layer `last`, with a message of so many seconds to the next one.
  void stage(const Open& behind, int index, std::size_t o, int last, double link, double forward_link, int on_node) {
    const StageCandidate& candidate = candidates_[o];
    const int stages = std::min(behind.stages + 1, question_.in_flight);
    const std::vector<double>& times = candidate.time[at(stages) - 1];
    const double rounds = question_.round * (question_.min_micro_batches - 1);
    const int devices = behind.devices + candidate.tensor_parallel;
    for (int first = last - 1; first >= 0; --first) {
      if (first == 0 && last == layers_) break;  // pipelines of one stage are priced apart
      ++answer_.work;
      if (question_.furthest[o * at(layers_) + at(first)] < last) break;
      const double time = times[at(first) * width_ + at(last)];
      if (time == infinity) continue;
      // All but the first stage wait for messages of a previous one, too.
      const double sends = time + (program_.blocks() ? link : 0.0);
      if (sends > question_.slowest * rounding) break;
      const double receives = program_.blocks() && first > 0 ? std::min(candidate.near, candidate.far) : 0.0;
      if (sends + receives > question_.slowest * rounding) continue;
      const double forward = candidate.forward[at(last)] - candidate.forward[at(first)];
      Open label{.through = behind.through + link + time, .devices = devices, .on_node = on_node, .stages = stages};
      const double through = label.through + program_.pass_before(first);
      if (question_.delay(through) + rounds > question_.deadline * rounding) break;
      if (program_.blocks() && time + link + longest_link_ > question_.slowest * rounding) label.head = time + link;
      const double taken = reduction(o, first, last, on_node);
      if (taken == infinity || (first == 0 && taken > question_.max_first_reduction)) continue;
      label.ready = std::max(behind.ready + forward_link + forward, label.through + taken);
      if (label.ready + program_.forward_before(first) + rounds > question_.deadline * rounding) break;
      label.through = rounded(label.through);
      label.ready = rounded(label.ready);
      if (first == 0) {
        finish(label, {.first = first, .candidate = o, .behind = index});
        continue;
      }
      if (devices + devices_before(first, label, rounds) > max_devices_ + 1e-6) continue;
      add(label, {.first = first, .candidate = o, .behind = index});
    }
  }

  /// Lists of open labels are in the order of their devices.
  void add(Open label, const Label& stage) {
    std::vector<Open>& open = open_[stage.candidate * width_ + at(stage.first)];
    auto other = open.begin();
    for (; other != open.end() && other->devices <= label.devices; ++other)
      if (other->is_no_worse_than(label)) break;
    compared_ += static_cast<std::uint64_t>(other - open.begin());
    if (other != open.end() && other->devices <= label.devices) return;
    label.label = static_cast<int>(all_.size());
    all_.push_back(stage);
    all_.back().open = label;
    compared_ += static_cast<std::uint64_t>(open.end() - other);
    const auto place = open.insert(other, label);
    open.erase(std::remove_if(place + 1, open.end(), [&](const Open& worse) { return label.is_no_worse_than(worse); }),
               open.end());
  }

  void finish(const Open& label, const Label& first_stage) {
    const double left = question_.deadline - std::max(label.ready, question_.delay(label.through));
    const double count =
        std::min<double>(std::floor(left / question_.round * rounding + 1e-12) + 1.0, question_.max_micro_batches);
    if (left < -1e-12 * question_.deadline || count < question_.min_micro_batches) return;
    const auto enough = static_cast<int>(count);
    auto& found = answer_.pipelines;
    if (std::any_of(found.begin(), found.end(), [&](const ReadyPipeline& other) {
          return other.count >= enough && other.devices <= label.devices;
        }))
      return;
    std::erase_if(found,
                  [&](const ReadyPipeline& other) { return other.count <= enough && other.devices >= label.devices; });
    found.push_back({.count = enough, .devices = label.devices, .stages = {}});
    for (const Label* stage = &first_stage; stage->behind >= 0; stage = &all_[at(stage->behind)]) {
      const int last = stage->behind == 0 ? layers_ : all_[at(stage->behind)].first;
      found.back().stages.push_back({.pool = candidates_[stage->candidate].pool,
                                     .tensor_parallel = candidates_[stage->candidate].tensor_parallel,
                                     .first = stage->first,
                                     .last = last});
    }
    if (enough == question_.max_micro_batches) max_devices_ = std::min(max_devices_, label.devices - 1);
  }

  const ReadyQuestion& question_;
  const StageProgram& program_;
  const std::vector<StageCandidate>& candidates_;
  int layers_;
  std::size_t width_;
  int node_ = 1;
  int max_devices_ = 0;
  double longest_link_ = 0.0;
  struct Potential {
    double weight = 0.0;
    std::vector<double> pass;  // by first layer
    std::vector<double> forward;
  };
  static constexpr std::array weights{0.0, 0.7, 1.5, 3.0};
  static constexpr int delays = 8;
  double delay_step_ = 0.0;
  std::array<Potential, weights.size() * delays> potentials_;
  std::vector<double> reductions_;       // negative: not yet known
  std::vector<Label> all_;               // the first one has no stages
  std::vector<std::vector<Open>> open_;  // not dominated, at candidate x width + first layer
  std::uint64_t compared_ = 0;           // labels with others
  ReadyAnswer answer_;
};

}  // namespace

ReadyAnswer price_ready_pipelines(const ReadyQuestion& question) { return ReadyLabels(question).answer(); }

}  // namespace sailor::planner

#include "planner/baselines/aceso_primitives.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace sailor::planner::baselines::aceso_detail {

namespace {

constexpr int max_moves = 5;
constexpr int max_partners = 4;
constexpr int max_partner_sets = 1000;
constexpr std::array<double, 3> goal_fractions{0.4, 0.2, 0.0};
constexpr std::array<int, 4> group_sizes{1, 2, 4, 8};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Whether the stages may have these numbers of GPUs: 1, 2, 4 or 8, every GPU is in a stage, and no stage crosses the
/// boundary of a node. `use_idle`: GPUs may be idle, and a stage may have several whole nodes.
bool is_legal(const Config& config, const Site& site, bool use_idle) {
  int sum = 0;
  for (const AcesoStage& stage : config.stages) {
    if (std::find(group_sizes.begin(), group_sizes.end(), stage.gpus()) == group_sizes.end()) return false;
    const int in_node = sum % site.gpus_per_node;
    const bool whole_nodes = use_idle && in_node == 0 && stage.gpus() % site.gpus_per_node == 0;
    if (in_node + stage.gpus() > site.gpus_per_node && !whole_nodes) return false;
    sum += stage.gpus();
  }
  return use_idle ? sum <= site.gpus : sum == site.gpus;
}

/// Time that a stage could take over from others, in device-seconds at its efficiency: its wait for the slowest stage,
/// reduced if memory is short.
double spare_time(const Rated& rated, int index, const CostModel& model) {
  const AcesoStage& stage = rated.config.stages[at(index)];
  const Predicted& predicted = rated.predicted;
  const double time = predicted.stage_time[at(index)];
  const double gap = predicted.time - time;
  const double memory = predicted.stage_memory[at(index)];
  const double room = (model.memory_limit() - memory) / memory * time;
  const double idle = room > gap ? gap : room + (gap - room) / 2.0;
  const double efficiency = model.ideal_seconds(stage, rated.config.micro_batch) /
                            (predicted.stage_seconds[at(index)] * static_cast<double>(stage.gpus()));
  return idle * stage.gpus() * efficiency;
}

/// Moves operators from stage to stage, from the target to a partner, until all stages are below a goal.
class OperatorMoves {
 public:
  OperatorMoves(const Rated& rated, int target, const CostModel& model)
      : rated_(rated), first_target_(target), model_(model), by_memory_(!model.fits(rated.predicted)) {
    for (std::size_t index = 0; index < rated.config.stages.size(); ++index)
      rank_.push_back(by_memory_ ? -rated.predicted.stage_memory[index]
                                 : spare_time(rated, static_cast<int>(index), model));
  }

  [[nodiscard]] std::vector<Config> run() const {
    std::vector<Config> found;
    for (const double fraction : goal_fractions) {
      if (auto config = moved(fraction); config && std::find(found.begin(), found.end(), *config) == found.end())
        found.push_back(std::move(*config));
      if (by_memory_) break;  // its goal is the limit
    }
    return found;
  }

 private:
  [[nodiscard]] double value(const Config& config, int index) const {
    const AcesoStage& stage = config.stages[at(index)];
    return by_memory_ ? model_.stage_memory(stage, index, static_cast<int>(config.stages.size()), config.micro_batch)
                      : model_.stage_seconds(stage, config.micro_batch);
  }
  [[nodiscard]] int largest(const Config& config) const {
    int worst = 0;
    for (int index = 1; index < static_cast<int>(config.stages.size()); ++index)
      if (value(config, index) > value(config, worst)) worst = index;
    return worst;
  }

  [[nodiscard]] std::optional<Config> moved(double fraction) const {
    Config config = rated_.config;
    std::set<int> visited;
    int target = first_target_;
    double goal = by_memory_ ? model_.memory_limit() : 0.0;
    for (int step = 0; step < max_moves; ++step) {
      int partner = -1;
      for (int index = 0; index < static_cast<int>(config.stages.size()); ++index)
        if (index != target && !visited.contains(index) && (partner < 0 || rank_[at(index)] > rank_[at(partner)]))
          partner = index;
      if (partner < 0) return std::nullopt;
      visited.insert(partner);
      if (!by_memory_ && step == 0) {
        const double gap = value(config, target) - value(config, partner);
        if (gap <= 0.0) return std::nullopt;
        goal = value(config, target) - gap * fraction;
      }
      if (!hand_on(config, target, partner, goal)) return std::nullopt;
      if (value(config, partner) < goal) return config;
      target = largest(config);
    }
    return std::nullopt;
  }

  /// Moves as few operators as bring every stage before the partner below the goal.
  [[nodiscard]] bool hand_on(Config& config, int target, int partner, double goal) const {
    const int step = partner > target ? 1 : -1;
    for (int index = target; index != partner; index += step) {
      LayerRange& mine = config.stages[at(index)].operators;
      LayerRange& next = config.stages[at(index + step)].operators;
      while (value(config, index) >= goal) {
        if (mine.size() == 1) return false;
        if (step > 0)
          next.first = --mine.last;
        else
          next.last = ++mine.first;
      }
    }
    return true;
  }

  const Rated& rated_;
  int first_target_;
  const CostModel& model_;
  bool by_memory_;
  std::vector<double> rank_;
};

/// Doubles or halves one degree of a stage. std::nullopt if that is not allowed.
std::optional<AcesoStage> scaled(const AcesoStage& stage, bool tensor, bool doubled, const Config& config,
                                 const CostModel& model) {
  const Site& site = model.operators().site();
  AcesoStage changed = stage;
  int& degree = tensor ? changed.tensor_parallel : changed.data_parallel;
  if (!doubled && degree == 1) return std::nullopt;
  degree = doubled ? degree * 2 : degree / 2;
  if (tensor && degree > site.largest_group()) return std::nullopt;
  if (!CostModel::is_allowed(config.micro_batch, changed.data_parallel)) return std::nullopt;
  if (doubled && changed.gpus() > site.gpus - (static_cast<int>(config.stages.size()) - 1)) return std::nullopt;
  return changed;
}

/// Doubles or halves the target's degree while others give or take the GPUs; the first legal set of others wins.
std::optional<Config> rescale(const Rated& rated, int target, bool tensor, bool doubled, const CostModel& model,
                              bool use_idle) {
  Config config = rated.config;
  const auto changed = scaled(config.stages[at(target)], tensor, doubled, config, model);
  if (!changed) return std::nullopt;
  const int amount = std::abs(changed->gpus() - config.stages[at(target)].gpus());
  config.stages[at(target)] = *changed;
  const Site& site = model.operators().site();
  if (use_idle && is_legal(config, site, true)) return config;

  struct Partner {
    double seconds = 0.0;  // of its stage after the change
    int stage = 0;
    AcesoStage changed;
    int amount = 0;
  };
  std::vector<Partner> partners;
  for (int index = 0; index < static_cast<int>(config.stages.size()); ++index) {
    if (index == target) continue;
    for (const bool of_tensor : {true, false})
      if (const auto other = scaled(config.stages[at(index)], of_tensor, !doubled, config, model))
        partners.push_back({model.stage_seconds(*other, config.micro_batch), index, *other,
                            std::abs(other->gpus() - config.stages[at(index)].gpus())});
  }
  std::stable_sort(partners.begin(), partners.end(),
                   [](const Partner& a, const Partner& b) { return a.seconds < b.seconds; });

  int sets = 0;
  const std::function<bool(std::size_t, int, int)> choose = [&](std::size_t first, int left, int chosen) {
    if (left == 0) return ++sets <= max_partner_sets && is_legal(config, site, use_idle);
    if (chosen == max_partners) return false;
    for (std::size_t i = first; i < partners.size() && sets < max_partner_sets; ++i) {
      const Partner& partner = partners[i];
      AcesoStage& stage = config.stages[at(partner.stage)];
      if (partner.amount > left || stage != rated.config.stages[at(partner.stage)]) continue;
      stage = partner.changed;
      if (choose(i + 1, left - partner.amount, chosen + 1)) return true;
      stage = rated.config.stages[at(partner.stage)];
    }
    return false;
  };
  if (!choose(0, amount, 0)) return std::nullopt;
  return config;
}

std::optional<Config> with_batch(const Config& config, bool larger, const CostModel& model) {
  const auto* now = std::find(micro_batches.begin(), micro_batches.end(), config.micro_batch);
  if (now == (larger ? std::prev(micro_batches.end()) : micro_batches.begin()) || now == micro_batches.end())
    return std::nullopt;
  Config changed = config;
  changed.micro_batch = *(larger ? std::next(now) : std::prev(now));
  if (!choose_degrees(changed, model)) return std::nullopt;
  return changed;
}

}  // namespace

bool choose_degrees(Config& config, const CostModel& model) {
  const int count = static_cast<int>(config.stages.size());
  const int largest = model.operators().site().largest_group();
  for (int index = 0; index < count; ++index) {
    AcesoStage& stage = config.stages[at(index)];
    const int gpus = stage.gpus();
    // Ranked by the memory above the limit, then by time.
    std::tuple<double, double> best{std::numeric_limits<double>::infinity(), 0.0};
    for (int degree = 1; degree <= std::min(largest, gpus); degree *= 2) {
      if (gpus % degree != 0 || !CostModel::is_allowed(config.micro_batch, gpus / degree)) continue;
      AcesoStage tried = stage;
      tried.tensor_parallel = degree;
      tried.data_parallel = gpus / degree;
      const double memory = model.stage_memory(tried, index, count, config.micro_batch);
      const std::tuple<double, double> rank{std::max(memory - model.memory_limit(), 0.0),
                                            model.stage_seconds(tried, config.micro_batch)};
      if (rank >= best) continue;
      best = rank;
      stage.tensor_parallel = tried.tensor_parallel;
      stage.data_parallel = tried.data_parallel;
    }
    if (std::get<0>(best) == std::numeric_limits<double>::infinity()) return false;
  }
  return true;
}

std::vector<std::vector<Primitive>> action_groups(const Rated& rated, int target, const CostModel& model) {
  using enum Primitive;
  if (!model.fits(rated.predicted)) return {{move_operators, more_replicas, wider_groups, smaller_batch}};
  const auto count = static_cast<double>(rated.config.stages.size());
  double compute = 0.0;
  double loss = 0.0;
  double all_compute = 0.0;
  double all_loss = 0.0;
  for (std::size_t index = 0; index < rated.config.stages.size(); ++index) {
    const AcesoStage& stage = rated.config.stages[index];
    const double ideal = model.ideal_seconds(stage, rated.config.micro_batch) / stage.gpus();
    const double lost = std::max(rated.predicted.stage_seconds[index] - ideal, 0.0);
    all_compute += ideal;
    all_loss += lost;
    if (static_cast<int>(index) == target) {
      compute = ideal;
      loss = lost;
    }
  }
  // Among primitives that make compute faster, those that add no communication come first if the target has more than
  // its share of communication. All primitives that reduce communication make compute slower.
  std::vector<std::vector<Primitive>> faster{{move_operators, more_replicas, wider_groups, larger_batch}};
  if (loss > all_loss / count) faster = {{move_operators, larger_batch}, {more_replicas, wider_groups}};
  const std::vector<std::vector<Primitive>> leaner{{fewer_replicas, narrower_groups}};
  const double compute_share = all_compute > 0.0 ? compute / all_compute : 0.0;
  const double loss_share = all_loss > 0.0 ? loss / all_loss : 0.0;
  const bool compute_first = compute_share >= loss_share;
  std::vector<std::vector<Primitive>> groups = compute_first ? faster : leaner;
  const auto& others = compute_first ? leaner : faster;
  groups.insert(groups.end(), others.begin(), others.end());
  groups.push_back({smaller_batch});
  return groups;
}

std::vector<Config> apply(Primitive primitive, const Rated& rated, int target, const CostModel& model, bool use_idle) {
  using enum Primitive;
  if (primitive == move_operators) return OperatorMoves(rated, target, model).run();
  std::optional<Config> config;
  if (primitive == larger_batch || primitive == smaller_batch)
    config = with_batch(rated.config, primitive == larger_batch, model);
  else
    config = rescale(rated, target, primitive == wider_groups || primitive == narrower_groups,
                     primitive == more_replicas || primitive == wider_groups, model, use_idle);
  if (!config) return {};
  return {std::move(*config)};
}

}  // namespace sailor::planner::baselines::aceso_detail

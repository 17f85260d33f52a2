// Fleets of a given number of pipelines: how many of which kind in each place, by a dynamic program over the places.
#include <algorithm>

#include "planner/fleet.hpp"

namespace sailor::planner {

namespace {

constexpr int most_pipelines = 128;  // the program takes their square
constexpr double precision = 1e-4;   // of the deadline

/// Kinds of pipelines of one place, and how many of each fit.
struct Kinds {
  std::size_t place = 0;
  std::vector<std::pair<const Chain*, int>> most;
};

/// What a place does best with a number of pipelines; by that number.
struct Choice {
  std::int64_t sequences = -1;  // negative: cannot hold so many
  const Chain* chain = nullptr;
};

std::vector<Choice> choices_of(const Kinds& kinds, int pipelines, double deadline) {
  std::vector<Choice> best(static_cast<std::size_t>(pipelines) + 1);
  best[0] = {.sequences = 0};
  for (const auto& [chain, most] : kinds.most) {
    const std::int64_t each = chain->sequences_by(deadline);
    if (each == 0) continue;
    for (int count = 1; count <= std::min(most, pipelines); ++count) {
      Choice& choice = best[static_cast<std::size_t>(count)];
      if (each * count > choice.sequences) choice = {.sequences = each * count, .chain = chain};
    }
  }
  return best;
}

/// Most sequences of exactly so many pipelines, and which; negative when there are none.
struct Division {
  std::int64_t sequences = -1;
  std::vector<std::pair<const Chain*, int>> by_place;
};

Division divide(const std::vector<Kinds>& places, int pipelines, double deadline) {
  const auto width = static_cast<std::size_t>(pipelines) + 1;
  std::vector<std::int64_t> reached(width, -1);
  reached[0] = 0;
  std::vector<std::vector<Choice>> choices;
  std::vector<std::vector<std::size_t>> taken;  // by place and number so far
  for (const Kinds& kinds : places) {
    choices.push_back(choices_of(kinds, pipelines, deadline));
    std::vector<std::int64_t> next(width, -1);
    auto& from = taken.emplace_back(width, 0);
    for (std::size_t before = 0; before < width; ++before) {
      if (reached[before] < 0) continue;
      for (std::size_t here = 0; before + here < width; ++here) {
        const std::int64_t sequences = choices.back()[here].sequences;
        if (sequences < 0 || reached[before] + sequences <= next[before + here]) continue;
        next[before + here] = reached[before] + sequences;
        from[before + here] = here;
      }
    }
    reached = std::move(next);
  }
  Division division{.sequences = reached.back(), .by_place = {}};
  if (division.sequences < 0) return division;
  division.by_place.resize(places.size());
  std::size_t left = width - 1;
  for (std::size_t i = places.size(); i-- > 0;) {
    const std::size_t here = taken[i][left];
    division.by_place[i] = {choices[i][here].chain, static_cast<int>(here)};
    left -= here;
  }
  return division;
}

}  // namespace

std::optional<Fleet> FleetMaker::of_size(const FleetRequest& request, int pipelines) const {
  for (const Group& group : request.given) pipelines -= group.count;
  if (pipelines < 0 || pipelines > most_pipelines) return std::nullopt;
  const std::vector<int> free = free_devices(request);
  std::vector<Kinds> places;
  for (std::size_t i = 0; i < request.places.size(); ++i) {
    const Place& place = space_.places[request.places[i]];
    Kinds& kinds = places.emplace_back(Kinds{.place = request.places[i], .most = {}});
    for (const Chain* chain : request.chains[place.type])
      if (const int most = most_copies(*chain, place, space_, free[i]); most > 0) kinds.most.emplace_back(chain, most);
  }
  const auto enough = [&](double deadline) {
    std::int64_t given = 0;
    for (const Group& group : request.given) {
      const std::int64_t each = group.chain.sequences_by(deadline);
      if (each == 0) return false;
      given += each * group.count;
    }
    const Division division = divide(places, pipelines, deadline);
    return division.sequences >= 0 && given + division.sequences >= request.batch;
  };
  double high = least_deadline(request);
  if (high == never) return std::nullopt;
  double low = high * (1.0 - 1e-5);
  for (int tries = 0; !enough(high); ++tries) {
    if (tries > 40) return std::nullopt;
    low = high;
    high *= 1.5;
  }
  while (high - low > precision * high) {
    const double middle = 0.5 * (low + high);
    (enough(middle) ? high : low) = middle;
  }
  Fleet fleet;
  fleet.groups = request.given;
  const Division division = divide(places, pipelines, high);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& [chain, count] = division.by_place[i];
    if (count == 0) continue;
    Group& group = fleet.groups.emplace_back(Group{.chain = *chain, .count = count});
    for (ChainStage& stage : group.chain.stages) stage.place = places[i].place;
  }
  return fleet;
}

}  // namespace sailor::planner

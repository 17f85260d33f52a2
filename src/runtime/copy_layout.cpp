#include "runtime/copy_layout.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/assert.hpp"
#include "runtime/kept_state.hpp"
#include "runtime/state_pieces.hpp"

namespace sailor::runtime {

namespace {

/// Loss domain of each rank: ranks of one domain are lost together. Domains count from 0 in the order of the ranks.
std::vector<int> loss_domains(const std::vector<std::string>& hosts) {
  std::map<std::string, int> numbers;
  std::vector<int> domains;
  for (const std::string& host : hosts)
    domains.push_back(numbers.try_emplace(host, static_cast<int>(numbers.size())).first->second);
  if (numbers.size() == 1) std::iota(domains.begin(), domains.end(), 0);
  return domains;
}

/// Keeper of each rank's state, in the domain after its own. The ranks of a domain are spread evenly over those of the
/// next.
std::vector<int> keepers(const std::vector<int>& domains) {
  std::vector<std::vector<int>> members;
  for (std::size_t rank = 0; rank < domains.size(); ++rank) {
    const auto domain = static_cast<std::size_t>(domains[rank]);
    if (domain >= members.size()) members.resize(domain + 1);
    members[domain].push_back(static_cast<int>(rank));
  }
  std::vector<int> keepers(domains.size());
  for (std::size_t domain = 0; domain < members.size(); ++domain) {
    const std::vector<int>& mine = members[domain];
    const std::vector<int>& next = members[(domain + 1) % members.size()];
    for (std::size_t i = 0; i < mine.size(); ++i)
      keepers[static_cast<std::size_t>(mine[i])] = next[i * next.size() / mine.size()];
  }
  return keepers;
}

/// Elements of a parameter that the same ranks update.
struct Segment {
  std::int64_t first = 0;  ///< first element; the last is before the next segment
  int lowest_rank = -1;    ///< -1: no rank updates them
  bool is_safe = false;    ///< ranks of several domains update them
};

/// Segments of one parameter, from the ranges that each rank updates.
std::vector<Segment> segments_of(const std::vector<std::pair<Range, int>>& stepped, const std::vector<int>& domains) {
  std::vector<std::pair<std::int64_t, std::pair<bool, int>>> changes;  // where a rank's range begins or ends
  for (const auto& [range, rank] : stepped) {
    changes.push_back({range.first, {true, rank}});
    changes.push_back({range.last, {false, rank}});
  }
  std::sort(changes.begin(), changes.end());
  std::vector<Segment> segments;
  std::set<int> ranks;
  std::map<int, int> ranks_of_domain;
  for (std::size_t i = 0; i < changes.size();) {
    const std::int64_t place = changes[i].first;
    for (; i < changes.size() && changes[i].first == place; ++i) {
      const auto [begins, rank] = changes[i].second;
      const int domain = domains[static_cast<std::size_t>(rank)];
      if (begins) {
        ranks.insert(rank);
        ++ranks_of_domain[domain];
      } else {
        ranks.erase(rank);
        if (--ranks_of_domain[domain] == 0) ranks_of_domain.erase(domain);
      }
    }
    segments.push_back({place, ranks.empty() ? -1 : *ranks.begin(), ranks_of_domain.size() > 1});
  }
  return segments;
}

std::int64_t elements_of(const std::vector<StatePart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                         [](std::int64_t sum, const StatePart& part) { return sum + part.whole.size(); });
}

}  // namespace

std::vector<StatePart> stepped_parts(const ParameterMap& map, const std::vector<GradientGroup>& groups, int rank) {
  const Declarations parameters = declarations_of(map.parameters(rank));
  std::vector<std::int64_t> offsets;
  std::int64_t offset = 0;
  for (const Parameter* parameter : parameters) {
    offsets.push_back(offset);
    offset += padded(parameter->elements());
  }
  std::vector<StatePart> parts;
  std::int64_t moment = 0;  // AdamW has moments of updated elements only, without padding
  for (const OwnPiece& own : own_pieces(parameters, map.sums_of(rank, groups).owned)) {
    const Piece& piece = own.piece;
    parts.push_back({key_of(*parameters[own.parameter]),
                     {piece.whole, piece.whole + piece.count},
                     offsets[own.parameter] + piece.local,
                     moment});
    moment += piece.count;
  }
  return parts;
}

CopyLayout::CopyLayout(const ParameterMap& map, const std::vector<std::string>& hosts) {
  SAILOR_ASSERT(hosts.size() == map.roles().size(), "there is not one host per rank of the plan");
  const std::vector<GradientGroup> groups = map.groups();
  const std::vector<int> domains = loss_domains(hosts);
  const std::vector<int> keeper_of = keepers(domains);
  const int ranks = static_cast<int>(map.roles().size());
  std::vector<std::vector<StatePart>> parts;  // by rank
  std::map<ParameterKey, std::vector<std::pair<Range, int>>> stepped;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(stepped_parts(map, groups, rank));
    stepped_.push_back(elements_of(parts.back()));
    for (const StatePart& part : parts.back()) stepped[part.key].emplace_back(part.whole, rank);
  }
  if (ranks == 1) return;  // there is no other rank to keep a copy
  std::map<ParameterKey, std::vector<Segment>> segments;
  for (const auto& [key, ranges] : stepped) segments[key] = segments_of(ranges, domains);
  for (int rank = 0; rank < ranks; ++rank) {
    Copy copy{.owner = rank, .keeper = keeper_of[static_cast<std::size_t>(rank)], .parts = {}};
    for (const StatePart& part : parts[static_cast<std::size_t>(rank)]) {
      const std::vector<Segment>& all = segments.at(part.key);
      auto segment = std::upper_bound(all.begin(), all.end(), part.whole.first,
                                      [](std::int64_t first, const Segment& one) { return first < one.first; });
      for (--segment; segment != all.end() && segment->first < part.whole.last; ++segment) {
        if (segment->is_safe || segment->lowest_rank != rank) continue;
        const auto next = std::next(segment);
        const Range whole{std::max(segment->first, part.whole.first),
                          next == all.end() ? part.whole.last : std::min(next->first, part.whole.last)};
        const std::int64_t skipped = whole.first - part.whole.first;
        copy.parts.push_back({part.key, whole, part.value + skipped, part.moment + skipped});
      }
    }
    if (!copy.parts.empty()) copies_.push_back(std::move(copy));
  }
}

std::vector<CopyCost> CopyLayout::costs() const {
  std::vector<CopyCost> costs(stepped_.size());
  if (copies_.empty()) return costs;
  for (std::size_t rank = 0; rank < costs.size(); ++rank) costs[rank].kept = kept_bytes(stepped_[rank]);
  for (const Copy& copy : copies_) {
    const std::int64_t elements = elements_of(copy.parts);
    costs[static_cast<std::size_t>(copy.owner)].sent += copied_bytes(elements);
    CopyCost& keeper = costs[static_cast<std::size_t>(copy.keeper)];
    keeper.received += copied_bytes(elements);
    keeper.kept += kept_bytes(elements);
  }
  return costs;
}

Bytes kept_bytes(std::int64_t elements) { return Bytes(2.0 * static_cast<double>(KeptState::buffer_bytes(elements))); }

Bytes copied_bytes(std::int64_t elements) {
  return Bytes(
      static_cast<double>(stored_arrays.size() * bytes_of(DataType::float32, elements) + KeptState::mark_bytes));
}

}  // namespace sailor::runtime

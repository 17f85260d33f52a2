#include "profiler/link_plan.hpp"

#include <algorithm>

namespace sailor::profiler {

namespace {

/// The ranks of one kind on one node.
struct Place {
  std::string node;
  std::vector<int> ranks;
};

/// All places of one GPU type in one zone, those with most ranks first.
struct Kind {
  std::string gpu;
  std::string zone;
  std::vector<Place> places;
};

template <class List, class Match>
auto& find_or_add(List& list, typename List::value_type made, Match match) {
  const auto found = std::find_if(list.begin(), list.end(), match);
  return found != list.end() ? *found : list.emplace_back(std::move(made));
}

std::vector<Kind> kinds_of(const std::vector<LinkRank>& ranks) {
  std::vector<Kind> kinds;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const LinkRank& rank = ranks[i];
    Kind& kind = find_or_add(kinds, {rank.gpu, rank.zone, {}},
                             [&](const Kind& other) { return other.gpu == rank.gpu && other.zone == rank.zone; });
    find_or_add(kind.places, {rank.node, {}}, [&](const Place& other) {
      return other.node == rank.node;
    }).ranks.push_back(static_cast<int>(i));
  }
  for (Kind& kind : kinds)
    std::stable_sort(kind.places.begin(), kind.places.end(),
                     [](const Place& a, const Place& b) { return a.ranks.size() > b.ranks.size(); });
  return kinds;
}

/// 1, 2, 4, ... below `all`, and `all`.
std::vector<int> counts_to(std::size_t all) {
  std::vector<int> counts;
  for (std::size_t count = 1; count < all; count *= 2) counts.push_back(static_cast<int>(count));
  if (all > 0) counts.push_back(static_cast<int>(all));
  return counts;
}

class Groups {
 public:
  /// Messages of the world ranks in `pairs`, all at once.
  void add_messages(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                    const std::vector<std::pair<int, int>>& pairs) {
    std::vector<int> ranks;
    for (const auto& [sender, receiver] : pairs) ranks.insert(ranks.end(), {sender, receiver});
    LinkGroup& group = group_of(std::move(ranks));
    LinkSeries series{.key = {from, to, scope, LinkOperation::send_receive, 2}};
    for (const auto& [sender, receiver] : pairs)
      series.pairs.emplace_back(index_in(group, sender), index_in(group, receiver));
    add(group, std::move(series));
  }
  void add_collectives(const LinkEnd& from, const LinkEnd& to, LinkScope scope, std::vector<int> ranks) {
    const int count = static_cast<int>(ranks.size());
    LinkGroup& group = group_of(std::move(ranks));
    for (const LinkOperation operation :
         {LinkOperation::all_reduce, LinkOperation::all_gather, LinkOperation::reduce_scatter})
      add(group, {.key = {from, to, scope, operation, count}});
  }
  std::vector<LinkGroup> take() { return std::move(groups_); }

 private:
  LinkGroup& group_of(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return find_or_add(groups_, {ranks, {}}, [&](const LinkGroup& other) { return other.ranks == ranks; });
  }
  static int index_in(const LinkGroup& group, int rank) {
    return static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), rank) - group.ranks.begin());
  }
  static void add(LinkGroup& group, LinkSeries series) {
    find_or_add(group.series, series, [&](const LinkSeries& other) { return other.key == series.key; });
  }
  std::vector<LinkGroup> groups_;
};

LinkEnd end_of(const Kind& kind, int ranks) { return {kind.gpu, kind.zone, ranks}; }

std::vector<int> first_of(const Place& place, int count) { return {place.ranks.begin(), place.ranks.begin() + count}; }

void inside(Groups& groups, const Kind& kind) {
  const Place& place = kind.places.front();
  for (const int count : counts_to(place.ranks.size() / 2)) {
    std::vector<std::pair<int, int>> pairs;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      pairs.emplace_back(place.ranks[2 * i], place.ranks[2 * i + 1]);
    groups.add_messages(end_of(kind, count), end_of(kind, count), LinkScope::intra_node, pairs);
  }
  for (const int count : counts_to(place.ranks.size()))
    if (count >= 2)
      groups.add_collectives(end_of(kind, count), end_of(kind, count), LinkScope::intra_node, first_of(place, count));
}

void between(Groups& groups, const Kind& a, const Place& here, const Kind& b, const Place& there, LinkScope scope) {
  for (const int count : counts_to(std::min(here.ranks.size(), there.ranks.size()))) {
    std::vector<std::pair<int, int>> pairs;
    std::vector<std::pair<int, int>> back;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      pairs.emplace_back(here.ranks[i], there.ranks[i]);
      back.emplace_back(there.ranks[i], here.ranks[i]);
    }
    const LinkEnd from = end_of(a, count);
    const LinkEnd to = end_of(b, count);
    groups.add_messages(from, to, scope, pairs);
    if (from != to) groups.add_messages(to, from, scope, back);
    std::vector<int> ranks = first_of(here, count);
    for (const int rank : first_of(there, count)) ranks.push_back(rank);
    groups.add_collectives(from, to, scope, std::move(ranks));
  }
}

/// The places of two kinds that have most ranks, on different nodes or on the same one.
std::optional<std::pair<const Place*, const Place*>> best_places(const Kind& a, const Kind& b, bool same_node) {
  std::optional<std::pair<const Place*, const Place*>> best;
  std::size_t most = 0;
  for (const Place& here : a.places)
    for (const Place& there : b.places) {
      const std::size_t ranks = std::min(here.ranks.size(), there.ranks.size());
      if ((here.node == there.node) != same_node || &here == &there || ranks <= most) continue;
      most = ranks;
      best = {&here, &there};
    }
  return best;
}

}  // namespace

std::vector<LinkGroup> plan_link_groups(std::vector<LinkRank> ranks, std::optional<LinkScope> scope) {
  if (scope)
    for (std::size_t i = 0; i < ranks.size(); ++i)
      ranks[i].node = scope == LinkScope::intra_node ? "all" : std::to_string(i);
  const std::vector<Kind> kinds = kinds_of(ranks);
  Groups groups;
  for (const Kind& kind : kinds) inside(groups, kind);
  for (auto a = kinds.begin(); a != kinds.end(); ++a)
    for (auto b = a; b != kinds.end(); ++b)
      for (const bool same_node : {true, false})
        if (const auto places = best_places(*a, *b, same_node))
          between(groups, *a, *places->first, *b, *places->second,
                  same_node ? LinkScope::intra_node : LinkScope::inter_node);
  for (const Kind& kind : kinds) {
    if (kind.places.size() <= 2) continue;
    const int most = static_cast<int>(kind.places.back().ranks.size());  // on every node; the last has fewest
    for (const int count : most > 1 ? std::vector<int>{1, most} : std::vector<int>{1}) {
      std::vector<int> members;
      for (const Place& place : kind.places)
        for (const int rank : first_of(place, count)) members.push_back(rank);
      groups.add_collectives(end_of(kind, count), end_of(kind, count), LinkScope::inter_node, std::move(members));
    }
  }
  return groups.take();
}

}  // namespace sailor::profiler

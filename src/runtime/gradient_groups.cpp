#include "runtime/gradient_groups.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "core/assert.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

/// Declarations of the parameters of some chunks of layers.
std::vector<Parameter> declared(const Model& model, const std::vector<LayerRange>& chunks, const Shard& tensor,
                                const Shard& experts, DataType type) {
  std::vector<Parameter> parameters;
  LayerContext context{.tensor_parallel = {.shard = tensor}, .expert_parallel = {.shard = experts}, .type = type};
  std::unique_ptr<Layer> embedding;  // outlives the head that uses its table
  for (const LayerRange& chunk : chunks)
    for (int index = chunk.first; index < chunk.last; ++index) {
      std::unique_ptr<Layer> layer = make_layer(model, index, context);
      parameters.insert(parameters.end(), layer->parameters().begin(), layer->parameters().end());
      if (model.layer_kind(index) == LayerKind::embedding) {
        context.token_embedding = &token_embedding(*layer);
        embedding = std::move(layer);
      }
    }
  return parameters;
}

/// Ranges in ascending order, adjacent ones joined.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (range.size() == 0) continue;
    if (!result.empty() && result.back().last == range.first)
      result.back().last = range.last;
    else
      result.push_back(range);
  }
  return result;
}

/// For assertions: whether each of `ranges` lies in one of `all`, which are joined().
bool lie_within(const std::vector<Range>& ranges, const std::vector<Range>& all) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return std::any_of(all.begin(), all.end(),
                       [&](const Range& outer) { return outer.first <= range.first && range.last <= outer.last; });
  });
}

}  // namespace

ParameterMap::ParameterMap(const Plan& plan, const Model& model)
    : sharding_(plan.optimizer_sharding), roles_(rank_roles(plan)) {
  const DataType type = working_type(plan.job.precision);
  whole_ = declared(model, {{0, model.layers()}}, {}, {}, type);
  std::map<std::tuple<std::vector<int>, int, int, int>, std::size_t> known;
  for (const RankRole& role : roles_) {
    const Stage& stage = stage_of(plan, role);
    degrees_.push_back(stage.tensor_parallel);
    std::vector<LayerRange> chunks;
    std::vector<int> bounds;
    for (int chunk = 0; chunk < stage.chunks(); ++chunk) {
      chunks.push_back(stage.chunk(chunk));
      bounds.insert(bounds.end(), {chunks.back().first, chunks.back().last});
    }
    const Shard tensor{role.tensor_parallel_index, stage.tensor_parallel};
    const Shard experts{role.expert_parallel_index, plan.expert_parallel};
    const auto [entry, is_new] =
        known.try_emplace({std::move(bounds), tensor.index, tensor.count, experts.index}, layouts_.size());
    if (is_new) {
      Layout layout{.parameters = declared(model, chunks, tensor, experts, type)};
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
        const Parameter& parameter = layout.parameters[i];
        layout.index.try_emplace({parameter.layer, parameter.name}, i);
        layout.offsets.push_back(offset);
        offset += padded(parameter.elements());
      }
      layouts_.push_back(std::move(layout));
    }
    layouts_[entry->second].ranks.push_back(role.rank);
    layout_of_.push_back(entry->second);
  }
}

Range ParameterMap::local(int rank, const GradientSlice& slice) const {
  const Layout& held = layout(rank);
  const std::size_t index = held.index.at({slice.layer, slice.name});
  for (const Piece& piece : held.parameters[index].pieces())
    if (piece.whole <= slice.whole.first && slice.whole.last <= piece.whole + piece.count) {
      const std::int64_t first = held.offsets[index] + piece.local + slice.whole.first - piece.whole;
      return {first, first + slice.whole.size()};
    }
  return {};
}

bool ParameterMap::ends_parameter(int rank, const GradientSlice& slice) const {
  const Layout& held = layout(rank);
  const std::size_t index = held.index.at({slice.layer, slice.name});
  return local(rank, slice).last == held.offsets[index] + held.parameters[index].elements();
}

std::vector<GradientGroup> ParameterMap::groups() const {
  std::vector<GradientGroup> groups;
  std::map<std::tuple<std::vector<int>, bool, bool>, std::size_t> known;
  const auto add = [&](std::vector<int> ranks, bool shared, bool first, GradientSlice slice) {
    const auto [entry, is_new] = known.try_emplace({ranks, shared, first}, groups.size());
    if (is_new)
      groups.push_back({.ranks = std::move(ranks), .slices = {}, .runs = {}, .shared = shared, .first = first});
    groups[entry->second].slices.push_back(std::move(slice));
  };
  for (const Parameter& parameter : whole_) {
    const Key key{parameter.layer, parameter.name};
    std::vector<int> holders;
    for (const Layout& layout : layouts_)
      if (layout.index.contains(key)) holders.insert(holders.end(), layout.ranks.begin(), layout.ranks.end());
    std::sort(holders.begin(), holders.end());
    const auto index_of = [&](int rank) { return roles_[static_cast<std::size_t>(rank)].tensor_parallel_index; };
    if (!parameter.is_divided()) {
      const int first_degree = degree(holders.front());
      const GradientSlice all{parameter.layer, parameter.name, {0, parameter.elements()}};
      if (std::any_of(holders.begin(), holders.end(), [&](int rank) { return degree(rank) != first_degree; })) {
        add(holders, true, true, all);
        continue;
      }
      for (int index = 0; index < first_degree; ++index) {
        std::vector<int> ranks;
        std::copy_if(holders.begin(), holders.end(), std::back_inserter(ranks),
                     [&](int rank) { return index_of(rank) == index; });
        add(std::move(ranks), false, index == 0, all);
      }
      continue;
    }
    std::set<int> degrees;
    for (const int rank : holders) degrees.insert(degree(rank));
    std::vector<Range> segments;  // by holder: those that it has
    for (const int rank : holders) {
      const Layout& held = layout(rank);
      segments.push_back(held.parameters[held.index.at(key)].held_segments());
    }
    std::int64_t start = 0;
    for (std::int64_t segment = 0; segment < std::ssize(parameter.segments); ++segment) {
      const std::int64_t rows = parameter.segments[static_cast<std::size_t>(segment)];
      std::set<std::int64_t> cuts;
      for (const int cuts_of : degrees)
        for (int index = 0; index <= cuts_of; ++index) cuts.insert(rows * index / cuts_of);
      for (auto cut_at = cuts.begin(); std::next(cut_at) != cuts.end(); ++cut_at) {
        const Range row{*cut_at, *std::next(cut_at)};
        std::vector<int> ranks;
        for (std::size_t i = 0; i < holders.size(); ++i) {
          if (segment < segments[i].first || segments[i].last <= segment) continue;
          const Range held = cut(rows, {index_of(holders[i]), degree(holders[i])});
          if (held.first <= row.first && row.last <= held.last) ranks.push_back(holders[i]);
        }
        const std::int64_t width = parameter.width();
        add(std::move(ranks), false, true,
            {parameter.layer, parameter.name, {(start + row.first) * width, (start + row.last) * width}});
      }
      start += rows;
    }
  }
  for (GradientGroup& group : groups) {
    // Ranks with the same layout have all slices at the same places.
    std::vector<int> unlike;
    std::set<std::size_t> seen;
    for (const int rank : group.ranks)
      if (seen.insert(layout_of_[static_cast<std::size_t>(rank)]).second) unlike.push_back(rank);
    const auto adjoins = [&](const GradientSlice& a, const GradientSlice& b) {
      return std::all_of(unlike.begin(), unlike.end(), [&](int rank) {
        const std::int64_t end = local(rank, a).last;
        return (ends_parameter(rank, a) ? padded(end) : end) == local(rank, b).first;
      });
    };
    // Padding is reduced along, and so must be there on all ranks or on none.
    const auto alike = [&](const GradientSlice& a) {
      const bool ends = ends_parameter(group.ranks.front(), a);
      return std::all_of(unlike.begin(), unlike.end(), [&](int rank) { return ends_parameter(rank, a) == ends; });
    };
    for (std::size_t i = 0; i < group.slices.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      if (i > 0 && adjoins(group.slices[i - 1], group.slices[i]) && alike(group.slices[i - 1]))
        group.runs.back().last = index + 1;
      else
        group.runs.push_back({index, index + 1});
    }
  }
  return groups;
}

RankSums ParameterMap::sums_of(int rank, const std::vector<GradientGroup>& groups) const {
  RankSums sums;
  const bool zero1 = sharding_ == OptimizerSharding::zero1;
  constexpr auto bucket_values = static_cast<std::int64_t>(gradient_bucket.value() / sizeof(float));
  for (const GradientGroup& group : groups) {
    const auto place = std::lower_bound(group.ranks.begin(), group.ranks.end(), rank);
    if (place == group.ranks.end() || *place != rank) continue;
    const Shard share{static_cast<int>(place - group.ranks.begin()), static_cast<int>(group.ranks.size())};
    if (share.count > 1) sums.groups.push_back(group.ranks);
    for (const Range& run : group.runs) {
      std::int64_t begin = run.first;
      while (begin < run.last) {
        GradientBucket bucket{.range = {}, .layers = {}, .shared = group.shared};
        std::int64_t end = begin;
        for (std::int64_t values = 0; end < run.last && (end == begin || values < bucket_values); ++end) {
          const GradientSlice& slice = group.slices[static_cast<std::size_t>(end)];
          values += slice.whole.size();
          bucket.layers.push_back(slice.layer);
        }
        bucket.range = {local(rank, group.slices[static_cast<std::size_t>(begin)]).first,
                        local(rank, group.slices[static_cast<std::size_t>(end) - 1]).last};
        begin = end;
        Range mine = bucket.range;
        if (zero1) {
          const Range part = cut(bucket.range.size(), share);
          mine = {bucket.range.first + part.first, bucket.range.first + part.last};
        }
        sums.owned.push_back(mine);
        if (group.first && (zero1 || share.index == 0)) sums.counted.push_back(mine);
        if (share.count == 1) continue;
        bucket.group = sums.groups.size() - 1;
        sums.buckets.push_back(std::move(bucket));
      }
    }
  }
  // In the order in which backward passes complete the buckets, which is the same on all ranks that share two of them:
  // a group that reaches down to the first layer must not hold up the others.
  std::reverse(sums.buckets.begin(), sums.buckets.end());
  std::stable_sort(sums.buckets.begin(), sums.buckets.end(), [](const GradientBucket& a, const GradientBucket& b) {
    return *std::min_element(a.layers.begin(), a.layers.end()) > *std::min_element(b.layers.begin(), b.layers.end());
  });
  sums.owned = joined(std::move(sums.owned));
  sums.counted = joined(std::move(sums.counted));
  SAILOR_ASSERT(lie_within(sums.counted, sums.owned), "a rank counts gradients that it does not update");
  return sums;
}

}  // namespace sailor::runtime

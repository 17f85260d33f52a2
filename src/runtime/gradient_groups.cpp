#include "runtime/gradient_groups.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

/// Declarations of the parameters of some chunks of layers.
std::vector<Parameter> declared(const Model& model, const std::vector<LayerRange>& chunks, const Shard& shard,
                                Device& device) {
  std::vector<Parameter> parameters;
  LayerContext context{.device = device, .tensor_parallel = {.shard = shard}};
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

}  // namespace

ParameterMap::ParameterMap(const Plan& plan, const Model& model, Device& device) : roles_(rank_roles(plan)) {
  whole_ = declared(model, {{0, model.layers()}}, {}, device);
  std::map<std::tuple<std::vector<int>, int, int>, std::size_t> known;
  for (const RankRole& role : roles_) {
    const Stage& stage = stage_of(plan, role);
    degrees_.push_back(stage.tensor_parallel);
    std::vector<LayerRange> chunks;
    std::vector<int> bounds;
    for (int chunk = 0; chunk < stage.chunks(); ++chunk) {
      chunks.push_back(stage.chunk(chunk));
      bounds.insert(bounds.end(), {chunks.back().first, chunks.back().last});
    }
    const auto [entry, is_new] =
        known.try_emplace({std::move(bounds), role.tensor_parallel_index, stage.tensor_parallel}, layouts_.size());
    if (is_new) {
      Layout layout;
      std::int64_t offset = 0;
      for (Parameter& parameter :
           declared(model, chunks, {role.tensor_parallel_index, stage.tensor_parallel}, device)) {
        const std::int64_t elements = padded(parameter.elements());
        Key key{parameter.layer, parameter.name};
        layout.parameters.try_emplace(std::move(key), Held{offset, std::move(parameter)});
        offset += elements;
      }
      layouts_.push_back(std::move(layout));
    }
    layout_of_.push_back(entry->second);
  }
}

Range ParameterMap::local(int rank, const GradientSlice& slice) const {
  const Held& held = layout(rank).parameters.at({slice.layer, slice.name});
  for (const Piece& piece : held.parameter.pieces())
    if (piece.whole <= slice.whole.first && slice.whole.last <= piece.whole + piece.count) {
      const std::int64_t first = held.offset + piece.local + slice.whole.first - piece.whole;
      return {first, first + slice.whole.size()};
    }
  return {};
}

bool ParameterMap::ends_parameter(int rank, const GradientSlice& slice) const {
  const Held& held = layout(rank).parameters.at({slice.layer, slice.name});
  return local(rank, slice).last == held.offset + held.parameter.elements();
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
    for (const RankRole& role : roles_)
      if (layout(role.rank).parameters.contains(key)) holders.push_back(role.rank);
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
    std::int64_t start = 0;
    for (const std::int64_t rows : parameter.segments) {
      std::set<std::int64_t> cuts;
      for (const int cuts_of : degrees)
        for (int index = 0; index <= cuts_of; ++index) cuts.insert(rows * index / cuts_of);
      for (auto cut_at = cuts.begin(); std::next(cut_at) != cuts.end(); ++cut_at) {
        const Range row{*cut_at, *std::next(cut_at)};
        std::vector<int> ranks;
        for (const int rank : holders) {
          const Range held = cut(rows, {index_of(rank), degree(rank)});
          if (held.first <= row.first && row.last <= held.last) ranks.push_back(rank);
        }
        const std::int64_t width = parameter.width();
        add(std::move(ranks), false, true,
            {parameter.layer, parameter.name, {(start + row.first) * width, (start + row.last) * width}});
      }
      start += rows;
    }
  }
  for (GradientGroup& group : groups) {
    const auto adjoins = [&](const GradientSlice& a, const GradientSlice& b) {
      return std::all_of(group.ranks.begin(), group.ranks.end(), [&](int rank) {
        const std::int64_t end = local(rank, a).last;
        return (ends_parameter(rank, a) ? padded(end) : end) == local(rank, b).first;
      });
    };
    // Padding goes along, and so must be there on all ranks or on none.
    const auto alike = [&](const GradientSlice& a) {
      const bool ends = ends_parameter(group.ranks.front(), a);
      return std::all_of(group.ranks.begin(), group.ranks.end(),
                         [&](int rank) { return ends_parameter(rank, a) == ends; });
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

}  // namespace sailor::runtime

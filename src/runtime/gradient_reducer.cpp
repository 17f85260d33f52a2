#include "runtime/gradient_reducer.hpp"

#include <algorithm>

#include "runtime/gradient_groups.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

bool belongs(const GradientGroup& group, const Parameter& parameter, bool tied_embedding) {
  if (tied_embedding && parameter.name == token_embedding_name) return group.token_embedding;
  return std::binary_search(group.layers.begin(), group.layers.end(), parameter.layer);
}

}  // namespace

GradientReducer::GradientReducer(const Plan& plan, const Model& model, Communicator& world,
                                 ParameterStorage& parameters)
    : parameters_(parameters) {
  world.barrier();  // with a timeout, unlike the calls that make communicators
  for (const GradientGroup& group : gradient_groups(plan, model)) {
    if (group.ranks.size() < 2 || !std::binary_search(group.ranks.begin(), group.ranks.end(), world.rank())) continue;
    communicators_.push_back(world.subgroup(group.ranks));
    Communicator* communicator = communicators_.back().get();
    std::int64_t previous_end = -1;
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      if (!belongs(group, *parameters.parameters()[i], model.tied_embedding)) continue;
      // Padding goes along, so that neighbours make one range; it is zero everywhere.
      const std::int64_t begin = parameters.offset(i);
      const std::int64_t end = parameters.offset(i + 1);
      if (begin == previous_end)
        ranges_.back().count += end - begin;
      else
        ranges_.push_back({communicator, begin, end - begin});
      previous_end = end;
    }
  }
}

void GradientReducer::reduce() {
  for (const Range& range : ranges_) range.group->all_reduce_sum(parameters_.gradients() + range.first, range.count);
}

Bytes GradientReducer::volume() const {
  std::int64_t count = 0;
  for (const Range& range : ranges_) count += range.count;
  return Bytes(static_cast<double>(count) * sizeof(float));
}

}  // namespace sailor::runtime

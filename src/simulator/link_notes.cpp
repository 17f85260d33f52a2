#include "simulator/link_notes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sailor::simulator {

void LinkNotes::add(const LinkTime& time, const std::string& from_gpu, const std::string& to_gpu, bool one_node) {
  origin = std::max(origin, time.origin);
  error = std::max(error, time.error);
  if (time.origin > Origin::published)
    inputs.push_back({.origin = time.origin,
                      .what = fmt::format("link {} - {}, {}", from_gpu, to_gpu,
                                          to_string(one_node ? LinkScope::intra_node : LinkScope::inter_node))});
}

void LinkNotes::add(const LinkNotes& other) {
  origin = std::max(origin, other.origin);
  error = std::max(error, other.error);
  inputs.insert(inputs.end(), other.inputs.begin(), other.inputs.end());
}

void LinkNotes::clear() {
  origin = Origin::measured;
  error = 0.0;
  inputs.clear();
}

}  // namespace sailor::simulator

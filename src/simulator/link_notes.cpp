#include "simulator/link_notes.hpp"

#include <algorithm>

namespace sailor::simulator {

namespace {

void add_once(std::vector<EstimatedLink>& known, const EstimatedLink& link) {
  if (std::find(known.begin(), known.end(), link) == known.end()) known.push_back(link);
}

}  // namespace

void LinkNotes::add(const LinkTime& time, const EstimatedLink& link) {
  origin = std::max(origin, time.origin);
  error = std::max(error, time.error);
  if (time.origin > Origin::published) add_once(estimated, link);
}

void LinkNotes::add(const LinkNotes& other) {
  origin = std::max(origin, other.origin);
  error = std::max(error, other.error);
  for (const EstimatedLink& link : other.estimated) add_once(estimated, link);
}

void LinkNotes::clear() {
  origin = Origin::measured;
  error = 0.0;
  estimated.clear();
}

}  // namespace sailor::simulator

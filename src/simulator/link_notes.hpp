// What the prices of links stand on.
#pragma once

#include <string>
#include <vector>

#include "profile/profile.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

struct LinkNotes {
  Origin origin = Origin::measured;  ///< the worst
  double error = 0.0;                ///< LinkTime::error, the largest
  std::vector<EstimatedInput> inputs;

  void add(const LinkTime& time, const std::string& from_gpu, const std::string& to_gpu, bool one_node);
  void add(const LinkNotes& other);
  void clear();
};

}  // namespace sailor::simulator

// All ranks of a job, as one of them sees them.
#pragma once

#include "runtime/control.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

/// Control and transport number the ranks alike, and must outlive what is made with them.
struct World {
  Control& control;
  Transport& transport;

  [[nodiscard]] int rank() const { return control.rank(); }
  [[nodiscard]] int size() const { return control.size(); }
};

}  // namespace sailor::runtime

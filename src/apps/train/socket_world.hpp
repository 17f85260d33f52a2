// All ranks of a job over TCP, found by means of MPI.
#pragma once

#include <memory>
#include <string>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// One per process; until its destructor the others hear at once when it goes away.
class SocketWorld {
 public:
  /// Collective over `started`, which is used for nothing but to agree on where the ranks meet. Rank 0 coordinates.
  /// Errors are agreed on.
  static Result<std::unique_ptr<SocketWorld>> join(const runtime::World& started, const std::string& program,
                                                   Seconds timeout);
  ~SocketWorld();
  SocketWorld(const SocketWorld&) = delete;
  SocketWorld& operator=(const SocketWorld&) = delete;

  [[nodiscard]] runtime::World world();

 private:
  struct State;
  explicit SocketWorld(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::apps

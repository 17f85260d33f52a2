// Connects all ranks of a job over TCP; MPI is used to find them.
#pragma once

#include <memory>
#include <string>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/world.hpp"

namespace sailor::apps {

/// One per process; until it is destroyed, the other ranks notice at once when the process dies.
class SocketWorld {
 public:
  /// Collective over `started`, which is used only to agree on the address at which the ranks meet. Rank 0 coordinates.
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

// Who belongs to a job, and since when: the one place that all ranks of a job talk to. It numbers the ranks of every
// epoch, notices at once when one goes away and tells the others, and makes agreements. A thread; it needs no GPU, no MPI
// and no other process, and may live in one of the ranks or apart from all of them.
//
// An epoch begins when all members that are there have asked for one, and are as many as are wanted; it is broken when a
// member goes away. A member that is not heard of for longer than `silence` has gone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/sockets/socket.hpp"

namespace sailor::runtime {

struct CoordinatorSettings {
  int port = 0;      ///< 0: any
  int members = 1;   ///< that the first epoch waits for
  int least = 1;     ///< and every later one: with fewer, those that are left wait for more
  Seconds silence{30.0};
};

class Coordinator {
 public:
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorSettings& settings);
  /// Ends all waits of the members: for them the coordinator is lost.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// For Member::join().
  [[nodiscard]] const Addresses& addresses() const { return addresses_; }

 private:
  struct State;
  explicit Coordinator(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
  Addresses addresses_;
  std::thread thread_;
};

}  // namespace sailor::runtime

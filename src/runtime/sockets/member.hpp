// A process that belongs to a job, through all of its epochs. Between two epochs nothing of the job's planes is left
// but what its process keeps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/sockets/socket.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

struct MemberSettings {
  std::string program = "sailor-train";  ///< for messages
  int rank = -1;                         ///< in the first epoch; -1: any
  Seconds timeout{600.0};                ///< of every wait for another rank, and for an epoch to begin
  Seconds heartbeat{7.5};                ///< says so often that it is alive
};

class Member {
 public:
  /// Joins the job of the coordinator that listens there. Errors (unavailable): it cannot be reached.
  static Result<std::unique_ptr<Member>> join(const Addresses& coordinator, const MemberSettings& settings);
  /// Leaves.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Collective over all that are there: waits until the next epoch begins. Everything made of the one before must have
  /// been given up. Errors (unavailable): the coordinator is lost, or there are too few for longer than the timeout.
  Result<void> begin_epoch();

  /// A data plane (null: none) that was made over the control plane of this epoch: it is aborted, too, when the epoch
  /// breaks. Before it is destroyed another one, or none, must be named.
  void abort_with_epoch(Transport* transport);

  /// Of the epoch that began last. All waits of both planes throw TransportError (lost), here and on the other ranks,
  /// as soon as one of its ranks has gone; the message says which.
  [[nodiscard]] World world();
  [[nodiscard]] int epoch() const;
  /// Of the ranks of this epoch, what they were in the one before; -1: not there.
  [[nodiscard]] const std::vector<int>& ranks_before() const;

  struct State;

 private:
  explicit Member(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::runtime

// A process that belongs to a job, through all of its epochs. Between two epochs nothing of the job's planes is left
// but what its process keeps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/sockets/coordinator.hpp"
#include "runtime/sockets/socket.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

struct MemberSettings {
  std::string program = "sailor-train";  ///< for messages
  int rank = -1;                         ///< in the first epoch; -1: any
  Seconds timeout{600.0};                ///< of every wait for another rank, and for an epoch to begin
  Seconds connecting{60.0};              ///< so long join() tries, if that is less than the timeout
  Seconds heartbeat{7.5};                ///< says so often that it is alive
  std::string host{};                    ///< of its node; empty: what the machine calls itself
  std::string gpu{};                     ///< see MemberFacts
  std::string zone{};
  /// Where the coordinator is now; empty: not known. It is asked when the connection is lost: another coordinator may
  /// have taken the place of the one that died. Null: a coordinator that is lost does not come back.
  std::function<Addresses()> find_coordinator{};
  Seconds search{60.0};  ///< so long a lost coordinator is looked for
  /// A process that the coordinator has dismissed, and whose main thread does not notice, since it hangs, is ended
  /// after so long; 0: never.
  Seconds end_after_dismissal{};
  Seconds silence{0.0};  ///< a coordinator that is not heard of for longer is lost; 0: it may be silent
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
  /// been given up. `why`: this epoch is broken, as this member has noticed; the others are told. Errors (unavailable):
  /// the coordinator is lost, or there are too few for longer than the timeout; this member has been dismissed, see
  /// dismissal().
  Result<void> begin_epoch(const std::string& why = {});

  /// A data plane (null: none) that was made over the control plane of this epoch: it is aborted, too, when the epoch
  /// breaks. Before it is destroyed another one, or none, must be named.
  void abort_with_epoch(Transport* transport);

  /// Of the epoch that began last. All waits of both planes throw TransportError (lost), here and on the other ranks,
  /// as soon as one of its ranks has gone; the message says which.
  [[nodiscard]] World world();
  [[nodiscard]] int epoch() const;
  /// A number that no other job has.
  [[nodiscard]] std::uint64_t job() const;
  /// Of the ranks of this epoch, what they were in the one before; -1: not there.
  [[nodiscard]] const std::vector<int>& ranks_before() const;
  /// Where the ranks of this epoch run.
  [[nodiscard]] const std::vector<std::string>& hosts() const;
  /// What the policy says of this epoch.
  [[nodiscard]] const std::string& payload() const;

  /// The coordinator wants this epoch to end after the running iteration, on all ranks that hear of it, with whole
  /// states: ask for the next one.
  [[nodiscard]] bool is_change_wanted() const;
  /// Whether the coordinator has dismissed this member; why_broken() has its words.
  [[nodiscard]] Dismissal dismissal() const;
  /// The epoch has been broken, and why; empty: it has not.
  [[nodiscard]] std::string why_broken() const;
  /// Waits until the epoch is broken, a change is wanted, or it is dismissed or alone, for at most so long.
  void wait_for_news(Seconds patience);

  /// Tells the coordinator how far this rank is; it hears of it twice a second at most, and of the first iteration of
  /// an epoch at once.
  void report_progress(const MemberProgress& progress);
  /// Tells the coordinator that this member leaves in order, with its exit status, and waits until that is sent.
  void leave(int status, const std::string& text);

  struct State;

 private:
  explicit Member(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::runtime

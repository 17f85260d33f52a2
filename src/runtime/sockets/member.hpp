// A process that belongs to a job through all of its epochs. Between two epochs nothing of the job's control and data
// planes remains but what the process itself keeps.
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
  Seconds timeout{600.0};                ///< of every wait for another rank, and for an epoch to begin if there is no
                                         ///< limit for the coordinator's silence
  Seconds connecting{60.0};              ///< limit for the attempts of join(), if less than the timeout
  Seconds heartbeat{7.5};                ///< interval of its heartbeats
  std::string host{};                    ///< of its node; empty: the machine's own name
  std::string gpu{};                     ///< see MemberFacts
  std::string zone{};
  Bytes memory{};
  /// Returns where the coordinator is now; empty: unknown. Called when the connection is lost: another coordinator may
  /// have replaced the one that died. Null: a lost coordinator does not come back.
  std::function<Addresses()> find_coordinator{};
  Seconds search{60.0};  ///< limit for the search for a lost coordinator
  /// Returns whether the job has ended, for members that find nobody where the coordinator was: they are dismissed
  /// (over) then. Null: unknown.
  std::function<bool()> is_job_over{};
  /// A process that the coordinator has dismissed, but whose main thread hangs and does not notice, is ended after this
  /// time; 0: never.
  Seconds end_after_dismissal{};
  /// A coordinator that is silent for longer is lost; 0: no limit. With a limit, epochs may begin as late as it likes:
  /// a member may wait as a spare for as long as the job takes.
  Seconds silence{0.0};
};

class Member {
 public:
  /// Joins the job of the coordinator at these addresses. Errors (unavailable): it cannot be reached.
  static Result<std::unique_ptr<Member>> join(const Addresses& coordinator, const MemberSettings& settings);
  /// Leaves the job.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Collective over all present members: waits until the next epoch begins. Everything made from the previous one must
  /// have been destroyed. `why`: the reason if this member has noticed that the current epoch is broken; the others are
  /// told. Errors (unavailable): the coordinator is lost, or there have been too few members for longer than the
  /// timeout; this member has been dismissed, see dismissal().
  Result<void> begin_epoch(const std::string& why = {});

  /// Registers a data plane (null: none) that was made over the control plane of this epoch: it is aborted, too, when
  /// the epoch breaks. Before it is destroyed, another one, or none, must be registered.
  void abort_with_epoch(Transport* transport);

  /// The world of the latest epoch. All waits of both planes throw TransportError (lost), on this and the other ranks,
  /// as soon as one of its ranks has gone; the message says which.
  [[nodiscard]] World world();
  [[nodiscard]] int epoch() const;
  /// A number that no other job has.
  [[nodiscard]] std::uint64_t job() const;
  /// By rank of this epoch, the rank in the previous one; -1: not present.
  [[nodiscard]] const std::vector<int>& ranks_before() const;
  /// Hosts of the ranks of this epoch.
  [[nodiscard]] const std::vector<std::string>& hosts() const;
  /// The payload that the policy has set for this epoch.
  [[nodiscard]] const std::string& payload() const;

  /// Whether the coordinator wants this epoch to end after the running iteration, on all ranks that hear of it, with
  /// complete states: ask for the next epoch then.
  [[nodiscard]] bool is_change_wanted() const;
  /// Whether the coordinator has dismissed this member; why_broken() has its reason.
  [[nodiscard]] Dismissal dismissal() const;
  /// Reason why the epoch has been broken; empty: it has not.
  [[nodiscard]] std::string why_broken() const;
  /// Waits until the epoch is broken, a change is wanted, or this member is dismissed or has lost the coordinator; at
  /// most for `patience`.
  void wait_for_news(Seconds patience);

  /// Tells the coordinator how far this rank is: at most twice a second, except that the first two reports of an
  /// epoch are sent at once.
  void report_progress(const MemberProgress& progress);
  /// Tells the coordinator that this member leaves in order, with its exit status, and waits until that is sent.
  void leave(int status, const std::string& text);

  struct State;

 private:
  explicit Member(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::runtime

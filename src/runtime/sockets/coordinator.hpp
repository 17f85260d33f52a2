// Membership of a job: the coordinator is the one place that all ranks of a job talk to. It numbers the ranks of every
// epoch, notices at once when one goes away and tells the others, and carries out the collectives by which ranks agree.
// It is a thread that needs no GPU, no MPI and no other process, and may run in one of the ranks or apart from all of
// them.
//
// An epoch begins when all remaining members of the previous one have asked for the next, and the policy decides which
// rank each member has in it. It is broken when a member goes away, is silent for longer than `silence`, or reports
// that its transfers failed. A coordinator that replaces one that died (`restored`) continues the epoch of that one,
// once the members have found it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runtime/sockets/socket.hpp"

namespace sailor::runtime {

/// Facts that a process states when it joins.
struct MemberFacts {
  std::string host;
  int wanted_rank = -1;  ///< in the first epoch; -1: any
  std::string gpu;       ///< type of its device, a name of the catalogue; empty: not given
  std::string zone;      ///< of its node; empty: not given
  Bytes memory{};        ///< of its node, for all its processes of the job; 0: not given
  std::int64_t process = 0;
  Addresses data;  ///< of its listener
};

/// A process that has joined.
struct MemberInfo {
  std::uint64_t id = 0;  ///< given by this coordinator, in the order of joining
  MemberFacts facts;
  int rank = -1;  ///< in the current epoch; -1: in none
  bool ready = false;
};

/// Progress of a member.
struct MemberProgress {
  std::int64_t iteration = 0;  ///< to run next
  Seconds time{};              ///< of the last iteration
  std::int64_t of = 0;         ///< iterations of the whole training; 0: not given
  std::int64_t redone = 0;     ///< iterations that this epoch repeats
  Seconds busy{};              ///< computing forward and backward passes, per iteration; 0: not given
  std::string from;            ///< where the state of this epoch came from: "memory", "checkpoint", "start"
};

/// Reason why a member no longer belongs to the job.
enum class Dismissal : std::uint8_t {
  none,      ///< it still belongs to it
  given_up,  ///< it was silent, or others reported it lost: it may join again
  over,      ///< there is no work left for it
  refused,   ///< it cannot take part
};

/// Participants of an epoch.
struct EpochChoice {
  std::vector<std::uint64_t> ranks;  ///< ids of members by rank; all must be ready
  std::string payload;               ///< passed to all members of the epoch
  int needed = -1;                   ///< the loss of one of the first `needed` ranks breaks the epoch; -1: of any
};

/// Decides who takes part, and observes the members. All methods are called by the coordinator's thread and must return
/// quickly: heartbeats wait for them.
class MembershipPolicy {
 public:
  virtual ~MembershipPolicy() = default;
  /// Called repeatedly while no epoch is under way and all remaining members of the last one are ready. std::nullopt:
  /// not yet.
  virtual std::optional<EpochChoice> choose(const std::vector<MemberInfo>& members) = 0;
  virtual void joined(const MemberInfo& /*member*/) {}
  /// `how`: "has gone away".
  virtual void lost(const MemberInfo& /*member*/, const std::string& /*how*/) {}
  /// A member reports that transfers failed.
  virtual void failed(const MemberInfo& /*member*/, const std::string& /*why*/) {}
  /// Called before the members hear of the epoch.
  virtual void begins(std::uint64_t /*job*/, std::uint64_t /*epoch*/, const EpochChoice& /*choice*/,
                      const std::vector<MemberInfo>& /*by_rank*/) {}
  virtual void progressed(const MemberInfo& /*member*/, const MemberProgress& /*progress*/) {}
  /// A member has left in order.
  virtual void done(const MemberInfo& /*member*/, int /*status*/, const std::string& /*text*/) {}
  /// A member wants the whole job to end.
  virtual void aborted(const MemberInfo& /*member*/, const std::string& /*text*/) {}
  /// Called several times a second.
  virtual void tick(const std::vector<MemberInfo>& /*members*/) {}
};

/// The epoch of a coordinator that died.
struct RestoredEpoch {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  std::vector<MemberFacts> members;  ///< by rank
  int needed = -1;                   ///< see EpochChoice
  Seconds patience{5.0};             ///< members that have not reconnected by then are lost
};

struct CoordinatorSettings {
  int port = 0;     ///< 0: any
  int members = 1;  ///< number that the first epoch waits for
  int least = 1;    ///< min number for every later one: with fewer, the remaining members wait for more
  Seconds silence{30.0};
  /// Max time between the end of an epoch and a member's request for the next: a member that takes longer hangs, and is
  /// given up. 0: no limit.
  Seconds unwinding{};
  /// Null: all present members take part, those of the previous epoch in their order; `members` and `least` apply. The
  /// policy must outlive the coordinator.
  MembershipPolicy* policy = nullptr;
  std::optional<RestoredEpoch> restored{};
};

class Coordinator {
 public:
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorSettings& settings);
  /// Ends all waits of the members: they see the coordinator as lost.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Addresses for Member::join().
  [[nodiscard]] const Addresses& addresses() const { return addresses_; }

  // These may be called by any thread; the coordinator's thread carries them out soon.
  /// Has choose() called again.
  void wake();
  /// Ends the epoch after the running iteration, with complete states.
  void request_change(const std::string& why);
  /// Ends the epoch now.
  void break_epoch(const std::string& why);
  /// Dismisses a member from the job, and tells it. The epoch is broken if it needs the member.
  void dismiss(std::uint64_t id, Dismissal kind, const std::string& why);
  void set_unwinding(Seconds unwinding);

 private:
  struct State;
  explicit Coordinator(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
  Addresses addresses_;
  std::thread thread_;
};

}  // namespace sailor::runtime

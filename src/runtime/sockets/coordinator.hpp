// Who belongs to a job, and since when: the one place that all ranks of a job talk to. It numbers the ranks of every
// epoch, notices at once when one goes away and tells the others, and makes agreements. A thread; it needs no GPU, no
// MPI and no other process, and may live in one of the ranks or apart from all of them.
//
// An epoch begins when all members of the one before that are left have asked for the next, and the policy says who has
// which rank in it. It is broken when a member goes away, is not heard of for longer than `silence`, or reports that
// its transfers failed. A coordinator that is started in the place of one that died (`restored`) goes on with the epoch
// of that one, once the members have found it.
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

/// What a process says of itself when it joins.
struct MemberFacts {
  std::string host;
  int wanted_rank = -1;  ///< in the first epoch; -1: any
  std::string gpu;       ///< type of its device, a name of the catalogue; empty: not said
  std::string zone;      ///< of its node; empty: not said
  std::int64_t process = 0;
  Addresses data;  ///< of its listener
};

/// A process that has joined.
struct MemberInfo {
  std::uint64_t id = 0;  ///< of this coordinator, in the order of joining
  MemberFacts facts;
  int rank = -1;  ///< in the epoch under way; -1: in none
  bool ready = false;
};

/// How far a member is.
struct MemberProgress {
  std::int64_t iteration = 0;  ///< to run next
  Seconds time{};              ///< of the last one
  std::int64_t of = 0;         ///< iterations of the whole training; 0: not said
  std::int64_t redone = 0;     ///< iterations that this epoch makes once more
  Seconds busy{};              ///< of an iteration: computing forward and backward passes; 0: not said
  std::string from;            ///< where the state of this epoch came from: "memory", "checkpoint", "start"
};

/// Why a member does not belong to the job any more.
enum class Dismissal : std::uint8_t {
  none,      ///< it does
  given_up,  ///< it was silent, or others took it for lost: it may join anew
  over,      ///< there is nothing left to do for it
  refused,   ///< it cannot take part
};

/// Who takes part in an epoch.
struct EpochChoice {
  std::vector<std::uint64_t> ranks;  ///< ids by rank; all must be ready
  std::string payload;               ///< all members of the epoch get it
  int needed = -1;                   ///< the loss of one of so many first ranks breaks the epoch; -1: of any
};

/// Who takes part, and who wants to know. All methods are called by the coordinator's thread and must not take long:
/// heartbeats wait for them.
class MembershipPolicy {
 public:
  virtual ~MembershipPolicy() = default;
  /// Asked again and again while no epoch is under way and all that are left of the last one are ready. Nothing: not
  /// yet.
  virtual std::optional<EpochChoice> choose(const std::vector<MemberInfo>& members) = 0;
  virtual void joined(const MemberInfo& /*member*/) {}
  /// `how`: "has gone away".
  virtual void lost(const MemberInfo& /*member*/, const std::string& /*how*/) {}
  /// A member reports that transfers failed.
  virtual void failed(const MemberInfo& /*member*/, const std::string& /*why*/) {}
  /// Before the members hear of it.
  virtual void begins(std::uint64_t /*job*/, std::uint64_t /*epoch*/, const EpochChoice& /*choice*/,
                      const std::vector<MemberInfo>& /*by_rank*/) {}
  virtual void progressed(const MemberInfo& /*member*/, const MemberProgress& /*progress*/) {}
  /// A member has left in order.
  virtual void done(const MemberInfo& /*member*/, int /*status*/, const std::string& /*text*/) {}
  /// A member wants all to end.
  virtual void aborted(const MemberInfo& /*member*/, const std::string& /*text*/) {}
  /// Some times a second.
  virtual void tick(const std::vector<MemberInfo>& /*members*/) {}
};

/// What a coordinator that died had begun.
struct RestoredEpoch {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  std::vector<MemberFacts> members;  ///< by rank
  int needed = -1;                   ///< as EpochChoice
  Seconds patience{5.0};             ///< members that have not come back by then are lost
};

struct CoordinatorSettings {
  int port = 0;     ///< 0: any
  int members = 1;  ///< that the first epoch waits for
  int least = 1;    ///< and every later one: with fewer, those that are left wait for more
  Seconds silence{30.0};
  /// Between the end of an epoch and a member's request for the next: who takes longer hangs, and is given up. 0: no
  /// limit.
  Seconds unwinding{};
  /// Null: all that are there take part, those who were there before in their order, `members` and `least` counted. It
  /// must outlive the coordinator.
  MembershipPolicy* policy = nullptr;
  std::optional<RestoredEpoch> restored{};
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

  // By any thread; done soon, by the coordinator's.
  /// choose() is asked again.
  void wake();
  /// The epoch is to end, with whole states, after the running iteration.
  void request_change(const std::string& why);
  /// The epoch ends now.
  void break_epoch(const std::string& why);
  /// This member does not belong to the job any more, and is told so. The epoch is broken if it needs the member.
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

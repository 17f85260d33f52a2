// Communication in a rehearsal: every message and collective takes place in its order and between its ranks, but the
// payload is replaced by a small header, and the ranks wait for as long as the real communication would take. Memory
// passed to calls is not touched.
//
// A header carries the time at which its sender was ready, so that every rank computes by itself when a transfer ends,
// and advances its clock (rehearsal_clock.hpp) to that time. Headers also describe the payload: ranks that disagree
// about the order, kind or size of what they exchange end the job with a message that names both. A rank that waits for
// a header that never comes ends by the timeout of the underlying transport.
//
// An operation on a rehearsed stream is done when the host, for the main stream or itself, waits for it: the clock then
// advances to the operation's end. Computation (RehearsalWorld::compute) happens on the main stream.
#pragma once

#include <memory>
#include <vector>

#include "core/units.hpp"
#include "runtime/rehearsal/rehearsal_clock.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

enum class Collective { all_reduce, reduce_scatter, all_gather, all_to_all };

/// Duration of communication on the rehearsed devices. Ranks are those of the world.
class CommunicationTimes {
 public:
  CommunicationTimes() = default;
  virtual ~CommunicationTimes() = default;
  CommunicationTimes(const CommunicationTimes&) = delete;
  CommunicationTimes& operator=(const CommunicationTimes&) = delete;

  /// Time of a message. For activations and gradients it is the time of the whole message, of which `from` and `to`
  /// exchange a part: concurrent parts take as long as the whole. Any other message takes the time of its own `amount`;
  /// those of a rank follow each other, in each direction, and block nobody.
  [[nodiscard]] virtual Seconds message(int from, int to, MessageKind kind, Bytes amount) const = 0;
  /// Time of a collective; 0 if the time of a layer includes it: between the ranks of a tensor-parallel group.
  [[nodiscard]] virtual Seconds collective(Collective collective, const std::vector<int>& ranks,
                                           Bytes amount) const = 0;
  /// Whether activations and gradients block. If so, a message occupies both sides from when both have reached it until
  /// it is done, and two that cross follow each other; else it starts when its sender's previous one in that direction
  /// is done, and blocks nobody.
  [[nodiscard]] virtual bool messages_block() const = 0;
};

/// An operation under way in a rehearsal.
class RehearsalRequest {
 public:
  RehearsalRequest() = default;
  virtual ~RehearsalRequest() = default;
  RehearsalRequest(const RehearsalRequest&) = delete;
  RehearsalRequest& operator=(const RehearsalRequest&) = delete;
  /// Advances the clock to the end of the operation.
  virtual void wait() = 0;
  /// Lets communication progress; returns true if the operation has ended by the clock.
  [[nodiscard]] virtual bool test() = 0;
};

/// All ranks of a rehearsal, as seen by one of them.
class RehearsalWorld {
 public:
  /// The transport of `inner` must be one of the host's (host_transport.hpp), and should wait idly. All references must
  /// outlive this object and everything made from it. Streams are those of make_rehearsal_device().
  RehearsalWorld(const World& inner, const CommunicationTimes& times, RehearsalClock& clock);
  ~RehearsalWorld();
  RehearsalWorld(const RehearsalWorld&) = delete;
  RehearsalWorld& operator=(const RehearsalWorld&) = delete;

  [[nodiscard]] World world() { return {*control_, *transport_}; }
  /// Collective: starts an iteration; the clock is set to 0 on all ranks.
  void restart();
  /// This rank computes for `time`, after the messages that it has sent are received.
  void compute(Seconds time);

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace sailor::runtime

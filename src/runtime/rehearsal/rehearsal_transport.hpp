// Communication in a rehearsal: every message and sum of the runtime takes place, in its order and between its ranks,
// but a token stands for the payload, and the ranks wait for as long as the real one would take. Memory that calls name
// is not touched.
//
// A token says when its sender was ready, so that every rank works out by itself when a transfer ends; its clock
// (rehearsal_clock.hpp) goes on to there. Tokens also carry what they stand for: ranks that disagree about the order,
// kind or size of what they exchange end the job with a message that names both. A rank that waits for one that never
// comes ends by the timeout of the transport underneath.
//
// What is put on a rehearsed stream is done when the host, for the main stream or itself, waits for it: then the clock
// goes on to its end. Computation (RehearsalWorld::compute) happens on the main stream.
#pragma once

#include <memory>
#include <vector>

#include "core/units.hpp"
#include "runtime/rehearsal/rehearsal_clock.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime {

enum class Collective { all_reduce, reduce_scatter, all_gather };

/// How long communication takes on the devices that are rehearsed. Ranks are those of the world.
class CommunicationTimes {
 public:
  CommunicationTimes() = default;
  virtual ~CommunicationTimes() = default;
  CommunicationTimes(const CommunicationTimes&) = delete;
  CommunicationTimes& operator=(const CommunicationTimes&) = delete;

  /// The whole message of which `from` and `to` exchange a part: parts that go at the same time take as long as all.
  [[nodiscard]] virtual Seconds message(int from, int to, MessageKind kind) const = 0;
  /// 0 for what the time of a layer contains: between the ranks of a tensor-parallel group.
  [[nodiscard]] virtual Seconds collective(Collective collective, const std::vector<int>& ranks,
                                           Bytes amount) const = 0;
  /// A message holds both sides from when both have come to it until it is done, and two that cross follow each other;
  /// else it starts when its sender's last one on that way is through, and holds nobody.
  [[nodiscard]] virtual bool messages_block() const = 0;
};

/// Something under way in a rehearsal.
class RehearsalRequest {
 public:
  RehearsalRequest() = default;
  virtual ~RehearsalRequest() = default;
  RehearsalRequest(const RehearsalRequest&) = delete;
  RehearsalRequest& operator=(const RehearsalRequest&) = delete;
  /// The clock goes on to its end.
  virtual void wait() = 0;
  /// Lets communication progress; true when it has ended by the clock.
  [[nodiscard]] virtual bool test() = 0;
};

/// All ranks of a rehearsal as one of them sees them.
class RehearsalWorld {
 public:
  /// The transport of `inner` must be one of the host's (host_transport.hpp), and should wait idly. All references must
  /// outlive this and what is made of it. Streams are those of make_rehearsal_device().
  RehearsalWorld(const World& inner, const CommunicationTimes& times, RehearsalClock& clock);
  ~RehearsalWorld();
  RehearsalWorld(const RehearsalWorld&) = delete;
  RehearsalWorld& operator=(const RehearsalWorld&) = delete;

  [[nodiscard]] World world() { return {*control_, *transport_}; }
  /// Collective: an iteration begins; the clock starts at 0 on all ranks.
  void restart();
  /// This rank computes for so long, after what it sends has been taken.
  void compute(Seconds time);

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace sailor::runtime

#include "runtime/rehearsal/rehearsal_communicator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <numeric>

#include "core/terminal.hpp"

namespace sailor::runtime {

namespace {

/// What crosses in place of a message.
struct Token {
  std::uint64_t number = 0;  ///< of the messages of this kind from this sender to this receiver
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;  ///< messages of all kinds from the sender to the receiver, this one included
  std::uint64_t taken = 0;  ///< messages of all kinds that the sender had received from the receiver by then
  /// Transfers that block: when the sender came to it. Others: when it arrives.
  double time = 0.0;
};

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all-reduce";
    case Collective::reduce_scatter:
      return "reduce-scatter";
    case Collective::all_gather:
      return "all-gather";
    case Collective::broadcast:
      return "broadcast";
  }
  return "?";
}

std::string describe(MessageKind kind, const Token& token) {
  return fmt::format("{} {} of {}", kind == MessageKind::activation ? "activation" : "gradient", token.number,
                     format_bytes(Bytes(static_cast<double>(token.bytes))));
}

/// A message that its sender may have to wait for.
struct Outgoing {
  int to = 0;
  MessageKind kind = MessageKind::activation;
  Token token;
  std::unique_ptr<Request> request;
  bool blocks = false;  // until `end` is known
  double end = 0.0;
};

/// A collective of this rank, under way or waiting for its turn.
struct Operation {
  Communicator* group = nullptr;  // of the tokens
  std::vector<int> ranks;         // of the world
  Collective kind = Collective::all_reduce;
  std::int64_t count = 0;
  Seconds time{};
  double ready = 0.0;  // when this rank came to it
  std::vector<float> token;
  std::unique_ptr<Request> request;
  bool done = false;
  double end = 0.0;
};

}  // namespace

/// What all communicators of a rank share.
struct RehearsalWorld::State {
  State(Communicator& world_ranks, const CommunicationTimes& model, RehearsalClock& rank_clock)
      : world(world_ranks), times(model), clock(rank_clock), peers(static_cast<std::size_t>(world.size())) {}

  struct Peer {
    std::map<MessageKind, std::uint64_t> sent;  // by kind
    std::map<MessageKind, std::uint64_t> received;
    std::map<MessageKind, double> link_free;  // transfers that do not block follow each other
    std::uint64_t total_sent = 0;
    std::uint64_t total_received = 0;
  };

  Communicator& world;
  const CommunicationTimes& times;
  RehearsalClock& clock;
  std::vector<Peer> peers;                           // by rank of the world
  std::deque<std::shared_ptr<Outgoing>> unanswered;  // messages that block, until their receiver has come to them
  double ready = 0.0;                                // when this rank was last done with anything but messages
  std::deque<std::shared_ptr<Operation>> operations;
  double network_free = 0.0;  // for the next collective
  struct Answer {
    std::unique_ptr<double> end;
    std::unique_ptr<Request> request;
  };
  std::deque<Answer> answers;  // on their way

  [[nodiscard]] double now() const { return clock.now().value(); }
  void reach(double time) { clock.reach(Seconds(time)); }

  Peer& peer(int rank) { return peers[static_cast<std::size_t>(rank)]; }

  void restart() {
    settle();
    world.idle_barrier();
    clock.restart();
    ready = 0.0;
    network_free = 0.0;
    for (Peer& other : peers) other.link_free.clear();
  }

  void compute(Seconds time) {
    settle();
    progress();
    reach(now() + time.value());
    ready = now();
  }

  // ---- Point to point
  std::shared_ptr<Outgoing> send(std::size_t bytes, int to, MessageKind kind) {
    Peer& other = peer(to);
    auto message = std::make_shared<Outgoing>();
    message->to = to;
    message->kind = kind;
    message->blocks = times.messages_block();
    const double time = times.message(world.rank(), to, kind).value();
    if (message->blocks) {
      message->end = now();
    } else {
      double& free = other.link_free[kind];
      message->end = free = std::max(now(), free) + time;
    }
    message->token = {.number = ++other.sent[kind],
                      .bytes = bytes,
                      .total = ++other.total_sent,
                      .taken = other.total_received,
                      .time = message->end};
    message->request = world.send_later(&message->token, sizeof(Token), to, kind);
    if (message->blocks) unanswered.push_back(message);
    return message;
  }

  /// Waits until the receivers of all that was sent have come to it.
  void settle() {
    double end = now();
    while (!unanswered.empty()) {
      Outgoing& message = *unanswered.front();
      world.receive(&message.end, sizeof(message.end), message.to, MessageKind::rehearsal);
      end = std::max(end, message.end);
      message.blocks = false;
      unanswered.pop_front();
    }
    if (end <= now()) return;
    reach(end);
    ready = now();
  }

  void receive(const Token& token, std::size_t bytes, int from, MessageKind kind) {
    Peer& other = peer(from);
    const std::uint64_t number = ++other.received[kind];
    ++other.total_received;
    if (token.number != number || token.bytes != bytes || token.total != other.total_received)
      world.abort(fmt::format(
          "the ranks disagree about what they exchange: expected is {} from rank {}, message {} in all; what came is "
          "{}, message {}",
          describe(kind, {.number = number, .bytes = bytes}), from, other.total_received, describe(kind, token),
          token.total));
    if (!times.messages_block()) {
      reach(token.time);
      return;
    }
    const double time = times.message(from, world.rank(), kind).value();
    // The sender waits for a message from here that it had not taken when it sent this one: they cross, and both sides
    // see it.
    const auto crossing =
        std::find_if(unanswered.begin(), unanswered.end(), [&](const std::shared_ptr<Outgoing>& message) {
          return message->to == from && token.taken < message->token.total;
        });
    if (crossing != unanswered.end()) {
      Outgoing& sent = **crossing;
      sent.end = std::max(sent.token.time, token.time) + times.message(world.rank(), from, sent.kind).value() + time;
      sent.blocks = false;
      reach(sent.end);
      unanswered.erase(crossing);
      return;
    }
    settle();
    auto end = std::make_unique<double>(std::max(ready, token.time) + time);
    const double until = *end;
    auto request = world.send_later(end.get(), sizeof(double), from, MessageKind::rehearsal);
    answers.push_back({std::move(end), std::move(request)});
    reach(until);
  }

  // ---- Collectives. One after the other, in the order of the calls, which is the same on all ranks.
  // Of each member in a token: when it was ready, in two floats; kind; count, in three pieces of 20 bits.
  static constexpr std::size_t fields = 6;

  void post(Operation& operation) const {
    const auto mine = static_cast<std::size_t>(operation.group->rank()) * fields;
    operation.token.assign(operation.ranks.size() * fields, 0.0f);
    const auto high = static_cast<float>(operation.ready);
    const std::array<float, fields> values{high,
                                           static_cast<float>(operation.ready - static_cast<double>(high)),
                                           static_cast<float>(operation.kind),
                                           static_cast<float>(operation.count & 0xfffff),
                                           static_cast<float>(operation.count >> 20 & 0xfffff),
                                           static_cast<float>(operation.count >> 40)};
    std::copy(values.begin(), values.end(), operation.token.begin() + static_cast<std::ptrdiff_t>(mine));
    operation.request = operation.group->all_reduce_sum_later(operation.token.data(),
                                                              static_cast<std::int64_t>(operation.token.size()));
  }

  void complete(Operation& operation) const {
    const auto mine = static_cast<std::size_t>(operation.group->rank()) * fields;
    double start = 0.0;
    for (std::size_t member = 0; member < operation.ranks.size(); ++member) {
      const float* const values = operation.token.data() + member * fields;
      start = std::max(start, static_cast<double>(values[0]) + static_cast<double>(values[1]));
      if (std::equal(values + 2, values + fields, operation.token.data() + mine + 2)) continue;
      const auto count = static_cast<std::int64_t>(values[3]) | static_cast<std::int64_t>(values[4]) << 20 |
                         static_cast<std::int64_t>(values[5]) << 40;
      world.abort(
          fmt::format("the ranks disagree about what they sum: {} of {} values over ranks {} here, but {} of "
                      "{} values on rank {}",
                      to_string(operation.kind), operation.count, fmt::join(operation.ranks, ","),
                      to_string(static_cast<Collective>(static_cast<int>(values[2]))), count, operation.ranks[member]));
    }
    operation.end = start + operation.time.value();
    operation.request.reset();
    operation.done = true;
  }

  std::shared_ptr<Operation> start(Communicator& group, const std::vector<int>& ranks, Collective kind,
                                   std::int64_t count, Bytes amount) {
    settle();
    auto operation = std::make_shared<Operation>();
    operation->group = &group;
    operation->ranks = ranks;
    operation->kind = kind;
    operation->count = count;
    operation->time = times.collective(kind, ranks, amount);
    operation->ready = now();
    if (operation->time > Seconds(0)) {
      operations.push_back(operation);
      progress();
      return operation;
    }
    // Within a stage: does not go over the network that gradients take.
    post(*operation);
    operation->request->wait();
    complete(*operation);
    return operation;
  }

  void progress() { advance(nullptr); }

  /// Works through the collectives: up to `last`, waiting, or as far as they are done.
  void advance(const Operation* last) {
    while (!operations.empty() && (last == nullptr || !last->done)) {
      Operation& first = *operations.front();
      if (first.request == nullptr) {
        first.ready = std::max(first.ready, network_free);
        post(first);
      }
      if (last != nullptr)
        first.request->wait();
      else if (!first.request->test())
        break;
      complete(first);
      network_free = first.end;
      operations.pop_front();
    }
    while (!answers.empty() && answers.front().request->test()) answers.pop_front();
  }

  void finish(const Operation& operation) {
    advance(&operation);
    reach(operation.end);
    ready = now();
  }
};

namespace {

using State = RehearsalWorld::State;

class SendRequest final : public Request {
 public:
  SendRequest(std::shared_ptr<State> state, std::shared_ptr<Outgoing> message)
      : state_(std::move(state)), message_(std::move(message)) {}
  void wait() override {
    message_->request->wait();
    if (message_->blocks) state_->settle();
    state_->reach(message_->end);
  }
  bool test() override { return message_->request->test() && !message_->blocks && message_->end <= state_->now(); }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Outgoing> message_;
};

class ReceiveRequest final : public Request {
 public:
  ReceiveRequest(std::shared_ptr<State> state, std::size_t bytes, int from, MessageKind kind)
      : state_(std::move(state)), bytes_(bytes), from_(from), kind_(kind) {
    request_ = state_->world.receive_later(&token_, sizeof(token_), from, kind);
  }
  void wait() override {
    if (done_) return;
    request_->wait();
    state_->receive(token_, bytes_, from_, kind_);
    done_ = true;
  }
  /// A message that blocks is done only when somebody waits for it.
  bool test() override {
    if (done_) return true;
    if (!request_->test() || state_->times.messages_block() || token_.time > state_->now()) return false;
    wait();
    return true;
  }

 private:
  std::shared_ptr<State> state_;
  std::size_t bytes_;
  int from_;
  MessageKind kind_;
  Token token_;
  std::unique_ptr<Request> request_;
  bool done_ = false;
};

class CollectiveRequest final : public Request {
 public:
  CollectiveRequest(std::shared_ptr<State> state, std::shared_ptr<Operation> operation)
      : state_(std::move(state)), operation_(std::move(operation)) {}
  void wait() override { state_->finish(*operation_); }
  bool test() override {
    state_->progress();
    return operation_->done && operation_->end <= state_->now();
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Operation> operation_;
};

class RehearsalCommunicator final : public Communicator {
 public:
  /// `ranks` of the world that are in it; `owned` may be null for the world itself.
  RehearsalCommunicator(std::shared_ptr<State> state, Communicator& inner, std::unique_ptr<Communicator> owned,
                        std::vector<int> ranks)
      : state_(std::move(state)), owned_(std::move(owned)), inner_(inner), ranks_(std::move(ranks)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::unique_ptr<Request> send_later(const void*, std::size_t bytes, int to, MessageKind kind) override {
    return std::make_unique<SendRequest>(state_, state_->send(bytes, in_world(to), kind));
  }
  std::unique_ptr<Request> receive_later(void*, std::size_t bytes, int from, MessageKind kind) override {
    return std::make_unique<ReceiveRequest>(state_, bytes, in_world(from), kind);
  }

  void all_reduce_sum(Values data, std::int64_t count) override {
    run(Collective::all_reduce, count, amount_of(data, count));
  }
  std::unique_ptr<Request> all_reduce_sum_later(Values data, std::int64_t count) override {
    return std::make_unique<CollectiveRequest>(
        state_, state_->start(inner_, ranks_, Collective::all_reduce, count, amount_of(data, count)));
  }
  void all_reduce_max(float* data, std::int64_t count) override {
    run(Collective::all_reduce, count, amount_of(data, count));
  }
  void all_gather(Values data, std::int64_t count) override {
    run(Collective::all_gather, count, amount_of(data, count));
  }
  void reduce_scatter_sum(Values data, std::int64_t count) override {
    run(Collective::reduce_scatter, count, amount_of(data, count));
  }
  void broadcast(void*, std::size_t bytes, int) override {
    run(Collective::broadcast, static_cast<std::int64_t>(bytes), Bytes(static_cast<double>(bytes)));
  }
  void barrier() override { idle_barrier(); }
  void idle_barrier() override {
    meet();
    inner_.idle_barrier();
  }

  // Values that ranks agree on are real; that takes no time on the devices.
  double sum(double value) override {
    meet();
    return inner_.sum(value);
  }
  double max(double value) override {
    meet();
    return inner_.max(value);
  }
  double min(double value) override {
    meet();
    return inner_.min(value);
  }
  std::vector<std::string> gather(const std::string& text) override {
    meet();
    return inner_.gather(text);
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks) override {
    std::vector<int> world_ranks;
    for (const int rank : ranks) world_ranks.push_back(in_world(rank));
    auto made = inner_.subgroup(ranks);
    Communicator& inner = *made;
    return std::make_unique<RehearsalCommunicator>(state_, inner, std::move(made), std::move(world_ranks));
  }

  void interrupt() noexcept override { inner_.interrupt(); }
  void resume() noexcept override { inner_.resume(); }
  std::string host() const override { return inner_.host(); }
  [[noreturn]] void abort(const std::string& message) override {
    inner_.abort(message);
    std::abort();  // not reached; g++ 12 does not see it where it makes the call direct
  }

 private:
  [[nodiscard]] int in_world(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  static Bytes amount_of(ConstValues data, std::int64_t count) {
    return Bytes(static_cast<double>(bytes_of(data.type, count)));
  }

  void run(Collective kind, std::int64_t count, Bytes amount) {
    state_->finish(*state_->start(inner_, ranks_, kind, count, amount));
  }

  /// All clocks go on to that of the last.
  void meet() {
    state_->settle();
    state_->reach(inner_.max(state_->now()));
    state_->ready = state_->now();
  }

  std::shared_ptr<State> state_;
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::vector<int> ranks_;
};

}  // namespace

RehearsalWorld::RehearsalWorld(Communicator& world, const CommunicationTimes& times, RehearsalClock& clock)
    : state_(std::make_shared<State>(world, times, clock)) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  communicator_ = std::make_unique<RehearsalCommunicator>(state_, world, nullptr, std::move(ranks));
}

// Whoever this rank answered last may still wait for it.
RehearsalWorld::~RehearsalWorld() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (const State::Answer& answer : state_->answers) answer.request->wait();
  } catch (const Interrupted&) {
  }
}

Communicator& RehearsalWorld::communicator() { return *communicator_; }
void RehearsalWorld::restart() { state_->restart(); }
void RehearsalWorld::compute(Seconds time) { state_->compute(time); }

}  // namespace sailor::runtime

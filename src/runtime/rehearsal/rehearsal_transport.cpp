#include "runtime/rehearsal/rehearsal_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <exception>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "runtime/host_transport.hpp"
#include "runtime/rehearsal/rehearsal_stream.hpp"

namespace sailor::runtime {

namespace {

/// Replaces the payload of a message.
struct Token {
  std::uint64_t number = 0;  ///< of this message in its channel
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;  ///< messages of all channels from the sender to the receiver, this one included
  std::uint64_t taken = 0;  ///< messages of all channels that the sender had received from the receiver by then
  /// With transfers that block: when the sender reached it. Else: when it arrives.
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
    case Collective::all_to_all:
      return "all-to-all";
  }
  return "?";
}

std::string describe(MessageKind kind, const Token& token) {
  const std::string_view name = kind == MessageKind::activation ? "activation"
                                : kind == MessageKind::gradient ? "gradient"
                                                                : "message";
  return fmt::format("{} {} of {}", name, token.number, format_bytes(Bytes(static_cast<double>(token.bytes))));
}

/// One direction between two ranks, with its tokens.
struct Way {
  int from = 0;
  int to = 0;
  MessageKind kind = MessageKind::activation;
  std::unique_ptr<Channel> tokens;
  std::unique_ptr<Channel> answers;  // in reverse: the end of a message that blocks
  std::uint64_t count = 0;           // messages so far, on this rank
  double free = 0.0;                 // end of the last transfer that does not block
};

HostChannel& host(const std::unique_ptr<Channel>& channel) { return dynamic_cast<HostChannel&>(*channel); }

/// A message that its sender may have to wait for.
struct Outgoing {
  std::shared_ptr<Way> way;
  Token token;
  std::unique_ptr<HostOperation> request;
  bool blocks = false;  // until `end` is known
  double end = 0.0;
};

/// A collective of this rank, under way or waiting for its turn.
struct Operation {
  HostGroup* group = nullptr;  // exchanges the tokens
  std::vector<int> ranks;      // of the world
  Collective kind = Collective::all_reduce;
  std::int64_t count = 0;
  Seconds time{};
  double ready = 0.0;  // when this rank reached it
  std::vector<float> token;
  std::unique_ptr<HostOperation> request;
  bool is_reached = false;  // by all ranks
  bool done = false;
  double end = 0.0;
};

}  // namespace

/// State shared by all objects of a rank.
struct RehearsalWorld::State {
  State(const World& world_ranks, const CommunicationTimes& model, RehearsalClock& rank_clock)
      : world(world_ranks), times(model), clock(rank_clock), peers(static_cast<std::size_t>(world.size())) {}

  struct Peer {
    std::uint64_t total_sent = 0;
    std::uint64_t total_received = 0;
  };

  World world;
  const CommunicationTimes& times;
  RehearsalClock& clock;
  std::vector<Peer> peers;                           // by rank of the world
  std::vector<std::weak_ptr<Way>> ways;              // of all channels
  std::deque<std::shared_ptr<Outgoing>> unanswered;  // messages that block, until their receiver has reached them
  double ready = 0.0;                                // end of this rank's last operation that was not a message
  std::deque<std::shared_ptr<Operation>> operations;
  double network_free = 0.0;  // when the network is free for the next collective
  double out_free = 0.0;      // when this rank's link is free for the next message that is no activation or gradient
  double in_free = 0.0;       // the same for messages to this rank
  struct Answer {
    std::shared_ptr<Way> way;
    std::unique_ptr<double> end;
    std::unique_ptr<HostOperation> request;
  };
  std::deque<Answer> answers;  // being sent

  [[nodiscard]] double now() const { return clock.now().value(); }
  void reach(double time) { clock.reach(Seconds(time)); }

  Peer& peer(int rank) { return peers[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<Way> make_way(int from, int to, const ChannelName& name) {
    auto way = std::make_shared<Way>();
    way->from = from;
    way->to = to;
    way->kind = name.kind;
    way->tokens = world.transport.make_channel(from, to, {2 * name.id, name.kind});
    way->answers = world.transport.make_channel(to, from, {2 * name.id + 1, MessageKind::other});
    ways.push_back(way);
    return way;
  }

  void restart() {
    settle();
    world.control.idle_barrier();
    clock.restart();
    ready = 0.0;
    network_free = out_free = in_free = 0.0;
    for (const auto& weak : ways)
      if (const auto way = weak.lock()) way->free = 0.0;
  }

  void compute(Seconds time) {
    settle();
    progress();
    reach(now() + time.value());
    ready = now();
  }

  // ---- Point to point
  [[nodiscard]] bool blocks(const Way& way) const { return way.kind != MessageKind::other && times.messages_block(); }
  [[nodiscard]] double time_of(const Way& way, std::uint64_t bytes) const {
    return times.message(way.from, way.to, way.kind, Bytes(static_cast<double>(bytes))).value();
  }
  /// When a message that does not block is here.
  [[nodiscard]] double arrival(const Way& way, const Token& token) const {
    if (way.kind != MessageKind::other) return token.time;
    return std::max(token.time, in_free + time_of(way, token.bytes));
  }

  std::shared_ptr<Outgoing> send(const std::shared_ptr<Way>& way, std::size_t bytes) {
    Peer& other = peer(way->to);
    auto message = std::make_shared<Outgoing>();
    message->way = way;
    message->blocks = blocks(*way);
    const double time = time_of(*way, bytes);
    double& free = way->kind == MessageKind::other ? out_free : way->free;
    if (message->blocks)
      message->end = now();
    else
      message->end = free = std::max(now(), free) + time;
    message->token = {.number = ++way->count,
                      .bytes = bytes,
                      .total = ++other.total_sent,
                      .taken = other.total_received,
                      .time = message->end};
    message->request = host(way->tokens).make_send(&message->token, sizeof(Token));
    (void)message->request->advance();
    if (message->blocks) unanswered.push_back(message);
    return message;
  }

  /// Waits until the receivers have reached all messages that were sent.
  void settle() {
    double end = now();
    while (!unanswered.empty()) {
      Outgoing& message = *unanswered.front();
      finish(*host(message.way->answers).make_receive(&message.end, sizeof(message.end)));
      end = std::max(end, message.end);
      message.blocks = false;
      unanswered.pop_front();
    }
    if (end <= now()) return;
    reach(end);
    ready = now();
  }

  void receive(const std::shared_ptr<Way>& way, const Token& token, std::size_t bytes) {
    Peer& other = peer(way->from);
    const std::uint64_t number = ++way->count;
    ++other.total_received;
    if (token.number != number || token.bytes != bytes || token.total != other.total_received)
      world.control.abort(fmt::format(
          "the ranks disagree about what they exchange: expected is {} from rank {}, message {} in all; what came is "
          "{}, message {}",
          describe(way->kind, {.number = number, .bytes = bytes}), way->from, other.total_received,
          describe(way->kind, token), token.total));
    if (!blocks(*way)) {
      const double end = arrival(*way, token);
      if (way->kind == MessageKind::other) in_free = end;
      reach(end);
      return;
    }
    const double time = time_of(*way, bytes);
    // The sender waits for a message from here that it had not received when it sent this one: they cross, and both
    // sides see it.
    const auto crossing =
        std::find_if(unanswered.begin(), unanswered.end(), [&](const std::shared_ptr<Outgoing>& message) {
          return message->way->to == way->from && token.taken < message->token.total;
        });
    if (crossing != unanswered.end()) {
      Outgoing& sent = **crossing;
      sent.end = std::max(sent.token.time, token.time) + time_of(*sent.way, sent.token.bytes) + time;
      sent.blocks = false;
      reach(sent.end);
      unanswered.erase(crossing);
      return;
    }
    settle();
    auto end = std::make_unique<double>(std::max(ready, token.time) + time);
    const double until = *end;
    auto request = host(way->answers).make_send(end.get(), sizeof(double));
    (void)request->advance();
    answers.push_back({way, std::move(end), std::move(request)});
    reach(until);
  }

  // ---- Collectives: one after the other, in the order of the calls, which is the same on all ranks
  // Fields of each member in a token: when it was ready, in two floats; kind; count, in three pieces of 20 bits.
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
    operation.request =
        operation.group->make_all_reduce_sum(operation.token.data(), static_cast<std::int64_t>(operation.token.size()));
    operation.is_reached = operation.request->advance();
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
      world.control.abort(
          fmt::format("the ranks disagree about what they sum: {} of {} values over ranks {} here, but {} of "
                      "{} values on rank {}",
                      to_string(operation.kind), operation.count, join(operation.ranks, ","),
                      to_string(static_cast<Collective>(static_cast<int>(values[2]))), count, operation.ranks[member]));
    }
    operation.end = start + operation.time.value();
    operation.request.reset();
    operation.done = true;
  }

  std::shared_ptr<Operation> start(HostGroup& group, const std::vector<int>& ranks, Collective kind, std::int64_t count,
                                   Bytes amount) {
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
    // Within a stage: does not use the network that gradients use.
    post(*operation);
    if (!operation->is_reached) finish(*operation->request);
    complete(*operation);
    return operation;
  }

  void progress() { advance(nullptr); }

  /// Processes the collectives: up to `last`, waiting, or as far as they are done if it is null.
  void advance(const Operation* last) {
    while (!operations.empty() && (last == nullptr || !last->done)) {
      Operation& first = *operations.front();
      if (first.request == nullptr) {
        first.ready = std::max(first.ready, network_free);
        post(first);
      }
      if (!first.is_reached) first.is_reached = first.request->advance();
      if (!first.is_reached && last == nullptr) break;
      if (!first.is_reached) finish(*first.request);
      complete(first);
      network_free = first.end;
      operations.pop_front();
    }
    while (!answers.empty() && answers.front().request->advance()) answers.pop_front();
  }

  void wait_for(const Operation& operation) {
    advance(&operation);
    reach(operation.end);
    ready = now();
  }
};

namespace {

using State = RehearsalWorld::State;

class SendRequest final : public RehearsalRequest {
 public:
  SendRequest(std::shared_ptr<State> state, std::shared_ptr<Outgoing> message)
      : state_(std::move(state)), message_(std::move(message)) {}
  void wait() override {
    if (!is_sent()) finish(*message_->request);
    if (message_->blocks) state_->settle();
    state_->reach(message_->end);
  }
  bool test() override { return is_sent() && !message_->blocks && message_->end <= state_->now(); }

 private:
  bool is_sent() { return sent_ = sent_ || message_->request->advance(); }
  std::shared_ptr<State> state_;
  std::shared_ptr<Outgoing> message_;
  bool sent_ = false;
};

class ReceiveRequest final : public RehearsalRequest {
 public:
  ReceiveRequest(std::shared_ptr<State> state, std::shared_ptr<Way> way, std::size_t bytes)
      : state_(std::move(state)),
        way_(std::move(way)),
        bytes_(bytes),
        request_(host(way_->tokens).make_receive(&token_, sizeof(token_))) {
    here_ = request_->advance();
  }
  void wait() override {
    if (done_) return;
    if (!is_here()) finish(*request_);
    here_ = true;
    state_->receive(way_, token_, bytes_);
    done_ = true;
  }
  /// A message that blocks is done only when somebody waits for it.
  bool test() override {
    if (done_) return true;
    if (!is_here() || state_->blocks(*way_) || state_->arrival(*way_, token_) > state_->now()) return false;
    wait();
    return true;
  }

 private:
  bool is_here() { return here_ = here_ || request_->advance(); }
  std::shared_ptr<State> state_;
  std::shared_ptr<Way> way_;
  std::size_t bytes_;
  Token token_;
  std::unique_ptr<HostOperation> request_;
  bool here_ = false;
  bool done_ = false;
};

class CollectiveRequest final : public RehearsalRequest {
 public:
  CollectiveRequest(std::shared_ptr<State> state, std::shared_ptr<Operation> operation)
      : state_(std::move(state)), operation_(std::move(operation)) {}
  void wait() override { state_->wait_for(*operation_); }
  bool test() override {
    state_->progress();
    return operation_->done && operation_->end <= state_->now();
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Operation> operation_;
};

void put(Stream& stream, std::unique_ptr<RehearsalRequest> request) {
  dynamic_cast<RehearsalStream&>(stream).put(std::move(request));
}

class RehearsalGroup final : public Group {
 public:
  /// `ranks` are its members' ranks in the world.
  RehearsalGroup(std::shared_ptr<State> state, std::unique_ptr<Group> inner, std::vector<int> ranks)
      : state_(std::move(state)), inner_(std::move(inner)), ranks_(std::move(ranks)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce_sum(Stream& stream, Values data, std::int64_t count) override {
    start(stream, Collective::all_reduce, data, count);
  }
  void all_reduce_max(Stream& stream, float* data, std::int64_t count) override {
    start(stream, Collective::all_reduce, data, count);
  }
  void all_gather(Stream& stream, Values data, std::int64_t count) override {
    start(stream, Collective::all_gather, data, count);
  }
  void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) override {
    start(stream, Collective::reduce_scatter, data, count);
  }
  void all_to_all(Stream& stream, ConstValues, Values to, std::int64_t count) override {
    start(stream, Collective::all_to_all, to, count);
  }
  /// Ranks hand out and get different numbers: these are not compared.
  void all_to_all(Stream& stream, ConstValues, Values to, const SliceSizes&) override {
    start(stream, Collective::all_to_all, to, 0);
  }

 private:
  void start(Stream& stream, Collective kind, ConstValues data, std::int64_t count) {
    // Float64 numbers and integers are values that ranks agree on, which takes no time on the devices.
    const bool is_agreement = data.type == DataType::float64 || data.type == DataType::int32;
    const Bytes amount(is_agreement ? 0.0 : static_cast<double>(bytes_of(data.type, count)));
    put(stream, std::make_unique<CollectiveRequest>(
                    state_, state_->start(dynamic_cast<HostGroup&>(*inner_), ranks_, kind, count, amount)));
  }

  std::shared_ptr<State> state_;
  std::unique_ptr<Group> inner_;
  std::vector<int> ranks_;
};

class RehearsalChannel final : public Channel {
 public:
  RehearsalChannel(std::shared_ptr<State> state, std::shared_ptr<Way> way)
      : state_(std::move(state)), way_(std::move(way)) {}
  void send(Stream& stream, const void*, std::size_t bytes) override {
    put(stream, std::make_unique<SendRequest>(state_, state_->send(way_, bytes)));
  }
  void receive(Stream& stream, void*, std::size_t bytes) override {
    put(stream, std::make_unique<ReceiveRequest>(state_, way_, bytes));
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Way> way_;
};

class RehearsalTransport final : public Transport {
 public:
  explicit RehearsalTransport(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::string name() const override { return state_->world.transport.name(); }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override {
    return std::make_unique<RehearsalGroup>(state_, state_->world.transport.make_group(ranks), ranks);
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    return std::make_unique<RehearsalChannel>(state_, state_->make_way(from, to, name));
  }
  void connect() override { state_->world.transport.connect(); }
  void abort() noexcept override { state_->world.transport.abort(); }

 private:
  std::shared_ptr<State> state_;
};

/// Values that ranks agree on are really exchanged, which takes no time on the devices.
class RehearsalControl final : public Control {
 public:
  explicit RehearsalControl(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const override { return inner().rank(); }
  int size() const override { return inner().size(); }
  std::string host() const override { return inner().host(); }
  void barrier() override { idle_barrier(); }
  void idle_barrier() override {
    meet();
    inner().idle_barrier();
  }
  double sum(double value) override {
    meet();
    return inner().sum(value);
  }
  double max(double value) override {
    meet();
    return inner().max(value);
  }
  double min(double value) override {
    meet();
    return inner().min(value);
  }
  std::vector<std::string> gather(const std::string& text) override {
    meet();
    return inner().gather(text);
  }
  std::string broadcast(std::string text) override {
    meet();
    return inner().broadcast(std::move(text));
  }
  std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) override { return inner().subgroup(ranks); }
  std::vector<int> roll_call(Seconds patience) override { return inner().roll_call(patience); }
  [[noreturn]] void abort(const std::string& message) override {
    inner().abort(message);
    std::abort();  // not reached; g++ 12 does not see it where it makes the call direct
  }

 private:
  [[nodiscard]] Control& inner() const { return state_->world.control; }
  /// Advances all clocks to the latest one.
  void meet() {
    state_->settle();
    state_->reach(inner().max(state_->now()));
    state_->ready = state_->now();
  }

  std::shared_ptr<State> state_;
};

}  // namespace

RehearsalWorld::RehearsalWorld(const World& inner, const CommunicationTimes& times, RehearsalClock& clock)
    : state_(std::make_shared<State>(inner, times, clock)),
      control_(std::make_unique<RehearsalControl>(state_)),
      transport_(std::make_unique<RehearsalTransport>(state_)) {}

// Completes the answers: a rank may still wait for the last one.
RehearsalWorld::~RehearsalWorld() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (const State::Answer& answer : state_->answers) finish(*answer.request);
  } catch (const TransportError&) {
  }
}

void RehearsalWorld::restart() { state_->restart(); }
void RehearsalWorld::compute(Seconds time) { state_->compute(time); }

}  // namespace sailor::runtime

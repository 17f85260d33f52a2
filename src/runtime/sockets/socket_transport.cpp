#include "runtime/sockets/socket_transport.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "core/text.hpp"
#include "runtime/bits16.hpp"
#include "runtime/host_transport.hpp"

namespace sailor::runtime {

namespace {

/// The first bytes from the side that makes a connection.
struct Handshake {
  std::array<char, 8> magic{'s', 'a', 'i', 'l', 'o', 'r', '0', '1'};
  ConnectionKey key;
};

/// State shared by all objects of a transport.
struct Context {
  Context(const SocketTransportSettings& all, Listener& own) : settings(all), listener(own) {}
  SocketTransportSettings settings;
  Listener& listener;
  std::atomic<bool> aborted = false;

  [[nodiscard]] std::string name_of(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < settings.hosts.size() && !settings.hosts[index].empty()
               ? fmt::format("rank {} on {}", rank, settings.hosts[index])
               : fmt::format("rank {}", rank);
  }
  /// The other side of a connection has closed it: it has died, or has aborted because another rank has.
  [[noreturn]] void lost(int rank, const std::string& what) const {
    const std::string why = why_aborted();
    throw TransportError(
        TransportError::Cause::lost,
        fmt::format("{}: {} was under way", why.empty() ? name_of(rank) + " has gone away" : why, what));
  }
  [[noreturn]] void broken_off(const std::string& what) const {
    const std::string why = why_aborted();
    if (why.empty()) throw TransportError(TransportError::Cause::aborted, fmt::format("{} was broken off", what));
    throw TransportError(TransportError::Cause::lost, fmt::format("{}: {} was under way", why, what));
  }

 private:
  [[nodiscard]] std::string why_aborted() const {
    return settings.why_aborted ? settings.why_aborted() : std::string();
  }
};

/// One end of a one-way connection, made by the sender when it first sends.
class Connection {
 public:
  Connection(std::shared_ptr<Context> context, const ConnectionKey& key, int peer)
      : context_(std::move(context)), key_(key), peer_(peer), is_sender_(key.from == context_->settings.rank) {}

  /// Continues a transfer of `bytes` bytes, of which `done` are done. Returns true when all are. Throws if the other
  /// side has gone: the message names `operation`.
  bool advance(char* data, std::size_t bytes, std::size_t& done, const HostOperation& operation) {
    if (!is_ready(operation)) return false;
    while (done < bytes) {
      std::size_t moved = 0;
      const Socket::State state = is_sender_ ? socket_.send_some(data + done, bytes - done, moved)
                                             : socket_.receive_some(data + done, bytes - done, moved);
      done += moved;
      if (state == Socket::State::closed) context_->lost(peer_, operation.what());
      if (state == Socket::State::more) return false;
    }
    return true;
  }

 private:
  bool is_ready(const HostOperation& operation) {
    if (ready_) return true;
    return ready_ = is_sender_ ? connect(operation) : accept();
  }

  bool accept() {
    std::optional<Socket> made = context_->listener.take(key_);
    if (!made) return false;
    socket_ = std::move(*made);
    return true;
  }

  bool connect(const HostOperation& operation) {
    const std::vector<std::string> addresses =
        split(context_->settings.addresses.at(static_cast<std::size_t>(peer_)), ',');
    if (!socket_.is_open()) {
      if (next_address_ >= addresses.size()) context_->lost(peer_, operation.what());
      auto begun = begin_connecting(addresses[next_address_]);
      if (!begun) {
        if (begun.error().code == ErrorCode::io)
          throw TransportError(TransportError::Cause::broken, begun.error().message());
        ++next_address_;
        return false;
      }
      socket_ = *std::move(begun);
    }
    switch (finish_connecting(socket_)) {
      case Socket::State::more:
        return false;
      case Socket::State::closed:
        socket_.close();
        ++next_address_;
        return false;
      case Socket::State::done:
        break;
    }
    const Handshake handshake{.key = key_};
    std::size_t moved = 0;
    // A new connection has room for these few bytes.
    if (socket_.send_some(&handshake, sizeof(handshake), moved) != Socket::State::done || moved != sizeof(handshake))
      context_->lost(peer_, operation.what());
    return true;
  }

  std::shared_ptr<Context> context_;
  ConnectionKey key_;
  int peer_;
  bool is_sender_;
  bool ready_ = false;
  std::size_t next_address_ = 0;
  Socket socket_;
};

/// Operations of a channel or group use its connections one after the other, in the order in which they were made,
/// whichever of them is advanced.
struct Turns {
  std::int64_t made = 0;
  std::int64_t done = 0;
};

class SocketOperation : public HostOperation {
 public:
  SocketOperation(std::shared_ptr<Context> context, std::shared_ptr<Turns> turns)
      : context_(std::move(context)), turns_(std::move(turns)), turn_(turns_->made++) {}
  bool advance() final {
    if (context_->aborted.load(std::memory_order_relaxed)) context_->broken_off(what());
    if (turns_->done > turn_) return true;
    if (turns_->done < turn_ || !go_on()) return false;
    ++turns_->done;
    return true;
  }
  Patience patience() const final { return context_->settings.patience; }

 protected:
  [[nodiscard]] const Context& context() const { return *context_; }

 private:
  virtual bool go_on() = 0;
  std::shared_ptr<Context> context_;
  std::shared_ptr<Turns> turns_;
  std::int64_t turn_;
};

class Message final : public SocketOperation {
 public:
  struct Description {
    MessageKind kind;
    bool sends;
    int peer;
  };
  Message(std::shared_ptr<Context> context, std::shared_ptr<Turns> turns, std::shared_ptr<Connection> connection,
          Description description, char* data, std::size_t bytes)
      : SocketOperation(std::move(context), std::move(turns)),
        connection_(std::move(connection)),
        description_(description),
        data_(data),
        bytes_(bytes) {}
  std::string what() const override {
    return fmt::format("{} of {} ({} bytes) {} {}", description_.sends ? "send" : "receive",
                       describe(description_.kind), bytes_, description_.sends ? "to" : "from",
                       context().name_of(description_.peer));
  }

 private:
  bool go_on() override { return connection_->advance(data_, bytes_, moved_, *this); }
  std::shared_ptr<Connection> connection_;
  Description description_;
  char* data_;
  std::size_t bytes_;
  std::size_t moved_ = 0;
};

class SocketChannel final : public HostChannel {
 public:
  SocketChannel(std::shared_ptr<Context> context, int from, int to, const ChannelName& name)
      : context_(std::move(context)), from_(from), to_(to), kind_(name.kind) {
    const bool sends = from == context_->settings.rank;
    connection_ = std::make_shared<Connection>(context_,
                                               ConnectionKey{.job = context_->settings.job,
                                                             .epoch = context_->settings.epoch,
                                                             .from = from,
                                                             .to = to,
                                                             .id = static_cast<std::uint64_t>(name.id)},
                                               sends ? to : from);
  }
  std::unique_ptr<HostOperation> make_send(const void* data, std::size_t bytes) override {
    // The data is only read: one type serves both directions.
    return make({kind_, true, to_}, const_cast<void*>(data), bytes);
  }
  std::unique_ptr<HostOperation> make_receive(void* data, std::size_t bytes) override {
    return make({kind_, false, from_}, data, bytes);
  }

 private:
  std::unique_ptr<HostOperation> make(const Message::Description& description, void* data, std::size_t bytes) {
    return std::make_unique<Message>(context_, turns_, connection_, description, static_cast<char*>(data), bytes);
  }
  std::shared_ptr<Context> context_;
  int from_;
  int to_;
  MessageKind kind_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

enum class Fold { sum, max };

template <class Value>
void fold(Fold operation, Value* to, const Value* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = operation == Fold::sum ? to[i] + from[i] : std::max(to[i], from[i]);
}

void fold(Fold operation, Values to, const void* from, std::int64_t count) {
  switch (to.type) {
    case DataType::float32:
      return fold(operation, to.floats(), static_cast<const float*>(from), count);
    case DataType::float64:
      return fold(operation, static_cast<double*>(to.data), static_cast<const double*>(from), count);
    case DataType::int32:
      return fold(operation, static_cast<std::int32_t*>(to.data), static_cast<const std::int32_t*>(from), count);
    case DataType::bfloat16:
    case DataType::float16:
      return add_bits16(to.type, to.bits16(), static_cast<const std::uint16_t*>(from), count);
  }
}

/// A rank's two neighbours in the ring of its group.
struct Ring {
  std::string name;  ///< "ranks 0,2"
  int rank = 0;
  int size = 1;
  std::shared_ptr<Connection> to_next;
  std::shared_ptr<Connection> from_previous;
};

/// A ring collective (Patarasuk & Yuan 2009): n - 1 steps of reduce-scatter, n - 1 of all-gather, or both. A slice is
/// summed in the order of the ring, ending at the rank that owns it: all ranks get the same bits.
class RingOperation final : public SocketOperation {
 public:
  struct Work {
    const char* name;  ///< "all-gather"
    Values data;
    std::int64_t count = 0;
    bool scatters = false;
    bool gathers = false;
    Fold fold = Fold::sum;
  };
  RingOperation(std::shared_ptr<Context> context, std::shared_ptr<Turns> turns, std::shared_ptr<Ring> ring,
                const Work& work)
      : SocketOperation(std::move(context), std::move(turns)), ring_(std::move(ring)), work_(work) {
    if (work.scatters) incoming_.resize(bytes_of(work.data.type, work.count / ring_->size + 1));
  }
  std::string what() const override {
    return fmt::format("{} ({} values) over {}", work_.name, work_.count, ring_->name);
  }

 private:
  [[nodiscard]] int scatter_steps() const { return work_.scatters ? ring_->size - 1 : 0; }
  [[nodiscard]] Range slice(int index) const {
    const int size = ring_->size;
    return cut(work_.count, {((index % size) + size) % size, size});
  }

  bool go_on() override {
    const int steps = scatter_steps() + (work_.gathers ? ring_->size - 1 : 0);
    while (step_ < steps) {
      const bool scatters = step_ < scatter_steps();
      const int turn = scatters ? step_ + 1 : step_ - scatter_steps();
      const Range out = slice(ring_->rank - turn);
      const Range in = slice(ring_->rank - turn - 1);
      const DataType type = work_.data.type;
      char* const target = scatters ? incoming_.data() : static_cast<char*>((work_.data + in.first).data);
      const bool sent = ring_->to_next->advance(static_cast<char*>((work_.data + out.first).data),
                                                bytes_of(type, out.size()), sent_, *this);
      const bool received = ring_->from_previous->advance(target, bytes_of(type, in.size()), received_, *this);
      if (!sent || !received) return false;
      if (scatters) fold(work_.fold, work_.data + in.first, incoming_.data(), in.size());
      sent_ = received_ = 0;
      ++step_;
    }
    return true;
  }

  std::shared_ptr<Ring> ring_;
  Work work_;
  std::vector<char> incoming_;
  int step_ = 0;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

/// In step s every rank sends to the rank s after it and receives from the rank s before it: each link carries one
/// message at a time.
class AllToAllOperation final : public SocketOperation {
 public:
  /// Connections to and from the members of a group, by their rank in it; null for this rank.
  struct Peers {
    std::vector<std::shared_ptr<Connection>> to;
    std::vector<std::shared_ptr<Connection>> from;
  };
  AllToAllOperation(std::shared_ptr<Context> context, std::shared_ptr<Turns> turns, std::shared_ptr<Ring> ring,
                    std::shared_ptr<const Peers> peers, ConstValues from, Values to, const SliceSizes& sizes)
      : SocketOperation(std::move(context), std::move(turns)),
        ring_(std::move(ring)),
        peers_(std::move(peers)),
        from_(from),
        to_(to),
        sent_slices_(slices_of(sizes.sent)),
        received_slices_(slices_of(sizes.received)) {}
  std::string what() const override {
    return fmt::format("all-to-all ({} values) over {}", sent_slices_.back().last, ring_->name);
  }

 private:
  bool go_on() override {
    const int size = ring_->size;
    const auto bytes = [&](const Range& slice) { return bytes_of(to_.type, slice.size()); };
    if (step_ == 0) {
      const auto own = static_cast<std::size_t>(ring_->rank);
      if (sent_slices_[own].size() > 0)
        std::memcpy((to_ + received_slices_[own].first).data, (from_ + sent_slices_[own].first).data,
                    bytes(sent_slices_[own]));
      step_ = 1;
    }
    for (; step_ < size; ++step_) {
      const auto next = static_cast<std::size_t>((ring_->rank + step_) % size);
      const auto previous = static_cast<std::size_t>((ring_->rank + size - step_) % size);
      // A connection only reads what it sends.
      auto* const out = static_cast<char*>(const_cast<void*>((from_ + sent_slices_[next].first).data));
      auto* const in = static_cast<char*>((to_ + received_slices_[previous].first).data);
      const bool sent = peers_->to[next]->advance(out, bytes(sent_slices_[next]), sent_, *this);
      const bool received = peers_->from[previous]->advance(in, bytes(received_slices_[previous]), received_, *this);
      if (!sent || !received) return false;
      sent_ = received_ = 0;
    }
    return true;
  }

  /// By rank.
  static std::vector<Range> slices_of(const std::vector<std::int64_t>& sizes) {
    std::vector<Range> slices;
    for (const std::int64_t size : sizes) {
      const std::int64_t first = slices.empty() ? 0 : slices.back().last;
      slices.push_back({first, first + size});
    }
    return slices;
  }

  std::shared_ptr<Ring> ring_;
  std::shared_ptr<const Peers> peers_;
  ConstValues from_;
  Values to_;
  std::vector<Range> sent_slices_;
  std::vector<Range> received_slices_;
  int step_ = 0;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

class SocketGroup final : public HostGroup {
 public:
  SocketGroup(std::shared_ptr<Context> context, std::vector<int> ranks, std::uint64_t id)
      : context_(std::move(context)), ranks_(std::move(ranks)), id_(id), ring_(std::make_shared<Ring>()) {
    ring_->name = fmt::format("ranks {}", join(ranks_, ","));
    ring_->size = static_cast<int>(ranks_.size());
    ring_->rank = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), own()) - ranks_.begin());
    if (ring_->size == 1) return;
    ring_->to_next = connection(own(), at(ring_->rank + 1));
    ring_->from_previous = connection(at(ring_->rank - 1), own());
  }

  int rank() const override { return ring_->rank; }
  int size() const override { return ring_->size; }
  std::unique_ptr<HostOperation> make_all_reduce_sum(Values data, std::int64_t count) override {
    return make({.name = "sum", .data = data, .count = count, .scatters = true, .gathers = true});
  }
  std::unique_ptr<HostOperation> make_all_reduce_max(float* data, std::int64_t count) override {
    return make(
        {.name = "maximum", .data = data, .count = count, .scatters = true, .gathers = true, .fold = Fold::max});
  }
  std::unique_ptr<HostOperation> make_all_gather(Values data, std::int64_t count) override {
    return make({.name = "all-gather", .data = data, .count = count, .gathers = true});
  }
  std::unique_ptr<HostOperation> make_reduce_scatter_sum(Values data, std::int64_t count) override {
    return make({.name = "reduce-scatter", .data = data, .count = count, .scatters = true});
  }
  std::unique_ptr<HostOperation> make_all_to_all(ConstValues from, Values to, const SliceSizes& sizes) override {
    if (peers_ == nullptr) peers_ = connect_all();
    return std::make_unique<AllToAllOperation>(context_, turns_, ring_, peers_, from, to, sizes);
  }

 private:
  std::unique_ptr<HostOperation> make(const RingOperation::Work& work) {
    return std::make_unique<RingOperation>(context_, turns_, ring_, work);
  }
  [[nodiscard]] int own() const { return context_->settings.rank; }
  /// The rank at a place of the ring.
  [[nodiscard]] int at(int place) const { return ranks_[static_cast<std::size_t>((place + size()) % size())]; }
  [[nodiscard]] std::shared_ptr<Connection> connection(int from, int to) const {
    return std::make_shared<Connection>(
        context_,
        ConnectionKey{
            .job = context_->settings.job, .epoch = context_->settings.epoch, .from = from, .to = to, .id = id_},
        from == own() ? to : from);
  }
  /// To and from all others; neighbours in the ring use its connections.
  [[nodiscard]] std::shared_ptr<const AllToAllOperation::Peers> connect_all() const {
    auto peers = std::make_shared<AllToAllOperation::Peers>();
    for (const int rank : ranks_) {
      const bool is_next = rank == at(ring_->rank + 1);
      const bool is_previous = rank == at(ring_->rank - 1);
      peers->to.push_back(rank == own() ? nullptr : is_next ? ring_->to_next : connection(own(), rank));
      peers->from.push_back(rank == own() ? nullptr : is_previous ? ring_->from_previous : connection(rank, own()));
    }
    return peers;
  }

  std::shared_ptr<Context> context_;
  std::vector<int> ranks_;
  std::uint64_t id_;
  std::shared_ptr<Ring> ring_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
  std::shared_ptr<const AllToAllOperation::Peers> peers_;  // null before the first all-to-all
};

class SocketTransport final : public Transport {
 public:
  SocketTransport(const SocketTransportSettings& settings, Listener& listener)
      : context_(std::make_shared<Context>(settings, listener)) {
    listener.forget_before(settings.epoch);
  }
  ~SocketTransport() override { context_->aborted = true; }
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  std::string name() const override { return "TCP"; }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override {
    // The id is the same on all ranks of the group: it is made of the ranks, and the number of such groups before.
    std::uint64_t id = 0xcbf29ce484222325U;  // FNV-1a
    const auto mix = [&](std::uint64_t value) { id = (id ^ value) * 0x100000001b3U; };
    for (const int rank : ranks) mix(static_cast<std::uint64_t>(rank) + 1);
    mix(made_[ranks]++);
    return std::make_unique<SocketGroup>(context_, ranks, id | first_group_id);
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    return std::make_unique<SocketChannel>(context_, from, to, name);
  }
  void abort() noexcept override { context_->aborted = true; }

 private:
  static constexpr std::uint64_t first_group_id = std::uint64_t{1} << 63;  // above all channel ids
  std::shared_ptr<Context> context_;
  std::map<std::vector<int>, std::uint64_t> made_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start() {
  auto socket = listen_on();
  if (!socket) return fail(socket.error());
  return std::unique_ptr<Listener>(new Listener(*std::move(socket)));
}

Listener::Listener(Socket socket) : socket_(std::move(socket)), addresses_(own_addresses(port_of(socket_))) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) == 0) {
    woken_ = Socket(ends[0]);
    wake_ = Socket(ends[1]);
  }
  thread_ = std::thread([this] { run(); });
}

Listener::~Listener() {
  wake_.close();
  thread_.join();
}

std::optional<Socket> Listener::take(const ConnectionKey& key) {
  const std::scoped_lock lock(mutex_);
  const auto made = made_.find(key);
  if (made == made_.end() && !why_no_guests_.empty())
    throw TransportError(TransportError::Cause::broken, why_no_guests_);
  if (made == made_.end()) return std::nullopt;
  Socket socket = std::move(made->second);
  made_.erase(made);
  return socket;
}

void Listener::forget_before(std::uint64_t epoch) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(made_, [&](const auto& entry) { return entry.first.epoch < epoch; });
}

void Listener::run() {
  struct Guest {
    Socket socket;
    Handshake said;
    std::size_t bytes = 0;
  };
  std::vector<Guest> guests;  // connections whose handshake is incomplete
  bool is_full = false;       // somebody waits whom this process cannot accept
  while (true) {
    // poll() would return at once for those who wait.
    std::vector<pollfd> looks{{.fd = woken_.descriptor(), .events = POLLIN, .revents = 0},
                              {.fd = is_full ? -1 : socket_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Guest& guest : guests)
      looks.push_back({.fd = guest.socket.descriptor(), .events = POLLIN, .revents = 0});
    if (::poll(looks.data(), looks.size(), is_full ? 100 : -1) < 0) continue;
    if (looks[0].revents != 0) return;
    if (is_full || looks[1].revents != 0) {
      auto guest = accept_from(socket_);
      for (; guest && *guest; guest = accept_from(socket_))
        guests.push_back({.socket = **std::move(guest), .said = {}});
      is_full = !guest && has_guests(socket_);
      const std::scoped_lock lock(mutex_);
      why_no_guests_ = is_full ? guest.error().message() : "";
    }
    std::erase_if(guests, [&](Guest& guest) {
      std::size_t moved = 0;
      const Socket::State state = guest.socket.receive_some(reinterpret_cast<char*>(&guest.said) + guest.bytes,
                                                            sizeof(Handshake) - guest.bytes, moved);
      guest.bytes += moved;
      if (guest.bytes < sizeof(Handshake)) return state == Socket::State::closed;
      if (guest.said.magic == Handshake{}.magic) {
        const std::scoped_lock lock(mutex_);
        made_.insert_or_assign(guest.said.key, std::move(guest.socket));
      }
      return true;
    });
  }
}

std::unique_ptr<Transport> make_socket_transport(const SocketTransportSettings& settings, Listener& listener) {
  return std::make_unique<SocketTransport>(settings, listener);
}

}  // namespace sailor::runtime

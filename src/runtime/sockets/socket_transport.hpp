// A data plane over TCP: every channel and every group has its own connections, so that messages need no tags and no
// channel waits for another. It can be aborted and created again inside a process.
//
// Connections are made by the first transfer. A rank that dies closes them: transfers with it fail at once with
// TransportError (lost).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "runtime/host_stream.hpp"
#include "runtime/sockets/socket.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

/// Identifies a connection: the same on both of its ends.
struct ConnectionKey {
  std::uint64_t job = 0;    ///< a number that no other job has
  std::uint64_t epoch = 0;  ///< connections of an older epoch are useless
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::uint64_t id = 0;  ///< of the channel or group
  auto operator<=>(const ConnectionKey&) const = default;
};

/// Accepts the connections that others make to this process, in a thread of its own. One per process.
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> start();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Addresses for the other ranks.
  [[nodiscard]] const Addresses& addresses() const { return addresses_; }
  /// The connection with that key; std::nullopt until it has been made. Throws TransportError if this process is out of
  /// file descriptors or buffers.
  [[nodiscard]] std::optional<Socket> take(const ConnectionKey& key);
  /// Closes untaken connections of older epochs.
  void forget_before(std::uint64_t epoch);

 private:
  explicit Listener(Socket socket);
  void run();

  Socket socket_;
  Addresses addresses_;
  std::mutex mutex_;
  std::map<ConnectionKey, Socket> made_;
  std::string why_no_guests_;  // why this process cannot accept those who wait; empty: it can, or nobody waits
  Socket wake_;                // the write end of a pipe, for the destructor
  Socket woken_;
  std::thread thread_;
};

struct SocketTransportSettings {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  int rank = 0;
  std::vector<Addresses> addresses;  ///< of all ranks' listeners
  std::vector<std::string> hosts;    ///< of all ranks, for messages
  Patience patience{};
  /// The reason of an abort(), if known ("rank 1 on node3 has gone away"). Called by any thread.
  std::function<std::string()> why_aborted{};
};

/// `listener` must outlive the transport.
std::unique_ptr<Transport> make_socket_transport(const SocketTransportSettings& settings, Listener& listener);

}  // namespace sailor::runtime

// A data plane over TCP: every channel and every group has connections of its own, so that nothing is told apart by
// tags and nothing waits for what another sends. It can be broken off and made anew inside a process.
//
// Connections are made by the first transfer. A rank that dies closes them: the transfers of those who talk to it end
// with TransportError (lost) at once.
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

/// Which connection: the same on both of its ends.
struct ConnectionKey {
  std::uint64_t job = 0;    ///< a number that no other job has
  std::uint64_t epoch = 0;  ///< connections of an older one are of no use
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::uint64_t id = 0;  ///< of the channel or group
  auto operator<=>(const ConnectionKey&) const = default;
};

/// Takes the connections that others make to this process, in a thread of its own. One per process.
class Listener {
 public:
  static Result<std::unique_ptr<Listener>> start();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// For the others.
  [[nodiscard]] const Addresses& addresses() const { return addresses_; }
  /// The connection with that key, once it has been made.
  [[nodiscard]] std::optional<Socket> take(const ConnectionKey& key);
  /// Closes what was made for older epochs and nobody took.
  void forget_before(std::uint64_t epoch);

 private:
  explicit Listener(Socket socket);
  void run();

  Socket socket_;
  Addresses addresses_;
  std::mutex mutex_;
  std::map<ConnectionKey, Socket> made_;
  Socket wake_;  // the writing end of a pipe: the destructor's
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
  /// After abort(), by any thread: why, if that is known ("rank 1 on node3 has gone away").
  std::function<std::string()> why_aborted{};
};

/// The listener must outlive it.
std::unique_ptr<Transport> make_socket_transport(const SocketTransportSettings& settings, Listener& listener);

}  // namespace sailor::runtime

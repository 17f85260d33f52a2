// Owned TCP sockets, and whole frames as messages over them. Nothing here blocks unless stated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::runtime {

/// A file descriptor, closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  void close();

  /// Outcome of a call. `more`: it would block.
  enum class State { done, more, closed };
  /// Sends or receives up to `bytes` bytes; `moved` is their number. `closed`: the other side has gone.
  State send_some(const void* data, std::size_t bytes, std::size_t& moved) const;
  State receive_some(void* data, std::size_t bytes, std::size_t& moved) const;

 private:
  int descriptor_ = -1;
};

/// "10.0.0.7:41234" or "[fe80::1]:41234": the address of a listener. Several are separated by commas: the first that
/// can be reached is used.
using Addresses = std::string;

/// Listens on all interfaces, on a port of the system's choice (`port` 0) or that one.
Result<Socket> listen_on(int port = 0);
/// The port that a socket listens on.
int port_of(const Socket& listener);
/// All addresses of this machine with that port, network before loopback.
Addresses own_addresses(int port);

/// Connects to one of `addresses`; blocks for at most `timeout`. Errors (unavailable): none can be reached.
Result<Socket> connect_to(const Addresses& addresses, Seconds timeout);
/// Begins to connect to one address; call finish_connecting() until it returns `done`.
Result<Socket> begin_connecting(std::string_view address);
Socket::State finish_connecting(const Socket& socket);
/// Accepts a pending connection; std::nullopt if there is none. Errors: io (out of file descriptors or buffers), even
/// if no connection is pending: has_guests() tells.
Result<std::optional<Socket>> accept_from(const Socket& listener);
/// Whether a connection is pending.
bool has_guests(const Socket& listener);

/// Frames, each preceded by its length, in both directions of a socket.
class Frames {
 public:
  explicit Frames(Socket socket) : socket_(std::move(socket)) {}

  /// Queues a frame and sends as much as possible.
  void send(std::string_view frame);
  /// Sends queued frames. `more`: some bytes are left.
  Socket::State flush();
  /// A whole frame; std::nullopt if none is complete yet, or after is_closed().
  std::optional<std::string> receive();
  [[nodiscard]] bool is_closed() const { return closed_; }
  /// Stops reading and sending: the data received is not Sailor's.
  void give_up() { closed_ = true; }
  [[nodiscard]] bool has_queued() const { return !outgoing_.empty(); }
  [[nodiscard]] const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  std::string outgoing_;
  std::string incoming_;
  bool closed_ = false;
};

}  // namespace sailor::runtime

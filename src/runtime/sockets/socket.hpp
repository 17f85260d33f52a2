// TCP sockets with owners, and messages of whole frames over them. Nothing here blocks but where it says so.
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

  /// What became of a call. `more`: it would have to wait.
  enum class State { done, more, closed };
  /// Sends or receives up to `bytes`; `moved` is how many. `closed`: the other side has gone.
  State send_some(const void* data, std::size_t bytes, std::size_t& moved) const;
  State receive_some(void* data, std::size_t bytes, std::size_t& moved) const;

 private:
  int descriptor_ = -1;
};

/// "10.0.0.7:41234" or "[fe80::1]:41234": where somebody listens. Several are separated by commas: the first that can
/// be reached counts.
using Addresses = std::string;

/// Listens on all interfaces, on a port of the system's choice (`port` 0) or that one.
Result<Socket> listen_on(int port = 0);
/// The port that a socket listens on.
int port_of(const Socket& listener);
/// All addresses of this machine with that port, those of the network before the loopback's.
Addresses own_addresses(int port);

/// Connects to one of `addresses`; blocks for at most `timeout`. Errors (unavailable): nobody can be reached there.
Result<Socket> connect_to(const Addresses& addresses, Seconds timeout);
/// Begins to connect to one address; try finish_connecting() until it says done.
Result<Socket> begin_connecting(std::string_view address);
Socket::State finish_connecting(const Socket& socket);
/// A connection that somebody has made, or nothing.
std::optional<Socket> accept_from(const Socket& listener);

/// Frames, each with its length in front, in both directions of a socket.
class Frames {
 public:
  explicit Frames(Socket socket) : socket_(std::move(socket)) {}

  /// Queues a frame and sends as much as can be.
  void send(std::string_view frame);
  /// Sends what is queued. `more`: something is left.
  Socket::State flush();
  /// A whole frame, or nothing yet. After is_closed() there is none.
  std::optional<std::string> receive();
  [[nodiscard]] bool is_closed() const { return closed_; }
  /// Nothing more is read or sent: what came is not of ours.
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

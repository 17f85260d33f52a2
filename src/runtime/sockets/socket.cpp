#include "runtime/sockets/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/text.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t longest_frame = 1U << 28;

/// Sets no delays, no SIGPIPE, no inheritance by other programs.
void prepare(int descriptor) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
};

Result<Endpoint> parse(std::string_view text) {
  const auto wrong = [&] {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no address", text), "write HOST:PORT");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong();
  std::string host(text.substr(0, colon));
  const std::string port(text.substr(colon + 1));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0 || found == nullptr) return wrong();
  Endpoint endpoint;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return endpoint;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Socket::State Socket::send_some(const void* data, std::size_t bytes, std::size_t& moved) const {
  moved = 0;
  const ssize_t sent = ::send(descriptor_, data, bytes, MSG_NOSIGNAL);
  if (sent >= 0) {
    moved = static_cast<std::size_t>(sent);
    return State::done;
  }
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? State::more : State::closed;
}

Socket::State Socket::receive_some(void* data, std::size_t bytes, std::size_t& moved) const {
  moved = 0;
  const ssize_t received = ::recv(descriptor_, data, bytes, 0);
  if (received > 0) {
    moved = static_cast<std::size_t>(received);
    return State::done;
  }
  if (received == 0) return bytes == 0 ? State::done : State::closed;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? State::more : State::closed;
}

namespace {

bool is_out_of_resources(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

/// The error that errno says.
Error out_of_resources(std::string_view what) {
  const int error = errno;
  rlimit files{};
  const bool is_limit = error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &files) == 0;
  return {ErrorCode::io, fmt::format("this process cannot {}: {}{}", what, system_message(error),
                                     is_limit ? fmt::format(" (at most {})", files.rlim_cur) : ""),
          is_limit ? "raise the limit (ulimit -n)" : ""};
}

}  // namespace

Result<Socket> listen_on(int port) {
  // One socket for IPv6 and IPv4; without IPv6, for IPv4.
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) continue;
    const int off = 0;
    const int on = 1;
    ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    Endpoint any;
    if (family == AF_INET6) {
      ::setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      auto* const address = reinterpret_cast<sockaddr_in6*>(&any.address);
      address->sin6_family = AF_INET6;
      address->sin6_addr = in6addr_any;
      address->sin6_port = htons(static_cast<std::uint16_t>(port));
      any.length = sizeof(*address);
    } else {
      auto* const address = reinterpret_cast<sockaddr_in*>(&any.address);
      address->sin_family = AF_INET;
      address->sin_addr.s_addr = htonl(INADDR_ANY);
      address->sin_port = htons(static_cast<std::uint16_t>(port));
      any.length = sizeof(*address);
    }
    constexpr int backlog = 1024;
    if (::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&any.address), any.length) == 0 &&
        ::listen(socket.descriptor(), backlog) == 0)
      return socket;
  }
  return fail(ErrorCode::unavailable,
              fmt::format("cannot listen on {}: {}", port == 0 ? "any port" : fmt::format("port {}", port),
                          system_message(errno)));
}

int port_of(const Socket& listener) {
  Endpoint own;
  own.length = sizeof(own.address);
  if (::getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&own.address), &own.length) != 0) return 0;
  return ntohs(own.address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&own.address)->sin6_port
                                                 : reinterpret_cast<const sockaddr_in*>(&own.address)->sin_port);
}

Addresses own_addresses(int port) {
  std::vector<std::string> network;
  std::vector<std::string> loopback;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
      std::array<char, INET6_ADDRSTRLEN> text{};
      std::string address;
      if (one->ifa_addr->sa_family == AF_INET) {
        const auto* const v4 = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
        if (::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size()) == nullptr) continue;
        address = fmt::format("{}:{}", text.data(), port);
      } else if (one->ifa_addr->sa_family == AF_INET6) {
        const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
        if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;  // usable only with an interface of the other side
        if (::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size()) == nullptr) continue;
        address = fmt::format("[{}]:{}", text.data(), port);
      } else {
        continue;
      }
      ((one->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : network).push_back(std::move(address));
    }
    ::freeifaddrs(all);
  }
  network.insert(network.end(), loopback.begin(), loopback.end());
  std::string joined;
  for (const std::string& address : network) joined += (joined.empty() ? "" : ",") + address;
  return joined;
}

Result<Socket> begin_connecting(std::string_view address) {
  const auto endpoint = parse(address);
  if (!endpoint) return fail(endpoint.error());
  Socket socket(::socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open() && is_out_of_resources(errno)) return fail(out_of_resources("make a connection"));
  if (!socket.is_open()) return fail(ErrorCode::unavailable, system_message(errno));
  prepare(socket.descriptor());
  if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&endpoint->address), endpoint->length) == 0 ||
      errno == EINPROGRESS)
    return socket;
  return fail(ErrorCode::unavailable, fmt::format("cannot connect to {}: {}", address, system_message(errno)));
}

Socket::State finish_connecting(const Socket& socket) {
  pollfd look{.fd = socket.descriptor(), .events = POLLOUT, .revents = 0};
  if (::poll(&look, 1, 0) <= 0) return Socket::State::more;
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0)
    return Socket::State::closed;
  return Socket::State::done;
}

Result<Socket> connect_to(const Addresses& addresses, Seconds timeout) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout.value());
  std::string problem = "no address";
  const std::vector<std::string> all = split(addresses, ',');
  while (true) {
    for (const std::string& address : all) {
      auto socket = begin_connecting(address);
      if (!socket && socket.error().code == ErrorCode::io) return fail(socket.error());
      if (!socket) {
        problem = socket.error().what;
        continue;
      }
      pollfd look{.fd = socket->descriptor(), .events = POLLOUT, .revents = 0};
      const std::chrono::duration<double> left = deadline - Clock::now();
      // An address that does not answer must not take all the time of the others.
      const double share = all.size() > 1 ? std::min(left.count(), 2.0) : left.count();
      if (::poll(&look, 1, std::max(0, static_cast<int>(share * 1e3))) > 0 &&
          finish_connecting(*socket) == Socket::State::done)
        return socket;
      problem = fmt::format("{} does not answer", address);
    }
    if (Clock::now() >= deadline) break;
    ::poll(nullptr, 0, 20);
  }
  return fail(ErrorCode::unavailable,
              fmt::format("cannot connect to {} within {:g} s: {}", addresses, timeout.value(), problem));
}

Result<std::optional<Socket>> accept_from(const Socket& listener) {
  Socket made(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!made.is_open() && is_out_of_resources(errno)) return fail(out_of_resources("accept a connection"));
  if (!made.is_open()) return std::optional<Socket>();
  prepare(made.descriptor());
  return std::optional(std::move(made));
}

bool has_guests(const Socket& listener) {
  pollfd look{.fd = listener.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&look, 1, 0) > 0;
}

void Frames::send(std::string_view frame) {
  const auto length = static_cast<std::uint32_t>(frame.size());
  outgoing_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  outgoing_.append(frame);
  (void)flush();
}

Socket::State Frames::flush() {
  std::size_t sent = 0;
  Socket::State state = Socket::State::done;
  while (sent < outgoing_.size() && !closed_) {
    std::size_t moved = 0;
    state = socket_.send_some(outgoing_.data() + sent, outgoing_.size() - sent, moved);
    sent += moved;
    if (state == Socket::State::closed) closed_ = true;
    if (state != Socket::State::done) break;
  }
  outgoing_.erase(0, sent);
  return closed_ ? Socket::State::closed : outgoing_.empty() ? Socket::State::done : Socket::State::more;
}

std::optional<std::string> Frames::receive() {
  std::uint32_t length = 0;
  while (true) {
    if (incoming_.size() >= sizeof(length)) {
      std::memcpy(&length, incoming_.data(), sizeof(length));
      if (length > longest_frame) {  // the other side is not Sailor
        closed_ = true;
        return std::nullopt;
      }
      if (incoming_.size() >= sizeof(length) + length) {
        std::string frame = incoming_.substr(sizeof(length), length);
        incoming_.erase(0, sizeof(length) + length);
        return frame;
      }
    }
    if (closed_) return std::nullopt;
    std::array<char, 65536> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::size_t moved = 0;
    const Socket::State state = socket_.receive_some(buffer.data(), buffer.size(), moved);
    incoming_.append(buffer.data(), moved);
    if (state == Socket::State::closed) closed_ = true;
    if (state == Socket::State::more) return std::nullopt;
  }
}

}  // namespace sailor::runtime

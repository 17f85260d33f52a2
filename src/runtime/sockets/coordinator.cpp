#include "runtime/sockets/coordinator.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "runtime/sockets/control_messages.hpp"

namespace sailor::runtime {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

/// A process that has joined.
struct MemberEntry {
  explicit MemberEntry(Socket socket) : frames(std::move(socket)) {}
  Frames frames;
  Clock::time_point heard = Clock::now();
  bool joined = false;
  std::string host;
  Addresses data;    // of its listener
  int wanted = -1;   // rank that it wants, -1: any
  bool ready = false;  // for the next epoch
  int rank = -1;     // in the epoch that is under way; -1: in none
  std::uint64_t order = 0;  // of joining
};

/// A call of some ranks that is not complete.
struct Call {
  std::set<int> waiting;  // ranks that have called
  std::map<int, Json> values;
};

}  // namespace

struct Coordinator::State {
  CoordinatorSettings settings;
  Socket listener;
  Socket wake;
  Socket woken;
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  std::uint64_t joined = 0;
  bool is_broken = false;  // the epoch under way
  std::vector<std::unique_ptr<MemberEntry>> members;
  std::map<std::string, Call> calls;  // by group and number

  void run() {
    const auto interval = std::chrono::milliseconds(
        std::max<std::int64_t>(10, static_cast<std::int64_t>(settings.silence.value() * 1e3 / 4)));
    while (true) {
      std::vector<pollfd> looks{{.fd = woken.descriptor(), .events = POLLIN, .revents = 0},
                                {.fd = listener.descriptor(), .events = POLLIN, .revents = 0}};
      for (const auto& member : members)
        looks.push_back({.fd = member->frames.socket().descriptor(),
                         .events = static_cast<short>(member->frames.has_queued() ? POLLIN | POLLOUT : POLLIN),
                         .revents = 0});
      (void)::poll(looks.data(), looks.size(), static_cast<int>(interval.count()));
      if (looks[0].revents != 0) return;
      while (auto guest = accept_from(listener)) members.push_back(std::make_unique<MemberEntry>(std::move(*guest)));
      for (const auto& member : members) {
        (void)member->frames.flush();
        while (const auto frame = member->frames.receive()) {
          member->heard = Clock::now();
          try {
            hear(*member, *frame);
          } catch (const Json::exception&) {
            member->frames.give_up();
          }
        }
      }
      bury();
      begin_epoch();
    }
  }

  static void tell(MemberEntry& member, const Json& message) { member.frames.send(message.dump()); }

  void hear(MemberEntry& member, const std::string& frame) {
    const Json message = Json::parse(frame, nullptr, false);
    if (!message.is_object()) return;
    const std::string what = message.value("what", "");
    if (what == message_join) {
      member.joined = true;
      member.host = message.value("host", "");
      member.data = message.value("data", "");
      member.wanted = message.value("rank", -1);
      member.order = joined++;
    } else if (what == message_ready) {
      member.ready = true;
    } else if (what == message_call) {
      call(member, message);
    } else if (what == message_abort) {
      for (const auto& other : members)
        if (other.get() != &member && other->joined) tell(*other, {{"what", message_abort}, {"text", message.value("text", "")}});
    }  // message_alive says nothing more
  }

  void call(MemberEntry& member, const Json& message) {
    if (is_broken || message.value("epoch", std::uint64_t{0}) != epoch || member.rank < 0) return;  // it was told
    const std::vector<int> ranks = message.value("ranks", std::vector<int>{});
    const std::string name = fmt::format("{}#{}", message.value("group", ""), message.value("number", 0));
    Call& under_way = calls[name];
    under_way.waiting.insert(member.rank);
    under_way.values[member.rank] = message.value("value", Json());
    if (under_way.waiting.size() < ranks.size()) return;
    const std::string kind = message.value("kind", "");
    Json all = Json::array();
    for (const int rank : ranks) all.push_back(under_way.values[rank]);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      Json answer{{"what", message_answer}, {"name", name}};
      if (kind == call_broadcast) answer["value"] = all.front();
      if (kind == call_all || (kind == call_gather && i == 0)) answer["value"] = all;
      for (const auto& other : members)
        if (other->rank == ranks[i]) tell(*other, answer);
    }
    calls.erase(name);
  }

  /// Takes out those that have gone, and tells the others.
  void bury() {
    std::vector<int> lost;
    std::string why;
    std::erase_if(members, [&](const std::unique_ptr<MemberEntry>& member) {
      const std::chrono::duration<double> silent = Clock::now() - member->heard;
      const bool is_silent = silent.count() > settings.silence.value();
      if (!member->frames.is_closed() && !is_silent) return false;
      if (member->rank >= 0) {
        lost.push_back(member->rank);
        why = fmt::format("rank {} on {} {}", member->rank, member->host,
                          is_silent ? fmt::format("has not been heard of for {:g} s", settings.silence.value())
                                    : "has gone away");
      }
      return true;
    });
    if (lost.empty()) return;
    is_broken = true;
    calls.clear();
    for (const auto& member : members)
      if (member->rank >= 0) tell(*member, {{"what", message_lost}, {"epoch", epoch}, {"ranks", lost}, {"why", why}});
  }

  void begin_epoch() {
    std::vector<MemberEntry*> all;
    for (const auto& member : members)
      if (member->joined) all.push_back(member.get());
    const int needed = epoch == 0 ? settings.members : settings.least;
    if (static_cast<int>(all.size()) < needed || all.empty() ||
        !std::all_of(all.begin(), all.end(), [](const MemberEntry* member) { return member->ready; }))
      return;
    // Those who were there before keep their order; then the ranks that are wanted; then the order of joining.
    std::stable_sort(all.begin(), all.end(), [](const MemberEntry* a, const MemberEntry* b) {
      const auto key = [](const MemberEntry* member) {
        return std::tuple(member->rank < 0, member->rank, member->wanted < 0, member->wanted, member->order);
      };
      return key(a) < key(b);
    });
    ++epoch;
    is_broken = false;
    calls.clear();
    Json addresses = Json::array();
    Json hosts = Json::array();
    Json before = Json::array();
    for (const MemberEntry* member : all) {
      addresses.push_back(member->data);
      hosts.push_back(member->host);
      before.push_back(member->rank);
    }
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      all[rank]->ready = false;
      all[rank]->rank = static_cast<int>(rank);
    }
    for (MemberEntry* member : all)
      tell(*member, {{"what", message_epoch},
                     {"job", job},
                     {"epoch", epoch},
                     {"rank", member->rank},
                     {"addresses", addresses},
                     {"hosts", hosts},
                     {"before", before}});
  }
};

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorSettings& settings) {
  auto listener = listen_on(settings.port);
  if (!listener) return fail(listener.error());
  auto state = std::make_unique<State>();
  state->settings = settings;
  state->listener = *std::move(listener);
  std::random_device random;
  state->job = (std::uint64_t{random()} << 32U) ^ random();
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return fail(ErrorCode::unavailable, "cannot make a pipe");
  state->woken = Socket(ends[0]);
  state->wake = Socket(ends[1]);
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(state)));
}

Coordinator::Coordinator(std::unique_ptr<State> state)
    : state_(std::move(state)), addresses_(own_addresses(port_of(state_->listener))) {
  thread_ = std::thread([this] { state_->run(); });
}

Coordinator::~Coordinator() {
  state_->wake.close();
  thread_.join();
}

}  // namespace sailor::runtime

#include "runtime/sockets/coordinator.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/log.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "runtime/sockets/control_messages.hpp"

namespace sailor::runtime {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

/// A connection, and the process behind it once it has joined.
struct MemberEntry {
  explicit MemberEntry(Socket socket) : frames(std::move(socket)) {}
  Frames frames;
  Clock::time_point heard = Clock::now();
  bool joined = false;
  bool done = false;  // it has left in order
  Dismissal dismissed = Dismissal::none;
  /// Whether it belongs to the job.
  [[nodiscard]] bool takes_part() const { return joined && !done && dismissed == Dismissal::none; }
  MemberInfo info;
};

/// A call of some ranks that is not complete.
struct Call {
  std::map<int, Json> values;  // by rank of the caller
};

/// Default policy: all present members take part.
class EveryMember final : public MembershipPolicy {
 public:
  EveryMember(int first, int later) : needed_(first), later_(later) {}

  std::optional<EpochChoice> choose(const std::vector<MemberInfo>& members) override {
    std::vector<const MemberInfo*> all;
    for (const MemberInfo& member : members) all.push_back(&member);
    if (static_cast<int>(all.size()) < needed_ || all.empty() ||
        !std::all_of(all.begin(), all.end(), [](const MemberInfo* member) { return member->ready; }))
      return std::nullopt;
    // Members of the previous epoch keep their order; then come the ranks that are wanted, then the order of joining.
    std::stable_sort(all.begin(), all.end(), [](const MemberInfo* a, const MemberInfo* b) {
      const auto key = [](const MemberInfo* member) {
        return std::tuple(member->rank < 0, member->rank, member->facts.wanted_rank < 0, member->facts.wanted_rank,
                          member->id);
      };
      return key(a) < key(b);
    });
    EpochChoice choice;
    for (const MemberInfo* member : all) choice.ranks.push_back(member->id);
    needed_ = later_;
    return choice;
  }

 private:
  int needed_;
  int later_;
};

MemberFacts facts_in(const Json& message) {
  return {.host = message.value("host", ""),
          .wanted_rank = message.value("rank", -1),
          .gpu = message.value("gpu", ""),
          .zone = message.value("zone", ""),
          .memory = Bytes(message.value("memory", 0.0)),
          .process = message.value("process", std::int64_t{0}),
          .data = message.value("data", "")};
}

}  // namespace

struct Coordinator::State {
  explicit State(const CoordinatorSettings& given)
      : settings(given),
        every_member(given.members, given.least),
        policy(given.policy != nullptr ? *given.policy : every_member) {}

  CoordinatorSettings settings;
  EveryMember every_member;
  MembershipPolicy& policy;
  Socket listener;
  Socket wake;
  Socket woken;
  std::mutex mutex;                             // guards the members below
  std::vector<std::function<void()>> requests;  // from other threads
  bool ended = false;

  // Used only by the coordinator's thread:
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  std::uint64_t joined = 0;
  bool is_broken = false;  // the epoch under way
  bool change_wanted = false;
  int needed = -1;  // see EpochChoice
  Clock::time_point broken_at{};
  std::vector<std::unique_ptr<MemberEntry>> members;
  std::map<std::string, Call> calls;    // by group and number
  std::map<int, MemberFacts> expected;  // members of a restored epoch that have not reconnected, by rank
  Clock::time_point started = Clock::now();

  void ask(std::function<void()> request) {
    {
      const std::scoped_lock lock(mutex);
      requests.push_back(std::move(request));
    }
    const char byte = 0;
    (void)!::write(wake.descriptor(), &byte, 1);
  }

  void run() {
    const double often = settings.policy != nullptr ? 0.2 : settings.silence.value() / 4;
    const auto interval = std::chrono::milliseconds(
        std::max<std::int64_t>(10, static_cast<std::int64_t>(std::min(often, settings.silence.value() / 4) * 1e3)));
    auto next_beat = Clock::now();
    auto next_tick = Clock::now();
    bool is_full = false;  // somebody waits whom this process cannot accept; poll() would return at once
    while (true) {
      std::vector<pollfd> looks{{.fd = woken.descriptor(), .events = POLLIN, .revents = 0},
                                {.fd = is_full ? -1 : listener.descriptor(), .events = POLLIN, .revents = 0}};
      for (const auto& member : members)
        looks.push_back({.fd = member->frames.socket().descriptor(),
                         .events = static_cast<short>(member->frames.has_queued() ? POLLIN | POLLOUT : POLLIN),
                         .revents = 0});
      (void)::poll(looks.data(), looks.size(), static_cast<int>(interval.count()));
      if (looks[0].revents != 0) {
        std::array<char, 256> bytes{};
        (void)!::read(woken.descriptor(), bytes.data(), bytes.size());
      }
      std::vector<std::function<void()>> asked;
      {
        const std::scoped_lock lock(mutex);
        if (ended) return;
        asked.swap(requests);
      }
      for (const auto& request : asked) request();
      if (is_full || looks[1].revents != 0) {
        auto guest = accept_from(listener);
        for (; guest && *guest; guest = accept_from(listener))
          members.push_back(std::make_unique<MemberEntry>(**std::move(guest)));
        const bool was_full = std::exchange(is_full, !guest && has_guests(listener));
        if (is_full && !was_full) log_warning("{}; members that connect now wait", guest.error().message());
      }
      const bool beats = Clock::now() >= next_beat;
      if (beats)
        next_beat = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(settings.silence.value() * 250));
      for (std::size_t i = 0; i < members.size(); ++i) {  // hear() may replace entries, but adds none
        MemberEntry& member = *members[i];
        if (beats && member.joined) tell(member, {{"what", message_alive}});
        (void)member.frames.flush();
        while (const auto frame = member.frames.receive()) {
          member.heard = Clock::now();
          try {
            hear(member, *frame);
          } catch (const Json::exception&) {
            member.frames.give_up();
          }
        }
      }
      bury();
      if (Clock::now() >= next_tick) {
        next_tick = Clock::now() + interval;
        policy.tick(infos());
      }
      begin_epoch();
    }
  }

  static void tell(MemberEntry& member, const Json& message) { member.frames.send(message.dump()); }

  [[nodiscard]] std::vector<MemberInfo> infos() const {
    std::vector<MemberInfo> all;
    for (const auto& member : members)
      if (member->takes_part()) all.push_back(member->info);
    return all;
  }

  void hear(MemberEntry& member, const std::string& frame) {
    const Json message = Json::parse(frame, nullptr, false);
    if (!message.is_object() || member.dismissed != Dismissal::none) return;
    const std::string what = message.value("what", "");
    if (what == message_join || what == message_rejoin) {
      join(member, message);
    } else if (!member.joined) {
      return;
    } else if (what == message_ready) {
      member.info.ready = true;
      const std::string why = message.value("why", "");
      if (member.info.rank >= 0 && !is_broken && !why.empty()) {
        policy.failed(member.info, why);
        breaks({}, why);
      }
    } else if (what == message_call) {
      call(member, message);
    } else if (what == message_progress) {
      policy.progressed(member.info, {.iteration = message.value("iteration", std::int64_t{0}),
                                      .time = Seconds(message.value("time", 0.0)),
                                      .of = message.value("of", std::int64_t{0}),
                                      .redone = message.value("redone", std::int64_t{0}),
                                      .busy = Seconds(message.value("busy", 0.0)),
                                      .from = message.value("from", "")});
    } else if (what == message_done) {
      member.done = true;
      policy.done(member.info, message.value("status", 0), message.value("text", ""));
    } else if (what == message_abort) {
      policy.aborted(member.info, message.value("text", ""));
      for (const auto& other : members)
        if (other.get() != &member && other->joined)
          tell(*other, {{"what", message_abort}, {"text", message.value("text", "")}});
    }  // message_alive needs no action
  }

  void join(MemberEntry& member, const Json& message) {
    MemberFacts facts = facts_in(message);
    if (message.value("what", "") == message_rejoin) {
      if (message.value("job", std::uint64_t{0}) != job) {
        dismiss(member, Dismissal::over, "the job has ended");
        return;
      }
      const bool in_this_epoch = message.value("epoch", std::uint64_t{0}) == epoch;
      const auto is_same = [&](const MemberFacts& other) { return other.data == facts.data; };
      const auto place =
          std::find_if(expected.begin(), expected.end(), [&](const auto& one) { return is_same(one.second); });
      const auto entry = std::find_if(members.begin(), members.end(), [&](const std::unique_ptr<MemberEntry>& other) {
        return other.get() != &member && other->takes_part() && is_same(other->info.facts);
      });
      if (place != expected.end()) {
        if (in_this_epoch)
          member.info.rank = place->first;
        else if (!is_broken)
          breaks({}, fmt::format("{} has not heard of this epoch", facts.host));
        expected.erase(place);
      } else if (entry != members.end() && in_this_epoch) {
        // Only the member has lost the previous connection.
        member.info = std::exchange((*entry)->info, {});
        member.joined = true;
        (*entry)->joined = false;
        (*entry)->frames.give_up();
        return;
      } else {
        dismiss(member, Dismissal::given_up, "it was given up by the others");
        return;
      }
    }
    member.joined = true;
    member.info.facts = std::move(facts);
    member.info.id = joined++;
    policy.joined(member.info);
  }

  static void dismiss(MemberEntry& member, Dismissal kind, const std::string& why) {
    tell(member, {{"what", message_bye}, {"kind", static_cast<int>(kind)}, {"why", why}});
    member.dismissed = kind;
  }

  void call(MemberEntry& member, const Json& message) {
    if (is_broken || message.value("epoch", std::uint64_t{0}) != epoch || member.info.rank < 0) return;  // it was told
    const std::string name = fmt::format("{}#{}", message.value("group", ""), message.value("number", 0));
    Call& under_way = calls[name];
    under_way.values[member.info.rank] = message.value("value", Json());
    if (under_way.values.size() < message.value("size", std::size_t{0})) return;
    const std::string kind = message.value("kind", "");
    // By ascending rank: ranks of a group are in that order.
    Json answer{{"what", message_answer}, {"name", name}};
    const std::string nothing = answer.dump();
    if (kind == call_broadcast) answer["value"] = under_way.values.begin()->second;
    if (kind == call_all || kind == call_gather) {
      Json& all = answer["value"] = Json::array();
      for (auto& [rank, value] : under_way.values) all.push_back(std::move(value));
    }
    const std::string text = answer.dump();
    const int first = under_way.values.begin()->first;
    for (const auto& other : members)
      if (under_way.values.contains(other->info.rank) && other->dismissed == Dismissal::none)
        other->frames.send(kind == call_gather && other->info.rank != first ? nothing : text);
    calls.erase(name);
  }

  [[nodiscard]] bool is_needed(const MemberInfo& member) const {
    return member.rank >= 0 && (needed < 0 || member.rank < needed);
  }

  void breaks(const std::vector<int>& lost, const std::string& why) {
    if (!is_broken) broken_at = Clock::now();
    is_broken = true;
    calls.clear();
    for (const auto& member : members)
      if (member->info.rank >= 0 && member->dismissed == Dismissal::none)
        tell(*member, {{"what", message_lost}, {"epoch", epoch}, {"ranks", lost}, {"why", why}});
  }

  /// Removes members that have gone, and tells the others.
  void bury() {
    std::vector<int> lost;
    std::vector<std::string> reasons;
    const auto is_lost = [&](const MemberInfo& info, const std::string& how) {
      policy.lost(info, how);
      if (!is_needed(info)) return;
      lost.push_back(info.rank);
      reasons.push_back(fmt::format("rank {} on {} {}", info.rank, info.facts.host, how));
    };
    std::vector<std::unique_ptr<MemberEntry>> gone;
    for (auto& member : members) {
      const bool is_silent = seconds_since(member->heard) > settings.silence.value();
      const bool hangs = settings.unwinding.value() > 0 && is_broken && member->joined && member->info.rank >= 0 &&
                         !member->info.ready && seconds_since(broken_at) > settings.unwinding.value();
      if (!member->frames.is_closed() && !is_silent && !hangs) continue;
      if (member->takes_part()) {
        is_lost(member->info, member->frames.is_closed() ? "has gone away"
                              : is_silent ? fmt::format("has not been heard of for {:g} s", settings.silence.value())
                                          : fmt::format("hangs: it did not leave the epoch within {:g} s",
                                                        settings.unwinding.value()));
        if (!member->frames.is_closed())
          dismiss(*member, Dismissal::given_up, "it was given up by the others: it did not answer");
      }
      gone.push_back(std::move(member));
    }
    std::erase(members, nullptr);
    if (!expected.empty() && seconds_since(started) > settings.restored->patience.value())
      for (auto& [rank, facts] : std::exchange(expected, {}))
        is_lost({.id = joined++, .facts = facts, .rank = rank}, "did not find the new controller");
    if (lost.empty()) return;
    breaks(lost, sailor::join(reasons, "; "));
  }

  void begin_epoch() {
    if (!expected.empty()) return;
    // Checked after every message: nothing is copied while an epoch is under way.
    const bool under_way = std::any_of(members.begin(), members.end(), [](const auto& member) {
      return member->takes_part() && member->info.rank >= 0 && !member->info.ready;
    });
    if (under_way) return;
    const std::vector<MemberInfo> all = infos();
    if (all.empty()) return;
    auto choice = policy.choose(all);
    if (!choice || choice->ranks.empty()) return;
    std::vector<MemberEntry*> chosen;
    for (const std::uint64_t id : choice->ranks)
      for (const auto& member : members)
        if (member->joined && member->info.id == id && member->info.ready) chosen.push_back(member.get());
    if (chosen.size() != choice->ranks.size()) return;
    Json addresses = Json::array();
    Json hosts = Json::array();
    Json before = Json::array();
    for (const MemberEntry* member : chosen) {
      addresses.push_back(member->info.facts.data);
      hosts.push_back(member->info.facts.host);
      before.push_back(member->info.rank);
    }
    for (const auto& member : members) member->info.rank = -1;
    std::vector<MemberInfo> by_rank;
    for (std::size_t rank = 0; rank < chosen.size(); ++rank) {
      chosen[rank]->info.ready = false;
      chosen[rank]->info.rank = static_cast<int>(rank);
      by_rank.push_back(chosen[rank]->info);
    }
    ++epoch;
    is_broken = false;
    change_wanted = false;
    needed = choice->needed;
    calls.clear();
    policy.begins(job, epoch, *choice, by_rank);
    // All but the rank is the same for all, and long.
    const std::string common = Json{{"what", message_epoch},     {"job", job},     {"epoch", epoch},
                                    {"addresses", addresses},    {"hosts", hosts}, {"before", before},
                                    {"payload", choice->payload}}
                                   .dump();
    for (MemberEntry* member : chosen)
      member->frames.send(fmt::format("{{\"rank\":{},{}", member->info.rank, common.substr(1)));
  }
};

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorSettings& settings) {
  auto listener = listen_on(settings.port);
  if (!listener) return fail(listener.error());
  auto state = std::make_unique<State>(settings);
  state->listener = *std::move(listener);
  std::random_device random;
  state->job = (std::uint64_t{random()} << 32U) ^ random();
  if (const auto& restored = settings.restored) {
    state->job = restored->job;
    state->epoch = restored->epoch;
    state->needed = restored->needed;
    for (std::size_t rank = 0; rank < restored->members.size(); ++rank)
      state->expected.emplace(static_cast<int>(rank), restored->members[rank]);
  }
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
  {
    const std::scoped_lock lock(state_->mutex);
    state_->ended = true;
  }
  wake();
  thread_.join();
}

void Coordinator::wake() {
  state_->ask([] {});
}

void Coordinator::request_change(const std::string& why) {
  state_->ask([state = state_.get(), why] {
    if (state->is_broken || state->epoch == 0) return;
    state->change_wanted = true;
    for (const auto& member : state->members)
      if (member->info.rank >= 0) State::tell(*member, {{"what", message_change}, {"why", why}});
  });
}

void Coordinator::break_epoch(const std::string& why) {
  state_->ask([state = state_.get(), why] {
    if (state->epoch > 0 && !state->is_broken) state->breaks({}, why);
  });
}

void Coordinator::dismiss(std::uint64_t id, Dismissal kind, const std::string& why) {
  state_->ask([state = state_.get(), id, kind, why] {
    for (const auto& member : state->members)
      if (member->joined && member->info.id == id && member->dismissed == Dismissal::none) {
        if (state->is_needed(member->info) && !state->is_broken)
          state->breaks({member->info.rank}, fmt::format("rank {} on {} was dismissed: {}", member->info.rank,
                                                         member->info.facts.host, why));
        State::dismiss(*member, kind, why);
      }
  });
}

void Coordinator::set_unwinding(Seconds unwinding) {
  state_->ask([state = state_.get(), unwinding] { state->settings.unwinding = unwinding; });
}

}  // namespace sailor::runtime

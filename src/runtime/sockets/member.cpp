#include "runtime/sockets/member.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/process.hpp"
#include "core/text.hpp"
#include "runtime/sockets/control_messages.hpp"
#include "runtime/sockets/socket_transport.hpp"

namespace sailor::runtime {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Member::State {
  MemberSettings settings;
  std::string host = host_name();
  std::unique_ptr<Listener> listener;

  // Guarded by the mutex; a separate thread reads and writes the connection.
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<Frames> frames;
  Clock::time_point heard = Clock::now();
  std::map<std::string, Json> waiting;                 // calls without an answer, by name
  std::map<std::string, std::deque<Json>> last_calls;  // the last two of each group, for a new coordinator
  std::map<std::string, Json> answers;                 // by name of the call
  std::optional<Json> next_epoch;
  std::uint64_t heard_job = 0;    // of the epoch announced last
  std::uint64_t heard_epoch = 0;  // the same
  std::string broken;             // why the epoch is broken; empty: it is not
  bool is_alone = false;          // the coordinator is lost for good
  Dismissal dismissal = Dismissal::none;
  bool asks_for_epoch = false;
  std::string asks_since;  // reason of the request
  bool change_wanted = false;
  std::optional<Json> farewell;
  bool ended = false;
  Transport* transport = nullptr;        // of the epoch, to be aborted
  Transport* other_transport = nullptr;  // registered by abort_with_epoch(), to be aborted, too
  std::optional<Json> progress;          // to be sent
  Clock::time_point next_progress{};
  int reports = 0;  // of progress in this epoch

  Socket wake;
  Socket woken;
  std::thread thread;

  // Written with the mutex held, by the thread that begins epochs.
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;
  int rank = -1;
  std::vector<int> before;
  std::vector<std::string> hosts;
  std::string payload;
  std::unique_ptr<Transport> owned_transport;
  std::unique_ptr<Control> control;

  void tell(const Json& message) {
    {
      const std::scoped_lock lock(mutex);
      frames->send(message.dump());
    }
    wake_up();
  }
  void wake_up() const {
    const char byte = 0;
    (void)!::write(wake.descriptor(), &byte, 1);
  }

  [[nodiscard]] Json facts(const char* what) const {
    return {{"what", what},
            {"host", host},
            {"data", listener->addresses()},
            {"rank", settings.rank},
            {"gpu", settings.gpu},
            {"zone", settings.zone},
            {"memory", settings.memory.value()},
            {"process", static_cast<std::int64_t>(::getpid())}};
  }

  void run() {
    auto next_beat = Clock::now();
    const auto beat =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings.heartbeat.value()));
    while (true) {
      std::array<pollfd, 2> looks{};
      {
        const std::scoped_lock lock(mutex);
        if (ended) return;
        if (Clock::now() >= next_beat) {
          frames->send(Json{{"what", message_alive}}.dump());
          next_beat = Clock::now() + beat;
        }
        if (progress && Clock::now() >= next_progress) {
          frames->send(std::exchange(progress, std::nullopt)->dump());
          next_progress = Clock::now() + std::chrono::milliseconds(500);
        }
        (void)frames->flush();
        looks[0] = {.fd = woken.descriptor(), .events = POLLIN, .revents = 0};
        looks[1] = {.fd = frames->socket().descriptor(),
                    .events = static_cast<short>(frames->has_queued() ? POLLIN | POLLOUT : POLLIN),
                    .revents = 0};
      }
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next_beat - Clock::now());
      if (settings.silence.value() > 0.0) left = std::min(left, std::chrono::milliseconds(500));
      (void)::poll(looks.data(), looks.size(), static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 60'000)));
      if (looks[0].revents != 0) {
        std::array<char, 256> bytes{};
        (void)!::read(woken.descriptor(), bytes.data(), bytes.size());
      }
      std::unique_lock lock(mutex);
      while (const auto frame = frames->receive()) {
        heard = Clock::now();
        try {
          hear(*frame);
        } catch (const Json::exception&) {
          frames->give_up();
        }
      }
      const std::chrono::duration<double> silent = Clock::now() - heard;
      const bool is_silent = settings.silence.value() > 0.0 && silent.count() > settings.silence.value();
      if ((frames->is_closed() || is_silent) && !is_alone && dismissal == Dismissal::none && !ended &&
          !come_back(lock) && !ended) {
        is_alone = true;
        breaks(is_silent ? "the coordinator of the job is silent" : "the coordinator of the job has gone away");
      }
      if (is_alone) return;
      if (dismissal == Dismissal::none) continue;
      if (settings.end_after_dismissal.value() > 0.0 &&
          !changed.wait_for(lock, std::chrono::duration<double>(settings.end_after_dismissal.value()),
                            [&] { return ended; })) {
        std::fputs(fmt::format("{}: error: this process on {} does not get on; ended, since {}\n", settings.program,
                               host, broken)
                       .c_str(),
                   stderr);
        std::_Exit(1);
      }
      return;
    }
  }

  /// Looks for the coordinator that has replaced the lost one, and tells it what the lost one knew of this member; if
  /// the job has ended, this member is dismissed instead. Returns false if neither is the case.
  bool come_back(std::unique_lock<std::mutex>& lock) {
    if (!settings.find_coordinator) return false;
    const auto deadline = Clock::now() + std::chrono::duration<double>(settings.search.value());
    while (Clock::now() < deadline && !ended) {
      lock.unlock();
      const bool is_over = settings.is_job_over && settings.is_job_over();
      const Addresses addresses = is_over ? Addresses() : settings.find_coordinator();
      auto socket = addresses.empty() ? Result<Socket>(fail(ErrorCode::unavailable, "nobody"))
                                      : connect_to(addresses, Seconds(0.2));
      if (!socket && !is_over) ::poll(nullptr, 0, 50);
      lock.lock();
      if (is_over) {
        dismissal = Dismissal::over;
        breaks("the job has ended");
        return true;
      }
      if (!socket) continue;
      frames = std::make_unique<Frames>(*std::move(socket));
      heard = Clock::now();
      Json greeting = facts(heard_epoch > 0 ? message_rejoin : message_join);
      greeting["job"] = heard_job;
      greeting["epoch"] = heard_epoch;
      frames->send(greeting.dump());
      for (const auto& [group, calls] : last_calls)
        for (const Json& call : calls) frames->send(call.dump());
      if (asks_for_epoch) frames->send(Json{{"what", message_ready}, {"why", asks_since}}.dump());
      if (farewell) frames->send(farewell->dump());
      return true;
    }
    return false;
  }

  /// Requires the mutex.
  void hear(const std::string& frame) {
    const Json message = Json::parse(frame, nullptr, false);
    if (!message.is_object()) return;
    const std::string what = message.value("what", "");
    if (what == message_answer) {
      const std::string name = message.value("name", "");
      if (waiting.erase(name) > 0) answers[name] = message.value("value", Json());
      changed.notify_all();
    } else if (what == message_epoch) {
      next_epoch = message;
      heard_job = message.value("job", std::uint64_t{0});
      heard_epoch = message.value("epoch", std::uint64_t{0});
      broken.clear();
      change_wanted = false;
      asks_for_epoch = false;
      changed.notify_all();
    } else if (what == message_lost) {
      if (message.value("epoch", std::uint64_t{0}) == heard_epoch) breaks(message.value("why", "a rank has gone away"));
    } else if (what == message_change) {
      change_wanted = true;
      changed.notify_all();
    } else if (what == message_bye) {
      const int kind = message.value("kind", static_cast<int>(Dismissal::refused));
      dismissal = kind >= 1 && kind <= 3 ? static_cast<Dismissal>(kind) : Dismissal::refused;
      breaks(message.value("why", ""));
    } else if (what == message_abort) {
      // The member that ends the job has given the reason.
      std::_Exit(1);
    }
  }
  void breaks(const std::string& why) {
    if (broken.empty()) broken = why;
    if (transport != nullptr) transport->abort();
    if (other_transport != nullptr) other_transport->abort();
    changed.notify_all();
  }

  [[noreturn]] void throw_broken() const { throw TransportError(TransportError::Cause::lost, broken); }

  Json call(const std::string& group, std::int64_t number, const char* kind, const std::vector<int>& ranks,
            Json value) {
    const std::string name = fmt::format("{}#{}", group, number);
    std::unique_lock lock(mutex);
    if (!broken.empty()) throw_broken();
    const Json message{{"what", message_call}, {"epoch", epoch},       {"group", group},           {"number", number},
                       {"kind", kind},         {"size", ranks.size()}, {"value", std::move(value)}};
    std::deque<Json>& last = last_calls[group];
    last.push_back(message);
    if (last.size() > 2) last.pop_front();
    waiting[name] = message;
    frames->send(message.dump());
    wake_up();
    const auto is_over = [&] { return !broken.empty() || answers.contains(name); };
    if (!changed.wait_for(lock, std::chrono::duration<double>(settings.timeout.value()), is_over))
      throw TransportError(TransportError::Cause::timeout,
                           fmt::format("no answer for {:g} s: {} of ranks {}; a rank has died, hangs, or is that slow "
                                       "(then raise --timeout)",
                                       settings.timeout.value(), kind, sailor::join(ranks, ",")));
    waiting.erase(name);
    if (!answers.contains(name)) throw_broken();
    Json answer = std::move(answers[name]);
    answers.erase(name);
    return answer;
  }
};

namespace {

/// Numbers are sent as their bits.
Json to_json(double value) { return std::bit_cast<std::uint64_t>(value); }
double number_of(const Json& value) { return std::bit_cast<double>(value.get<std::uint64_t>()); }

/// Texts may have any bytes: they are sent as hexadecimal digits, two per byte.
Json to_json(const std::string& text) {
  std::string digits;
  digits.reserve(2 * text.size());
  for (const char letter : text) append(digits, "{:02x}", static_cast<unsigned char>(letter));
  return digits;
}
std::string text_of(const Json& value) {
  const auto& digits = value.get_ref<const std::string&>();
  const auto digit = [](char letter) { return letter <= '9' ? letter - '0' : letter - 'a' + 10; };
  std::string text;
  text.reserve(digits.size() / 2);
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    text += static_cast<char>(16 * digit(digits[i]) + digit(digits[i + 1]));
  return text;
}

}  // namespace

/// Control plane of some ranks of an epoch. Internal to this file.
class SocketControl final : public Control {
 public:
  /// `ranks` are ranks of the epoch, in the order of this control plane.
  SocketControl(Member::State& state, std::vector<int> ranks, std::string name)
      : state_(state), ranks_(std::move(ranks)), name_(std::move(name)) {
    rank_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), state.rank) - ranks_.begin());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string host() const override { return state_.host; }
  void barrier() override { (void)call(call_gather, {}); }
  void idle_barrier() override { barrier(); }
  double sum(double value) override {
    double sum = 0.0;
    for (const double one : all(value)) sum += one;
    return sum;
  }
  double max(double value) override {
    const std::vector<double> values = all(value);
    return *std::max_element(values.begin(), values.end());
  }
  double min(double value) override {
    const std::vector<double> values = all(value);
    return *std::min_element(values.begin(), values.end());
  }
  std::vector<std::string> gather(const std::string& text) override {
    std::vector<std::string> texts;
    const Json answer = call(call_gather, to_json(text));
    if (rank_ == 0)
      for (const Json& one : answer) texts.push_back(text_of(one));
    return texts;
  }
  std::string broadcast(std::string text) override {
    return text_of(call(call_broadcast, rank_ == 0 ? to_json(text) : Json("")));
  }
  std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) override {
    std::vector<int> chosen;
    for (const int rank : ranks) chosen.push_back(ranks_.at(static_cast<std::size_t>(rank)));
    const std::string name = fmt::format("{}/{}", name_, join(ranks, ","));
    return std::make_unique<SocketControl>(state_, chosen, fmt::format("{}.{}", name, made_[ranks]++));
  }
  /// Nobody is missing: the coordinator reports lost ranks.
  std::vector<int> roll_call(Seconds) override { return {}; }
  [[noreturn]] void abort(const std::string& message) override {
    const std::string line =
        fmt::format("{}: error: rank {} on {}: {}\n", state_.settings.program, rank_, state_.host, message);
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    state_.tell({{"what", message_abort}, {"text", message}});
    {
      const std::scoped_lock lock(state_.mutex);
      (void)state_.frames->flush();
    }
    std::_Exit(1);
  }

 private:
  Json call(const char* kind, Json value) { return state_.call(name_, number_++, kind, ranks_, std::move(value)); }
  std::vector<double> all(double value) {
    std::vector<double> values;
    for (const Json& one : call(call_all, to_json(value))) values.push_back(number_of(one));
    return values;
  }

  Member::State& state_;
  std::vector<int> ranks_;
  std::string name_;
  int rank_ = 0;
  std::int64_t number_ = 0;  // of calls so far
  std::map<std::vector<int>, int> made_;
};

Result<std::unique_ptr<Member>> Member::join(const Addresses& coordinator, const MemberSettings& settings) {
  auto state = std::make_unique<State>();
  state->settings = settings;
  if (!settings.host.empty()) state->host = settings.host;
  auto listener = Listener::start();
  if (!listener) return fail(listener.error());
  state->listener = *std::move(listener);
  auto socket = connect_to(coordinator, std::min(settings.timeout, settings.connecting));
  if (!socket) return fail(socket.error(), "the coordinator of the job");
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return fail(ErrorCode::unavailable, "cannot make a pipe");
  state->woken = Socket(ends[0]);
  state->wake = Socket(ends[1]);
  state->frames = std::make_unique<Frames>(*std::move(socket));
  state->frames->send(state->facts(message_join).dump());
  return std::unique_ptr<Member>(new Member(std::move(state)));
}

Member::Member(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->thread = std::thread([this] { state_->run(); });
}

Member::~Member() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->ended = true;
    state_->transport = nullptr;
    state_->other_transport = nullptr;
  }
  state_->changed.notify_all();
  state_->wake_up();
  state_->thread.join();
}

void Member::abort_with_epoch(Transport* transport) {
  const std::scoped_lock lock(state_->mutex);
  state_->other_transport = transport;
  if (transport != nullptr && !state_->broken.empty()) transport->abort();
}

Result<void> Member::begin_epoch(const std::string& why) {
  State& state = *state_;
  {
    const std::scoped_lock lock(state.mutex);
    state.transport = nullptr;
    state.other_transport = nullptr;
  }
  state.control.reset();
  state.owned_transport.reset();
  {
    const std::scoped_lock lock(state.mutex);
    state.asks_for_epoch = true;
    state.asks_since = why;
    state.last_calls.clear();
    state.waiting.clear();
    state.progress.reset();
    state.reports = 0;
    state.frames->send(Json{{"what", message_ready}, {"why", why}}.dump());
  }
  state.wake_up();
  Json epoch;
  {
    std::unique_lock lock(state.mutex);
    const auto is_over = [&] {
      return state.next_epoch.has_value() || state.is_alone || state.dismissal != Dismissal::none;
    };
    if (state.settings.silence.value() > 0.0)
      state.changed.wait(lock, is_over);
    else if (!state.changed.wait_for(lock, std::chrono::duration<double>(state.settings.timeout.value()), is_over))
      return fail(ErrorCode::unavailable,
                  fmt::format("no epoch began for {:g} s: ranks are missing", state.settings.timeout.value()),
                  "raise --timeout if they start that slowly");
    if (!state.next_epoch) return fail(ErrorCode::unavailable, state.broken);
    epoch = *std::exchange(state.next_epoch, std::nullopt);
    state.answers.clear();
    state.job = epoch.value("job", std::uint64_t{0});
    state.epoch = epoch.value("epoch", std::uint64_t{0});
    state.rank = epoch.value("rank", -1);
    state.hosts = epoch.value("hosts", std::vector<std::string>{});
    state.before = epoch.value("before", std::vector<int>{});
    state.payload = epoch.value("payload", "");
  }
  SocketTransportSettings settings{.job = epoch.value("job", std::uint64_t{0}),
                                   .epoch = epoch.value("epoch", std::uint64_t{0}),
                                   .rank = epoch.value("rank", -1),
                                   .addresses = epoch.value("addresses", std::vector<std::string>{}),
                                   .hosts = epoch.value("hosts", std::vector<std::string>{}),
                                   .patience = {.timeout = state.settings.timeout},
                                   .why_aborted = [&state] {
                                     const std::scoped_lock lock(state.mutex);
                                     return state.broken;
                                   }};
  std::vector<int> ranks(settings.addresses.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  state.owned_transport = make_socket_transport(settings, *state.listener);
  state.control = std::make_unique<SocketControl>(state, ranks, fmt::format("epoch {}", state.epoch));
  const std::scoped_lock lock(state.mutex);
  state.transport = state.owned_transport.get();
  if (!state.broken.empty()) state.transport->abort();  // it broke in the meantime
  return {};
}

World Member::world() { return {*state_->control, *state_->owned_transport}; }
int Member::epoch() const { return static_cast<int>(state_->epoch); }
std::uint64_t Member::job() const { return state_->job; }
const std::vector<int>& Member::ranks_before() const { return state_->before; }
const std::vector<std::string>& Member::hosts() const { return state_->hosts; }
const std::string& Member::payload() const { return state_->payload; }

bool Member::is_change_wanted() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->change_wanted;
}

Dismissal Member::dismissal() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->dismissal;
}

std::string Member::why_broken() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->broken;
}

void Member::wait_for_news(Seconds patience) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::duration<double>(patience.value()), [&] {
    return !state_->broken.empty() || state_->change_wanted || state_->is_alone || state_->dismissal != Dismissal::none;
  });
}

void Member::report_progress(const MemberProgress& progress) {
  bool is_due = false;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->progress =
        Json{{"what", message_progress}, {"iteration", progress.iteration}, {"time", progress.time.value()},
             {"of", progress.of},        {"redone", progress.redone},       {"busy", progress.busy.value()},
             {"from", progress.from}};
    if (state_->reports++ < 2) state_->next_progress = Clock::now();
    is_due = Clock::now() >= state_->next_progress;
    if (is_due && state_->reports <= 2) {
      state_->frames->send(std::exchange(state_->progress, std::nullopt)->dump());
    }
  }
  if (is_due) state_->wake_up();
}

void Member::leave(int status, const std::string& text) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(state_->settings.search.value());
  std::unique_lock lock(state_->mutex);
  state_->farewell = Json{{"what", message_done}, {"status", status}, {"text", text}};
  state_->frames->send(state_->farewell->dump());
  while (!state_->is_alone && state_->dismissal == Dismissal::none && Clock::now() < deadline &&
         (state_->frames->is_closed() || state_->frames->has_queued())) {
    lock.unlock();
    state_->wake_up();
    ::poll(nullptr, 0, 20);
    lock.lock();
    (void)state_->frames->flush();
  }
}

}  // namespace sailor::runtime

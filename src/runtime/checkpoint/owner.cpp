#include "runtime/checkpoint/owner.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "core/descriptor.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "runtime/checkpoint/folder.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view format_name = "sailor checkpoint owner";
constexpr int schema_version = 1;
constexpr std::size_t largest_owner_file = 1 << 16;
constexpr std::size_t most_predecessors = 32;
// Upper limit for what another Sailor's owner file may ask for: nobody waits longer.
constexpr std::chrono::milliseconds longest_silence = 10min;

std::string line_of(const fs::path& file) {
  auto text = read_kernel_file(file, 1 << 16);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

/// Start time of a process, in clock ticks after the machine booted; 0: there is no such process, or only a zombie.
std::int64_t start_of(std::int64_t process) {
  const std::string line = line_of(fmt::format("/proc/{}/stat", process));
  const std::size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  std::string state;
  constexpr int start_field = 22;  // of proc(5); the first one here is the third, the state
  for (int i = 3; i <= start_field; ++i) {
    fields >> field;
    if (i == 3) state = field;
  }
  std::int64_t start = 0;
  return state != "Z" && state != "X" && std::istringstream(field) >> start ? start : 0;
}

/// Whether the process belongs to this machine and no longer exists. False if this is unknown.
bool is_dead(const OwnerFacts& owner, const OwnerFacts& me) {
  if (owner.boot.empty() || owner.process_namespace.empty() || owner.process <= 0) return false;
  if (owner.boot != me.boot || owner.process_namespace != me.process_namespace) return false;
  // If /proc shows this process it shows all processes, or all of this user (hidepid).
  if (start_of(me.process) == 0) return false;
  if (::kill(static_cast<pid_t>(owner.process), 0) != 0) return errno == ESRCH;
  return start_of(owner.process) != owner.process_start;
}

/// Whether the process belongs to this machine, as far as is known, and is alive.
bool is_alive_here(const OwnerFacts& owner, const OwnerFacts& me) {
  return !owner.boot.empty() && owner.boot == me.boot && owner.process_namespace == me.process_namespace &&
         start_of(owner.process) == owner.process_start && owner.process_start != 0;
}

bool is_earlier_start(const OwnerFacts& owner, const OwnerFacts& me) {
  return !me.job.empty() && owner.job == me.job && owner.restart < me.restart;
}

/// The current contents of an owner file.
struct Seen {
  std::string text;
  std::int64_t heartbeat = 0;
  Descriptor file;  // open for writing if allowed
};

/// std::nullopt if there is no file. It is opened anew each time, since NFS then asks its server.
Result<std::optional<Seen>> see(const fs::path& path) {
  const auto refuse = [&](int number) {
    return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", path.string(), system_message(number)));
  };
  constexpr int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Seen seen;
  seen.file = Descriptor(::open(path.c_str(), O_RDWR | flags));
  if (!seen.file.open() && errno == EACCES) seen.file = Descriptor(::open(path.c_str(), O_RDONLY | flags));
  if (!seen.file.open() && errno == ENOENT) return std::nullopt;
  if (!seen.file.open()) return refuse(errno);
  struct stat status {};
  if (::fstat(seen.file.get(), &status) != 0) return refuse(errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::io, fmt::format("'{}' is not a regular file", path.string()), "remove it");
  seen.heartbeat = nanoseconds_of(status.st_mtim);
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t count = ::read(seen.file.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refuse(errno);
    if (count == 0) return seen;
    seen.text.append(part.data(), static_cast<std::size_t>(count));
    if (seen.text.size() > largest_owner_file) return refuse(EFBIG);
  }
}

/// Facts of another owner; if its file is unreadable, only its heartbeat is known.
OwnerFacts facts_of(const std::string& text) {
  auto facts = parse_owner(text);
  return facts ? *std::move(facts) : OwnerFacts{.program = "a training"};
}

}  // namespace

std::string OwnerFacts::describe() const {
  std::string text = program;
  if (!user.empty()) text += " of " + user;
  if (!host.empty()) text += " on " + host;
  std::string more;
  if (process > 0) more += fmt::format("process {}", process);
  if (!job.empty()) more += fmt::format("{}job {}", more.empty() ? "" : ", ", job);
  if (restart > 0 && !job.starts_with("elastic "))
    more += fmt::format(", requeued {} time{}", restart, restart == 1 ? "" : "s");
  return more.empty() ? text : fmt::format("{} ({})", text, more);
}

OwnerFacts facts_of_this_process(std::string host) {
  OwnerFacts facts;
  facts.host = std::move(host);
  facts.process = ::getpid();
  facts.boot = line_of("/proc/sys/kernel/random/boot_id");
  std::error_code code;
  facts.process_namespace = fs::read_symlink("/proc/self/ns/pid", code).string();
  facts.process_start = start_of(facts.process);
  return facts;
}

std::string owner_text(const OwnerFacts& facts) {
  const Json json{{"format", format_name},
                  {"schema_version", schema_version},
                  {"token", facts.token},
                  {"program", valid_utf8(facts.program)},
                  {"host", valid_utf8(facts.host)},
                  {"user", valid_utf8(facts.user)},
                  {"process", facts.process},
                  {"process_start_ticks", facts.process_start},
                  {"process_namespace", facts.process_namespace},
                  {"boot", facts.boot},
                  {"job", valid_utf8(facts.job)},
                  {"restart", facts.restart},
                  {"heartbeat_every_ms", facts.beat_every.count()},
                  {"free_after_ms", facts.free_after.count()},
                  {"predecessors", facts.predecessors}};
  return json.dump(1) + "\n";
}

std::optional<OwnerFacts> parse_owner(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != format_name) return std::nullopt;
  OwnerFacts facts;
  const auto read = [&](const char* key, auto& value) {
    const auto found = json.find(key);
    if (found == json.end()) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      if (found->is_string()) value = found->template get<std::string>();
    } else {
      if (found->is_number_integer()) value = found->template get<std::int64_t>();
    }
  };
  read("token", facts.token);
  read("program", facts.program);
  read("host", facts.host);
  read("user", facts.user);
  read("process", facts.process);
  read("process_start_ticks", facts.process_start);
  read("process_namespace", facts.process_namespace);
  read("boot", facts.boot);
  read("job", facts.job);
  read("restart", facts.restart);
  std::int64_t beat = facts.beat_every.count();
  std::int64_t silence = facts.free_after.count();
  read("heartbeat_every_ms", beat);
  read("free_after_ms", silence);
  facts.free_after = std::chrono::milliseconds(std::clamp<std::int64_t>(silence, 1, longest_silence.count()));
  facts.beat_every = std::chrono::milliseconds(std::clamp<std::int64_t>(beat, 1, facts.free_after.count()));
  if (const auto found = json.find("predecessors"); found != json.end() && found->is_array())
    for (const Json& token : *found)
      if (token.is_string() && facts.predecessors.size() < most_predecessors)
        facts.predecessors.push_back(token.get<std::string>());
  if (facts.token.empty()) return std::nullopt;
  return facts;
}

// ---- The owner

FolderOwner::FolderOwner(fs::path folder, OwnerFacts facts)
    : folder_(std::move(folder)),
      path_(folder_ / owner_name),
      facts_(std::move(facts)),
      text_(owner_text(facts_)),
      heart_([this] { beat_until_stopped(); }) {}

FolderOwner::~FolderOwner() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  heart_.join();
  if (lost_) return;
  const auto seen = see(path_);
  if (seen && *seen && facts_of((*seen)->text).token == facts_.token) ::unlink(path_.c_str());
}

bool FolderOwner::has_inherited(std::string_view token) const {
  return token == facts_.token ||
         std::find(facts_.predecessors.begin(), facts_.predecessors.end(), token) != facts_.predecessors.end();
}

void FolderOwner::beat_until_stopped() {
  // Signals are handled by the training thread.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, facts_.beat_every, [&] { return stopped_; }) && !lost_) {
    lock.unlock();
    try {
      static_cast<void>(look(true));   // a server that fails now may answer next time
    } catch (const std::exception&) {  // for example out of memory
    }
    lock.lock();
  }
}

Result<void> FolderOwner::confirm() {
  if (!lost_) SAILOR_CHECK(look(false));
  if (!lost_) return {};
  const std::scoped_lock lock(mutex_);
  return fail(ErrorCode::unavailable,
              fmt::format("another training has taken over the folder '{}': {}", folder_.string(), taken_by_),
              "give each training a folder of its own; if this job was started again, the newer start goes on");
}

Result<void> FolderOwner::look(bool touch) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto seen = see(path_);
    if (!seen) return fail(seen.error());
    if (!*seen) {  // somebody has removed it: the first to create it again has the folder
      auto made = create_file_atomically(path_, text_);
      if (!made) return fail(made.error());
      if (*made) return {};
      continue;
    }
    const OwnerFacts owner = facts_of((*seen)->text);
    if (owner.token == facts_.token) {
      if (touch) ::futimens((*seen)->file.get(), nullptr);
      return {};
    }
    const std::scoped_lock lock(mutex_);
    taken_by_ = owner.describe();
    lost_ = true;
    return {};
  }
  return fail(ErrorCode::io, fmt::format("cannot see who owns '{}'", folder_.string()));
}

// ---- The claim

FolderClaim::FolderClaim(fs::path folder, OwnerFacts facts)
    : folder_(std::move(folder)), path_(folder_ / owner_name), facts_(std::move(facts)) {}

bool FolderClaim::decide(Result<std::unique_ptr<FolderOwner>> result) {
  result_ = std::move(result);
  return true;
}

bool FolderClaim::look() {
  if (!prepared_) {
    facts_.token = random_digits(32);
    if (auto made = make_folder(folder_); !made) return decide(fail(made.error()));
    prepared_ = true;
  }
  if (took_over_) return settle();
  const auto seen = see(path_);
  if (!seen) return decide(fail(seen.error()));
  if (!*seen) return make();
  const OwnerFacts owner = facts_of((*seen)->text);
  if (is_earlier_start(owner, facts_) || is_dead(owner, facts_)) return take_over((*seen)->text);
  return watch((*seen)->text, (*seen)->heartbeat, owner);
}

bool FolderClaim::make() {
  const auto made = create_file_atomically(path_, owner_text(facts_));
  if (!made) return decide(fail(made.error()));
  if (!*made) return false;  // another one was faster: look again
  return decide(std::unique_ptr<FolderOwner>(new FolderOwner(folder_, facts_)));
}

bool FolderClaim::watch(const std::string& text, std::int64_t heartbeat, const OwnerFacts& owner) {
  const auto now = Clock::now();
  if (watched_ != text) {
    const auto time = server_time(folder_);
    if (!time) return decide(fail(time.error()));
    watched_ = text;
    heartbeat_ = heartbeat;
    silent_before_ = std::chrono::milliseconds(std::max<std::int64_t>(0, *time - heartbeat) / 1'000'000);
    since_ = now;
  }
  const auto watched = std::chrono::duration_cast<std::chrono::milliseconds>(now - since_);
  if (heartbeat != heartbeat_) return refuse(owner, 0ms);
  // A process of this machine that is still alive after longer than a process takes to die.
  if (silent_before_ < owner.free_after && watched > std::min(1000ms, owner.beat_every) && is_alive_here(owner, facts_))
    return refuse(owner, silent_before_);
  // Clocks of clients, which some file systems use, may differ: the owner must be silent during the watch, too.
  if (silent_before_ + watched >= owner.free_after && watched >= 2 * owner.beat_every) return take_over(text);
  const auto left = std::max(owner.free_after - silent_before_, 2 * owner.beat_every) - watched;
  waits_for_ = fmt::format(
      "{}, which was the last to write checkpoints to '{}' and has been silent for {:.0f} s: it is "
      "taken for dead in {:.0f} s",
      owner.describe(), folder_.string(), static_cast<double>((silent_before_ + watched).count()) / 1e3,
      static_cast<double>(left.count()) / 1e3);
  return false;
}

bool FolderClaim::refuse(const OwnerFacts& owner, std::chrono::milliseconds silent) {
  return decide(fail(
      ErrorCode::unavailable,
      fmt::format("another training writes its checkpoints to '{}': {}, heard of {:.0f} s ago", folder_.string(),
                  owner.describe(), static_cast<double>(silent.count()) / 1e3),
      fmt::format("wait for its end, or name another folder; {:.0f} s after the last sign of life of a training its "
                  "folder is free",
                  static_cast<double>(owner.free_after.count()) / 1e3)));
}

bool FolderClaim::take_over(const std::string& judged) {
  const auto seen = see(path_);
  if (!seen) return decide(fail(seen.error()));
  if (!*seen || (*seen)->text != judged) return false;  // another one was faster: look again
  if (const auto owner = parse_owner(judged)) {
    facts_.predecessors = owner->predecessors;
    facts_.predecessors.insert(facts_.predecessors.begin(), owner->token);
    if (facts_.predecessors.size() > most_predecessors) facts_.predecessors.resize(most_predecessors);
  }
  if (auto written = write_file_atomically(path_, owner_text(facts_)); !written) return decide(fail(written.error()));
  took_over_ = Clock::now();
  return false;
}

/// If several trainings judged the same owner at the same moment, the last one to write has the folder.
bool FolderClaim::settle() {
  if (Clock::now() - *took_over_ < 100ms) return false;
  const auto seen = see(path_);
  if (!seen) return decide(fail(seen.error()));
  const OwnerFacts owner = *seen ? facts_of((*seen)->text) : OwnerFacts{};
  if (!*seen || owner.token != facts_.token) {
    took_over_.reset();
    return false;
  }
  return decide(std::unique_ptr<FolderOwner>(new FolderOwner(folder_, facts_)));
}

}  // namespace sailor::runtime

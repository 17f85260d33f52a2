#include "fakes/spank_host.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

extern char** environ;

struct spank_handle {
  int valid = 0;
};

namespace sailor::fakes {

namespace {

spank_handle the_handle{0x5a11};
SpankHost* host = nullptr;  // whose hooks are running

void write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count <= 0) ::_exit(99);
    done += static_cast<std::size_t>(count);
  }
}

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(file, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  return text;
}

void add_variable(Variables& variables, const std::string& text) {
  const std::size_t equals = text.find('=');
  variables[text.substr(0, equals)] = text.substr(equals + 1);
}

}  // namespace

/// Goes to the parent as it happens: a hook may end the process.
struct SpankHost::Record {
  int pipe = -1;
  std::string hook{};  // that is running
  std::vector<spank_option> options{};
  Variables job_control{};

  void send(char kind, const std::string& text) const { write_all(pipe, kind + text + '\0'); }
  /// False, and noted, unless `allowed`.
  [[nodiscard]] bool require(bool allowed, const std::string& call) const {
    if (!allowed) send('m', call + " in " + hook);
    return allowed;
  }
};

std::string Outcome::said() const {
  std::string text;
  for (const std::string& line : log) text += line + "\n";
  return text;
}

void* plugin_symbol(const std::string& name) {
  static void* const module = ::dlopen(std::getenv("SAILOR_SPANK_MODULE"), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    std::abort();
  }
  return ::dlsym(module, name.c_str());
}

int SpankHost::hook(const std::string& name) {
  auto* function = reinterpret_cast<spank_f*>(plugin_symbol(name));
  if (function == nullptr) return 0;
  std::vector<char*> words;
  for (std::string& word : arguments) words.push_back(word.data());
  record->hook = name;
  const int result = function(&the_handle, static_cast<int>(words.size()), words.data());
  record->hook.clear();
  return result;
}

int SpankHost::option(const std::string& text) {
  for (const spank_option& known : record->options)
    if (std::string_view(known.name) == "sailor-plan") {
      record->hook = "--sailor-plan";
      return known.cb(known.val, text.c_str(), context == S_CTX_REMOTE ? 1 : 0);
    }
  return -2;  // no such option
}

Outcome SpankHost::run(const std::function<int(SpankHost&)>& body) {
  (void)plugin_symbol("plugin_name");  // while the variables are there
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::alarm(60);  // a hook that hangs
    for (char** entry = environ; *entry != nullptr;) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      if (name.starts_with("SAILOR_") || name.starts_with("SLURM") || name.starts_with("_SLURM"))
        ::unsetenv(name.c_str());
      else
        ++entry;
    }
    for (const auto& [name, value] : own) ::setenv(name.c_str(), value.c_str(), 1);
    Record notes;
    notes.pipe = ends[1];
    record = &notes;
    host = this;
    const int result = body(*this);
    for (char** entry = environ; *entry != nullptr; ++entry) notes.send('e', *entry);
    for (const auto& [name, value] : task) notes.send('t', name + "=" + value);
    for (const auto& [name, value] : notes.job_control) notes.send('j', name + "=" + value);
    for (const spank_option& known : notes.options)
      notes.send('o', std::string(known.name) + "=" + known.arginfo + " " + known.usage);
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
      for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) notes.send('c', std::to_string(core));
    notes.send('r', std::to_string(result));
    ::_exit(0);
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);

  Outcome outcome;
  outcome.ended = true;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\0', begin);
    const std::string value = text.substr(begin + 1, end - begin - 1);
    switch (text[begin]) {
      case 'l':
        outcome.log.push_back(value);
        break;
      case 'm':
        outcome.misuse.push_back(value);
        break;
      case 'e':
        add_variable(outcome.own, value);
        break;
      case 't':
        add_variable(outcome.task, value);
        break;
      case 'j':
        add_variable(outcome.job_control, value);
        break;
      case 'o':
        outcome.options.push_back(value);
        break;
      case 'c':
        outcome.cores.push_back(std::stoi(value));
        break;
      default:
        outcome.ended = false;
        outcome.status = std::stoi(value);
    }
    begin = end + 1;
  }
  return outcome;
}

}  // namespace sailor::fakes

// ---- spank.h, as Slurm implements it

namespace {

using sailor::fakes::host;

constexpr auto success = static_cast<spank_err_t>(ESPANK_SUCCESS);  // a macro, where the others are enumerators

bool fails(const char* function) { return host->failing.contains(function); }
bool in_slurmstepd() { return host->context == S_CTX_REMOTE; }
bool in_command() { return host->context == S_CTX_LOCAL || host->context == S_CTX_ALLOCATOR; }
bool in_task_hook() { return host->record->hook.starts_with("slurm_spank_task_init"); }

void log(const char* level, const char* format, std::va_list values) {
  std::array<char, 8192> text{};
  std::vsnprintf(text.data(), text.size(), format, values);
  host->record->send('l', std::string(level) + text.data());
}

}  // namespace

extern "C" {

const char* spank_strerror(spank_err_t) { return "the fake host refuses"; }
int spank_symbol_supported(const char*) { return 1; }
int spank_remote(spank_t) { return in_slurmstepd() ? 1 : 0; }
spank_context_t spank_context(void) { return host->context; }

spank_err_t spank_option_register(spank_t handle, struct spank_option* option) {
  if (!host->record->require(handle->valid == 0x5a11 && host->record->hook == "slurm_spank_init", __func__))
    return ESPANK_BAD_ARG;
  if (fails(__func__)) return ESPANK_ERROR;
  host->record->options.push_back(*option);
  return success;
}

spank_err_t spank_option_getopt(spank_t, struct spank_option*, char**) { return ESPANK_NOT_AVAIL; }

spank_err_t spank_get_item(spank_t handle, spank_item_t item, ...) {
  if (!host->record->require(handle->valid == 0x5a11 && in_slurmstepd(), __func__)) return ESPANK_NOT_REMOTE;
  if (fails(__func__)) return ESPANK_ERROR;
  std::va_list values;
  va_start(values, item);
  spank_err_t result = success;
  if (item == S_JOB_UID)
    *va_arg(values, uid_t*) = host->user;
  else if (item == S_JOB_STEPID)
    *va_arg(values, std::uint32_t*) = host->step;
  else
    result = ESPANK_BAD_ARG;
  va_end(values);
  return result;
}

spank_err_t spank_getenv(spank_t handle, const char* name, char* value, int size) {
  if (!host->record->require(handle->valid == 0x5a11 && in_slurmstepd(), __func__)) return ESPANK_NOT_REMOTE;
  if (fails(__func__)) return ESPANK_ERROR;
  const auto found = host->task.find(name);
  if (found == host->task.end()) return ESPANK_ENV_NOEXIST;
  if (found->second.size() >= static_cast<std::size_t>(size)) {
    std::snprintf(value, static_cast<std::size_t>(size), "%s", found->second.c_str());
    return ESPANK_NOSPACE;
  }
  std::strcpy(value, found->second.c_str());
  return success;
}

spank_err_t spank_setenv(spank_t handle, const char* name, const char* value, int overwrite) {
  if (!host->record->require(handle->valid == 0x5a11 && in_slurmstepd() && in_task_hook(), __func__))
    return ESPANK_NOT_REMOTE;
  if (fails(__func__)) return ESPANK_ERROR;
  if (overwrite == 0 && host->task.contains(name)) return ESPANK_ENV_EXISTS;
  host->task[name] = value;
  return success;
}

spank_err_t spank_unsetenv(spank_t, const char* name) {
  host->task.erase(name);
  return success;
}

spank_err_t spank_job_control_setenv(spank_t handle, const char* name, const char* value, int) {
  if (!host->record->require(handle->valid == 0x5a11 && in_command(), __func__)) return ESPANK_NOT_LOCAL;
  if (fails(__func__)) return ESPANK_ERROR;
  host->record->job_control[name] = value;
  return success;
}

spank_err_t spank_job_control_getenv(spank_t, const char*, char*, int) { return ESPANK_ENV_NOEXIST; }
spank_err_t spank_job_control_unsetenv(spank_t, const char*) { return success; }

#define SAILOR_FAKE_LOG(function, level)   \
  void function(const char* format, ...) { \
    std::va_list values;                   \
    va_start(values, format);              \
    log(level, format, values);            \
    va_end(values);                        \
  }
SAILOR_FAKE_LOG(slurm_info, "info: ")
SAILOR_FAKE_LOG(slurm_error, "error: ")
SAILOR_FAKE_LOG(slurm_verbose, "verbose: ")
SAILOR_FAKE_LOG(slurm_debug, "debug: ")
SAILOR_FAKE_LOG(slurm_debug2, "debug2: ")
SAILOR_FAKE_LOG(slurm_debug3, "debug3: ")
SAILOR_FAKE_LOG(slurm_spank_log, "")
#undef SAILOR_FAKE_LOG
}

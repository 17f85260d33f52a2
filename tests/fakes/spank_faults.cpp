// What a hook may meet at its worst. A fault is "HOOK CONTEXT KIND", such as "init REMOTE exception", in the variable
// SAILOR_SPANK_FAULT, else in the file of the plugin's name and ".fault" (slurmstepd has not the user's environment).
extern "C" {
#include <slurm/spank.h>
}
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "spank_plugin/guard.hpp"

namespace sailor::spank {

namespace {

std::string wanted_fault() {
  if (const char* fault = std::getenv("SAILOR_SPANK_FAULT")) return fault;
  Dl_info module{};
  if (::dladdr(reinterpret_cast<void*>(&inject_fault), &module) == 0) return {};
  std::ifstream file(std::string(module.dli_fname) + ".fault");
  std::string line;
  std::getline(file, line);
  return line;
}

const char* context_name() {
  switch (spank_context()) {
    case S_CTX_LOCAL:
      return "LOCAL";
    case S_CTX_REMOTE:
      return "REMOTE";
    case S_CTX_ALLOCATOR:
      return "ALLOCATOR";
    case S_CTX_SLURMD:
      return "SLURMD";
    default:
      return "JOB_SCRIPT";
  }
}

}  // namespace

void inject_fault(const char* hook) {
  std::istringstream words(wanted_fault());
  std::string at;
  std::string context;
  std::string kind;
  words >> at >> context >> kind;
  if (at != hook || context != context_name()) return;
  if (kind == "exception") throw std::runtime_error("injected fault");
  if (kind == "memory") throw std::bad_alloc();
  if (kind == "unknown") throw 42;
  if (kind == "crash") std::raise(SIGSEGV);
  if (kind == "abort") std::abort();
}

}  // namespace sailor::spank

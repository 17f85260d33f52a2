// No exception leaves a hook: the callers are C, and some of them are daemons.
#pragma once

#include <exception>
#include <utility>

namespace sailor::spank {

#ifdef SAILOR_SPANK_FAULTS
/// Tests build the hooks a second time, with this function to make them fail.
void inject_fault(const char* hook);
#else
inline void inject_fault(const char*) {}
#endif

/// What `body` returns; `failure`, after `report(what)`, if it throws.
template <class Body, class Report>
int guarded(const char* hook, int failure, Body&& body, Report&& report) noexcept {
  try {
    inject_fault(hook);
    return std::forward<Body>(body)();
  } catch (const std::exception& problem) {
    report(problem.what());
  } catch (...) {
    report("an unknown problem");
  }
  return failure;
}

}  // namespace sailor::spank

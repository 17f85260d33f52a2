// A shared library that may be missing: programs start without it.
#pragma once

#include <dlfcn.h>

#include <string>

namespace sailor {

/// Stays loaded: some libraries, such as NVIDIA's, do not survive dlclose.
class SharedLibrary {
 public:
  explicit SharedLibrary(const char* file) : handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* const why = ::dlerror();
    problem_ = why != nullptr ? why : "does not load";
  }

  [[nodiscard]] bool is_there() const { return handle_ != nullptr; }
  /// The loader's error if the library is not there.
  [[nodiscard]] const std::string& problem() const { return problem_; }

  /// A function or a variable; null if the library has none of this name.
  template <class Symbol>
  [[nodiscard]] Symbol* find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Symbol*>(::dlsym(handle_, name));
  }
  /// True if the function is there and returns 0, as C libraries say success.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    auto* const function = find<int(Arguments...)>(name);
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  void* handle_;
  std::string problem_;
};

}  // namespace sailor

// A disk on which every fsync takes SAILOR_TEST_FSYNC_MS, for programs that load this with LD_PRELOAD.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int fsync(int file) {
  if (const char* milliseconds = std::getenv("SAILOR_TEST_FSYNC_MS"); milliseconds != nullptr)
    ::usleep(1000U * static_cast<useconds_t>(std::atoi(milliseconds)));
  return reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"))(file);
}

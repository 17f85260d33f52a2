#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "profile/traces/measure.hpp"
#include "profile/traces/nsys_export.hpp"

// Any bytes are either an export or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("sailor-fuzz-{}.sqlite", ::getpid());
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto recording = sailor::traces::read_nsys_export(file);
  if (!recording && recording.error().what.empty()) __builtin_trap();
  if (recording) {
    const auto times = sailor::traces::measure(*recording, 2, 1, "fuzz.sqlite");
    if (!times && times.error().what.empty()) __builtin_trap();
  }
  std::filesystem::remove(file);
  return 0;
}

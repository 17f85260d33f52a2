// The keys of the TOML files that people write, for page 5 of the manual and the documentation. A test compares these
// tables with the keys that the readers ask for (tests/unit/reference_test.cpp).
#include <array>

#include "apps/reference/formats.hpp"
#include "apps/reference/reference.hpp"

namespace sailor::apps {

std::span<const FileFormat> file_formats() {
  static const std::array formats{plan_format(), cluster_format(), site_format(), model_format(), gpu_format()};
  return formats;
}

}  // namespace sailor::apps

#include "spank_plugin/plan_file.hpp"

#include "core/files.hpp"

namespace sailor::spank {

Result<Plan> read_plan_file(const std::filesystem::path& path) {
  constexpr std::size_t largest_plan = std::size_t{16} << 20;
  const auto text = read_text_file(path, largest_plan);
  if (!text) return fail(text.error());
  auto plan = parse_plan(*text, path.string());
  if (!plan) return fail(plan.error());
  if (auto good = check_plan(*plan); !good) return fail(good.error(), path.string());
  return plan;
}

}  // namespace sailor::spank

#include "apps/submit/stop_lead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/files.hpp"
#include "core/terminal.hpp"
#include "slurm/words.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

constexpr Seconds slurm_delay{60.0};          // Slurm checks time limits and sends signals every 30 s
constexpr Seconds usual_lead{180.0};          // if nothing is known
constexpr double slower_than_before = 2.0;    // margin for a busy shared file system
constexpr double bytes_per_parameter = 12.0;  // weight and two moments in fp32

}  // namespace

std::optional<CheckpointTime> measured_checkpoint_time(const fs::path& folder) {
  std::error_code code;
  std::string newest;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with("iteration-") && fs::exists(entry->path() / "manifest.json", ignored))
      newest = std::max(newest, name);
  }
  if (newest.empty()) return std::nullopt;
  constexpr std::size_t largest = std::size_t{256} << 20;
  const auto text = read_text_file(folder / newest / "manifest.json", largest);
  if (!text) return std::nullopt;
  const auto manifest = nlohmann::json::parse(*text, nullptr, false);
  if (!manifest.is_object()) return std::nullopt;
  const auto time = manifest.find("write_time_s");
  const auto files = manifest.find("files");
  if (time == manifest.end() || !time->is_number() || files == manifest.end() || !files->is_array())
    return std::nullopt;
  CheckpointTime found{.bytes = {}, .writing = Seconds(time->get<double>()), .source = "as the last one did"};
  for (const auto& file : *files)
    if (file.is_object() && file.contains("bytes") && file["bytes"].is_number())
      found.bytes += Bytes(file["bytes"].get<double>());
  return found;
}

CheckpointTime estimated_checkpoint_time(std::int64_t parameters, BytesPerSecond per_node, int nodes) {
  const Bytes bytes(static_cast<double>(parameters) * bytes_per_parameter);
  return {.bytes = bytes,
          .writing = bytes / BytesPerSecond(per_node.value() * std::max(nodes, 1)),
          .source = "at the rate that the site file expects"};
}

StopLead choose_stop_lead(const std::optional<CheckpointTime>& checkpoint, const std::optional<Seconds>& iteration,
                          const std::optional<Seconds>& time_limit) {
  StopLead lead;
  const Seconds ending = slurm_delay + 2.0 * iteration.value_or(Seconds(0));
  lead.time = std::max(usual_lead, ending);
  if (checkpoint) {
    lead.time = ending + slower_than_before * checkpoint->writing;
    lead.reason = fmt::format("a checkpoint of {} takes about {}, {}", format_bytes(checkpoint->bytes),
                              format_time(checkpoint->writing), checkpoint->source);
  }
  lead.time = Seconds(std::ceil(lead.time.value()));
  if (!time_limit) return lead;
  // Most of a short job should be training, but its progress must not be lost.
  const Seconds most = checkpoint ? *time_limit / 2.0 : *time_limit / 4.0;
  if (lead.time > most) {
    if (checkpoint)
      lead.problem = fmt::format("the job has {}, of which the last checkpoint may need {}",
                                 slurm::format_time_limit(*time_limit), slurm::format_time_limit(lead.time));
    lead.time = Seconds(std::max(std::floor(most.value()), 1.0));
  }
  return lead;
}

}  // namespace sailor::apps

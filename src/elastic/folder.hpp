// The folder of an elastic training, on a file system that all of its nodes share. It holds the address of the
// controller and its decisions, so that a controller that dies can be replaced.
//
//   controller.json   where the controller listens; replaced in one step
//   journal.jsonl     what was decided, a JSON object per line: the job and its plan, epochs, plans
//   requests/*.toml   plans that others ask for (sailor-plan --watch --elastic); renamed to *.taken or *.refused
//   exclude           names of nodes that are to be left, one per line: written by people and programs
//   leaving/NODE      the same, one file per node: written by companion jobs that are about to end
//   events.jsonl      what happened, for people and tools: epochs and their members, joined, lost, goes on, excluded,
//                     planned change, done
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/line_file.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "runtime/sockets/coordinator.hpp"

namespace sailor::elastic {

/// Addresses at which the controller of a folder listens; empty if none has written them (yet) or they cannot be read.
runtime::Addresses find_controller(const std::filesystem::path& folder);
/// Whether the controller has written that the training is done; then no rank needs to look for it.
bool is_training_done(const std::filesystem::path& folder);
/// Errors: io.
Result<void> announce_end(const std::filesystem::path& folder);
/// Errors: io.
Result<void> announce_controller(const std::filesystem::path& folder, const runtime::Addresses& addresses);

/// Whether a controller has started in the folder. Errors: not_found.
Result<void> check_folder(const std::filesystem::path& folder);

/// The nodes that the training is to leave: those that FOLDER/exclude names, and those of FOLDER/leaving. Errors: io.
Result<std::set<std::string>> excluded_nodes(const std::filesystem::path& folder);
/// Adds the nodes of `add` to FOLDER/exclude and removes those of `take_back`. Errors: io.
Result<void> exclude_nodes(const std::filesystem::path& folder, const std::vector<std::string>& add,
                           const std::vector<std::string>& take_back);

/// A plan that a user or a program requests.
struct PlanRequest {
  std::string name;  ///< name of its file
  Result<Plan> plan;
};
/// The first request by name; std::nullopt if there is none. It stays until answer_request().
std::optional<PlanRequest> next_request(const std::filesystem::path& folder);
/// Requests a plan and returns the path of the file; its name contains `asker` ("watch") and `time`. Errors: io.
Result<std::filesystem::path> request_plan(const std::filesystem::path& folder, const Plan& plan,
                                           const std::string& asker, std::time_t time);
void answer_request(const std::filesystem::path& folder, const PlanRequest& request, bool is_taken);

/// A file of JSON lines to which one process appends.
class JsonLines {
 public:
  /// Creates the file if it is missing. Errors: io, invalid_input.
  static Result<JsonLines> open(const std::filesystem::path& path);
  /// The lines that the file had when it was opened.
  [[nodiscard]] const std::vector<nlohmann::json>& lines() const { return lines_; }
  /// Appends a line. `durable`: the line is on the disk when this returns. Errors: io.
  Result<void> add(const nlohmann::json& line, bool durable);

 private:
  JsonLines(LineFile file, std::vector<nlohmann::json> lines) : file_(std::move(file)), lines_(std::move(lines)) {}
  LineFile file_;
  std::vector<nlohmann::json> lines_;
};
/// Reads such a file while another process may append to it: an unfinished last line does not count. Errors: not_found,
/// io, invalid_input.
Result<std::vector<nlohmann::json>> read_json_lines(const std::filesystem::path& path);

/// Message of the controller to the ranks of an epoch.
struct EpochPayload {
  std::string plan;    ///< plan.toml
  bool copies = true;  ///< state that only one rank has is also kept in the memory of a peer (runtime/state_copies.hpp)
  std::int64_t begun_unix_ms = 0;  ///< controller's clock: identifies epochs and starts of the training
};
std::string to_text(const EpochPayload& payload);
/// Errors: invalid_input.
Result<EpochPayload> parse_payload(const std::string& text);

/// The epoch that was begun last, by the journal.
struct JournalledEpoch {
  runtime::RestoredEpoch members;
  std::string plan;  ///< plan.toml
};

/// `needed`: see EpochChoice.
nlohmann::json journal_line(std::uint64_t job, std::uint64_t epoch, const std::vector<runtime::MemberInfo>& by_rank,
                            int needed, const std::string& plan);
/// std::nullopt if no epoch has begun.
std::optional<JournalledEpoch> last_epoch(const std::vector<nlohmann::json>& lines);
/// Whether the training was stopped, to be resumed later, since its last epoch began.
bool was_stopped(const std::vector<nlohmann::json>& lines);
/// Whether the training has ended.
bool has_ended(const std::vector<nlohmann::json>& lines);

/// State of the training by its journal, for observers.
struct JournalState {
  std::optional<Plan> plan;          ///< plan of the latest epoch; std::nullopt if none has begun
  std::vector<std::string> nodes{};  ///< nodes of that epoch
  bool ended = false;                ///< the training is over
};
/// Reads the state from the journal; if there is none yet, no epoch has begun. Errors: io; invalid_input (a journal
/// that cannot be read).
Result<JournalState> read_journal_state(const std::filesystem::path& folder);
/// Duration of the last planned change of plan in FOLDER/events.jsonl; std::nullopt if there was none, or the file
/// cannot be read.
std::optional<Seconds> last_planned_change(const std::filesystem::path& folder);

}  // namespace sailor::elastic

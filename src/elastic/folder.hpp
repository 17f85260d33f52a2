// The folder of an elastic training, on a file system that all of its nodes see: where the controller listens, and what
// it has decided, so that one that dies can be replaced.
//
//   controller.json   where the controller listens; replaced in one step
//   journal.jsonl     what was decided, a JSON object per line: the job and its plan, epochs, plans
//   requests/*.toml   plans that others ask for (sailor-plan --watch --elastic); renamed to *.taken or *.refused
//   exclude           names of nodes that are to be left, one per line: written by people and programs
//   events.jsonl      what happened, for people and tools: joined, lost, goes on, planned change, done
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
#include "plan/plan.hpp"
#include "runtime/sockets/coordinator.hpp"

namespace sailor::elastic {

/// Where the controller of a folder listens; empty: none has written it (yet), or it cannot be read.
runtime::Addresses find_controller(const std::filesystem::path& folder);
/// Whether the controller has written that the training is done: nobody needs to look for it any more.
bool is_training_done(const std::filesystem::path& folder);
/// Errors: io.
Result<void> announce_end(const std::filesystem::path& folder);
/// Errors: io.
Result<void> announce_controller(const std::filesystem::path& folder, const runtime::Addresses& addresses);

/// Whether a controller has begun there. Errors: not_found.
Result<void> check_folder(const std::filesystem::path& folder);

/// The nodes that FOLDER/exclude names; none where there is no such file. Errors: io.
Result<std::set<std::string>> excluded_nodes(const std::filesystem::path& folder);
/// `add` come to those that are there, `take_back` go. Errors: io.
Result<void> exclude_nodes(const std::filesystem::path& folder, const std::vector<std::string>& add,
                           const std::vector<std::string>& take_back);

/// A plan that somebody asks for.
struct PlanRequest {
  std::string name;  ///< of its file
  Result<Plan> plan;
};
/// The oldest by name; nothing: there is none. It stays until answer_request().
std::optional<PlanRequest> next_request(const std::filesystem::path& folder);
/// Asks for a plan; `asker` ("watch") and `time` are in the name of the file, whose path it returns. Errors: io.
Result<std::filesystem::path> request_plan(const std::filesystem::path& folder, const Plan& plan,
                                           const std::string& asker, std::time_t time);
void answer_request(const std::filesystem::path& folder, const PlanRequest& request, bool is_taken);

/// A file of JSON lines to which one process appends.
class JsonLines {
 public:
  /// Makes the file where it is missing. Errors: io, invalid_input.
  static Result<JsonLines> open(const std::filesystem::path& path);
  /// What was there.
  [[nodiscard]] const std::vector<nlohmann::json>& lines() const { return lines_; }
  /// `durable`: it is on the disk when this returns. Errors: io.
  Result<void> add(const nlohmann::json& line, bool durable);

 private:
  JsonLines(LineFile file, std::vector<nlohmann::json> lines) : file_(std::move(file)), lines_(std::move(lines)) {}
  LineFile file_;
  std::vector<nlohmann::json> lines_;
};
/// The same while another process may append to it: a line that is not finished yet does not count. Errors:
/// not_found, io, invalid_input.
Result<std::vector<nlohmann::json>> read_json_lines(const std::filesystem::path& path);

/// What the ranks of an epoch are told.
struct EpochPayload {
  std::string plan;    ///< plan.toml
  bool copies = true;  ///< state that one rank alone has is kept in a peer's memory, too (runtime/state_copies.hpp)
  std::int64_t begun_unix_ms = 0;  ///< by the controller's clock: tells epochs, and starts of the training, apart
};
std::string to_text(const EpochPayload& payload);
/// Errors: invalid_input.
Result<EpochPayload> parse_payload(const std::string& text);

/// What the journal says of the epoch that was begun last.
struct JournalledEpoch {
  runtime::RestoredEpoch members;
  std::string plan;  ///< plan.toml
};

/// `needed`: see EpochChoice.
nlohmann::json journal_line(std::uint64_t job, std::uint64_t epoch, const std::vector<runtime::MemberInfo>& by_rank,
                            int needed, const std::string& plan);
/// Nothing: no epoch has begun.
std::optional<JournalledEpoch> last_epoch(const std::vector<nlohmann::json>& lines);
/// Whether the training was stopped, to be taken up later, since its last epoch began.
bool was_stopped(const std::vector<nlohmann::json>& lines);
/// Whether the training has ended.
bool has_ended(const std::vector<nlohmann::json>& lines);

/// What trains, for those who look on.
struct JournalState {
  std::optional<Plan> plan;          ///< of the epoch that began last; none: no epoch has begun
  std::vector<std::string> nodes{};  ///< that take part in it
  bool ended = false;                ///< the training is over
};
/// What the journal says; where there is none yet, that no epoch has begun. Errors: io; invalid_input (a journal that
/// cannot be read).
Result<JournalState> read_journal_state(const std::filesystem::path& folder);

}  // namespace sailor::elastic

#include "profile/traces/nsys_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/files.hpp"
#include "core/text.hpp"
#if SAILOR_HAVE_SQLITE
#include <sqlite3.h>
#endif

namespace sailor::traces {

#if SAILOR_HAVE_SQLITE

namespace {

constexpr int push_pop_range = 59;  // NvtxPushPopRange of the export's ENUM_NSYS_EVENT_TYPE

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, Close>;
using Statement = std::unique_ptr<sqlite3_stmt, Close>;

/// Begin of a recording and of its spans in nanoseconds: 2^53 of them are 104 days.
using Nanoseconds = std::int64_t;

struct Call {
  Nanoseconds begin = 0;
  int thread = 0;
};

class Export {
 public:
  Export(Database database, std::string file) : database_(std::move(database)), file_(std::move(file)) {}

  Result<Recording> read() {
    SAILOR_CHECK(require("CUPTI_ACTIVITY_KIND_KERNEL", "record a GPU with nsys profile --trace=cuda,nvtx"));
    SAILOR_CHECK(require("CUPTI_ACTIVITY_KIND_RUNTIME", "record the CPU's calls with nsys profile --trace=cuda,nvtx"));
    SAILOR_CHECK(
        require("NVTX_EVENTS", "name the layers with torch.cuda.nvtx.range and record with --trace=cuda,nvtx"));
    SAILOR_CHECK(require("StringIds", "export the report again"));
    auto origin = first_time();
    if (!origin) return fail(origin.error());
    origin_ = *origin;
    SAILOR_CHECK(rows("SELECT id, value FROM StringIds",
                      [&](sqlite3_stmt* row) { strings_.emplace(sqlite3_column_int64(row, 0), text(row, 1)); }));
    SAILOR_CHECK(read_calls());
    SAILOR_CHECK(read_kernels());
    SAILOR_CHECK(read_ranges());
    if (has_column("TARGET_INFO_GPU", "name"))
      SAILOR_CHECK(rows("SELECT name FROM TARGET_INFO_GPU LIMIT 1",
                        [&](sqlite3_stmt* row) { recording_.device = text(row, 0); }));
    recording_.names = names_.take();
    return std::move(recording_);
  }

 private:
  static std::string text(sqlite3_stmt* row, int column) {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
    return bytes == nullptr ? std::string() : valid_utf8(bytes);
  }

  [[nodiscard]] Result<void> rows(const std::string& query, const std::function<void(sqlite3_stmt*)>& visit) const {
    sqlite3_stmt* prepared = nullptr;
    int code = sqlite3_prepare_v2(database_.get(), query.c_str(), -1, &prepared, nullptr);
    const Statement statement(prepared);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
      code = sqlite3_step(statement.get());
      if (code == SQLITE_ROW) visit(statement.get());
    }
    if (code == SQLITE_DONE) return {};
    return fail(ErrorCode::invalid_input, fmt::format("{}: {}", file_, valid_utf8(sqlite3_errmsg(database_.get()))),
                "the file is damaged, or not an export of nsys: export the report again");
  }

  [[nodiscard]] bool has_column(const std::string& table, const std::string& column) const {
    bool found = false;
    const auto done = rows(fmt::format("PRAGMA table_info({})", table),
                           [&](sqlite3_stmt* row) { found = found || text(row, 1) == column; });
    return done && found;
  }

  [[nodiscard]] Result<void> require(const char* table, const char* hint) const {
    bool found = false;
    SAILOR_CHECK(rows(fmt::format("SELECT name FROM sqlite_master WHERE type = 'table' AND name = '{}'", table),
                      [&](sqlite3_stmt*) { found = true; }));
    if (found) return {};
    return fail(ErrorCode::invalid_input, fmt::format("{}: the export has no table {}", file_, table), hint);
  }

  Result<Nanoseconds> first_time() const {
    std::optional<Nanoseconds> first;
    for (const char* table : {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"})
      SAILOR_CHECK(rows(fmt::format("SELECT MIN(start) FROM {}", table), [&](sqlite3_stmt* row) {
        if (sqlite3_column_type(row, 0) == SQLITE_NULL) return;
        const Nanoseconds time = sqlite3_column_int64(row, 0);
        first = first ? std::min(*first, time) : time;
      }));
    return first.value_or(0);
  }

  /// Seconds since the first event.
  [[nodiscard]] double seconds(Nanoseconds time) const {
    return (static_cast<double>(time) - static_cast<double>(origin_)) * 1e-9;
  }

  /// globalTid is 0x1000000 times a number of the process, plus that of the thread.
  static std::int64_t process_of(std::int64_t global_thread) { return global_thread >> 24; }
  int thread(std::int64_t global_thread) { return threads_.number(fmt::to_string(global_thread)); }

  Result<void> read_calls() {
    return rows("SELECT start, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME", [&](sqlite3_stmt* row) {
      const std::int64_t caller = sqlite3_column_int64(row, 2);
      calls_[process_of(caller)].emplace(sqlite3_column_int64(row, 1),
                                         Call{sqlite3_column_int64(row, 0), thread(caller)});
    });
  }

  Result<void> read_kernels() {
    const bool process = has_column("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid");
    return rows(fmt::format("SELECT start, end, deviceId, correlationId, demangledName, {} FROM "
                            "CUPTI_ACTIVITY_KIND_KERNEL WHERE end >= start",
                            process ? "globalPid" : "NULL"),
                [&](sqlite3_stmt* row) {
                  Kernel kernel{.begin = seconds(sqlite3_column_int64(row, 0)),
                                .end = seconds(sqlite3_column_int64(row, 1)),
                                .name = names_.number(string(sqlite3_column_int64(row, 4))),
                                .device = sqlite3_column_int(row, 2)};
                  const std::int64_t id = sqlite3_column_int64(row, 3);
                  const auto of_process = sqlite3_column_type(row, 5) == SQLITE_NULL && calls_.size() == 1
                                              ? calls_.begin()
                                              : calls_.find(process_of(sqlite3_column_int64(row, 5)));
                  if (of_process != calls_.end())
                    if (const auto call = of_process->second.find(id); call != of_process->second.end()) {
                      kernel.launched = seconds(call->second.begin);
                      kernel.launcher = call->second.thread;
                    }
                  recording_.kernels.push_back(kernel);
                });
  }

  Result<void> read_ranges() {
    const bool ids = has_column("NVTX_EVENTS", "textId");
    return rows(fmt::format("SELECT start, end, globalTid, text, {} FROM NVTX_EVENTS WHERE eventType = {} AND end >= "
                            "start",
                            ids ? "textId" : "NULL", push_pop_range),
                [&](sqlite3_stmt* row) {
                  add_range(
                      {.begin = seconds(sqlite3_column_int64(row, 0)),
                       .end = seconds(sqlite3_column_int64(row, 1)),
                       .thread = thread(sqlite3_column_int64(row, 2)),
                       .name = 0},
                      sqlite3_column_type(row, 3) != SQLITE_NULL ? text(row, 3) : string(sqlite3_column_int64(row, 4)));
                });
  }

  /// emit_nvtx() writes operations as "aten::addmm, seq = 12, op_id = 34".
  void add_range(Span span, const std::string& label) {
    constexpr std::string_view number = ", seq = ";
    const std::size_t sequence = label.find(number);
    const std::string name = label.substr(0, std::min(sequence, label.find(", op_id = ")));
    span.name = names_.number(name);
    if (sequence == std::string::npos && name.find("::") == std::string::npos) {
      recording_.annotations.push_back(span);
      return;
    }
    Operation operation{span, -1};
    if (sequence != std::string::npos) {
      std::int64_t value = 0;
      const char* begin = label.data() + sequence + number.size();
      if (std::from_chars(begin, label.data() + label.size(), value).ec == std::errc() && value >= 0)
        operation.sequence = value;
    }
    recording_.operations.push_back(operation);
  }

  [[nodiscard]] std::string string(std::int64_t id) const {
    const auto found = strings_.find(id);
    return found == strings_.end() ? std::string() : found->second;
  }

  Database database_;
  std::string file_;
  Nanoseconds origin_ = 0;
  std::unordered_map<std::int64_t, std::string> strings_;
  std::unordered_map<std::int64_t, std::unordered_map<std::int64_t, Call>> calls_;  // by process and correlation
  Names names_;
  Names threads_;
  Recording recording_;
};

}  // namespace

Result<Recording> read_nsys_export(const std::filesystem::path& file) {
  const auto readable = open_to_read(file);
  if (!readable) return fail(readable.error());
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  Database database(opened);
  if (code != SQLITE_OK)
    return fail(ErrorCode::io, fmt::format("cannot open '{}': {}", file.string(), sqlite3_errstr(code)));
  sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);  // a file of unknown origin
  return Export(std::move(database), file.string()).read();
}

#else

Result<Recording> read_nsys_export(const std::filesystem::path& file) {
  return fail(ErrorCode::unavailable, fmt::format("{}: this build of Sailor has no SQLite", file.string()),
              "build with SAILOR_SQLITE=ON (libsqlite3-dev), or record with torch.profiler");
}

#endif

}  // namespace sailor::traces

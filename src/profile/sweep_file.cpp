#include "profile/sweep_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/files.hpp"
#include "profile/provenance.hpp"
#include "profile/table.hpp"

namespace sailor {

namespace {

using hdf5::Cell;
using hdf5::Column;
using hdf5::ColumnType;
using hdf5::FileReader;
using hdf5::FileWriter;
using Row = SweepRow;

/// A member that may be unknown, an optional: stored as NaN if it is a number or a quantity, as -1 if it is a count or
/// a Boolean.
template <class Value>
class MaybeField : public hdf5::Field {
 public:
  MaybeField() : Field(is_count ? ColumnType::integer : ColumnType::number) {}
  [[nodiscard]] Cell get(const void* member) const override {
    const auto& value = *static_cast<const std::optional<Value>*>(member);
    if (!value) return unknown;
    if constexpr (is_count || std::is_same_v<Value, double>)
      return static_cast<Stored>(*value);
    else
      return value->value();
  }
  std::optional<std::string> set(void* member, const Cell& cell) const override {
    const auto stored = std::get<Stored>(cell);
    auto& value = *static_cast<std::optional<Value>*>(member);
    value.reset();
    if constexpr (is_count) {
      if (stored < unknown) return fmt::format("{} is out of range", stored);
      if (stored != unknown) value = static_cast<Value>(stored);
    } else {
      if (std::isinf(stored)) return fmt::format("{} is not finite", stored);
      if (!std::isnan(stored)) value = Value(stored);
    }
    return std::nullopt;
  }

 private:
  static constexpr bool is_count = std::is_integral_v<Value>;
  using Stored = std::conditional_t<is_count, std::int64_t, double>;
  static constexpr Stored unknown = is_count ? Stored{-1} : std::numeric_limits<Stored>::quiet_NaN();
};

template <class Owner = Row, class Member>
Column maybe(std::string name, std::string unit, Member member) {
  using Value = typename hdf5::MemberType<Owner, Member>::value_type;
  return hdf5::column<Owner>(std::move(name), std::move(unit), member, std::make_shared<const MaybeField<Value>>());
}

template <class Member>
void add_score(std::vector<Column>& columns, const std::string& judge, Member member) {
  using Score = SweepScore;
  hdf5::append_part<Row>(columns, judge, member,
                         {maybe<Score>("iteration_time_s", "s", SAILOR_MEMBER(iteration_time)),
                          maybe<Score>("throughput_iterations_per_s", "1/s", SAILOR_MEMBER(throughput)),
                          maybe<Score>("cost_usd_per_iteration", "USD", SAILOR_MEMBER(cost)),
                          maybe<Score>("egress_cost_usd_per_iteration", "USD", SAILOR_MEMBER(egress_cost)),
                          maybe<Score>("peak_memory_bytes", "byte", SAILOR_MEMBER(peak_memory)),
                          maybe<Score>("fits", "1", SAILOR_MEMBER(fits))});
}

const hdf5::Table<Row>& point_table() {
  static const hdf5::Table<Row> table = [] {
    std::vector<Column> columns{hdf5::text<Row>("experiment", SAILOR_MEMBER(experiment)),
                                hdf5::text<Row>("planner", SAILOR_MEMBER(planner)),
                                hdf5::text<Row>("model", SAILOR_MEMBER(model)),
                                hdf5::text<Row>("cluster", SAILOR_MEMBER(cluster)),
                                hdf5::text<Row>("constraint", SAILOR_MEMBER(constraint)),
                                hdf5::integer<Row>("repetition", SAILOR_MEMBER(repetition), {}),
                                hdf5::choice<Row>("status", SAILOR_MEMBER(status), SweepStatus::failed),
                                hdf5::free_text<Row>("why", SAILOR_MEMBER(why))};
    add_score(columns, "", SAILOR_MEMBER(judged));
    columns.push_back(maybe("expected_throughput_iterations_per_s", "1/s", SAILOR_MEMBER(expected_throughput)));
    columns.push_back(maybe("expected_cost_usd_per_iteration", "USD", SAILOR_MEMBER(expected_cost)));
    columns.push_back(maybe("gpus", "1", SAILOR_MEMBER(gpus)));
    columns.push_back(hdf5::free_text<Row>("gpu_types", SAILOR_MEMBER(gpu_types)));
    columns.push_back(hdf5::free_text<Row>("description", SAILOR_MEMBER(description)));
    columns.push_back(maybe("proposed", "1", SAILOR_MEMBER(proposed)));
    columns.push_back(maybe("did_not_fit", "1", SAILOR_MEMBER(did_not_fit)));
    columns.push_back(maybe("rejected_by_limits", "1", SAILOR_MEMBER(rejected_by_limits)));
    add_score(columns, "artifact_", SAILOR_MEMBER(artifact));
    add_score(columns, "simulator_", SAILOR_MEMBER(simulator));
    columns.push_back(maybe("simulator_is_bound", "1", SAILOR_MEMBER(simulator_is_bound)));
    columns.push_back(maybe("out_of_time", "1", SAILOR_MEMBER(out_of_time)));
    columns.push_back(hdf5::free_text<Row>("notes", SAILOR_MEMBER(notes)));
    columns.push_back(maybe("measured_search_time_s", "s", SAILOR_MEMBER(search_time)));
    columns.push_back(maybe("measured_wall_time_s", "s", SAILOR_MEMBER(wall_time)));
    columns.push_back(maybe("measured_processor_time_s", "s", SAILOR_MEMBER(processor_time)));
    columns.push_back(maybe("measured_peak_resident_memory_bytes", "byte", SAILOR_MEMBER(peak_resident_memory)));
    return hdf5::Table<Row>("points", std::move(columns));
  }();
  return table;
}

Result<void> write_sweep(const SweepRecord& sweep, const std::filesystem::path& path) {
  auto file = FileWriter::create(path);
  if (!file) return fail(file.error());
  Provenance provenance = sweep.provenance;
  if (provenance.date.empty()) provenance.date = hdf5::current_date();
  SAILOR_CHECK(hdf5::write_header(*file, hdf5::sweep_kind, provenance));
  SAILOR_CHECK(file->text("experiment", sweep.experiment_toml));
  std::vector<Row> rows = sweep.rows;
  for (Row& row : rows)
    for (std::string* text : {&row.why, &row.description, &row.notes}) *text = hdf5::cut_text(*text);
  SAILOR_CHECK(point_table().write(*file, rows));
  return file->close();
}

/// A field as in RFC 4180: quoted if necessary.
std::string csv_field(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_cell(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return csv_field(*text);
  if (const auto* count = std::get_if<std::int64_t>(&cell)) return *count < 0 ? "" : fmt::format("{}", *count);
  const double value = std::get<double>(cell);
  return std::isnan(value) ? "" : fmt::format("{}", value);
}

}  // namespace

std::string_view to_string(SweepStatus status) {
  switch (status) {
    case SweepStatus::plan:
      return "plan";
    case SweepStatus::no_plan:
      return "no plan";
    case SweepStatus::failed:
      break;
  }
  return "failed";
}

Result<void> save_sweep(const SweepRecord& sweep, const std::filesystem::path& path) {
  return write_file_atomically(path,
                               [&](const std::filesystem::path& temporary) { return write_sweep(sweep, temporary); });
}

Result<SweepRecord> load_sweep(const std::filesystem::path& path) {
  auto file = FileReader::open(path);
  if (!file) return fail(file.error());
  auto kind = hdf5::read_kind(*file);
  if (!kind) return fail(kind.error());
  if (*kind != hdf5::sweep_kind) return file->invalid(fmt::format("it holds no sweep: its kind is '{}'", *kind));
  SweepRecord sweep;
  auto provenance = hdf5::read_provenance(*file);
  if (!provenance) return fail(provenance.error());
  sweep.provenance = *std::move(provenance);
  auto experiment = file->text("experiment");
  if (!experiment) return fail(experiment.error());
  sweep.experiment_toml = *std::move(experiment);
  auto rows = point_table().read(*file);
  if (!rows) return fail(rows.error());
  sweep.rows = *std::move(rows);
  return sweep;
}

std::string sweep_csv(const std::vector<SweepRow>& rows) {
  const auto& columns = point_table().columns();
  std::string text;
  for (const Column& column : columns)
    text += fmt::format("{}{}", &column == &columns.front() ? "" : ",", column.info.name);
  text += '\n';
  for (const SweepRow& row : rows) {
    for (const Column& column : columns)
      text += fmt::format("{}{}", &column == &columns.front() ? "" : ",", csv_cell(column.get(&row)));
    text += '\n';
  }
  return text;
}

}  // namespace sailor

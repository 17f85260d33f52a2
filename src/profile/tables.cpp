// The columns of every table of a store.
#include "profile/tables.hpp"

#include <limits>

namespace sailor {

namespace {

using hdf5::Column;
using hdf5::IntegerLimits;
using hdf5::optional;

constexpr IntegerLimits count{.minimum = 1, .maximum = std::numeric_limits<int>::max()};

/// The six columns of a TimeStatistics.
template <class Row, class Member>
void add_times(std::vector<Column>& columns, const std::string& name, Member member, bool may_be_missing = false) {
  using Times = TimeStatistics;
  std::vector<Column> times{hdf5::amount<Times>("median_s", "s", SAILOR_MEMBER(median)),
                            hdf5::amount<Times>("p10_s", "s", SAILOR_MEMBER(p10)),
                            hdf5::amount<Times>("p90_s", "s", SAILOR_MEMBER(p90)),
                            hdf5::amount<Times>("low_s", "s", SAILOR_MEMBER(low)),
                            hdf5::amount<Times>("high_s", "s", SAILOR_MEMBER(high)),
                            hdf5::integer<Times>("samples", SAILOR_MEMBER(samples), {})};
  hdf5::append_part<Row>(columns, name + "_", member, std::move(times), may_be_missing);
}

/// A column that stores of earlier versions do not have.
Column added_later(Column column) {
  column.info.may_be_missing = true;
  return optional(std::move(column));
}

template <class Row>
Column session_column() {
  return optional(hdf5::integer<Row>("session", SAILOR_MEMBER(session), {}));
}

template <class Row>
std::vector<Column> layer_key_columns() {
  return {hdf5::text<Row>("model", SAILOR_MEMBER(key.model)),
          hdf5::text<Row>("gpu", SAILOR_MEMBER(key.gpu)),
          hdf5::choice<Row>("precision", SAILOR_MEMBER(key.precision), all_precisions.back()),
          optional(hdf5::choice<Row>("recompute", SAILOR_MEMBER(key.recompute), Recompute::full)),
          hdf5::integer<Row>("tensor_parallel", SAILOR_MEMBER(key.tensor_parallel), count),
          hdf5::integer<Row>("micro_batch", SAILOR_MEMBER(key.micro_batch), count),
          hdf5::integer<Row>("sequence_length", SAILOR_MEMBER(key.sequence_length), count),
          optional(hdf5::integer<Row>("busy_ranks", SAILOR_MEMBER(key.busy_ranks), count)),
          hdf5::choice<Row>("layer_kind", SAILOR_MEMBER(key.kind), LayerKind::head),
          optional(hdf5::integer<Row>("first_layer", SAILOR_MEMBER(key.first_layer), {}))};
}

template <class Row>
std::vector<Column> link_key_columns() {
  return {hdf5::text<Row>("from_gpu", SAILOR_MEMBER(key.from.gpu)),
          optional(hdf5::free_text<Row>("from_zone", SAILOR_MEMBER(key.from.zone))),
          hdf5::integer<Row>("from_ranks", SAILOR_MEMBER(key.from.ranks), count),
          hdf5::text<Row>("to_gpu", SAILOR_MEMBER(key.to.gpu)),
          optional(hdf5::free_text<Row>("to_zone", SAILOR_MEMBER(key.to.zone))),
          hdf5::integer<Row>("to_ranks", SAILOR_MEMBER(key.to.ranks), count),
          hdf5::choice<Row>("scope", SAILOR_MEMBER(key.scope), LinkScope::inter_node),
          hdf5::choice<Row>("operation", SAILOR_MEMBER(key.operation), LinkOperation::reduce_scatter),
          hdf5::integer<Row>("ranks", SAILOR_MEMBER(key.ranks), {.minimum = 2})};
}

}  // namespace

const hdf5::Table<Session>& session_table() {
  using Row = Session;
  static const hdf5::Table<Row> table(
      "sessions",
      {hdf5::text<Row>("id", SAILOR_MEMBER(id)), optional(hdf5::free_text<Row>("tool", SAILOR_MEMBER(provenance.tool))),
       optional(hdf5::free_text<Row>("command", SAILOR_MEMBER(provenance.command))),
       optional(hdf5::free_text<Row>("host", SAILOR_MEMBER(provenance.host))),
       optional(hdf5::free_text<Row>("device", SAILOR_MEMBER(provenance.device))),
       optional(hdf5::free_text<Row>("versions", SAILOR_MEMBER(provenance.versions))),
       optional(hdf5::free_text<Row>("date", SAILOR_MEMBER(provenance.date))),
       optional(hdf5::free_text<Row>("source", SAILOR_MEMBER(provenance.source))),
       optional(hdf5::amount<Row>("lowest_clock_hz", "Hz", SAILOR_MEMBER(lowest_clock_hz))),
       optional(hdf5::amount<Row>("highest_clock_hz", "Hz", SAILOR_MEMBER(highest_clock_hz))),
       optional(hdf5::amount<Row>("slowdown", "1", SAILOR_MEMBER(slowdown))),
       added_later(hdf5::free_text<Row>("notes", SAILOR_MEMBER(notes)))});
  return table;
}

const hdf5::Table<LayerTime>& layer_time_table() {
  static const hdf5::Table<LayerTime> table = [] {
    using Row = LayerTime;
    std::vector<Column> columns = layer_key_columns<Row>();
    add_times<Row>(columns, "forward", SAILOR_MEMBER(forward));
    add_times<Row>(columns, "backward", SAILOR_MEMBER(backward));
    add_times<Row>(columns, "update", SAILOR_MEMBER(update));
    columns.push_back(
        optional(hdf5::choice<Row>("update_scope", SAILOR_MEMBER(update_scope), UpdateScope::profiled_model)));
    add_times<Row>(columns, "cold_forward", SAILOR_MEMBER(cold_forward), true);
    add_times<Row>(columns, "cold_backward", SAILOR_MEMBER(cold_backward), true);
    columns.push_back(session_column<Row>());
    return hdf5::Table<Row>("layer_times", std::move(columns));
  }();
  return table;
}

const hdf5::Table<LayerMemory>& layer_memory_table() {
  static const hdf5::Table<LayerMemory> table = [] {
    using Row = LayerMemory;
    std::vector<Column> columns = layer_key_columns<Row>();
    columns.push_back(hdf5::integer<Row>("parameters", SAILOR_MEMBER(parameters), {}));
    columns.push_back(hdf5::amount<Row>("activation_bytes", "byte", SAILOR_MEMBER(activation)));
    columns.push_back(hdf5::amount<Row>("output_bytes", "byte", SAILOR_MEMBER(output)));
    columns.push_back(hdf5::amount<Row>("input_bytes", "byte", SAILOR_MEMBER(input)));
    columns.push_back(optional(hdf5::amount<Row>("workspace_bytes", "byte", SAILOR_MEMBER(workspace))));
    columns.push_back(session_column<Row>());
    return hdf5::Table<Row>("layer_memory", std::move(columns));
  }();
  return table;
}

const hdf5::Table<OutOfMemory>& out_of_memory_table() {
  static const hdf5::Table<OutOfMemory> table = [] {
    using Row = OutOfMemory;
    std::vector<Column> columns = layer_key_columns<Row>();
    columns.push_back(hdf5::amount<Row>("needed_bytes", "byte", SAILOR_MEMBER(needed)));
    columns.push_back(hdf5::amount<Row>("available_bytes", "byte", SAILOR_MEMBER(available)));
    columns.push_back(session_column<Row>());
    return hdf5::Table<Row>("out_of_memory", std::move(columns));
  }();
  return table;
}

const hdf5::Table<LinkMeasurement>& link_table() {
  static const hdf5::Table<LinkMeasurement> table = [] {
    using Row = LinkMeasurement;
    std::vector<Column> columns = link_key_columns<Row>();
    columns.push_back(hdf5::amount<Row>("message_bytes", "byte", SAILOR_MEMBER(message)));
    add_times<Row>(columns, "time", SAILOR_MEMBER(time));
    columns.push_back(session_column<Row>());
    return hdf5::Table<Row>("links", std::move(columns));
  }();
  return table;
}

const hdf5::Table<LinkFit>& link_fit_table() {
  static const hdf5::Table<LinkFit> table = [] {
    using Row = LinkFit;
    std::vector<Column> columns = link_key_columns<Row>();
    columns.push_back(hdf5::number<Row>("quadratic_gb_per_s", "GB/s", SAILOR_MEMBER(curve.quadratic)));
    columns.push_back(hdf5::number<Row>("linear_gb_per_s", "GB/s", SAILOR_MEMBER(curve.linear)));
    columns.push_back(hdf5::number<Row>("constant_gb_per_s", "GB/s", SAILOR_MEMBER(curve.constant)));
    columns.push_back(
        hdf5::amount<Row>("largest_bandwidth_bytes_per_s", "byte/s", SAILOR_MEMBER(curve.largest_bandwidth)));
    columns.push_back(hdf5::amount<Row>("smallest_message_bytes", "byte", SAILOR_MEMBER(curve.smallest_message)));
    columns.push_back(hdf5::amount<Row>("largest_message_bytes", "byte", SAILOR_MEMBER(curve.largest_message)));
    columns.push_back(optional(hdf5::amount<Row>("latency_s", "s", SAILOR_MEMBER(curve.latency))));
    columns.push_back(optional(hdf5::amount<Row>("median_error", "1", SAILOR_MEMBER(median_error))));
    columns.push_back(optional(hdf5::amount<Row>("largest_error", "1", SAILOR_MEMBER(largest_error))));
    columns.push_back(optional(hdf5::integer<Row>("points", SAILOR_MEMBER(points), {})));
    columns.push_back(session_column<Row>());
    return hdf5::Table<Row>("link_fits", std::move(columns));
  }();
  return table;
}

const hdf5::Table<ProcessMeasurement>& process_table() {
  using Row = ProcessMeasurement;
  static const hdf5::Table<Row> table(
      "processes", {hdf5::text<Row>("gpu", SAILOR_MEMBER(gpu)), hdf5::text<Row>("framework", SAILOR_MEMBER(framework)),
                    hdf5::amount<Row>("base_memory_bytes", "byte", SAILOR_MEMBER(base_memory)), session_column<Row>()});
  return table;
}

}  // namespace sailor

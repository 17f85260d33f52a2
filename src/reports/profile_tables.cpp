#include "reports/profile_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "profile/describe.hpp"

namespace sailor::reports {

namespace {

constexpr const char* none = "-";

std::array<std::pair<const char*, const std::string*>, 7> fields_of(const Provenance& provenance) {
  return {{{"tool", &provenance.tool},
           {"command", &provenance.command},
           {"host", &provenance.host},
           {"device", &provenance.device},
           {"versions", &provenance.versions},
           {"date", &provenance.date},
           {"source", &provenance.source}}};
}

/// Values that are equal in all rows are given once, above them.
std::string captioned(Table& table, const std::vector<std::string_view>& foldable) {
  const std::string caption = table.fold_constant_columns(foldable);
  return (caption.empty() ? "" : "all: " + caption + "\n") + table.to_string();
}

bool measured(const TimeStatistics& time) { return time.samples > 0 || time.median.value() > 0.0; }

/// "1.82 ms ±3%": the median and how far its interval reaches; published means have no interval.
std::string with_interval(const TimeStatistics& time) {
  if (!measured(time)) return none;
  if (time.samples < 2 || time.median.value() <= 0.0) return format_time(time.median);
  const double reach = std::max(time.high - time.median, time.median - time.low) / time.median;
  return fmt::format("{} ±{:.0f}%", format_time(time.median), 100.0 * reach);
}

/// "notes of <session>: ...": how the rows of an import were made; empty for what was measured directly.
std::string notes_of(const Session& session) {
  return session.notes.empty() ? "" : fmt::format("notes of {}: {}\n", session.id, session.notes);
}

std::string spread_of(const TimeStatistics& time) {
  return time.samples == 0 ? none : fmt::format("{:.0f}%", 100.0 * time.relative_spread());
}

std::string samples_of(const TimeStatistics& time) { return time.samples == 0 ? none : fmt::to_string(time.samples); }

double median_of(std::vector<double> values) { return quantile(values, 0.5); }

template <class Rows, class Time>
bool any_measured(const Rows& rows, Time time) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return measured(row.*time); });
}

/// The columns of a layer's key, and their cells.
std::vector<Table::Column> layer_columns() {
  return {{"model", Align::left},
          {"gpu", Align::left},
          {"layer", Align::left},
          {"from layer"},
          {"precision", Align::left},
          {"recompute", Align::left},
          {"tensor parallel"},
          {"sequence"},
          {"micro-batch"},
          {"busy ranks"}};
}

std::vector<std::string> layer_cells(const LayerKey& key) {
  return {key.model,
          key.gpu,
          std::string(to_string(key.kind)),
          fmt::to_string(key.first_layer),
          std::string(to_string(key.precision)),
          std::string(to_string(key.recompute)),
          fmt::to_string(key.tensor_parallel),
          fmt::to_string(key.sequence_length),
          fmt::to_string(key.micro_batch),
          fmt::to_string(key.busy_ranks)};
}

const std::vector<std::string_view> foldable_layer_columns{
    "model", "gpu", "from layer", "precision", "recompute", "tensor parallel", "sequence", "busy ranks", "update of"};

template <class T>
std::vector<T> operator+(std::vector<T> a, std::vector<T> b) {
  a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  return a;
}

// ---- Layer times

std::string layer_time_rows(const std::vector<LayerTime>& layers) {
  const bool cold = any_measured(layers, &LayerTime::cold_forward) || any_measured(layers, &LayerTime::cold_backward);
  auto columns = layer_columns() + std::vector<Table::Column>{{"forward"}, {"backward"}, {"update"}};
  if (cold) columns = std::move(columns) + std::vector<Table::Column>{{"cold forward"}, {"cold backward"}};
  Table table(std::move(columns) + std::vector<Table::Column>{{"spread"}, {"samples"}});
  for (const LayerTime& row : layers) {
    auto cells =
        layer_cells(row.key) +
        std::vector<std::string>{with_interval(row.forward), with_interval(row.backward), with_interval(row.update)};
    if (cold)
      cells = std::move(cells) +
              std::vector<std::string>{with_interval(row.cold_forward), with_interval(row.cold_backward)};
    table.add_row(std::move(cells) + std::vector<std::string>{spread_of(row.forward), samples_of(row.forward)});
  }
  return captioned(table, foldable_layer_columns);
}

/// The key that rows of one grid share: all but GPU, tensor parallel, micro-batch and layer.
LayerKey grid_of(LayerKey key) {
  key.gpu.clear();
  key.tensor_parallel = 1;
  key.micro_batch = 1;
  key.kind = LayerKind::embedding;
  key.first_layer = 0;
  return key;
}

/// Forward time of a block: a row per GPU and tensor-parallel degree, a column per micro-batch.
std::string layer_time_grids(const ProfileData& data) {
  struct Line {
    std::map<int, std::vector<double>> forward;  // by micro-batch, of all layers
    std::set<int> out_of_memory;
  };
  struct Grid {
    std::map<std::pair<std::string, int>, Line> lines;  // by GPU and tensor parallel
    std::set<int> micro_batches;
    std::set<LayerKind> kinds;
    std::size_t rows = 0;
    std::vector<double> spreads;
  };
  std::map<LayerKey, Grid> grids;
  for (const LayerTime& row : data.layer_times) {
    Grid& grid = grids[grid_of(row.key)];
    grid.kinds.insert(row.key.kind);
    ++grid.rows;
    if (row.forward.samples > 1) grid.spreads.push_back(row.forward.relative_spread());
    Line& line = grid.lines[{row.key.gpu, row.key.tensor_parallel}];
    grid.micro_batches.insert(row.key.micro_batch);
    if (row.key.kind == LayerKind::block) line.forward[row.key.micro_batch].push_back(row.forward.median.value());
  }
  for (const OutOfMemory& row : data.out_of_memory)
    for (auto& [key, grid] : grids) {
      LayerKey like = grid_of(row.key);
      like.busy_ranks = key.busy_ranks;
      if (like != key) continue;
      grid.lines[{row.key.gpu, row.key.tensor_parallel}].out_of_memory.insert(row.key.micro_batch);
      grid.micro_batches.insert(row.key.micro_batch);
    }
  std::string text;
  for (const auto& [key, grid] : grids) {
    std::vector<Table::Column> columns{{"gpu", Align::left}, {"tensor parallel"}};
    for (const int micro_batch : grid.micro_batches) columns.push_back({fmt::to_string(micro_batch)});
    Table table(std::move(columns));
    for (const auto& [row, line] : grid.lines) {
      std::vector<std::string> cells{row.first, fmt::to_string(row.second)};
      for (const int micro_batch : grid.micro_batches) {
        const auto found = line.forward.find(micro_batch);
        cells.push_back(found != line.forward.end()                ? format_time(Seconds(median_of(found->second)))
                        : line.out_of_memory.contains(micro_batch) ? "memory"
                                                                   : none);
      }
      table.add_row(std::move(cells));
    }
    std::vector<std::string_view> kinds;
    for (const LayerKind kind : grid.kinds) kinds.push_back(to_string(kind));
    text += fmt::format(
        "{}{}, precision {}, sequence {}, recompute {}, busy ranks {}: forward of a block by "
        "micro-batch\n{}{} of {}",
        text.empty() ? "" : "\n", key.model, to_string(key.precision), key.sequence_length, to_string(key.recompute),
        key.busy_ranks, table.to_string(), plural(grid.rows, "row"), join(kinds, ", "));
    if (!grid.spreads.empty())
      text += fmt::format("; spread {:.0f}% (median), {:.0f}% (largest)", 100.0 * median_of(grid.spreads),
                          100.0 * *std::max_element(grid.spreads.begin(), grid.spreads.end()));
    text += "\n";
  }
  return text;
}

// ---- Layer memory

std::string layer_memory_rows(const std::vector<LayerMemory>& layers) {
  Table table(layer_columns() +
              std::vector<Table::Column>{{"parameters"}, {"activation"}, {"output"}, {"input"}, {"workspace"}});
  for (const LayerMemory& row : layers)
    table.add_row(layer_cells(row.key) + std::vector<std::string>{fmt::to_string(row.parameters),
                                                                  format_bytes(row.activation),
                                                                  format_bytes(row.output), format_bytes(row.input),
                                                                  format_bytes(row.workspace)});
  return captioned(table, foldable_layer_columns);
}

/// The largest over the layers of a kind, at the smallest micro-batch.
std::string layer_memory_summary(const std::vector<LayerMemory>& layers) {
  struct Group {
    std::map<int, LayerMemory> largest;  // by micro-batch
    std::set<int> first_layers;
  };
  std::map<LayerKey, Group> groups;
  for (const LayerMemory& row : layers) {
    LayerKey key = row.key;
    key.micro_batch = 1;
    key.first_layer = 0;
    Group& group = groups[key];
    group.first_layers.insert(row.key.first_layer);
    LayerMemory& largest = group.largest[row.key.micro_batch];
    largest.parameters = std::max(largest.parameters, row.parameters);
    for (Bytes LayerMemory::*size :
         {&LayerMemory::activation, &LayerMemory::output, &LayerMemory::input, &LayerMemory::workspace})
      largest.*size = std::max(largest.*size, row.*size);
  }
  Table table({{"model", Align::left},
               {"gpu", Align::left},
               {"precision", Align::left},
               {"recompute", Align::left},
               {"sequence"},
               {"layer", Align::left},
               {"tensor parallel"},
               {"parameters"},
               {"activation"},
               {"output"},
               {"input"},
               {"workspace"},
               {"at micro-batch"},
               {"up to"}});
  for (const auto& [key, group] : groups) {
    const auto& [micro_batch, row] = *group.largest.begin();
    table.add_row({key.model, key.gpu, std::string(to_string(key.precision)), std::string(to_string(key.recompute)),
                   fmt::to_string(key.sequence_length), std::string(to_string(key.kind)),
                   fmt::to_string(key.tensor_parallel), fmt::to_string(row.parameters), format_bytes(row.activation),
                   format_bytes(row.output), format_bytes(row.input), format_bytes(row.workspace),
                   fmt::to_string(micro_batch), fmt::to_string(group.largest.rbegin()->first)});
  }
  return captioned(table, {"model", "gpu", "precision", "recompute", "sequence", "at micro-batch", "up to"});
}

std::string out_of_memory_rows(const std::vector<OutOfMemory>& rows) {
  Table table(layer_columns() + std::vector<Table::Column>{{"needed"}, {"available"}});
  for (const OutOfMemory& row : rows)
    table.add_row(layer_cells(row.key) +
                  std::vector<std::string>{format_bytes(row.needed), format_bytes(row.available)});
  return captioned(table, foldable_layer_columns);
}

// ---- Links

std::vector<Table::Column> link_columns() {
  return {{"from", Align::left}, {"to", Align::left}, {"scope", Align::left}, {"operation", Align::left}, {"ranks"}};
}

std::vector<std::string> link_cells(const LinkKey& key) {
  return {describe(key.from), describe(key.to), std::string(to_string(key.scope)),
          std::string(to_string(key.operation)), fmt::to_string(key.ranks)};
}

const std::vector<std::string_view> foldable_link_columns{"from", "to", "scope", "operation", "ranks"};

std::string bandwidth_of(Bytes message, Seconds time) {
  return time.value() > 0.0 && message.value() > 0.0 ? format_bandwidth(message / time) : none;
}

std::string link_rows(const std::vector<LinkMeasurement>& links) {
  Table table(link_columns() +
              std::vector<Table::Column>{{"message"}, {"time"}, {"bandwidth"}, {"spread"}, {"samples"}});
  for (const LinkMeasurement& row : links)
    table.add_row(link_cells(row.key) + std::vector<std::string>{format_bytes(row.message), with_interval(row.time),
                                                                 bandwidth_of(row.message, row.time.median),
                                                                 spread_of(row.time), samples_of(row.time)});
  return captioned(table, foldable_link_columns);
}

/// Bandwidths: a row per link, a column per message size (at most eight of them, evenly chosen).
std::string link_grid(const std::vector<LinkMeasurement>& links) {
  constexpr std::size_t most_sizes = 8;
  std::map<LinkKey, std::map<Bytes, Seconds>> curves;
  std::set<Bytes> sizes;
  for (const LinkMeasurement& row : links) {
    curves[row.key][row.message] = row.time.median;
    if (row.message.value() > 0.0) sizes.insert(row.message);
  }
  const std::vector<Bytes> all(sizes.begin(), sizes.end());
  std::vector<Bytes> chosen;
  for (std::size_t i = 0; i < std::min(all.size(), most_sizes); ++i)
    chosen.push_back(all.size() <= most_sizes ? all[i] : all[i * (all.size() - 1) / (most_sizes - 1)]);
  std::vector<Table::Column> columns = link_columns() + std::vector<Table::Column>{{"messages"}, {"shortest"}};
  for (const Bytes size : chosen) columns.push_back({format_bytes(size)});
  Table table(std::move(columns));
  for (const auto& [key, curve] : curves) {
    auto cells =
        link_cells(key) + std::vector<std::string>{fmt::to_string(curve.size()), format_time(curve.begin()->second)};
    for (const Bytes size : chosen) {
      const auto found = curve.find(size);
      cells.push_back(found == curve.end() ? none : bandwidth_of(size, found->second));
    }
    table.add_row(std::move(cells));
  }
  return captioned(table, foldable_link_columns);
}

/// Bandwidth that one message of a curve gets.
BytesPerSecond message_bandwidth(const LinkFit& fit, Bytes message) {
  const Seconds time = fit.curve.time(message, fit.key.from.ranks);
  return time.value() > 0.0 ? message / time : BytesPerSecond(0.0);
}

Bytes largest_message(const LinkFit& fit) { return std::max(fit.curve.largest_message, mib); }

std::string fit_rows(const std::vector<LinkFit>& fits) {
  Table table(link_columns() + std::vector<Table::Column>{{"latency"},
                                                          {"at 1 MiB"},
                                                          {"at largest"},
                                                          {"largest"},
                                                          {"error (median)"},
                                                          {"error (largest)"},
                                                          {"messages"}});
  for (const LinkFit& row : fits) {
    const bool fitted = row.points > 0;
    const Bytes largest = largest_message(row);
    table.add_row(link_cells(row.key) +
                  std::vector<std::string>{row.curve.latency.value() > 0.0 ? format_time(row.curve.latency) : none,
                                           format_bandwidth(message_bandwidth(row, mib)),
                                           format_bandwidth(message_bandwidth(row, largest)), format_bytes(largest),
                                           fitted ? fmt::format("{:.1f}%", 100.0 * row.median_error) : none,
                                           fitted ? fmt::format("{:.1f}%", 100.0 * row.largest_error) : none,
                                           fitted ? fmt::to_string(row.points) : none});
  }
  return captioned(table, foldable_link_columns);
}

/// "1.10 to 2.30 GB/s" over the fits of a pair of GPU types.
std::string fit_summary(const std::vector<LinkFit>& fits) {
  struct Group {
    std::set<std::string> zones;
    std::set<int> ranks;
    std::size_t count = 0;
    std::vector<double> at_mib;
    std::vector<double> at_largest;
    double error = 0.0;
    bool fitted = false;
  };
  std::map<std::tuple<std::string, std::string, LinkScope, LinkOperation>, Group> groups;
  for (const LinkFit& row : fits) {
    Group& group = groups[{row.key.from.gpu, row.key.to.gpu, row.key.scope, row.key.operation}];
    ++group.count;
    group.zones.insert(row.key.from.zone);
    group.zones.insert(row.key.to.zone);
    group.ranks.insert(row.key.from.ranks);
    group.at_mib.push_back(message_bandwidth(row, mib).value());
    group.at_largest.push_back(message_bandwidth(row, largest_message(row)).value());
    group.error = std::max(group.error, row.largest_error);
    group.fitted = group.fitted || row.points > 0;
  }
  auto range = [](const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const std::string from = format_bandwidth(BytesPerSecond(*low));
    const std::string to = format_bandwidth(BytesPerSecond(*high));
    return from == to ? from : from + " to " + to;
  };
  Table table({{"from", Align::left},
               {"to", Align::left},
               {"scope", Align::left},
               {"operation", Align::left},
               {"ranks that send", Align::left},
               {"zones"},
               {"fits"},
               {"at 1 MiB"},
               {"at largest"},
               {"error (largest)"}});
  for (const auto& [key, group] : groups)
    table.add_row({std::get<0>(key), std::get<1>(key), std::string(to_string(std::get<2>(key))),
                   std::string(to_string(std::get<3>(key))), join(group.ranks, ", "),
                   fmt::to_string(group.zones.size()), fmt::to_string(group.count), range(group.at_mib),
                   range(group.at_largest), group.fitted ? fmt::format("{:.1f}%", 100.0 * group.error) : none});
  return captioned(table, {"scope", "operation", "ranks that send", "zones", "error (largest)"});
}

std::string process_rows(const std::vector<ProcessMeasurement>& processes) {
  Table table({{"gpu", Align::left}, {"framework", Align::left}, {"base memory"}});
  for (const ProcessMeasurement& row : processes)
    table.add_row({row.gpu, row.framework, format_bytes(row.base_memory)});
  return table.to_string();
}

std::string clock_of(double hertz) { return hertz > 0.0 ? fmt::format("{:.2f} GHz", hertz * 1e-9) : none; }

/// Long texts are shortened in tables; JSON has them in full.
std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text.empty() ? none : text;
  std::size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // no half character
  return text.substr(0, end) + "...";
}

}  // namespace

std::string profile_tables(const ProfileData& unsorted, bool all) {
  ProfileData data = unsorted;
  auto by_key = [](const auto& a, const auto& b) { return a.key < b.key; };
  std::sort(data.layer_times.begin(), data.layer_times.end(), by_key);
  std::sort(data.layer_memory.begin(), data.layer_memory.end(), by_key);
  std::sort(data.out_of_memory.begin(), data.out_of_memory.end(), by_key);
  std::sort(data.fits.begin(), data.fits.end(), by_key);
  std::sort(data.links.begin(), data.links.end(), [](const LinkMeasurement& a, const LinkMeasurement& b) {
    return std::tie(a.key, a.message) < std::tie(b.key, b.message);
  });
  std::string text;
  auto add = [&](const std::string& title, const std::string& table) {
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", title, table);
  };
  auto few = [&](const auto& rows) { return all || rows.size() <= most_table_rows; };
  bool left_out = false;
  /// Adds every row, or their summary.
  auto add_rows = [&](const auto& rows, const std::string& title, auto list, const std::string& summary_title,
                      auto summarise) {
    if (rows.empty()) return;
    if (few(rows))
      add(title, list(rows));
    else
      add(fmt::format("{}, summary of {}", summary_title, plural(rows.size(), "row")), summarise(rows));
    left_out = left_out || !few(rows);
  };
  add_rows(data.layer_times,
           "Layer times (of one micro-batch on one rank: median ± its 95% interval; spread: (p90 - p10) / median of "
           "forward)",
           layer_time_rows, "Layer times (of one micro-batch on one rank; memory: did not fit)",
           [&](const auto&) { return layer_time_grids(data); });
  add_rows(data.layer_memory, "Layer memory (of one micro-batch on one rank)", layer_memory_rows,
           "Layer memory (of one micro-batch on one rank; largest over the layers of a kind)", layer_memory_summary);
  add_rows(data.out_of_memory, "Out of memory (did not fit when it was tried)", out_of_memory_rows,
           "Out of memory (did not fit when it was tried)", [&](const auto& rows) {
             return data.layer_times.size() > most_table_rows
                        ? fmt::format("{} of the grids above\n", plural(rows.size(), "row"))
                        : out_of_memory_rows(rows);
           });
  add_rows(data.links, "Links (a message one way; a collective on its slowest rank)", link_rows,
           "Links (bandwidth by message size; shortest: time of the shortest message)", link_grid);
  add_rows(data.fits, "Link fits (bandwidth of one message)", fit_rows, "Link fits (bandwidth of one message)",
           fit_summary);
  if (!data.processes.empty()) add("Processes (resident before the first tensor)", process_rows(data.processes));
  if (left_out) text += "\nSummaries: --all lists every row; --model, --gpu and --table choose.\n";
  return text;
}

std::string session_table(const ProfileData& data, bool all) {
  if (data.sessions.empty()) return "";
  if (data.sessions.size() == 1) {
    const Session& session = data.sessions.front();
    std::string text = provenance_text(session.provenance);
    if (session.highest_clock_hz > 0.0)
      text += fmt::format("clock: {} to {}\n", clock_of(session.lowest_clock_hz), clock_of(session.highest_clock_hz));
    if (session.slowdown > 0.0) text += fmt::format("slowdown: {:.2f}\n", session.slowdown);
    return text + notes_of(session);
  }
  std::map<int, std::size_t> rows;
  auto count = [&](const auto& table) {
    for (const auto& row : table) ++rows[row.session];
  };
  count(data.layer_times);
  count(data.layer_memory);
  count(data.out_of_memory);
  count(data.links);
  count(data.fits);
  count(data.processes);

  // Values that all sessions share are given once; of many sessions the newest are shown.
  const std::size_t shown = all ? data.sessions.size() : std::min<std::size_t>(data.sessions.size(), 20);
  std::string text;
  std::vector<std::size_t> differing;
  const auto first = fields_of(data.sessions.front().provenance);
  for (std::size_t field = 0; field < first.size(); ++field) {
    const bool same = std::all_of(data.sessions.begin(), data.sessions.end(), [&](const Session& session) {
      return *fields_of(session.provenance)[field].second == *first[field].second;
    });
    if (!same)
      differing.push_back(field);
    else if (!first[field].second->empty())
      text += fmt::format("{}: {}\n", first[field].first, *first[field].second);
  }
  std::vector<Table::Column> columns{{"session", Align::left}};
  for (const std::size_t field : differing) columns.push_back({first[field].first, Align::left});
  Table table(std::move(columns) +
              std::vector<Table::Column>{{"lowest clock"}, {"highest clock"}, {"slowdown"}, {"rows"}});
  for (std::size_t i = data.sessions.size() - shown; i < data.sessions.size(); ++i) {
    const Session& session = data.sessions[i];
    std::vector<std::string> cells{shortened(session.id, 40)};
    for (const std::size_t field : differing) {
      const auto [name, value] = fields_of(session.provenance)[field];
      cells.push_back(std::string_view(name) == "date" ? shortened(value->substr(0, 19), 19)
                                                       : shortened(*value, all ? 1000 : 48));
    }
    table.add_row(std::move(cells) +
                  std::vector<std::string>{clock_of(session.lowest_clock_hz), clock_of(session.highest_clock_hz),
                                           session.slowdown > 0.0 ? fmt::format("{:.2f}", session.slowdown) : none,
                                           fmt::to_string(rows[static_cast<int>(i)])});
  }
  const std::string caption = table.fold_constant_columns({"lowest clock", "highest clock", "slowdown"});
  if (caption.find_first_of("0123456789") != std::string::npos) text += caption + "\n";
  text += table.to_string();
  if (shown < data.sessions.size())
    text += fmt::format("and {} before these: --all\n", plural(data.sessions.size() - shown, "session"));
  for (std::size_t i = data.sessions.size() - shown; i < data.sessions.size(); ++i) text += notes_of(data.sessions[i]);
  return text;
}

std::string provenance_text(const Provenance& provenance) {
  std::string text;
  for (const auto& [name, value] : fields_of(provenance))
    if (!value->empty()) text += fmt::format("{}: {}\n", name, *value);
  return text;
}

}  // namespace sailor::reports

// Selection of rows of a store.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/text.hpp"
#include "reports/profile_tables.hpp"

namespace sailor::reports {

namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool selects(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || contains(names, name);
}

/// A name that the store does not have is a mistake, not an empty answer.
Result<void> check_names(const std::vector<std::string>& wanted, const std::set<std::string>& there,
                         std::string_view what) {
  for (const std::string& name : wanted) {
    if (there.contains(name)) continue;
    if (there.empty()) return fail(ErrorCode::not_found, fmt::format("the store names no {}", what));
    const std::vector<std::string> known(there.begin(), there.end());
    return fail(ErrorCode::not_found,
                fmt::format("the store has nothing of {} '{}' (there: {})", what, name, join(known, ", ")),
                did_you_mean(name, known, ""));
  }
  return {};
}

template <class Row, class Keep>
void keep_if(std::vector<Row>& rows, Keep keep) {
  std::erase_if(rows, [&](const Row& row) { return !keep(row); });
}

template <class Visit>
void for_each_part(ProfileData& data, Visit visit) {
  visit("layer_times", data.layer_times);
  visit("layer_memory", data.layer_memory);
  visit("out_of_memory", data.out_of_memory);
  visit("links", data.links);
  visit("link_fits", data.fits);
  visit("processes", data.processes);
}

}  // namespace

const std::vector<std::string>& profile_table_names() {
  static const std::vector<std::string> names{"sessions", "layer_times", "layer_memory", "out_of_memory",
                                              "links",    "link_fits",   "processes"};
  return names;
}

Result<ProfileData> select_rows(const ProfileData& data, const ProfileFilter& filter) {
  std::set<std::string> models;
  std::set<std::string> gpus;
  std::set<std::string> zones;
  auto note_layer = [&](const auto& rows) {
    for (const auto& row : rows) {
      models.insert(row.key.model);
      gpus.insert(row.key.gpu);
    }
  };
  auto note_link = [&](const auto& rows) {
    for (const auto& row : rows)
      for (const LinkEnd* end : {&row.key.from, &row.key.to}) {
        gpus.insert(end->gpu);
        if (!end->zone.empty()) zones.insert(end->zone);
      }
  };
  note_layer(data.layer_times);
  note_layer(data.layer_memory);
  note_layer(data.out_of_memory);
  note_link(data.links);
  note_link(data.fits);
  for (const ProcessMeasurement& row : data.processes) gpus.insert(row.gpu);
  SAILOR_CHECK(check_names(filter.models, models, "model"));
  SAILOR_CHECK(check_names(filter.gpus, gpus, "GPU"));
  SAILOR_CHECK(check_names(filter.zones, zones, "zone"));

  ProfileData kept = data;
  auto layer = [&](const LayerKey& key) {
    return filter.zones.empty() && filter.operations.empty() && selects(filter.models, key.model) &&
           (selects(filter.gpus, key.gpu) || key.gpu == any_gpu);
  };
  auto link = [&](const LinkKey& key) {
    return filter.models.empty() && (selects(filter.gpus, key.from.gpu) || contains(filter.gpus, key.to.gpu)) &&
           (selects(filter.zones, key.from.zone) || contains(filter.zones, key.to.zone)) &&
           selects(filter.operations, to_string(key.operation));
  };
  for_each_part(kept, [&](std::string_view name, auto& rows) {
    if (!selects(filter.tables, name)) rows.clear();
  });
  keep_if(kept.layer_times, [&](const auto& row) { return layer(row.key); });
  keep_if(kept.layer_memory, [&](const auto& row) { return layer(row.key); });
  keep_if(kept.out_of_memory, [&](const auto& row) { return layer(row.key); });
  keep_if(kept.links, [&](const auto& row) { return link(row.key); });
  keep_if(kept.fits, [&](const auto& row) { return link(row.key); });
  keep_if(kept.processes, [&](const auto& row) {
    return filter.models.empty() && filter.zones.empty() && filter.operations.empty() && selects(filter.gpus, row.gpu);
  });

  // Sessions: all, unless rows were chosen; then those of the chosen rows.
  const bool rows_chosen = !filter.models.empty() || !filter.gpus.empty() || !filter.zones.empty() ||
                           !filter.operations.empty() || !selects(filter.tables, "sessions");
  if (rows_chosen) {
    std::set<int> used;
    for_each_part(kept, [&](std::string_view, auto& rows) {
      for (const auto& row : rows) used.insert(row.session);
    });
    if (used.empty() && !contains(filter.tables, "sessions"))
      return fail(ErrorCode::not_found, "the store has nothing that all of these filters select",
                  "leave one out, or see what is there with sailor-profile show STORE");
    std::vector<int> position(kept.sessions.size(), 0);
    std::vector<Session> sessions;
    for (std::size_t i = 0; i < kept.sessions.size(); ++i) {
      position[i] = static_cast<int>(sessions.size());
      if (used.contains(static_cast<int>(i))) sessions.push_back(std::move(kept.sessions[i]));
    }
    kept.sessions = std::move(sessions);
    for_each_part(kept, [&](std::string_view, auto& rows) {
      for (auto& row : rows)
        if (row.session >= 0 && row.session < static_cast<int>(position.size()))
          row.session = position[static_cast<std::size_t>(row.session)];
    });
  }
  return kept;
}

}  // namespace sailor::reports

// Merges the content of stores. Does no file I/O.
#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>

#include "core/assert.hpp"
#include "profile/store.hpp"
#include "profile/tables.hpp"

namespace sailor {

namespace {

// Rows with equal identities replace each other. Rows of a layer are replaced together: a newer session may divide the
// layers differently. part() distinguishes rows of one identity and one session.

template <class Row>
concept OfLayer = requires(const Row& row) {
  row.key.first_layer;
};

std::size_t combine(std::size_t hash, std::size_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15U + (hash >> 29U);
}
std::size_t combine(std::size_t hash, const std::string& value) {
  return combine(hash, std::hash<std::string_view>()(value));
}
template <class... Values>
std::size_t hash_of(const Values&... values) {
  std::size_t hash = 0;
  auto add = [&](const auto& value) {
    if constexpr (std::is_convertible_v<decltype(value), std::string>)
      hash = combine(hash, value);
    else
      hash = combine(hash, static_cast<std::size_t>(value));
  };
  (add(values), ...);
  return hash;
}

template <OfLayer Row>
std::size_t hash_of_identity(const Row& row) {
  const LayerKey& key = row.key;
  return hash_of(key.model, key.gpu, key.precision, key.recompute, key.tensor_parallel, key.micro_batch,
                 key.sequence_length, key.busy_ranks, key.kind);
}
std::size_t hash_of_key(const LinkKey& key) {
  return hash_of(key.from.gpu, key.from.zone, key.from.ranks, key.to.gpu, key.to.zone, key.to.ranks, key.scope,
                 key.operation, key.ranks);
}
std::size_t hash_of_identity(const LinkMeasurement& row) {
  return combine(hash_of_key(row.key), std::hash<double>()(row.message.value()));
}
std::size_t hash_of_identity(const LinkFit& row) { return hash_of_key(row.key); }
std::size_t hash_of_identity(const ProcessMeasurement& row) { return hash_of(row.gpu, row.framework); }

template <OfLayer Row>
bool same_identity(const Row& a, const Row& b) {
  const LayerKey& x = a.key;
  const LayerKey& y = b.key;
  return x.micro_batch == y.micro_batch && x.kind == y.kind && x.busy_ranks == y.busy_ranks &&
         x.tensor_parallel == y.tensor_parallel && x.sequence_length == y.sequence_length &&
         x.precision == y.precision && x.recompute == y.recompute && x.model == y.model && x.gpu == y.gpu;
}
bool same_identity(const LinkMeasurement& a, const LinkMeasurement& b) {
  return a.message == b.message && a.key == b.key;
}
bool same_identity(const LinkFit& a, const LinkFit& b) { return a.key == b.key; }
bool same_identity(const ProcessMeasurement& a, const ProcessMeasurement& b) {
  return a.gpu == b.gpu && a.framework == b.framework;
}

template <class Row>
int part(const Row& row) {
  if constexpr (OfLayer<Row>) return row.key.first_layer;
  return 0;
}

/// An arbitrary but reproducible order of rows.
template <class Row>
bool comes_after(const hdf5::Table<Row>& table, const Row& a, const Row& b) {
  for (const hdf5::Column& column : table.columns())
    if (const hdf5::Cell x = column.get(&a), y = column.get(&b); x != y) return x > y;
  return false;
}

// Repeated measurements differ by more than one session can show: intervals grow to include the results of earlier
// ones.

std::vector<TimeStatistics*> intervals_of(LayerTime& row) {
  return {&row.forward, &row.backward, &row.update, &row.cold_forward, &row.cold_backward};
}
std::vector<TimeStatistics*> intervals_of(LinkMeasurement& row) { return {&row.time}; }

template <class Row>
concept Repeated = requires(Row& row) {
  intervals_of(row);
};

/// Widens the intervals of `newest` to include the medians of `older`.
template <Repeated Row>
void hold_medians(Row& newest, Row& older) {
  const auto into = intervals_of(newest);
  const auto from = intervals_of(older);
  for (std::size_t i = 0; i < into.size(); ++i) {
    if (into[i]->samples == 0 || from[i]->samples == 0) continue;
    into[i]->low = std::min(into[i]->low, from[i]->median);
    into[i]->high = std::max(into[i]->high, from[i]->median);
  }
}

/// Whether the sessions report the same machine.
bool alike(const Session& a, const Session& b) {
  return a.provenance.host == b.provenance.host && a.provenance.device == b.provenance.device &&
         a.provenance.versions == b.provenance.versions;
}

/// Of rows with the same identity, those of the newest session are kept, in the order of the sessions. Two different
/// rows of one session, identity and part are a conflict; which of them is kept does not depend on their order. Returns
/// the number of conflicts.
template <class Row>
std::size_t keep_newest(const hdf5::Table<Row>& table, const std::vector<Session>& sessions, Intervals intervals,
                        std::vector<Row>& rows) {
  std::vector<std::size_t> hashes;
  hashes.reserve(rows.size());
  for (const Row& row : rows) hashes.push_back(hash_of_identity(row));
  const auto hash = [&](std::size_t i) { return hashes[i]; };
  const auto same = [&](std::size_t i, std::size_t j) { return same_identity(rows[i], rows[j]); };
  std::unordered_map<std::size_t, int, decltype(hash), decltype(same)> newest(rows.size(), hash, same);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    int& session = newest.emplace(i, rows[i].session).first->second;
    session = std::max(session, rows[i].session);
  }
  const auto part_hash = [&](std::size_t i) { return combine(hashes[i], static_cast<std::size_t>(part(rows[i]))); };
  const auto same_part = [&](std::size_t i, std::size_t j) {
    return part(rows[i]) == part(rows[j]) && same_identity(rows[i], rows[j]);
  };
  std::unordered_map<std::size_t, std::size_t, decltype(part_hash), decltype(same_part)> place(rows.size(), part_hash,
                                                                                               same_part);
  std::vector<std::size_t> kept;
  std::size_t conflicts = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].session < newest.find(i)->second) continue;
    const auto [found, is_new] = place.emplace(i, kept.size());
    if (is_new) {
      kept.push_back(i);
    } else if (std::size_t& other = kept[found->second]; !(rows[i] == rows[other])) {
      ++conflicts;
      if (comes_after(table, rows[i], rows[other])) other = i;
    }
  }
  if constexpr (Repeated<Row>)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto found = place.find(i);
      if (intervals == Intervals::as_stored || found == place.end()) continue;
      Row& newer = rows[kept[found->second]];
      if (newer.session != rows[i].session &&
          alike(sessions[static_cast<std::size_t>(newer.session)], sessions[static_cast<std::size_t>(rows[i].session)]))
        hold_medians(newer, rows[i]);
    }
  std::stable_sort(kept.begin(), kept.end(),
                   [&](std::size_t i, std::size_t j) { return rows[i].session < rows[j].session; });
  SAILOR_ASSERT(kept.size() == place.size(), "rows of one identity are kept twice");
  std::vector<Row> result;
  result.reserve(kept.size());
  for (const std::size_t i : kept) result.push_back(std::move(rows[i]));
  rows = std::move(result);
  return conflicts;
}

template <class Row>
void append(std::vector<Row>& rows, std::vector<Row>&& more, const std::vector<int>& new_session) {
  for (Row& row : more) {
    SAILOR_ASSERT(row.session >= 0 && row.session < std::ssize(new_session), "a row is of a session that there is not");
    row.session = new_session[static_cast<std::size_t>(row.session)];
  }
  if (rows.empty())
    rows = std::move(more);
  else
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// `conflicts`, if not null, receives the result of keep_newest().
ProfileData merge(std::vector<ProfileData> stores, Intervals intervals, std::size_t* conflicts) {
  ProfileData merged;
  std::map<std::string, Session> by_id;  // of two descriptions of one session the later, which does not depend on the
                                         // order of the stores
  for (const ProfileData& store : stores)
    for (const Session& session : store.sessions) {
      const auto [found, is_new] = by_id.emplace(session.id, session);
      if (!is_new && session.provenance.date != found->second.provenance.date
              ? session.provenance.date > found->second.provenance.date
              : comes_after(session_table(), session, found->second))
        found->second = session;
    }
  for (auto& [id, session] : by_id) merged.sessions.push_back(std::move(session));
  // Oldest first, those of one date by id; ISO 8601 in UTC sorts as text.
  std::stable_sort(merged.sessions.begin(), merged.sessions.end(),
                   [](const Session& a, const Session& b) { return a.provenance.date < b.provenance.date; });
  std::map<std::string, int> index;
  for (std::size_t i = 0; i < merged.sessions.size(); ++i) index.emplace(merged.sessions[i].id, static_cast<int>(i));
  for (ProfileData& store : stores) {
    std::vector<int> new_session;
    for (const Session& session : store.sessions) new_session.push_back(index.at(session.id));
    append(merged.layer_times, std::move(store.layer_times), new_session);
    append(merged.layer_memory, std::move(store.layer_memory), new_session);
    append(merged.out_of_memory, std::move(store.out_of_memory), new_session);
    append(merged.links, std::move(store.links), new_session);
    append(merged.fits, std::move(store.fits), new_session);
    append(merged.processes, std::move(store.processes), new_session);
  }
  (void)for_each_table(merged, [&](const auto& table, auto& rows) -> Result<void> {
    const std::size_t found = keep_newest(table, merged.sessions, intervals, rows);
    if (conflicts != nullptr) *conflicts += found;
    return {};
  });
  return merged;
}

}  // namespace

ProfileData merge_profiles(std::vector<ProfileData> stores, Intervals intervals) {
  return merge(std::move(stores), intervals, nullptr);
}

std::size_t conflicting_rows(const ProfileData& a, const ProfileData& b) {
  std::size_t conflicts = 0;
  (void)merge({a, b}, Intervals::as_stored, &conflicts);
  return conflicts;
}

ProfileData only_sessions(ProfileData data, const std::function<bool(const Session&)>& wanted) {
  std::vector<int> new_session;
  std::vector<Session> sessions;
  for (Session& session : data.sessions) {
    const bool keep = wanted(session);
    new_session.push_back(keep ? static_cast<int>(sessions.size()) : -1);
    if (keep) sessions.push_back(std::move(session));
  }
  data.sessions = std::move(sessions);
  (void)for_each_table(data, [&](const auto&, auto& rows) -> Result<void> {
    for (auto& row : rows) row.session = new_session[static_cast<std::size_t>(row.session)];
    std::erase_if(rows, [](const auto& row) { return row.session < 0; });
    return {};
  });
  return data;
}

std::size_t number_of_rows(const ProfileData& data) {
  std::size_t count = 0;
  (void)for_each_table(data, [&](const auto&, const auto& rows) -> Result<void> {
    count += rows.size();
    return {};
  });
  return count;
}

}  // namespace sailor

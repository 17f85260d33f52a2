// The tables of a store and their columns: one list for HDF5, TOML and CSV. Private to this folder.
#pragma once

#include "core/error.hpp"
#include "profile/measurements.hpp"
#include "profile/table.hpp"

namespace sailor {

const hdf5::Table<Session>& session_table();
const hdf5::Table<LayerTime>& layer_time_table();
const hdf5::Table<LayerMemory>& layer_memory_table();
const hdf5::Table<OutOfMemory>& out_of_memory_table();
const hdf5::Table<LinkMeasurement>& link_table();
const hdf5::Table<LinkFit>& link_fit_table();
const hdf5::Table<ProcessMeasurement>& process_table();

/// Calls visit(table, rows) for every table but that of the sessions.
template <class Data, class Visit>
Result<void> for_each_table(Data& data, Visit visit) {
  SAILOR_CHECK(visit(layer_time_table(), data.layer_times));
  SAILOR_CHECK(visit(layer_memory_table(), data.layer_memory));
  SAILOR_CHECK(visit(out_of_memory_table(), data.out_of_memory));
  SAILOR_CHECK(visit(link_table(), data.links));
  SAILOR_CHECK(visit(link_fit_table(), data.fits));
  SAILOR_CHECK(visit(process_table(), data.processes));
  return {};
}

}  // namespace sailor

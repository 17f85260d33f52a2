// The restricted master problem of the bound: the min dual prices that the columns seen so far allow, a small linear
// program that is solved again whenever a column is added (column generation; Gilmore & Gomory 1961, Kelley 1960).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace sailor::planner {

/// The dual values of devices and pipelines, in sequences.
struct DualPrices {
  std::vector<double> device;  ///< of one more device, by pool
  double each = 0.0;           ///< of one more pipeline; negative where there must be many
};

/// The linear program: as many sequences as possible, with limited resources and a number of pipelines between two
/// limits. By duality that is the min value of the resources and pipelines, over all prices at which no pipeline is
/// worth more than it takes. COIN-OR's CLP solves it, and starts from the last solution when columns were added.
class RestrictedMaster {
 public:
  RestrictedMaster();
  ~RestrictedMaster();
  RestrictedMaster(RestrictedMaster&&) noexcept;
  RestrictedMaster& operator=(RestrictedMaster&&) noexcept;

  /// Adds a resource: `amount` is available, a device of each pool takes `per_device`. To be called before the first
  /// column.
  void add_resource(double amount, std::vector<double> per_device);
  /// Limits the number of pipelines. `largest_price`: penalty, in sequences, for each pipeline below `min_count`, which
  /// keeps the program feasible. To be called before the first column.
  void set_pipelines(double min_count, double max_count, double largest_price);
  /// Adds a column. `uses`: devices by pool.
  void add_pipeline(double sequences, const std::vector<double>& uses);
  /// Solves the linear program: returns its optimum, in sequences, and writes its dual prices.
  double solve(DualPrices& prices);

 private:
  struct Program;
  std::vector<double> amounts_;
  std::vector<std::vector<double>> per_device_;
  double min_pipelines_ = 1.0;
  double max_pipelines_ = 1.0;
  double largest_price_ = 0.0;
  std::unique_ptr<Program> program_;  // created with the first column
};

}  // namespace sailor::planner

// The cheapest prices that known pipelines allow: a small linear program, solved again whenever one is added (column
// generation; Gilmore & Gomory 1961, Kelley 1960).
#pragma once

#include <cstddef>
#include <vector>

namespace sailor::planner {

/// The dual values of devices and pipelines, in sequences.
struct Prices {
  std::vector<double> device;  ///< of one more device, by place
  double each = 0.0;           ///< of being one of the pipelines; negative where there must be many
};

/// The most sequences that a number of pipelines between two gets through with limited resources is, by duality, the
/// least value of the resources and of being a pipeline for which no pipeline is worth more than it takes.
class PriceMaster {
 public:
  /// A resource of which there is so much; a device of each place takes `per_device` of it.
  void add_resource(double amount, std::vector<double> per_device);
  void set_pipelines(int least, int most, double largest_price);
  /// `uses`: devices by place.
  void add_pipeline(double sequences, const std::vector<double>& uses);
  /// The value of everything at the least prices.
  double solve(Prices& prices) const;

 private:
  struct Column {
    double sequences = 0.0;
    std::vector<double> takes;  // by resource
  };
  std::vector<double> amounts_;
  std::vector<std::vector<double>> per_device_;
  std::vector<Column> columns_;
  int least_ = 1;
  int most_ = 1;
  double largest_ = 0.0;  // price of having too few pipelines
};

}  // namespace sailor::planner

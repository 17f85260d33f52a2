// How FlashFlex divides devices among pipelines and stages: graph partitioning by the METIS library (Karypis and Kumar,
// 1998), the order of the parts, and the tensor-parallel groups and layers of a part.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/flashflex_cost.hpp"

namespace sailor::planner::baselines::flashflex_detail {

/// 1 + Binomial(2, 0.2) as numpy's legacy generator draws it (MT19937, inversion): the number of parts of a pipeline.
class NumbersOfParts {
 public:
  explicit NumbersOfParts(std::uint32_t seed) : generator_(seed) {}
  int draw() {
    const auto high = static_cast<double>(generator_() >> 5);
    const auto low = static_cast<double>(generator_() >> 6);
    const double uniform = (high * 67108864.0 + low) / 9007199254740992.0;
    if (uniform <= 0.64) return 1;
    return uniform <= 0.96 ? 2 : 3;
  }

 private:
  std::mt19937 generator_;
};

/// Whether this program was built with the METIS library.
bool has_graph_partitioning();
/// Whether that library draws the same random numbers as the artifact's: with 32-bit integers (Debian's package) it
/// draws half as many, which gives other partitions of the same quality.
bool has_published_partitions();

/// A complete graph; weights are rounded to integers.
struct Graph {
  std::vector<double> vertices;          ///< weights
  std::function<double(int, int)> edge;  ///< weight between two vertices
};

/// The part of each vertex, numbered from 0 without gaps: at most `parts` parts of about equal weight, the weight of
/// the edges between them small. Errors: unavailable without the METIS library; failure when it fails.
Result<std::vector<int>> partition(const Graph& graph, int parts);

/// The order of the parts of a pipeline; `link`: bandwidth between two parts. Faults::kept: by the artifact's rule,
/// which takes the path with the lowest bandwidth and reads it backwards.
std::vector<int> order_of_parts(int parts, const std::function<double(int, int)>& link, Faults faults);

/// Tensor-parallel groups of the devices of a pipeline: for each node the division that makes its part of the pipeline
/// the fastest. Errors: invalid_input for nodes of more than 8 GPUs.
Result<std::vector<std::vector<int>>> groups_of(const std::vector<std::vector<int>>& parts, const Shape& shape,
                                                const Devices& devices, Faults faults);

/// Number of layers of each stage, in proportion to the memory of the stages. Empty if a stage does not fit its
/// devices.
std::vector<int> layers_of(const std::vector<std::vector<int>>& stages, const Shape& shape, const Devices& devices);

}  // namespace sailor::planner::baselines::flashflex_detail

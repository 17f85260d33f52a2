// Differences between two sets of measurements. Does no file I/O.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profile/measurements.hpp"

namespace sailor {

/// Whether two figures differ by more than their noise.
enum class Judgement {
  within,   ///< a median lies in the other's interval
  outside,  ///< both medians lie outside the other's interval; for sizes: they are not equal
  unknown,  ///< no samples on either side, so no intervals
};
std::string_view to_string(Judgement judgement);

/// One value that both sides have.
struct Difference {
  std::string table{};     ///< of the store's schema: "layer_times"
  std::string setting{};   ///< "tiny-gpt on cpu, fp32, sequence 128", "send_receive cpu -> cpu, inter_node"
  std::string entry{};     ///< "block, tensor parallel 1, micro-batch 2"; for a link: "64.0 KiB"
  std::string quantity{};  ///< "forward", "time", "activation"
  double a = 0.0;          ///< in the quantity's unit
  double b = 0.0;
  std::string unit{};  ///< "s", "byte", "1"
  Judgement judgement = Judgement::within;
  /// b / a; 1 if both are zero, infinite if only a is.
  [[nodiscard]] double ratio() const;
  /// Size of the difference, to sort by: |log ratio|.
  [[nodiscard]] double size() const;
};

/// An entry that one side lacks.
struct OneSided {
  std::string table{};
  std::string setting{};
  std::string entry{};
};

/// Summary of the differences of one setting and quantity.
struct DifferenceSummary {
  std::string setting{};
  std::string quantity{};
  int entries = 0;
  int outside = 0;              ///< entries that differ by more than the noise
  double geometric_mean = 1.0;  ///< of the ratios, over entries that are not zero
  double smallest = 1.0;        ///< smallest ratio
  double largest = 1.0;
};

struct ProfileDifference {
  std::vector<Difference> common{};  ///< the largest difference first; includes equal ones
  std::vector<OneSided> only_a{};
  std::vector<OneSided> only_b{};
};

/// Compares row by row. Sessions are not compared; fits by their bandwidth at 1 MiB.
ProfileDifference diff_profiles(const ProfileData& a, const ProfileData& b);

/// Summaries ordered by setting, then quantity.
std::vector<DifferenceSummary> summarize(const ProfileDifference& difference);

}  // namespace sailor

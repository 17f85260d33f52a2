// Constraints on the features of nodes, as sbatch --constraint takes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sailor::slurm {

/// Whether a node with these features can be given to a job with this constraint: "a&b", "a|b", "(a|b)&c", where
/// the numbers of nodes ("a*2") and the brackets of "[a|b]" are ignored. std::nullopt if the constraint cannot be read.
std::optional<bool> satisfies(const std::vector<std::string>& features, std::string_view constraint);

}  // namespace sailor::slurm

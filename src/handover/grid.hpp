// The regular grid of ranks (tensor x data x pipeline parallel) that the frameworks have in common.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::handover {

/// One stage, or with virtual stages one chunk of a stage, in the order of the pipeline.
struct Chunk {
  bool embedding = false;
  int first_block = 0;
  int blocks = 0;
  bool head = false;  ///< with the final norm
};

struct Grid {
  int tensor_parallel = 1;
  int context_parallel = 1;
  int expert_parallel = 1;  ///< among the ranks of data_parallel x context_parallel
  int pipeline_parallel = 1;
  int data_parallel = 1;
  int virtual_stages = 1;  ///< chunks of a stage
  int micro_batch = 1;     ///< sequences
  int micro_batches = 1;   ///< per pipeline and iteration
  Recompute recompute = Recompute::none;
  std::vector<Chunk> chunks;  ///< pipeline_parallel x virtual_stages; chunk i belongs to stage i % pipeline_parallel

  [[nodiscard]] int ranks() const { return tensor_parallel * context_parallel * pipeline_parallel * data_parallel; }
  /// All chunks have the same number of blocks, the embedding is in the first and the head in the last.
  [[nodiscard]] bool is_even() const;
  /// Whether numbering ranks by pipeline, then stage, and by stage, then pipeline are different orders.
  [[nodiscard]] bool has_two_orders() const { return pipeline_parallel > 1 && data_parallel > 1; }
};

/// Whether Megatron-Core is told to number ranks as the plan does, by pipeline, then stage (--use-tp-pp-dp-mapping). It
/// then demands as many replicas of experts as of everything else, also of models without experts
/// (initialize_model_parallel()); where that does not hold, it numbers them by stage, then pipeline.
bool megatron_numbers_by_pipeline(const Grid& grid);
/// Whether its order is another than that of the plan.
bool megatron_numbers_by_stage(const Grid& grid);

/// `framework` as it is called in messages. Errors: unavailable; the plan is no grid, or a chunk holds the final norm
/// alone.
Result<Grid> grid_of(const Plan& plan, const Model& model, std::string_view framework, std::string_view description);

/// Checks that all replicas share what is sharded. Errors: unavailable.
Result<void> check_one_sharding_group(const Plan& plan, std::string_view framework);

/// The error for what a framework cannot run.
tl::unexpected<Error> cannot_run(std::string_view framework, std::string_view what, std::string hint);

/// For a framework that numbers ranks by stage, not by pipeline, and whose rank r runs where the plan has its rank r:
/// checks that all stages have the same GPU type and zone, so that the other order only changes which ranks are
/// neighbours. Errors: unavailable.
Result<void> check_order_by_stage(const Plan& plan, const Grid& grid, std::string_view framework,
                                  std::string_view format);

/// Lines of a header, without comment signs: what the plan is, what was predicted for which framework, and what the
/// model has that no plan says.
std::vector<std::string> header_lines(const Plan& plan, const Model& model, const Grid& grid, std::string_view writer);
/// Each line as a comment.
std::string as_comment(const std::vector<std::string>& lines);

}  // namespace sailor::handover

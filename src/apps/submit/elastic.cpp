#include "apps/submit/elastic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "apps/training_program.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/process.hpp"
#include "plan/placement.hpp"
#include "runtime/copy_layout.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

namespace {

/// "2-8"
std::optional<slurm::ElasticNodes> parse_elastic_nodes(const std::string& text) {
  constexpr std::int64_t most_nodes = 1 << 20;
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return std::nullopt;
  const auto least = parse_count(text.substr(0, dash));
  const auto most = parse_count(text.substr(dash + 1));
  if (!least || !most || *least < 1 || *most < *least || *most > most_nodes) return std::nullopt;
  return slurm::ElasticNodes{.least = static_cast<int>(*least), .most = static_cast<int>(*most)};
}

}  // namespace

Result<void> make_elastic(const SubmitOptions& options, const Environment& environment, Submission& submission) {
  if (!options.elastic.has()) return {};
  slurm::SbatchRequest& request = submission.request;
  request.elastic = parse_elastic_nodes(*options.elastic);
  if (!request.elastic)
    return fail(ErrorCode::usage,
                fmt::format("--elastic: '{}' is no number of nodes from MIN to MAX", *options.elastic),
                "write --elastic 2-8, for example");
  if (options.plan->size() > 1)
    return fail(ErrorCode::usage, "--elastic takes one plan: the training goes from there to others by itself",
                "submit one plan at a time");
  if (options.when_stopped.given() && *options.when_stopped != "requeue")
    return fail(ErrorCode::usage,
                fmt::format("--when-stopped {} does not go with --elastic: a job that loses the node of its script is "
                            "requeued",
                            *options.when_stopped),
                "leave it out");
  for (const auto* option : OptionList{&options.spare_nodes, &options.placer, &options.mpi})
    if (option->typed())
      return fail(ErrorCode::usage,
                  fmt::format("--{} does not go with --elastic, whose controller decides which ranks take part",
                              option->name()),
                  "leave it out");
  if (request.checkpoints.empty())
    return fail(ErrorCode::usage, "--elastic needs checkpoints to go on from when too many ranks are lost at once",
                "use --checkpoints FOLDER");
  request.continuation = slurm::Continuation::requeue;
  request.elastic->controller = beside_this_program("sailor-controller");
  // Plans for other devices need times; without the profile store of the plan only its pipelines are adapted.
  const std::filesystem::path store = find_store(submission.plan.origin.profile_store, environment);
  std::vector<std::string>& arguments = request.elastic->controller_arguments;
  if (submission.plan.origin.profile_store.empty()) return {};
  if (std::error_code code; !std::filesystem::exists(store, code)) {
    log_warning(
        "there is no profile store '{}', with which the plan was made: after a loss its pipelines are adapted, and "
        "nothing is planned anew; submit from the folder that it is in",
        submission.plan.origin.profile_store);
    return {};
  }
  arguments.push_back("--profile=" + from_here(store).string());
  arguments.push_back("--models=" + request.models_folder.string());
  if (!submission.plan.origin.framework.empty()) arguments.push_back("--framework=" + submission.plan.origin.framework);
  if (!request.gpus_file.empty()) arguments.push_back("--gpus=" + request.gpus_file.string());
  return {};
}

Result<void> count_copies(Submission& submission) {
  slurm::SbatchRequest& request = submission.request;
  if (!request.elastic) return {};
  SAILOR_CHECK(runtime::check_trainable(submission.plan, submission.model, submission.plan.ranks()));
  NodeSizes sizes;
  for (std::size_t kind = 0; kind < submission.kinds.size(); ++kind)
    sizes.add(submission.kinds[kind].first, submission.kinds[kind].second, request.nodes[kind].devices_per_node, 0);
  const auto nodes = nodes_of_ranks(submission.plan, sizes);
  if (!nodes) return fail(nodes.error());
  std::vector<std::string> hosts;
  for (const int node : *nodes) hosts.push_back(fmt::to_string(node));
  const runtime::ParameterMap map(submission.plan, submission.model);
  Bytes most{};
  for (const runtime::CopyCost& cost : runtime::CopyLayout(map, hosts).costs()) most = std::max(most, cost.kept);
  for (slurm::NodeRequest& asked : request.nodes) asked.copies_of_rank = most;
  return {};
}

Result<void> check_controller(const Submission& submission) {
  const slurm::SbatchRequest& request = submission.request;
  if (!request.elastic) return {};
  const std::string program = request.elastic->controller.string();
  const auto outcome = run_command({.arguments = {program, "--version"}, .input = {}, .deadline = Seconds(15)});
  if (outcome && outcome->succeeded()) return {};
  return fail(ErrorCode::unavailable,
              fmt::format("--elastic needs {}: {}", program, outcome ? outcome->how_it_ended() : outcome.error().what),
              "use the sailor-submit of a whole installation");
}

}  // namespace sailor::apps

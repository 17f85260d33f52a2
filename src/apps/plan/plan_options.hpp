// The option table of sailor-plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "apps/simulate/plan_input.hpp"
#include "apps/training_program.hpp"

namespace sailor::apps {

struct PlanOptions : CommonOptions, PlanInputOptions, ProgramOptions {
  OptionValue<std::string> plan;
  // Where
  OptionValue<std::string> availability, exclude, reservation, site, profile, save_cluster;
  OptionValue<std::vector<std::string>> gpu_type;
  // Training
  OptionValue<std::string> framework;
  OptionValue<int> global_batch, sequence_length;
  OptionValue<double> tokens, iterations;
  // Goal and limits
  OptionValue<std::string> objective, within;
  OptionValue<double> max_cost, max_total_cost, min_throughput, max_node_hours, memory_margin;
  OptionValue<int> max_gpus, max_nodes;
  OptionValue<bool> pareto;
  // Which plans
  OptionValue<std::string> space, cost_model;
  OptionValue<std::vector<std::string>> pin;
  OptionValue<int> max_tensor_parallel;
  // Search
  OptionValue<double> time_limit;
  OptionValue<std::int64_t> work_limit;
  OptionValue<int> threads;
  OptionValue<bool> prove;
  OptionValue<bool> no_proof;
  OptionValue<std::vector<std::string>> without;
  // Published planners
  OptionValue<std::string> planner, planner_faults, judge;
  OptionValue<std::int64_t> planner_seed;
  // Answer
  OptionValue<std::string> why_not, format, output;
  OptionValue<int> top;
  OptionValue<bool> explain, placement;
  // Before the queue
  OptionValue<std::string> account, qos, time, data, checkpoints, mpi, licenses;
  OptionValue<bool> preflight;
  // Availability that changes
  OptionValue<std::string> against, horizon, elastic, availability_trace;
  OptionValue<double> interval, switch_cost, reconfiguration_time, last_step;
  OptionValue<std::int64_t> watch_count;
  OptionValue<bool> watch;

  OptionValue<bool> measured_only;
};

std::vector<Option> plan_options(PlanOptions& options);
std::vector<Example> plan_examples();

}  // namespace sailor::apps

// sailor-launch: runs between srun and a program, once per task. It finds the place of the task in a plan, as the SPANK
// plugin does where it is installed, sets the environment, binds the task to its cores and execs the program. If the
// allocation is not what the plan needs, every task ends before the program starts: exit 1.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "apps/termination.hpp"
#include "core/affinity.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "slurm/device_models.hpp"
#include "slurm/site.hpp"
#include "slurm/task_role.hpp"

namespace sailor::apps {

namespace {

struct LaunchOptions : CommonOptions {
  OptionValue<std::vector<std::string>> command;
  OptionValue<std::string> plan, site_variables, software, torch_ranks, write_node_facts, node_facts, devices, gpus;
  OptionValue<std::vector<int>> memory_nodes;
  OptionValue<int> torch_port;
};

CommandLine command_line(LaunchOptions& options) {
  return {
      .program = "sailor-launch",
      .purpose = purpose_of("sailor-launch"),
      .positionals = {positional(options.command,
                                 {.name = "COMMAND",
                                  .help = "program and arguments, after '--'; none: print the place of each task",
                                  .required = false})},
      .options =
          {option(
               options.plan,
               {.name = "plan", .value_name = "FILE", .help = "plan file (plan.toml); must be readable on the nodes"}),
           option(options.site_variables, {.name = "site-variables",
                                           .value_name = "NAME",
                                           .help = "set this site file's environment variables, except those already "
                                                   "set: a name in the sites folder, or a file (*.toml)"}),
           option(options.software, {.name = "software",
                                     .value_name = "NAME",
                                     .help = "software environment of the site file; only from the command line, since "
                                             "SAILOR_SOFTWARE is for sailor-submit [default: the site's usual one]"}),
           option(options.memory_nodes,
                  {.name = "memory-nodes",
                   .value_name = "N",
                   .help = "memory of the program comes from these NUMA nodes only; also without --plan",
                   .minimum = 0,
                   .maximum = 1023}),
           option(options.torch_port,
                  {.name = "torch-port",
                   .value_name = "PORT",
                   .help = "for programs of PyTorch: set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
                           "MASTER_ADDR (the node of the plan's rank 0), MASTER_PORT, this TCP port, and "
                           "TORCHELASTIC_RUN_ID, as torchrun does [default: none of them]",
                   .minimum = 1024,
                   .maximum = 65535}),
           option(options.torch_ranks,
                  {.name = "torch-ranks",
                   .value_name = "ORDER",
                   .help = "with --torch-port, how the program numbers ranks: as the plan, by pipeline, then stage "
                           "(Megatron-Core with --use-tp-pp-dp-mapping); by stage, then pipeline (Megatron-Core "
                           "without it, torchtitan, "
                           "DeepSpeed)",
                   .default_value = "plan",
                   .choices = {"plan", "stage"}}),
           option(options.write_node_facts,
                  {.name = "write-node-facts",
                   .value_name = "FILE",
                   .help = "in a job's script: write what slurm.conf and the topology say of its nodes, and end"}),
           option(options.node_facts, shared::node_facts()),
           option(options.devices,
                  {.name = "devices",
                   .value_name = "FOLDER",
                   .help = "where the driver describes the node's GPUs, which are compared with the plan's",
                   .default_value = "/proc/driver/nvidia/gpus"}),
           option(options.gpus, shared::gpus_file())},
      .examples = {{"srun -n 2 sailor-launch --plan plan.toml", "which task would be which rank of the plan"},
                   {"srun --mpi=pmix -n 2 sailor-launch --plan plan.toml -- sailor-train plan.toml --data corpus "
                    "--iterations 100",
                    "train with every rank where the plan wants it"},
                   {"srun -n 2 sailor-launch --plan plan.toml --torch-port 29500 -- python3 pretrain_gpt.py ...",
                    "another framework, by PyTorch's variables"}},
      .notes =
          "Checks that the job step has the plan's number of tasks, on nodes of its GPU types (as far as slurm.conf\n"
          "and the driver say), with room for every tensor-parallel group. A task gets SAILOR_RANK, SAILOR_RANKS,\n"
          "SAILOR_PIPELINE, SAILOR_STAGE, SAILOR_TENSOR_PARALLEL_INDEX and SAILOR_LOCAL_RANK, one GPU in\n"
          "CUDA_VISIBLE_DEVICES if it sees several, and its share of the cores if Slurm did not bind it\n"
          "(SLURM_CPU_BIND=none: never).\n",
      .one_per_rank = true};
}

/// Exits without a message: all tasks see the same problem, and only one reports it. The others wait for it: where a
/// task that fails ends the step (--kill-on-bad-exit), the first to leave would suppress the message.
[[noreturn]] void fail_silently(const Error& error) {
  const int status = exit_status(error.code);
  keep_status_when_terminated(status);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  std::exit(status);
}

/// Reports an error of this node from its first task only; an error that all tasks see, from the first task of all.
tl::unexpected<Error> fail_once(const Error& error, const Environment& environment, const char* teller) {
  const std::string number = slurm::lookup_in(environment)(teller).value_or("0");
  if (!number.empty() && number != "0") fail_silently(error);
  return fail(error);
}

/// The name of the node for its messages.
std::string on_node(const Environment& environment) {
  const std::string node = slurm::lookup_in(environment)("SLURMD_NODENAME").value_or("");
  return node.empty() ? node : "node " + node;
}

/// The variables that the site file sets for every program; empty without one. (Not --site: SAILOR_SITE may be meant
/// for sailor-submit alone, and be a path from elsewhere. SAILOR_SOFTWARE may also be meant for it: --software counts
/// only on the command line.)
Result<slurm::Variables> site_variables(const LaunchOptions& options, const Environment& environment,
                                        const Plan& plan) {
  if (!options.site_variables.has()) {
    if (!options.software.typed()) return slurm::Variables();
    return fail(ErrorCode::usage, "--software is of a site file, and none is named", "use --site-variables NAME");
  }
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  const auto site = slurm::named_site(*options.site_variables, sites_folder(environment), *gpus, "--site-variables");
  if (!site) return fail(site.error());
  const auto software = slurm::choose_environment(*site, options.software.typed() ? *options.software : "");
  if (!software) return fail(software.error());
  return slurm::variables_of(*site, *software, slurm::has_pipelines(plan));
}

/// Adds facts about the nodes from Slurm's configuration or from --node-facts.
Result<void> add_facts(const LaunchOptions& options, const slurm::Lookup& lookup, slurm::Step& step) {
  const bool of_host = options.node_facts.has();
  const auto known = of_host ? slurm::read_node_facts(step, *options.node_facts) : slurm::add_node_facts(step, lookup);
  if (!known && of_host && known.error().code != ErrorCode::unavailable) return fail(known.error());
  if (!known) log_debug("GPU types of the nodes are not known: {}", known.error().message());
  return {};
}

/// Binds memory to --memory-nodes: the memory of a GPU may also be a NUMA node, which the program must not use as host
/// memory.
void bind_memory(const LaunchOptions& options, const Environment& environment) {
  const std::vector<int> nodes = *options.memory_nodes;
  if (nodes.empty() || bind_to_memory(nodes)) return;
  if (slurm::lookup_in(environment)("SLURM_LOCALID").value_or("0") == "0")
    log_warning("{}: memory cannot be bound to NUMA nodes {}: {}", on_node(environment), options.memory_nodes.text(),
                std::strerror(errno));
}

/// The folder in which the driver describes the GPUs. Only the default folder may be missing, if there is no driver.
Result<std::filesystem::path> devices_folder(const LaunchOptions& options) {
  const std::filesystem::path folder = *options.devices;
  std::error_code code;
  if (!options.devices.given() || std::filesystem::is_directory(folder, code)) return folder;
  return fail(ErrorCode::not_found, fmt::format("--devices '{}' is no folder", folder.string()),
              "leave the option out where there is no driver");
}

[[nodiscard]] tl::unexpected<Error> become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(stdout);
  std::signal(SIGXFSZ, SIG_DFL);  // our programs ignore it (run_program()); others may not
  ::execvp(arguments.front(), arguments.data());
  return fail(ErrorCode::failure, fmt::format("cannot start '{}': {}", command.front(), std::strerror(errno)),
              "is it installed on the nodes, and in PATH?");
}

Result<void> run(const LaunchOptions& options, const Environment& environment) {
  keep_status_when_terminated(exit_status(ErrorCode::failure));  // another task may fail first
  const std::vector<std::string>& command = *options.command;
  if (options.write_node_facts.has()) {
    const auto facts = slurm::node_facts_of_job(slurm::lookup_in(environment));
    if (!facts) return fail(facts.error());
    return write_file_atomically(*options.write_node_facts, *facts);
  }
  bind_memory(options, environment);
  if (!options.plan.has() && options.memory_nodes.has() && !command.empty()) return become(command);
  if (!options.plan.has())
    return fail_once(Error{ErrorCode::usage, "no plan is named", "use --plan FILE"}, environment, "SLURM_PROCID");
  const std::filesystem::path path = std::filesystem::absolute(*options.plan);
  const auto plan = load_plan(path);
  if (!plan) return fail_once(fail(plan.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  if (auto good = check_plan(*plan); !good)
    return fail_once(fail(good.error(), path.string()).value(), environment, "SLURM_PROCID");
  const auto of_site = site_variables(options, environment, *plan);
  if (!of_site) return fail_once(fail(of_site.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  for (const auto& [name, value] : *of_site) ::setenv(name.c_str(), value.c_str(), 0);
  const auto devices = devices_folder(options);
  if (!devices) return fail_once(fail(devices.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  const slurm::Lookup lookup = slurm::lookup_in(environment);
  // The plugin may have done all this, for this very task and not for one whose environment was inherited.
  const bool placed = lookup("SAILOR_PLAN_FINGERPRINT") == plan_fingerprint(*plan) &&
                      !lookup("SAILOR_RANK").value_or("").empty() &&
                      lookup("SAILOR_STEP").value_or("") == slurm::step_name(lookup);
  const bool for_torch = options.torch_port.has();
  const slurm::TorchRanks ranks{.port = *options.torch_port, .by_stage = *options.torch_ranks == "stage"};
  if (ranks.by_stage && !for_torch)
    return fail_once(Error{ErrorCode::usage, "--torch-ranks numbers the ranks of PyTorch, which get no variables",
                           "use --torch-port PORT, too"},
                     environment, "SLURM_PROCID");
  if (placed && !for_torch && !command.empty()) return become(command);

  auto step = slurm::read_step(lookup);
  if (!step) return fail_once(step.error(), environment, "SLURM_PROCID");
  if (const auto known = add_facts(options, lookup, *step); !known)
    return fail_once(fail(known.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail_once(fail(gpus.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  const auto task = slurm::find_role(*plan, *step, &*gpus);
  if (!task) return fail_once(fail(task.error(), path.string()).value(), environment, "SLURM_PROCID");
  if (task->on_gpu)
    if (const auto good = slurm::check_models(slurm::device_models(*devices), task->gpu, *gpus); !good)
      return fail_once(fail(good.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  const auto variables = slurm::role_environment(*task, *plan, path, lookup);
  if (!variables) return fail_once(fail(variables.error(), on_node(environment)).value(), environment, "SLURM_LOCALID");
  if (command.empty()) {
    fmt::print("{}\n", slurm::describe(*task, *step));
    return {};
  }
  log_debug("{}", slurm::describe(*task, *step));
  for (const auto& [name, value] : *variables) ::setenv(name.c_str(), value.c_str(), 1);
  if (for_torch)
    for (const auto& [name, value] : slurm::torch_environment(*task, *plan, *step, ranks, *variables, lookup))
      ::setenv(name.c_str(), value.c_str(), 1);
  const std::vector<int> allowed = allowed_cores();
  if (const std::vector<int> own = slurm::cores_of_task(*task, allowed, lookup); own != allowed)
    if (!bind_to_cores(own)) log_warning("cannot keep {} to its cores", slurm::describe(*task, *step));
  return become(command);
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, sailor::apps::command(sailor::apps::command_line, sailor::apps::run));
}

#include "slurm/command_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "slurm/node_records.hpp"
#include "slurm/script_text.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

Result<void> check_array(const CommandArray& request) {
  SAILOR_CHECK(check_name("--job-name", request.job_name));
  for (const auto& [what, name] :
       {std::pair("--partition", &request.partition), std::pair("--account", &request.account),
        std::pair("--qos", &request.qos), std::pair("--reservation", &request.reservation)})
    if (!name->empty()) SAILOR_CHECK(check_name(what, *name));
  if (request.tasks < 1 || request.cpus_per_task < 1 || request.array_limit < 0)
    return fail(ErrorCode::invalid_input, "a job array has at least one task of at least one core");
  if (request.command.empty()) return fail(ErrorCode::invalid_input, "there is no program to run");
  for (const std::string& word : request.command)
    if (word.find('\0') != std::string::npos)
      return fail(ErrorCode::invalid_input, "an argument of the program has a NUL byte");
  return {};
}

std::string megabytes(Bytes amount) {
  return fmt::format("{}M", std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(amount / mib)), 1));
}

}  // namespace

Result<std::string> command_array_script(const CommandArray& request) {
  SAILOR_CHECK(check_array(request));
  Script script;
  script.line("#!/bin/bash");
  if (!request.comment.empty()) script.comment(printable(request.comment));
  script.blank();
  SAILOR_CHECK(script.option("job-name", request.job_name));
  if (!request.partition.empty()) SAILOR_CHECK(script.option("partition", request.partition));
  if (!request.account.empty()) SAILOR_CHECK(script.option("account", request.account));
  if (!request.qos.empty()) SAILOR_CHECK(script.option("qos", request.qos));
  if (!request.reservation.empty()) SAILOR_CHECK(script.option("reservation", request.reservation));
  if (request.time_limit) SAILOR_CHECK(script.option("time", format_time_limit(*request.time_limit)));
  SAILOR_CHECK(
      script.option("array", fmt::format("0-{}{}", request.tasks - 1,
                                         request.array_limit > 0 ? fmt::format("%{}", request.array_limit) : "")));
  SAILOR_CHECK(script.option("nodes", "1"));
  SAILOR_CHECK(script.option("ntasks", "1"));
  SAILOR_CHECK(script.option("cpus-per-task", std::to_string(request.cpus_per_task)));
  if (request.memory_per_task) SAILOR_CHECK(script.option("mem", megabytes(*request.memory_per_task)));
  script.comment("A task that is requeued adds to its log instead of starting it anew");
  SAILOR_CHECK(script.option("open-mode", "append"));
  SAILOR_CHECK(script.option("chdir", request.working_directory.string()));
  SAILOR_CHECK(script.option("output", request.log_path.string()));
  script.blank();
  script.line("set -euo pipefail");
  script.line("command=(");
  for (const std::string& word : request.command) script.word(shell_quote(word));
  script.line(")");
  script.comment("The shell becomes the program, so that Slurm's signals reach it");
  script.line(fmt::format("exec \"${{command[@]}}\"{}",
                          request.task_argument.empty() ? "" : fmt::format(" \"{}\"", request.task_argument)));
  return script.take();
}

}  // namespace sailor::slurm

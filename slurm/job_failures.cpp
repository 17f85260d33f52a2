#include "slurm/job_failures.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "core/error.hpp"
#include "core/stop_status.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

constexpr int wrong_usage = exit_status(ErrorCode::usage);

std::string script_of(const SbatchRequest& request) {
  return shell_quote(
      (request.script_path.empty() ? request.run_directory / "job.sbatch" : request.script_path).string());
}

/// Nodes that the user keeps the job from: --exclude=gh7.
std::string excluded_by_user(const SbatchRequest& request) {
  constexpr std::string_view option = "--exclude=";
  std::string nodes;
  for (const std::string& extra : request.extra_options)
    if (extra.starts_with(option)) nodes = extra.substr(option.size());
  return nodes;
}

/// The job's log, as bash finds it.
std::string log_of(const SbatchRequest& request) {
  if (!request.log_path.empty()) return "/dev/null";
  const std::string folder = shell_quote((request.run_directory / "slurm-").string());
  return request.array.empty() ? folder + "\"$SLURM_JOB_ID.out\""
                               : folder + "\"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.out\"";
}

bool goes_on(const SbatchRequest& request) { return request.continuation != Continuation::none; }
bool resubmits(const SbatchRequest& request) { return request.continuation == Continuation::resubmit; }

void write_lines(Script& script, std::initializer_list<std::string_view> lines) {
  for (const std::string_view line : lines) script.line(line);
}

}  // namespace

void write_beginning(Script& script, const SbatchRequest& request) {
  if (!goes_on(request)) return;
  script.comment(
      "Starts are counted until one brings a new checkpoint; one that dies without a word has counted itself");
  script.line(fmt::format(
      "newest_checkpoint() {{ printf '%s\\n' {}/iteration-*/manifest.json | sort --version-sort | tail --lines=1; }}",
      shell_quote(request.checkpoints.string())));
  write_lines(
      script,
      {"start_number=0 before='' left_out=''",
       R"(if [[ -r starts.txt ]]; then { read -r start_number; read -r before; read -r left_out; } <starts.txt || true; fi)",
       "now=$(newest_checkpoint)", "if [[ $now != \"$before\" ]]; then start_number=0 left_out=''; fi",
       "note_start() { printf '%s\\n' \"$start_number\" \"$now\" \"$left_out\" >starts.txt; }",
       "start_number=$((start_number + 1))", "note_start"});
  const std::string log = log_of(request);
  script.line(fmt::format("log_size=$(stat --format=%s {} 2>/dev/null || echo 0)", log));
  script.comment(
      "The node whose task failed first, as srun says: tasks on the others it ended itself. None, if several did");
  script.line("failed_node() {");
  script.line(fmt::format("  tail --bytes=+$((log_size + 1)) {} | awk '", log));
  write_lines(script, {"    /^srun: error: [[:alnum:]._-]+: tasks? [0-9,-]+: / {",
                       "      node = substr($3, 1, length($3) - 1)", "      if (first == \"\") first = node",
                       "      else if (node != first && /Exited with exit code/) several = 1", "    }",
                       "    END { if (!several) print first }'", "}"});
  const std::string own = excluded_by_user(request);
  script.line(fmt::format("excluded() {{ echo {}; }}",
                          own.empty() ? "\"$left_out\"" : shell_quote(own) + "\"${left_out:+,$left_out}\""));
  script.comment("sbatch without the nodes to blame");
  script.line("submit() {");
  write_lines(script, {"  local nodes", "  nodes=$(excluded)"});
  script.line(fmt::format("  sbatch {}${{nodes:+\"--exclude=$nodes\"}} \"$@\" {}",
                          request.array.empty() ? "" : "--array=\"$SLURM_ARRAY_TASK_ID\" ", script_of(request)));
  script.line("}");
  script.line("leave_out() { # NODES, unless too few would be left");
  write_lines(script,
              {"  local before=$left_out", "  left_out=${left_out:+$left_out,}$1",
               "  if submit --test-only >/dev/null 2>&1; then return 0; fi", "  left_out=$before", "  return 1", "}"});
  if (resubmits(request)) {
    script.comment(
        "The next job is handed in first: whatever ends this one, the training goes on from its last checkpoint");
    // The job name is unique to this training. The tasks of an array share theirs: each waits for its own job.
    script.line(fmt::format("hand_in() {{ submit --parsable --dependency={} | tail --lines=1; }}",
                            request.array.empty() ? "singleton" : "\"afterany:$SLURM_JOB_ID\""));
    script.line("successor=''");
    script.line(fmt::format("if ((start_number <= {})); then", request.retries));
    write_lines(script, {"  successor=$(hand_in) || echo '# no job could be handed in that goes on after this one' >&2",
                         "  successor=${successor%%;*}"});
    script.line(
        fmt::format("  echo \"# job ${{successor:-(none)}} goes on after this one; to end the training: scancel {}\"",
                    request.array.empty() ? "--me --name=" + request.job_name : "$SLURM_JOB_ID $successor"));
    script.line("fi");
  }
  script.blank();
}

void write_check(Script& script, const SbatchRequest& request) {
  if (!request.check_nodes) return;
  script.comment(
      request.spare_nodes > 0
          ? "The nodes are checked before they train; those that are not fit are left out, as long as spare ones "
            "remain"
          : "The nodes are checked before they train");
  script.line("unfit=''");
  script.line("check_nodes() {");
  write_lines(script,
              {"  local status=0 report=\"check-$SLURM_JOB_ID.txt\"", "  start_check | tee \"$report\" || status=$?",
               "  if ((status == 0 || status == 4)); then return 0; fi # fit, or warnings only",
               "  unfit=$(sed -n 's/^--exclude=//p' \"$report\" | tail --lines=1)",
               "  if [[ -z $unfit ]]; then return \"$status\"; fi # the job cannot run like this, or nobody knows",
               "  mapfile -t nodes < <(scontrol show hostnames \"$unfit\")"});
  script.line(fmt::format("  if ((${{#nodes[@]}} > {})); then", request.spare_nodes));
  if (!goes_on(request))
    script.line(fmt::format("    echo \"# to submit it without them: sbatch --exclude=$unfit \"{} >&2",
                            shell_quote(script_of(request))));
  write_lines(script, {"    return \"$status\"", "  fi"});
  if (request.spare_nodes > 0) {
    script.line("  echo \"# goes on without $unfit\"");
    script.line("  launch+=(\"--exclude=$unfit\")");
  }
  script.line("}");
}

void write_ending(Script& script, const SbatchRequest& request) {
  const auto none_is_needed = [&] {
    script.line("  rm -f starts.txt");
    if (resubmits(request)) script.line("  if [[ -n $successor ]]; then scancel \"$successor\"; fi");
    script.line("  ;;");
  };
  if (request.elastic) {
    script.line("if [[ -n $cancelled ]]; then");
    script.line(
        fmt::format("  echo \"# cancelled: to go on from the newest checkpoint: sbatch \"{} >&2", script_of(request)));
    write_lines(script, {"  rm -f starts.txt", "  exit \"$status\"", "fi"});
  }
  script.line("case $status in");
  script.line("0) # Done: nothing is left for another start");
  none_is_needed();
  script.line(fmt::format("{}) # Stopped by a signal, with a checkpoint: the rest of the training follows {}",
                          stopped_with_checkpoint, resubmits(request) ? "in the next job" : "under the same job id"));
  write_lines(script, {"  start_number=0 now=$(newest_checkpoint)", "  note_start"});
  if (resubmits(request))
    write_lines(script, {"  if [[ -z $successor ]]; then successor=$(hand_in); fi", "  status=0"});
  else
    script.line("  scontrol requeue \"$SLURM_JOB_ID\"");
  script.line("  ;;");
  script.line(fmt::format("{}) # Wrong usage: another start would end alike", wrong_usage));
  none_is_needed();
  script.line("*) # Failed: once more from the last checkpoint, without the node to blame");
  script.line(fmt::format("  if ((start_number > {})); then", request.retries));
  write_lines(script, {"    echo \"# gives up: $start_number starts in a row brought no new checkpoint\" >&2",
                       "    rm -f starts.txt", "    exit \"$status\"", "  fi"});
  script.line(request.check_nodes ? "  blamed=${unfit:-$(failed_node)}" : "  blamed=$(failed_node)");
  script.line("  if [[ -n $blamed ]] && leave_out \"$blamed\"; then note_start; else blamed=''; fi");
  script.line(fmt::format("  echo \"# start $start_number of {} failed with status $status: once more{}\" >&2",
                          request.retries + 1, "${blamed:+ without $blamed}"));
  if (resubmits(request)) {
    write_lines(script, {"  if [[ -z $successor ]]; then", "    successor=$(hand_in)", "  elif [[ -n $blamed ]]; then",
                         "    scontrol update JobId=\"$successor\" ExcNodeList=\"$(excluded)\"", "  fi"});
  } else {
    write_lines(script,
                {"  trap '' TERM # of the requeue, which ends this script, too", "  scontrol requeue \"$SLURM_JOB_ID\"",
                 "  for ((try = 0; try < 20 && ${#blamed} > 0; ++try)); do",
                 "    if scontrol update JobId=\"$SLURM_JOB_ID\" ExcNodeList=\"$(excluded)\"; then break; fi",
                 "    sleep 0.5", "  done"});
  }
  write_lines(script, {"  ;;", "esac"});
}

}  // namespace sailor::slurm

#include "slurm/elastic_script.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/stop_status.hpp"
#include "slurm/job_failures.hpp"
#include "slurm/script_parts.hpp"
#include "slurm/script_resources.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

/// The array `launch` and the function step(): how srun starts tasks on the nodes of the job that are fit.
void write_elastic_launch(Script& script, const SbatchRequest& request, const JobComponent& nodes) {
  script.line("launch=(");
  script.word("srun");
  script.word("--distribution=block");
  script.word(cpus_word(request.nodes[nodes.kind]), cpus_reason);
  write_srun(script, request);
  script.line(")");
  script.text(R"bash(unfit='' unfit_nodes=0
step() { # TASKS_PER_NODE WORD...: on all nodes of the job that are fit
  local tasks=$1 nodes=$((SLURM_JOB_NUM_NODES - unfit_nodes))
  shift
  "${launch[@]}" ${unfit:+"--exclude=$unfit"} --nodes="$nodes" --ntasks=$((nodes * tasks)) --ntasks-per-node="$tasks" "$@"
}
)bash");
}

std::string start_of_ranks(const SbatchRequest& request, const JobComponent& nodes) {
  return fmt::format("step {}{} bash -c 'rank \"$@\"' rank \"${{train[@]}}\"", nodes.tasks_per_node,
                     slurm_gives_gpus(request, request.nodes[nodes.kind]) ? " --gpus-per-task=1" : "");
}

/// The function rank(), which every task runs.
void write_rank(Script& script, const SbatchRequest& request, const JobComponent& nodes, JobPart part) {
  constexpr int restarts = 3;
  if (part == JobPart::job)
    script.text(R"bash(# Whether the training is to leave this node, or this node is about to be taken from it
# shellcheck disable=SC2317  # tasks call it
is_excluded() {
  local names
  if [[ -e $elastic/leaving/$SLURMD_NODENAME ]]; then return 0; fi
  names=" $(tr --squeeze-repeats '[:space:]' ' ' 2>/dev/null <"$elastic/exclude") " || return 1
  [[ $names == *" $SLURMD_NODENAME "* ]]
}
export -f is_excluded

)bash");
  script.comment(
      fmt::format("A task. A rank that died starts again, {} times at most, and joins the training anew", restarts));
  if (part == JobPart::job)
    script.comment("A rank that was sent home starts again when its node is no longer excluded");
  script.line("# shellcheck disable=SC2317  # tasks call it");
  script.line("rank() {");
  if (part == JobPart::companion)
    script.text(
        R"bash(  # Signals that end this job are not for the training: ranks that are killed here are lost to it, and it goes on
  trap '' TERM USR2
)bash");
  else
    script.line("  trap : TERM USR2 # sailor-train acts on them, not this shell");
  script.line("  local start status");
  if (request.nodes[nodes.kind].device_kind == DeviceKind::gpu && !slurm_gives_gpus(request, request.nodes[nodes.kind]))
    script.text(R"bash(  local gpus
  IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES-}"
  if ((${#gpus[@]} > 1)); then export CUDA_VISIBLE_DEVICES=${gpus[SLURM_LOCALID]}; fi
)bash");
  script.text(R"bash(  for ((start = 0; ; ++start)); do
    if [[ -e $elastic/over ]]; then return 0; fi
    status=0
    "$@" || status=$?
)bash");
  if (part == JobPart::job)
    script.text(R"bash(    if ((status == 0)); then # done, or sent home: then the training is not over within 5 s
      local waited
      for ((waited = 0; waited < 5; ++waited)); do
        if [[ -e $elastic/over ]] || grep -qs '"done": *true' "$elastic/controller.json"; then return 0; fi
        sleep 1
        if is_excluded; then waited=0; fi
      done
      start=-1
      continue
    fi
)bash");
  script.line("    case $status in");
  script.line(fmt::format("    0 | {} | {} | {}) return \"$status\" ;; # done, stopped by a signal, wrong usage",
                          stopped_with_checkpoint, stopped_without_checkpoint, exit_status(ErrorCode::usage)));
  script.line("    esac");
  script.line(fmt::format("    if ((start == {})); then return \"$status\"; fi", restarts));
  script.text(R"bash(    sleep $((start * 5 + 1))
    echo "# a rank on $SLURMD_NODENAME ended with status $status: starts again" >&2
  done
}
export -f rank

)bash");
}

/// The function check_nodes(): leaves nodes that are not fit out of the steps that follow.
void write_newcomer_check(Script& script, const SbatchRequest& request, const JobComponent& nodes) {
  script.comment("Each node is checked by itself; status 5 of sailor-check: it is not to be used");
  script.line("check=(");
  script.word(shell_quote(request.checker.string()));
  script.word("--nhc");
  if (request.nodes[nodes.kind].device_kind == DeviceKind::gpu)
    script.word(fmt::format("--gpus-per-node={}", nodes.tasks_per_node));
  for (const std::string& argument : request.checker_arguments) script.word(shell_quote(argument));
  script.line(")");
  script.text(R"bash(# shellcheck disable=SC2317  # tasks call it
check_one() {
  local status=0 said
  said=$("$@" 2>&1) || status=$?
  if [[ -n $said ]]; then echo "$SLURMD_NODENAME: $said"; fi
  if ((status == 5)); then echo "$said" >"$elastic/left-out/$SLURMD_NODENAME"; fi
}
export -f check_one
check_nodes() {
  local node
  step 1 bash -c 'check_one "$@"' check_one "${check[@]}" || true
  for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    if [[ -e $elastic/left-out/$node ]]; then unfit=${unfit:+$unfit,}$node unfit_nodes=$((unfit_nodes + 1)); fi
  done
  if ((unfit_nodes == SLURM_JOB_NUM_NODES)); then
    echo "# no node is fit to train: $unfit" >&2
    return 5
  fi
}

)bash");
}

/// The function keep_companions().
void write_companions(Script& script, const SbatchRequest& request) {
  script.line(fmt::format("most_nodes={}", request.elastic->most));
  script.line(
      fmt::format("companion_script={}", shell_quote((request.run_directory / companion_script_name).string())));
  script.text(R"bash(# What squeue calls the job's nodes. Fails where slurmctld does not answer
own_nodes() {
  local now
  now=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) && [[ -n $now ]] && echo "$now"
}
# Nodes that the job had at its start and are not among those that it has now ($1: own_nodes())
note_lost_nodes() {
  local node now
  now=" $(scontrol show hostnames "$1" | tr '\n' ' ')" || return 0
  for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    if [[ $now != *" $node "* && ! -e $elastic/left-out/$node ]]; then
      echo 'it failed in the job of the training' >"$elastic/left-out/$node"
    fi
  done
}
# Nodes that companions do not get
kept_out() {
  local file node nodes
  nodes=$(excluded)
  for file in "$elastic"/left-out/*; do
    if [[ -e $file ]]; then nodes=${nodes:+$nodes,}${file##*/}; fi
  done
  for node in $left; do nodes=${nodes:+$nodes,}$node; done
  echo "$nodes"
}
# Nodes that the training is to leave, of those that Slurm knows: a wrong name would keep all companions out. Fails where
# slurmctld does not answer
left_by_training() {
  local names
  if [[ ! -e $elastic/exclude ]]; then return 0; fi
  names=$(tr --squeeze-repeats '[:space:]' ',' <"$elastic/exclude")
  names=${names#,}
  if [[ -n $names ]]; then sinfo --all --noheader --Node --nodes="${names%,}" --format=%N | sort --unique; fi
}
# Reports each name in the file of excluded nodes that Slurm does not know, once. As the functions that follow, it reads
# `left`: what left_by_training() says
declare -A unknown=()
note_unknown_nodes() {
  local name known=" ${left//$'\n'/ } "
  while read -r name || [[ -n $name ]]; do
    if [[ -z $name || $known == *" $name "* || -n ${unknown[$name]-} ]]; then continue; fi
    unknown[$name]=1
    echo "# there is no node $name, which $elastic/exclude names" >&2
  done < <(tr --squeeze-repeats '[:space:]' '\n' 2>/dev/null <"$elastic/exclude")
}
# How many nodes train or will train: of the job ($1: own_nodes()) those that are fit and not excluded, and of
# its companions ($2, a line each: job, state, node) all that have no node yet or one that is not excluded
count_nodes() {
  local node job number=0 out=" ${left//$'\n'/ } "
  for node in $(scontrol show hostnames "$1"); do
    if [[ $out != *" $node "* && ",$unfit," != *",$node,"* ]]; then number=$((number + 1)); fi
  done
  while read -r job _ node; do
    if [[ -n $job && (-z $node || $out != *" $node "*) ]]; then number=$((number + 1)); fi
  done <<<"$2"
  echo "$number"
}
# Companions that wait in the queue ($1: see count_nodes()) do not get nodes that are excluded since ($2) either
keep_out_of() {
  local job
  awk '$2 == "PENDING" { print $1 }' <<<"$1" | sort --unique | while read -r job; do
    scontrol update "JobId=$job" "ExcNodeList=$2" || true # it may have started
  done
}
# Keeps companion jobs in the queue until there are enough nodes. Each submission makes the next one wait longer:
# companions that fail at once do not fill the queue
keep_companions() {
  local own theirs left missing nodes nodes_before='' job period=30
  while true; do
    if own=$(own_nodes) &&
      theirs=$(squeue --noheader --me --array --name="$companions" --states=PENDING,CONFIGURING,RUNNING --format='%F %T %N') &&
      left=$(left_by_training); then
      note_lost_nodes "$own"
      note_unknown_nodes
      nodes=$(kept_out)
      if [[ $nodes != "$nodes_before" ]]; then keep_out_of "$theirs" "$nodes"; fi
      nodes_before=$nodes
      missing=$((most_nodes - $(count_nodes "$own" "$theirs")))
      if ((missing > 0)); then
        if job=$(sbatch --parsable --job-name="$companions" --array="1-$missing" ${nodes:+"--exclude=$nodes"} "$companion_script"); then
          echo "# companion job $job is queued: $missing of $most_nodes nodes are missing${nodes:+; without $nodes}"
        fi
        period=$((period < 900 ? period + 30 : 900))
      fi
    fi
    sleep "$period"
  done
}

)bash");
}

/// The function await(), which leaves the exit status of the process $1 in `status`. Traps must set `signalled`.
constexpr std::string_view await_function = R"bash(# A signal for this script ends wait, but not the process
await() {
  while true; do
    signalled='' status=0
    wait "$1" || status=$?
    if [[ -z $signalled ]]; then return 0; fi
  done
}
)bash";

/// The function run_controller(), which leaves the controller's exit status in `status`.
void write_controller(Script& script, const SbatchRequest& request, const JobComponent& nodes) {
  const ElasticNodes& elastic = *request.elastic;
  script.line("controller=(");
  script.word(shell_quote(elastic.controller.string()));
  script.word("\"$elastic\"");
  script.word(fmt::format("--plan {}", shell_quote(request.plan_path.string())));
  script.word(fmt::format("--min-ranks {}", elastic.least * nodes.tasks_per_node));
  script.word(fmt::format("--max-ranks {}", elastic.most * nodes.tasks_per_node));
  for (const std::string& argument : elastic.controller_arguments) script.word(shell_quote(argument));
  script.line(")");
  script.text(await_function);
  script.text(
      R"bash(# Ends the controller ($1) when all ranks have ended before any training began: they would not come back
watch_ranks() {
  while kill -0 "$ranks" 2>/dev/null; do sleep 2; done
  sleep 5 # the controller may be ending, too
  if grep -q '"what":"epoch"' "$elastic/journal.jsonl" 2>/dev/null; then return; fi
  echo '# no rank could start: see the errors above' >&2
  touch "$elastic/no-ranks"
  kill "$1" 2>/dev/null || true
}
# A controller that was killed starts again, and the ranks reconnect; not at the end of the job
run_controller() {
  local process start watcher
  for ((start = 0; start < 20; ++start)); do
    "${controller[@]}" &
    process=$!
    watch_ranks "$process" &
    watcher=$!
    await "$process"
    kill "$watcher" 2>/dev/null || true
    if [[ -e $elastic/no-ranks ]]; then wait "$ranks" || status=$?; fi
    if ((status < 128)) || [[ -n $ending || -e $elastic/no-ranks ]]; then return 0; fi
    echo "# the controller was ended by signal $((status - 128)): it starts again" >&2
    sleep 1
  done
}

)bash");
}

}  // namespace

Result<void> check_elastic(const JobLayout& layout, const SbatchRequest& request) {
  const ElasticNodes& elastic = *request.elastic;
  if (request.nodes.size() > 1)
    return fail(ErrorCode::invalid_input, "an elastic training is on nodes of one kind, and the plan is for several",
                "make a plan for one, with --pin gpu=NAME, or submit it without --elastic");
  if (elastic.least < 1 || elastic.most < elastic.least)
    return fail(ErrorCode::invalid_input, fmt::format("{}-{} nodes are impossible", elastic.least, elastic.most),
                "write --elastic MIN-MAX");
  int nodes = 0;
  for (const JobComponent& component : layout.components) nodes += component.nodes;
  if (nodes < elastic.least || nodes > elastic.most)
    return fail(ErrorCode::invalid_input,
                fmt::format("the plan is for {}, not for {} to {}", count(nodes, "node"), elastic.least, elastic.most),
                "use another --elastic MIN-MAX, or make a plan for so many nodes (--max-nodes)");
  if (!request.array.empty())
    return fail(ErrorCode::invalid_input, "the tasks of a job array cannot be elastic", "submit one plan at a time");
  if (request.continuation != Continuation::requeue)
    return fail(ErrorCode::invalid_input, "an elastic training that loses the node of its script has to be requeued",
                "use --when-stopped requeue");
  if (request.spare_nodes > 0)
    return fail(ErrorCode::invalid_input, "an elastic training has no spare nodes besides those of MIN-MAX",
                "leave out --spare-nodes");
  return {};
}

void write_elastic_training(Script& script, const SbatchRequest& request, const JobComponent& nodes) {
  script.comment("Where the controller, the ranks and the companion jobs meet");
  script.line(fmt::format("export elastic={}", shell_quote((request.run_directory / "elastic").string())));
  script.text(R"bash(mkdir -p "$elastic"
rm -rf "$elastic/over" "$elastic/controller.json" "$elastic"/{left-out,leaving,no-ranks}
mkdir "$elastic/left-out"
start=$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
# The ranks of an earlier start are gone: this one goes on from the newest checkpoint
if [[ -e $elastic/journal.jsonl ]]; then mv "$elastic/journal.jsonl" "$elastic/journal-before-$start.jsonl"; fi
events_before=0
if [[ -e $elastic/events.jsonl ]]; then events_before=$(wc --lines <"$elastic/events.jsonl"); fi
companions="$SLURM_JOB_NAME-$SLURM_JOB_ID"
)bash");
  script.line(request.run_file.empty() ? "run_file=run-$start.h5"
                                       : fmt::format("run_file={}", shell_quote(request.run_file.string())));
  script.text(R"bash(echo "$run_file" >"$elastic/run-file"

)bash");
  write_elastic_launch(script, request, nodes);
  write_train(script, request);
  write_rank(script, request, nodes, JobPart::job);
  if (request.check_nodes) write_newcomer_check(script, request, nodes);
  write_companions(script, request);
  write_controller(script, request, nodes);

  script.comment("The ranks get these signals, too, and end with a checkpoint; the controller ends after them");
  script.line("signalled='' ending='' cancelled='' status=0");
  script.text(R"bash(# shellcheck disable=SC2317  # the traps call it
end() {
  signalled=1 ending=1
  scancel --me --name="$companions" --state=PENDING 2>/dev/null || true
}
# scancel ends this script 30 s later (KillWait): the companions have to leave, too
# shellcheck disable=SC2317  # the trap calls it
cancel() {
  cancelled=1
  end
  scancel --me --name="$companions" 2>/dev/null || true
}
trap end USR2
trap cancel TERM
)bash");
  if (request.check_nodes) script.line("check_nodes || status=$?");
  script.line("if ((status == 0)); then");
  script.line("  " + start_of_ranks(request, nodes) + " &");
  script.text(R"bash(  ranks=$!
  keep_companions &
  keeper=$!
  run_controller
  # Nobody begins any more, and companions end
  echo "$status" >"$elastic/over"
  kill "$keeper" 2>/dev/null || true
  scancel --me --name="$companions" --state=PENDING 2>/dev/null || true
  for ((try = 0; try < 60; ++try)); do # until all ranks have ended
    if ! kill -0 "$ranks" 2>/dev/null; then break; fi
    sleep 1
  done
  kill "$ranks" 2>/dev/null || true
  scancel --me --name="$companions" 2>/dev/null || true
  if own=$(own_nodes); then note_lost_nodes "$own"; fi
fi

# What was lost, for whoever reads the end of the log
tail --lines=+$((events_before + 1)) "$elastic/events.jsonl" 2>/dev/null |
  sed -n '/"what":"lost"/s/.*"host":"\([^"]*\)","how":"\([^"]*\)".*/lost a rank on \1: it \2/p' |
  sort | uniq --count | sed 's/^ *\([0-9]*\) /# \1 x /' || true
for file in "$elastic"/left-out/*; do
  if [[ -e $file ]]; then echo "# node ${file##*/} was left out: $(head --lines=1 "$file")"; fi
done
)bash");
  write_ending(script, request);
  script.line("exit \"$status\"");
}

Result<std::string> companion_script(const Plan& plan, const SbatchRequest& request) {
  const auto layout = lay_out_job(plan, request);
  if (!layout) return fail(layout.error());
  SAILOR_CHECK(check_elastic(*layout, request));
  const JobLayout one{.components = {layout->components.front()}, .in_plan_order = false};
  const JobComponent& nodes = one.components.front();
  Script script;
  script.line("#!/bin/bash");
  script.comment(
      "Written by sailor-submit: one node more for the elastic training in this folder, whose job hands it in");
  script.blank();
  SAILOR_CHECK(write_resources(script, plan, request, one, JobPart::companion));
  script.blank();
  script.comment("Any error ends the job, with its own exit status");
  script.line("set -euo pipefail");
  script.line(fmt::format("cd -- {}", shell_quote(request.run_directory.string())));
  script.line(fmt::format("export elastic={}", shell_quote((request.run_directory / "elastic").string())));
  script.text(R"bash(# Whether the training's job runs; also where slurmctld does not answer
training_runs() {
  local jobs
  if [[ -e $elastic/over ]]; then return 1; fi
  jobs=$(squeue --noheader --me --states=RUNNING --format='%i,') || return 0
  [[ $jobs == *"${SLURM_JOB_NAME##*-},"* ]]
}
if [[ ! -e $elastic/controller.json ]] || ! training_runs; then
  echo '# the training is over'
  exit 0
fi
run_file=$(<"$elastic/run-file")

)bash");
  write_environment(script, request);
  write_elastic_launch(script, request, nodes);
  write_train(script, request);
  write_rank(script, request, nodes, JobPart::companion);
  write_newcomer_check(script, request, nodes);
  script.text(await_function);
  script.text(R"bash(# The training leaves this node before the job ends: its controller reads these names
rm -f "$elastic/leaving/$SLURMD_NODENAME"
# shellcheck disable=SC2317  # the trap calls it
leave() {
  signalled=1
  mkdir -p "$elastic/leaving"
  touch "$elastic/leaving/$SLURMD_NODENAME"
}
trap leave USR2
check_nodes
)bash");
  script.line(start_of_ranks(request, nodes) + " &");
  script.text(R"bash(ranks=$!
(
  while sleep 30; do
    if ! training_runs; then
      sleep 30 # ranks that are told of the end need no help
      kill "$ranks"
    fi
  done
) &
guard=$!
await "$ranks"
kill "$guard" 2>/dev/null || true
# The job of the training asks no more for a node on which ranks fail again and again
if ((status != 0)) && training_runs; then
  echo "its ranks ended with status $status" >"$elastic/left-out/$SLURMD_NODENAME"
fi
exit "$status"
)bash");
  return script.take();
}

}  // namespace sailor::slurm

#include "slurm/query.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <ctime>
#include <map>
#include <set>

#include "core/text.hpp"
#include "slurm/compat.hpp"

namespace sailor::slurm {

namespace {

/// Owns the resources of libslurm: its threads, and from 23.02 on its plugins.
class Session {
 public:
  explicit Session(const std::filesystem::path& configuration) {
    slurm_init(configuration.empty() ? nullptr : configuration.c_str());
  }
  ~Session() { slurm_fini(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

/// `unavailable` when nobody answered, `failure` when slurmctld or the library refused.
tl::unexpected<Error> slurm_error(std::string_view call) {
  const int number = errno;
  const bool silent =
      number < 1000 ||  // an error of the operating system
      number == SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT ||
      (number >= SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR && number <= SLURMCTLD_COMMUNICATIONS_SHUTDOWN_ERROR);
  if (silent) return fail(ErrorCode::unavailable, slurm_strerror(number));
  return fail(ErrorCode::failure, fmt::format("{}: {}", call, slurm_strerror(number)));
}

std::string text(const char* value) { return value == nullptr ? "" : value; }

std::string join_reason(std::string_view word, const char* reason) {
  return reason == nullptr || *reason == '\0' ? std::string(word) : fmt::format("{}: {}", word, reason);
}

struct NodeCondition {
  NodeState state = NodeState::idle;
  std::string reason;
};

/// Whether a job can have the node; flags are checked in sinfo's order of priority. POWERED_DOWN is ignored, since
/// Slurm wakes these nodes, and so is PLANNED: these nodes are idle until the job they wait for starts. `ours`: the job
/// is in the reservation that has the node.
NodeCondition condition_of(std::uint64_t state, const char* reason, bool ours) {
  const std::uint64_t base = state & NODE_STATE_BASE;
  const auto has = [&](std::uint64_t flag) { return (state & flag) != 0; };
  const auto out = [&](std::string_view word) {
    return NodeCondition{NodeState::unavailable, join_reason(word, reason)};
  };
  if (base == NODE_STATE_DOWN) return out(has(NODE_STATE_DRAIN) ? "down, drained" : "down");
  if (base == NODE_STATE_ERROR) return out("error");
  if (base == NODE_STATE_UNKNOWN) return out(state_not_known);
  if (has(NODE_STATE_DRAIN)) return out("drained");
  if (has(NODE_STATE_FAIL)) return out("failing");
  if (has(NODE_STATE_NO_RESPOND)) return out("not responding");
  if (has(NODE_STATE_INVALID_REG)) return out("invalid registration");
  if (!ours && has(NODE_STATE_MAINT)) return out("in a maintenance reservation");
  if (!ours && has(NODE_STATE_RES)) return out("reserved");
  if (has(NODE_STATE_REBOOT_ISSUED)) return out("rebooting");
  if (has(NODE_STATE_POWERING_DOWN)) return out("powering down");
  if (has(compat::blocked_flag)) return out("blocked by an exclusive topology");
  if (base == NODE_STATE_MIXED) return {NodeState::mixed, {}};
  // A completing node is still cleaning up after its job.
  if (base == NODE_STATE_ALLOCATED || has(NODE_STATE_COMPLETING)) return {NodeState::allocated, {}};
  return {NodeState::idle, {}};
}

int cores_of(const node_info_t& node) {
  const int cpus = compat::usable_cpus(node);
  const int threads = std::max<int>(node.threads, 1);
  // CPUs may count threads or cores, as the administrator chose; sockets and cores per socket say which.
  const int cores = std::max<int>(node.sockets, 1) * std::max<int>(node.cores, 1);
  return node.cpus > cores ? std::max(cpus / threads, 1) : cpus;
}

/// The words of a list such as AllowAccounts; empty if it allows all.
std::vector<std::string> words_of(const char* list) {
  std::vector<std::string> words;
  if (list == nullptr) return words;
  for (const std::string& word : split(list, ',')) words.push_back(printable(word));
  if (words.size() == 1 && (equal_ignoring_case(words.front(), "ALL") || words.front() == "(null)")) words.clear();
  return words;
}

/// The top bit of a memory limit says whether it is per CPU.
void set_memory(std::uint64_t value, std::optional<Bytes>& per_node, std::optional<Bytes>& per_cpu) {
  if (value == 0 || value == NO_VAL64 || value == INFINITE64) return;
  const std::uint64_t mebibytes = value & ~MEM_PER_CPU;
  if (mebibytes > 0) ((value & MEM_PER_CPU) != 0 ? per_cpu : per_node) = static_cast<double>(mebibytes) * mib;
}

/// "DefCpuPerGPU=4,DefMemPerGPU=1000"
void set_memory_per_gpu(const char* job_defaults, std::optional<Bytes>& per_gpu) {
  constexpr std::string_view key = "DefMemPerGPU=";
  for (const std::string& word : split(text(job_defaults), ','))
    if (double mebibytes = 0.0; word.starts_with(key) && word.size() > key.size()) {
      std::from_chars(word.data() + key.size(), word.data() + word.size(), mebibytes);
      if (mebibytes > 0.0) per_gpu = mebibytes * mib;
    }
}

/// A partition's own limits, else those of the cluster.
void set_memory_limits(const partition_info_t& record, const slurm_conf_t& settings, Partition& partition) {
  set_memory_per_gpu(record.job_defaults_str, partition.default_memory_per_gpu);
  if (!partition.default_memory_per_gpu) {
    const double mebibytes = compat::default_memory_per_gpu_mib(settings);
    if (mebibytes > 0.0) partition.default_memory_per_gpu = mebibytes * mib;
  }
  set_memory(record.def_mem_per_cpu != 0 ? record.def_mem_per_cpu : settings.def_mem_per_cpu,
             partition.default_memory_per_node, partition.default_memory_per_cpu);
  set_memory(record.max_mem_per_cpu != 0 ? record.max_mem_per_cpu : settings.max_mem_per_cpu,
             partition.most_memory_per_node, partition.most_memory_per_cpu);
}

/// Slurm says "none" in three ways.
bool is_limit(std::uint32_t value) { return value != INFINITE && value != NO_VAL && value > 0; }
int as_count(std::uint32_t value) { return static_cast<int>(std::min<std::uint32_t>(value, 1U << 20U)); }

Result<std::vector<Partition>> load_partitions(const slurm_conf_t& settings,
                                               std::map<std::string, std::vector<std::string>>& partitions_of_node) {
  partition_info_msg_t* raw = nullptr;
  if (slurm_load_partitions(std::time_t{0}, &raw, SHOW_ALL) != SLURM_SUCCESS)
    return slurm_error("reading the partitions");
  const compat::Partitions message(raw);
  std::vector<Partition> partitions;
  for (std::uint32_t i = 0; i < message->record_count; ++i) {
    const partition_info_t& record = message->partition_array[i];
    if (record.name == nullptr) continue;
    Partition partition;
    partition.name = record.name;
    partition.up = (record.state_up & PARTITION_SCHED) != 0;
    partition.takes_jobs = (record.state_up & PARTITION_SUBMIT) != 0;
    partition.is_default = (record.flags & PART_FLAG_DEFAULT) != 0;
    partition.root_only = (record.flags & PART_FLAG_ROOT_ONLY) != 0;
    partition.needs_reservation = (record.flags & PART_FLAG_REQ_RESV) != 0;
    if (is_limit(record.max_time)) partition.time_limit = Seconds(60.0 * record.max_time);  // Slurm counts minutes
    if (is_limit(record.default_time)) partition.default_time = Seconds(60.0 * record.default_time);
    if (is_limit(record.max_nodes)) partition.most_nodes = as_count(record.max_nodes);
    if (is_limit(record.min_nodes)) partition.least_nodes = as_count(record.min_nodes);
    if (is_limit(record.max_cpus_per_node))
      partition.most_cpus_per_node = static_cast<int>(std::min<std::uint32_t>(record.max_cpus_per_node, 65536));
    partition.exclusive_nodes = record.max_share == 0;
    set_memory_limits(record, settings, partition);
    partition.billing_weights = printable(text(record.billing_weights_str));
    partition.qos = words_of(record.qos_char).empty() ? "" : words_of(record.qos_char).front();
    partition.allowed_accounts = words_of(record.allow_accounts);
    partition.denied_accounts = words_of(record.deny_accounts);
    partition.allowed_groups = words_of(record.allow_groups);
    partition.allowed_qos = words_of(record.allow_qos);
    partition.denied_qos = words_of(record.deny_qos);
    for (const std::string& node : compat::expand_hosts(record.nodes))
      partitions_of_node[node].push_back(partition.name);
    partitions.push_back(std::move(partition));
  }
  return partitions;
}

/// `hidden` gets the nodes that partitions have and slurmctld does not show.
Result<std::vector<NodeRecord>> load_nodes(const std::map<std::string, std::vector<std::string>>& partitions_of_node,
                                           const std::set<std::string>& our_nodes,
                                           std::map<std::string, std::vector<std::string>>& hidden) {
  node_info_msg_t* raw = nullptr;
  // Without SHOW_MIXED a partly used node reads as ALLOCATED. All nodes are asked for: the answer for a single one
  // may be out of date.
  if (slurm_load_node(std::time_t{0}, &raw, SHOW_ALL | SHOW_DETAIL | SHOW_MIXED) != SLURM_SUCCESS)
    return slurm_error("reading the nodes");
  const compat::Nodes message(raw);
  std::vector<NodeRecord> nodes;
  hidden = partitions_of_node;
  for (std::uint32_t i = 0; i < message->record_count; ++i) {
    const node_info_t& record = message->node_array[i];
    if (record.name == nullptr) continue;  // a hole: a dynamic or hidden node
    hidden.erase(record.name);
    if ((record.node_state & NODE_STATE_BASE) == NODE_STATE_FUTURE) continue;
    const NodeCondition available = condition_of(record.node_state, record.reason, our_nodes.contains(record.name));
    const compat::Usage used = compat::usage_of(record);
    NodeRecord node{.name = record.name,
                    .gres = text(record.gres),
                    .cpus = compat::usable_cpus(record),
                    .cores = cores_of(record),
                    .memory_mib = static_cast<std::int64_t>(record.real_memory -
                                                            std::min(record.mem_spec_limit, record.real_memory)),
                    .state = available.state,
                    .state_reason = available.reason,
                    .partitions = {},
                    .gres_used = text(record.gres_used),
                    .cpus_used = used.cpus,
                    .memory_used_mib = static_cast<std::int64_t>(used.memory_mib),
                    .features = words_of(record.features_act),
                    .leaf_switch = {}};
    if (const auto found = partitions_of_node.find(node.name); found != partitions_of_node.end())
      node.partitions = found->second;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

/// Warning about what is not taken into account of the job's reservation; empty: none.
std::string beyond_whole_nodes(const reserve_info_t& record) {
  if ((record.flags & RESERVE_FLAG_FLEX) != 0)
    return fmt::format(
        "reservation '{}' is FLEX: jobs may use other nodes and run beyond its time, but only its own "
        "nodes are counted with",
        printable(record.name));
  if (record.core_spec_cnt > 0)
    return fmt::format("reservation '{}' has only some cores of its nodes, which are counted as whole",
                       printable(record.name));
  return {};
}

Result<std::vector<Reservation>> load_reservations(const std::string& ours, std::vector<std::string>& warnings) {
  reserve_info_msg_t* raw = nullptr;
  if (slurm_load_reservations(std::time_t{0}, &raw) != SLURM_SUCCESS) return slurm_error("reading the reservations");
  const compat::Reservations message(raw);
  std::vector<Reservation> reservations;
  for (std::uint32_t i = 0; i < message->record_count; ++i) {
    const reserve_info_t& record = message->reservation_array[i];
    if (record.name == nullptr) continue;
    if (std::string warning = beyond_whole_nodes(record); record.name == ours && !warning.empty())
      warnings.push_back(std::move(warning));
    reservations.push_back({.name = printable(record.name),
                            .start_unix_s = std::max<std::int64_t>(record.start_time, 0),
                            .end_unix_s = std::max<std::int64_t>({record.end_time, record.start_time, 0}),
                            .nodes = compat::expand_hosts(record.node_list),
                            .partition = printable(text(record.partition)),
                            .users = words_of(record.users),
                            .accounts = words_of(record.accounts),
                            .maintenance = (record.flags & RESERVE_FLAG_MAINT) != 0});
  }
  return reservations;
}

ControllerFacts facts_of(const slurm_conf_t& settings) {
  const unsigned enforced = settings.accounting_storage_enforce;
  return {.version = printable(text(settings.version)),
          .accounting = text(settings.accounting_storage_type).find("slurmdbd") != std::string::npos,
          .enforces_associations = (enforced & compat::enforce_associations) != 0,
          .enforces_limits = (enforced & compat::enforce_limits) != 0,
          .enforces_qos = (enforced & compat::enforce_qos) != 0,
          .enforces_safely = (enforced & compat::enforce_safely) != 0,
          .usage_decays = text(settings.priority_type).find("multifactor") != std::string::npos &&
                          (settings.priority_decay_hl != 0 || settings.priority_reset_period != PRIORITY_RESET_NONE),
          .billing_takes_largest = (settings.priority_flags & PRIORITY_FLAGS_MAX_TRES) != 0,
          .job_submit_plugins = printable(text(settings.job_submit_plugins)),
          .switch_type = printable(text(settings.switch_type))};
}

std::optional<std::vector<License>> load_licenses() {
  license_info_msg_t* raw = nullptr;
  if (slurm_load_licenses(std::time_t{0}, &raw, SHOW_ALL) != SLURM_SUCCESS || raw == nullptr) return std::nullopt;
  std::vector<License> licenses;
  for (std::uint32_t i = 0; i < raw->num_lic; ++i) {
    const slurm_license_info_t& record = raw->lic_array[i];
    if (record.name != nullptr)
      licenses.push_back({.name = printable(record.name),
                          .total = as_count(record.total),
                          .taken = as_count(record.in_use) + as_count(record.reserved)});
  }
  slurm_free_license_info_msg(raw);
  return licenses;
}

/// A job's description, and what it points to: libslurm neither copies nor frees that.
class JobDescription {
 public:
  explicit JobDescription(const StartQuestion& question) : question_(question) {
    slurm_init_job_desc_msg(&job_);
    job_.user_id = ::getuid();
    job_.group_id = ::getgid();
    job_.work_dir = root_.data();
    job_.script = script_.data();
    job_.environment = &environment_;  // without one slurmctld refuses the job
    job_.env_size = 1;
    set(job_.partition, question_.partition);
    set(job_.account, question_.account);
    set(job_.qos, question_.qos);
    set(job_.features, question_.constraint);
    set(job_.reservation, question_.reservation);
    const auto nodes = static_cast<std::uint32_t>(question_.nodes);
    job_.min_nodes = nodes;
    job_.max_nodes = nodes;
    job_.num_tasks = nodes * static_cast<std::uint32_t>(question_.tasks_per_node);
    job_.ntasks_per_node = static_cast<std::uint16_t>(question_.tasks_per_node);
    job_.cpus_per_task = static_cast<std::uint16_t>(question_.cpus_per_task);
    job_.min_cpus = job_.num_tasks * static_cast<std::uint32_t>(question_.cpus_per_task);
    if (question_.gpus_per_node > 0) {
      gpus_ = question_.gres_type.empty()
                  ? fmt::format("{}:{}", compat::gpu_of_job, question_.gpus_per_node)
                  : fmt::format("{}:{}:{}", compat::gpu_of_job, question_.gres_type, question_.gpus_per_node);
      set(job_.tres_per_node, gpus_);
    }
    if (question_.time_limit)
      job_.time_limit = static_cast<std::uint32_t>(std::max(std::ceil(question_.time_limit->value() / 60.0), 1.0));
    if (question_.exclusive_nodes) job_.shared = JOB_SHARED_NONE;
  }
  JobDescription(const JobDescription&) = delete;
  JobDescription& operator=(const JobDescription&) = delete;

  job_desc_msg_t* get() { return &job_; }

 private:
  static void set(char*& field, std::string& value) {
    if (!value.empty()) field = value.data();
  }

  StartQuestion question_;
  std::string root_ = "/";
  std::string script_ = "#!/bin/sh\n";
  std::string variable_ = "PATH=/usr/bin:/bin";
  char* environment_ = variable_.data();
  std::string gpus_;
  job_desc_msg_t job_{};
};

}  // namespace

bool has_libslurm() { return true; }

Result<ControllerAnswer> query_controller(const std::filesystem::path& configuration, const std::string& reservation) {
  const Session session(configuration);
  ControllerAnswer answer;
  slurm_conf_t* raw = nullptr;
  if (slurm_load_ctl_conf(std::time_t{0}, &raw) != SLURM_SUCCESS) return slurm_error("reading the configuration");
  const compat::Configuration settings(raw);
  answer.cluster_name = settings->cluster_name == nullptr ? "slurm" : settings->cluster_name;
  answer.facts = facts_of(*settings);
  std::map<std::string, std::vector<std::string>> partitions_of_node;
  auto partitions = load_partitions(*settings, partitions_of_node);
  if (!partitions) return fail(partitions.error());
  answer.partitions = *std::move(partitions);
  if (auto reservations = load_reservations(reservation, answer.warnings))
    answer.reservations = *std::move(reservations);
  else
    answer.warnings.push_back("reservations are not known: " + reservations.error().what);
  if (auto licenses = load_licenses())
    answer.facts.licenses = *std::move(licenses);
  else
    answer.warnings.emplace_back("licenses are not known: slurmctld did not tell them");
  std::set<std::string> our_nodes;
  for (const Reservation& known : answer.reservations)
    if (known.name == reservation) our_nodes.insert(known.nodes.begin(), known.nodes.end());
  auto nodes = load_nodes(partitions_of_node, our_nodes, answer.hidden_nodes);
  if (!nodes) return fail(nodes.error());
  answer.nodes = *std::move(nodes);
  // libslurm's list of switches is not made for blocks.
  const bool blocks = text(settings->topology_plugin).find("block") != std::string::npos;
  if (const auto leaves = blocks ? std::nullopt : compat::leaf_switches()) {
    set_switches(answer.nodes, *leaves);
    if (!leaves->empty()) answer.topology = "tree";
  } else {
    answer.switches_known = false;
  }
  return answer;
}

Result<ExpectedStart> query_start(const std::filesystem::path& configuration, const StartQuestion& question) {
  const Session session(configuration);
  JobDescription job(question);
  will_run_response_msg_t* answer = nullptr;
  if (slurm_job_will_run2(job.get(), &answer) != SLURM_SUCCESS) return slurm_error("will_run");
  if (answer == nullptr) return fail(ErrorCode::failure, "slurmctld gave no answer");
  // The answer is not freed: no header declares the function for it, and the process ends.
  return ExpectedStart{.start_unix_s = answer->start_time, .nodes = printable(text(answer->node_list))};
}

}  // namespace sailor::slurm

// cluster.toml and site files.
#include "apps/reference/formats.hpp"

namespace sailor::apps {

namespace {

FileTable switches_table(std::vector<FileKey> more = {}) {
  FileTable table{.name = "[switches]",
                  .about = "One stream between two nodes at different leaf switches (or blocks) of a zone.",
                  .keys = {{"bandwidth_bytes_per_s", "number", "as within a switch", "bytes per second"},
                           {"latency_s", "number", "0", "seconds; only with a bandwidth"}}};
  table.keys.insert(table.keys.begin(), more.begin(), more.end());
  return table;
}

FileTable links_table() {
  return {.name = "[[links]]",
          .about =
              "What joins two zones, in both directions; from a zone to itself, what joins its nodes. Bandwidth or "
              "egress, or both, must be there.",
          .keys = {{"from", "string", "required", "a zone"},
                   {"to", "string", "required", "a zone"},
                   {"bandwidth_bytes_per_s", "number", "the profile's link between these zones",
                    "bytes per second of one stream between two nodes"},
                   {"latency_s", "number", "0", "seconds; only with a bandwidth"},
                   {"egress_usd_per_byte", "number", "0", "USD for each byte that leaves a zone"}}};
}

}  // namespace

FileFormat cluster_format() {
  return {
      .name = "cluster.toml",
      .purpose = "description of a cluster for Sailor: partitions, nodes, zones and links",
      .paragraphs =
          {"What Slurm says of a cluster, to plan away from it. `sailor-plan -p PARTITION --save-cluster cluster.toml` "
           "writes it; by hand schema_version, name and [[nodes]] suffice. --cluster FILE names it.",
           "The zones us-central1-a and so on are those of the published links (--profile published). Nodes of one GPU "
           "type in a zone may differ in size: the largest are filled first."},
      .tables =
          {{.name = "", .keys = {schema_version_key(), {"name", "string", "required", "name of the cluster"}}},
           {.name = "[[nodes]]",
            .about = "Nodes that are alike.",
            .keys = {{"nodes", "list of strings", "none",
                      "names and ranges as Slurm writes them, such as nid[001-004]; none: a hypothetical cluster"},
                     {"count", "integer", "as many as are named, else 1", "number of nodes"},
                     {"gpu", "string", "required", "GPU type: a name or alias of the GPU catalogue"},
                     {"gpus_per_node", "integer", "required", "GPUs; for cpu the cores, one rank each"},
                     {"cpus_per_node", "integer", "gpus_per_node", "CPUs as Slurm counts them"},
                     {"cores_per_node", "integer", "0: not known", "physical cores"},
                     {"memory_per_node_bytes", "number", "required", "bytes of host memory"},
                     {"state", "string", "idle", "idle, mixed (partly taken), allocated or unavailable"},
                     {"state_reason", "string", "none", "why they are unavailable"},
                     {"gpus_free", "integer", "0", "of a mixed node: GPUs with cores and memory that no job has"},
                     {"zone", "string", "the only one", "a name of [[zones]]"},
                     {"partitions", "list of strings", "none", "names of [[partitions]]"},
                     {"switches", "list of strings", "not known",
                      "leaf switch (or block) of each of the named nodes; \"\" where it is not known"},
                     {"features", "list of strings", "none", "Slurm's active features"},
                     {"gres_type", "string", "none", "Slurm's name of the GPUs: gh200 of gpu:gh200:4"},
                     {"gpu_sockets", "string", "none", "sockets that the GPUs are bound to: 0-3"}}},
           {.name = "[[partitions]]",
            .keys = {{"name", "string", "required", "name of the partition"},
                     {"default", "boolean", "false", "jobs go there that name none"},
                     {"up", "boolean", "true", "it starts jobs"},
                     {"takes_jobs", "boolean", "true", "jobs can be submitted to it"},
                     {"time_limit_s", "number", "none", "longest job, seconds"},
                     {"default_time_s", "number", "the limit", "seconds of jobs that do not say theirs"},
                     {"least_nodes", "integer", "0", "nodes of a job, at least"},
                     {"most_nodes", "integer", "none", "nodes of a job, at most"},
                     {"most_cpus_per_node", "integer", "none", "CPUs of a job on a node, at most"},
                     {"exclusive_nodes", "boolean", "false", "jobs get whole nodes"},
                     {"root_only", "boolean", "false", "only root may submit"},
                     {"needs_reservation", "boolean", "false", "it takes only jobs that name a reservation"},
                     {"default_memory_per_gpu_bytes", "number", "none", "host memory of jobs that ask for none, bytes"},
                     {"default_memory_per_node_bytes", "number", "none", "the same for each node"},
                     {"default_memory_per_cpu_bytes", "number", "none", "the same for each CPU"},
                     {"most_memory_per_node_bytes", "number", "none", "host memory of a job, at most, bytes"},
                     {"most_memory_per_cpu_bytes", "number", "none", "the same for each CPU"},
                     {"billing_weights", "string", "none", "Slurm's TRESBillingWeights: CPU=1.0,Mem=0.25G"},
                     {"qos", "string", "none", "QOS whose limits hold for all its jobs"},
                     {"allowed_accounts", "list of strings", "all", "accounts that may use it"},
                     {"denied_accounts", "list of strings", "none", "accounts that may not"},
                     {"allowed_groups", "list of strings", "all", "Unix groups that may use it"},
                     {"allowed_qos", "list of strings", "all", "QOS that may use it"},
                     {"denied_qos", "list of strings", "none", "QOS that may not"}}},
           {.name = "[[zones]]",
            .about = "Nodes near each other, with prices of their own.",
            .keys = {{"name", "string", "required", "name of the zone"},
                     {"region", "string", "the name", "region of the zone"},
                     {"prices", "list of tables", "the cluster's", "[[zones.prices]]: as [[prices]]"}}},
           {.name = "[[zones.prices]]",
            .keys = {{"gpu", "string", "required", "GPU type"},
                     {"usd_per_hour", "number", "required", "USD per device and hour in this zone"}}},
           links_table(),
           switches_table(
               {{"kind", "string", "not known", "what the nodes' switches are: tree (leaf switches) or block"}}),
           {.name = "[network]",
            .about = "Bandwidth of one stream, from which links are estimated that were not measured.",
            .keys = {{"between_nodes_bytes_per_s", "number", "not known", "bytes per second from node to node"},
                     {"within_node_bytes_per_s", "number", "the catalogue's", "bytes per second inside a node"}}},
           {.name = "[[prices]]",
            .keys = {{"gpu", "string", "required", "GPU type"},
                     {"usd_per_hour", "number", "required", "USD per device and hour"}}},
           {.name = "[[reservations]]",
            .keys = {{"name", "string", "required", "name of the reservation"},
                     {"start_unix_s", "integer", "required", "begin, seconds since 1970"},
                     {"end_unix_s", "integer", "required", "end, seconds since 1970"},
                     {"nodes", "list of strings", "none", "its nodes"},
                     {"partition", "string", "any", "partition"},
                     {"users", "list of strings", "none", "who may use it; -anna: who may not"},
                     {"accounts", "list of strings", "none", "the same for accounts"},
                     {"maintenance", "boolean", "false", "it is for maintenance"}}},
           {.name = "[[left_out]]",
            .about = "Nodes that Slurm has and no plan can use; sailor-plan --save-cluster writes them.",
            .keys = {{"nodes", "list of strings", "required", "their names"},
                     {"partitions", "list of strings", "none", "their partitions"},
                     {"reason", "string", "required", "why"},
                     {"remedy", "string", "none", "what to do about it"}}}},
      .example = R"(schema_version = 1
name = "four nodes"
[[partitions]]
name = "normal"
[[nodes]]
nodes = ["nid[001-004]"]  # as Slurm writes lists of nodes; or only count = 4
gpu = "GH200-96"
gpus_per_node = 4
memory_per_node_bytes = 800e9
partitions = ["normal"]
)"};
}

FileFormat site_format() {
  return {
      .name = "sailor-site",
      .purpose = "site file of Sailor: what Slurm does not know of a cluster",
      .paragraphs = {"A site file has prices, zones and links, what jobs need to start (MPI type, constraint, "
                     "variables, options of "
                     "srun and sbatch), cores and NUMA nodes beside each GPU, and what healthy nodes reach. Sailor "
                     "takes the file "
                     "whose cluster_names match Slurm's ClusterName, or the one that --site names, else generic. The "
                     "files lie in "
                     "share/sailor/sites (slurm/sites of the source tree); SAILOR_SITES names another folder."},
      .tables =
          {{.name = "",
            .keys = {schema_version_key(),
                     {"name", "string", "required", "name of the site"},
                     {"title", "string", "none", "a line about it"},
                     {"cluster_names", "list of strings", "none",
                      "ClusterName of slurm.conf, in letters of either case; * stands for anything"}}},
           {.name = "[launch]",
            .about = "How jobs start.",
            .keys = {{"mpi", "string", "pmix", "srun --mpi=TYPE"},
                     {"exclusive_nodes", "boolean", "false", "jobs get whole nodes anyway: ask for them"},
                     {"constraint", "string", "none", "sbatch --constraint"},
                     {"memory_per_node_gib", "integer", "what the plan needs",
                      "GiB of host memory that jobs on GPUs ask for on every node (sbatch --mem)"},
                     {"one_gpu_per_task", "boolean", "false",
                      "srun --gpus-per-task=1: every rank sees its own GPU only, and NCCL has no NVLink between ranks"},
                     {"near_nodes", "boolean", "true", "ask for nodes near each other (--switches, --segment)"},
                     {"no_core_files", "boolean", "false", "ulimit -c 0"},
                     {"sbatch_options", "list of strings", "none", "further options of sbatch"},
                     {"srun_options", "list of strings", "none", "further options of srun"},
                     {"environment", "string", "none", "the usual one of [[environments]]"}}},
           {.name = "[launch.variables]",
            .about = "Environment variables of every job.",
            .keys = {{"NAME", "string", "none", "value of the variable NAME"}}},
           {.name = "[[environments]]",
            .about = "Ways to bring the software to the nodes (--software).",
            .keys = {{"name", "string", "required", "name of the environment"},
                     {"title", "string", "none", "a line about it"},
                     {"image_option", "string", "none", "option of srun that takes the image: --uenv, --environment"},
                     {"view_option", "string", "none", "option of srun that takes the view of a uenv"},
                     {"view", "string", "none", "the usual view"},
                     {"mpi", "string", "that of [launch]", "srun --mpi=TYPE"},
                     {"srun_options", "list of strings", "none", "further options of srun"}}},
           {.name = "[environments.variables]", .keys = {{"NAME", "string", "none", "value of the variable NAME"}}},
           {.name = "[environments.pipeline_variables]",
            .about = "In addition, for plans whose stages send to each other.",
            .keys = {{"NAME", "string", "none", "value of the variable NAME"}}},
           {.name = "[check]",
            .about = "What healthy nodes reach, for sailor-check; bandwidths are for GPUs.",
            .keys = {{"all_reduce_between_nodes_bytes_per_s", "number", "not checked", "at least"},
                     {"all_reduce_within_node_bytes_per_s", "number", "not checked", "at least"},
                     {"all_reduce_all_bytes_per_s", "number", "not checked", "at least, over all ranks"},
                     {"send_between_nodes_bytes_per_s", "number", "not checked", "at least"},
                     {"send_within_node_bytes_per_s", "number", "not checked", "at least"},
                     {"write_per_node_bytes_per_s", "number", "not checked",
                      "at least, to the folder of --write-to when all nodes write at once"},
                     {"fabric_provider", "string", "not checked", "libfabric's provider that fi_info has to find: cxi"},
                     {"idle_temperature_celsius", "number", "not checked", "degrees Celsius of an idle GPU, at most"},
                     {"used_memory_share", "number", "not checked", "0 to 1: used share of a GPU's memory, at most"},
                     {"slower_than_median", "number", "sailor-check's",
                      "0 to 1: a node that is slower than the median by more is named"}}},
           {.name = "[[prices]]",
            .about = "Prices of whole nodes; those of GPUs are in the GPU catalogue.",
            .keys = {{"gpu", "string", "required", "GPU type"},
                     {"usd_per_node_hour", "number", "required", "USD per node and hour"},
                     {"gpus_per_node", "integer", "required", "GPUs of such a node"}}},
           {.name = "[[zones]]",
            .about = "Nodes near each other.",
            .keys = {{"name", "string", "required", "name of the zone"},
                     {"region", "string", "the name", "region of the zone"},
                     {"nodes", "list of strings", "required", "patterns of node names: n1*"},
                     {"prices", "list of tables", "none", "[[zones.prices]]: as in cluster.toml"}}},
           {.name = "[[zones.prices]]",
            .keys = {{"gpu", "string", "required", "GPU type"},
                     {"usd_per_hour", "number", "required", "USD per device and hour in this zone"}}},
           links_table(),
           switches_table(),
           {.name = "[limits]",
            .about = "The preflight warns above these.",
            .keys = {{"communicators_per_rank", "integer", "none", "communicators that a rank is in"},
                     {"communicators_per_job", "integer", "none", "communicators of a job"}}},
           {.name = "[[gpu_types]]",
            .about = "What GPUs are that Slurm's GRES types and features do not tell.",
            .keys = {{"gpu", "string", "required", "GPU type: a name of the catalogue"},
                     {"nodes", "list of strings", "all", "patterns of node names"},
                     {"gres_type", "string", "any", "of GPUs that Slurm calls so"},
                     {"untyped", "boolean", "false", "of GPUs without a type (Gres=gpu:4)"}}},
           {.name = "[[nodes]]",
            .about = "Cores and memory beside each GPU of a node.",
            .keys = {{"gpu", "string", "required", "GPU type"},
                     {"cores", "list of pairs", "required",
                      "first and last core beside each GPU: [[0, 71], [72, 143]]"},
                     {"numa_nodes", "list of integers", "none", "NUMA node of these cores"},
                     {"memory_nodes", "list of integers", "none", "NUMA nodes that host memory may come from"}}}},
      .example = R"(schema_version = 1
name = "my-cluster"
title = "8 nodes of four A100"
cluster_names = ["my-cluster"]
[launch]
mpi = "pmix"
exclusive_nodes = true
[launch.variables]
NCCL_SOCKET_IFNAME = "ib0"
[[prices]]
gpu = "A100-40"
usd_per_node_hour = 12.0
gpus_per_node = 4
[[nodes]]
gpu = "A100-40"
cores = [[0, 15], [16, 31], [32, 47], [48, 63]]
numa_nodes = [0, 1, 2, 3]
[check]
all_reduce_between_nodes_bytes_per_s = 15e9
slower_than_median = 0.2
)"};
}

}  // namespace sailor::apps

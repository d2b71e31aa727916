// The dist_info block: where the ranks of a run are, and what they use.
#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>

#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"
#include "src/device/cuda.hpp"
#include "src/train/loop/startup_report.hpp"

namespace choir {
namespace {

/// The batch system that started this job, found by its environment variables.
std::string scheduler() {
  constexpr std::array<std::array<const char*, 2>, 4> kKnown{{{"PBS_JOBID", "PBS"},
                                                              {"SLURM_JOB_ID", "SLURM"},
                                                              {"LSB_JOBID", "LSF"},
                                                              {"FLUX_JOB_ID", "Flux"}}};
  for (const auto& [variable, name] : kKnown)
    if (const char* id = std::getenv(variable)) return fmt::format("{} {}", name, id);
  return "none";
}

/// The name of this machine: that of jobs/sites and `choir doctor`, that of the batch system, or
/// the host.
std::string machine_name() {
  const auto from = [](const char* name) { return std::getenv(name); };
  if (const char* site = from("SITE")) return site;
  for (const char* name : {"NERSC_HOST", "LMOD_SYSTEM_NAME", "SLURM_CLUSTER_NAME", "PBS_O_HOST"})
    if (const char* known = from(name); known != nullptr && *known != 0) return known;
  return host_name();
}

/// The file with the hosts of the job, or the command that started it, if the launcher sets them.
std::string told(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) return value;
  return "none";
}

/// GPUs, each counted once, even if several ranks see or use it.
struct NodeGpus {
  std::int64_t of_node = 0;    ///< that ranks of this node see
  std::int64_t available = 0;  ///< that ranks of all nodes see
  std::int64_t used = 0;       ///< by ranks of all nodes
};

/// All zero for ranks without a GPU (`card` is null). Collective over the world.
NodeGpus gpus_of_nodes(Mesh& mesh, const cuda::Card* card) {
  std::set<std::string> seen;
  if (card != nullptr)
    for (const cuda::Card& each : cuda::availability().cards) seen.insert(each.uuid);
  const auto own = nlohmann::json{
      {"node", mesh.node_index()}, {"sees", seen}, {"uses", card == nullptr ? "" : card->uuid}};
  std::map<std::int64_t, std::set<std::string>> of_node;
  std::set<std::string> used;
  for (const std::string& text : gather_texts(mesh.world(), dumped(own))) {
    if (text.empty()) continue;
    const nlohmann::json rank = parsed_json(text);
    for (const auto& uuid : rank["sees"])
      of_node[rank["node"].get<std::int64_t>()].insert(uuid.get<std::string>());
    if (const auto uuid = rank["uses"].get<std::string>(); !uuid.empty()) used.insert(uuid);
  }
  NodeGpus gpus;
  for (const auto& [node, cards] : of_node) {
    gpus.available += std::ssize(cards);
    if (node == mesh.node_index()) gpus.of_node = std::ssize(cards);
  }
  gpus.used = std::ssize(used);
  return gpus;
}

/// Each host once, in the order of ranks.
std::string hosts_of(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> hosts;
  for (const std::string& host : host_of_rank)
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  return join(hosts, ",");
}

}  // namespace

// The names are those of ezpz, if they apply here.
DistInfo dist_info(Mesh& mesh, const Device& device, const std::string& device_reason) {
  Communicator& data = mesh.along(Axis::data);
  const std::vector<std::string> host_of_rank = gather_texts(mesh.world(), host_name());
  const cuda::Card* card = cuda::card_of(device);
  const NodeGpus gpus = gpus_of_nodes(mesh, card);
  const std::string why = device_reason.empty() ? "" : fmt::format(" (auto: {})", device_reason);
  const auto number = [](std::int64_t value) { return fmt::format("{}", value); };
  return {
      {"DEVICE", device.description() + why},
      {"DEVICE_ID", card == nullptr ? "none" : card->pci},
      {"DISTRIBUTED_BACKEND", device.host_visible() ? "mpi" : data.transport()},
      {"GPUS_PER_NODE", number(gpus.of_node)},
      {"HOSTS", hosts_of(host_of_rank)},
      {"HOSTFILE", told({"PBS_NODEFILE", "SLURM_JOB_NODELIST", "OMPI_MCA_orte_default_hostfile"})},
      {"HOSTNAME", host_name()},
      {"LOCAL_RANK", number(mesh.node().rank())},
      {"MACHINE", machine_name()},
      {"NUM_NODES", number(mesh.nodes())},
      {"NGPUS", number(gpus.used)},
      {"NGPUS_AVAILABLE", number(gpus.available)},
      {"NODE_ID", number(mesh.node_index())},
      {"RANK", number(mesh.rank())},
      {"RANKS_PER_NODE", number(mesh.node().size())},
      {"THREADS_PER_RANK", number(omp_get_max_threads())},
      {"SCHEDULER", scheduler()},
      {"WORLD_SIZE_TOTAL", number(mesh.world().size())},
      {"WORLD_SIZE_IN_USE", number(mesh.layout().ranks())},
      {"LAUNCH_CMD", told({"CHOIR_LAUNCH_CMD"})},
      {"LAYOUT", mesh.layout().to_string()},
      {"DATA_PARALLEL_TRANSPORT", data.transport()},
      {"MPI", MpiSession::library_version()}};
}

std::string text_of(const DistInfo& info) {
  std::string text = "dist_info:";
  for (const auto& [name, value] : info) text += fmt::format("\n  {}={}", name, value);
  return text;
}

}  // namespace choir

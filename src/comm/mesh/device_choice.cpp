#include "choir/comm/mesh/device_choice.hpp"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "choir/comm/agreement.hpp"
#include "choir/core/cores.hpp"
#include "choir/core/error.hpp"
#include "choir/core/process.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// The NUMA nodes of this machine with their distances, and the nodes of this process's cores.
struct Numa {
  NumaDistances distances;
  std::vector<int> mine;
};

Numa look_at_numa() {
  Numa numa;
  const cpu_set_t cores = own_cores();
  std::set<int> mine;
  std::error_code ignored;
  const std::string base = "/sys/devices/system/node/node";
  for (int node = 0; fs::exists(base + std::to_string(node), ignored); ++node) {
    const std::string folder = base + std::to_string(node);
    std::ifstream line(folder + "/distance");
    auto& row = numa.distances.emplace_back();
    for (int distance = 0; line >> distance;) row.push_back(distance);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &cores) && fs::exists(fmt::format("{}/cpu{}", folder, core), ignored))
        mine.insert(node);
  }
  numa.mine.assign(mine.begin(), mine.end());
  return numa;
}

/// The text of the lowest rank that has one, "rank 3: ..."; empty if none has.
std::string first_text(Communicator& comm, const std::string& mine) {
  std::int32_t first = mine.empty() ? comm.size() : comm.rank();
  comm.all_reduce(&first, 1, DType::i32, ReduceOp::min);
  if (first == comm.size()) return "";
  std::string text = mine;
  broadcast_text(comm, text, first);
  return comm.size() == 1 ? text : fmt::format("rank {}: {}", first, text);
}

// The text that a rank sends to its node: "rank; numa numa; uuid numa uuid numa".
std::string to_text(const GpuSeeker& seeker) {
  std::string text = fmt::format("{} {}", seeker.rank, seeker.numa_nodes.size());
  for (const int node : seeker.numa_nodes) text += fmt::format(" {}", node);
  for (const VisibleGpu& gpu : seeker.gpus) text += fmt::format(" {} {}", gpu.uuid, gpu.numa_node);
  return text;
}

GpuSeeker from_text(const std::string& text) {
  std::istringstream words(text);
  GpuSeeker seeker;
  std::size_t nodes = 0;
  words >> seeker.rank >> nodes;
  seeker.numa_nodes.resize(nodes);
  for (int& node : seeker.numa_nodes) words >> node;
  for (VisibleGpu gpu; words >> gpu.uuid >> gpu.numa_node;) seeker.gpus.push_back(gpu);
  return seeker;
}

/// True if two ranks of the node share a GPU.
bool any_shared(const std::vector<GpuSeeker>& ranks, const std::vector<int>& places) {
  std::set<std::string> taken;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (!taken.insert(ranks[r].gpus[static_cast<std::size_t>(places[r])].uuid).second) return true;
  return false;
}

}  // namespace

DeviceChoice choose_device(Mesh& mesh, const DeviceRequest& request) {
  DeviceChoice choice;
  if (request.device == "cpu") return choice;
  const bool asked = request.device == "cuda";
  const cuda::Availability found = cuda::availability();
  together(mesh.world(), [&] {
    if (!asked) return;
    if (request.fp64)
      throw DeckError("device is \"cuda\", but train.precision is \"fp64\", which stays on the CPU",
                      "set device to \"cpu\", or another train.precision");
    if (found.cards.empty()) throw DeckError("device 'cuda': " + found.reason, found.hint);
  });
  if (request.fp64) {
    choice.reason = "train.precision is fp64, which stays on the CPU";
    return choice;
  }
  choice.reason = first_text(mesh.world(), found.reason);
  if (!choice.reason.empty()) return choice;
  choice.kind = DeviceKind::cuda;
  if (!asked) choice.reason = "every rank has a GPU";
  const Numa numa = look_at_numa();
  GpuSeeker mine{.rank = mesh.rank(), .numa_nodes = numa.mine, .gpus = {}};
  for (const cuda::Card& card : found.cards) mine.gpus.push_back({card.uuid, card.numa_node});
  std::vector<GpuSeeker> node;
  for (int local = 0; local < mesh.node().size(); ++local) {
    std::string text = to_text(mine);
    broadcast_text(mesh.node(), text, local);
    node.push_back(from_text(text));
  }
  std::int32_t shared = 0;
  together(mesh.world(), [&] {
    const std::vector<int> places = assign_gpus(node, numa.distances, host_name(), request.share);
    const auto place =
        static_cast<std::size_t>(places[static_cast<std::size_t>(mesh.node().rank())]);
    choice.ordinal = found.cards[place].ordinal;
    shared = any_shared(node, places);
  });
  mesh.world().all_reduce(&shared, 1, DType::i32, ReduceOp::max);
  choice.shared_cards = shared != 0;
  return choice;
}

}  // namespace choir

// The choice of each rank's device, and the assignment of GPUs to ranks with minimal total cost
// (Kuhn 1955; the variant with potentials and shortest augmenting paths, one rank at a time).

#include "src/comm/mesh/device_choice.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Cost = std::int64_t;
using Costs = std::vector<std::vector<Cost>>;  // [rows][columns], rows <= columns

constexpr int kSameNode = 10;             // distance reported by the system
constexpr Cost kPerDistance = 1'000'000;  // more than all tie-breaks together
constexpr Cost kNotVisible = Cost{1} << 50;

/// The column of each row.
std::vector<std::size_t> least_cost(const Costs& costs) {
  const std::size_t rows = costs.size(), columns = costs[0].size();
  constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();
  constexpr Cost kFar = std::numeric_limits<Cost>::max();
  // Column `columns` is the start of the augmenting path of a new row.
  std::vector<Cost> row_price(rows, 0), column_price(columns + 1, 0);
  std::vector<std::size_t> owner(columns + 1, kNobody);
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<Cost> distance(columns, kFar);
    std::vector<std::size_t> from(columns, columns);
    std::vector<bool> done(columns + 1, false);
    std::size_t at = columns;
    owner[at] = row;
    while (owner[at] != kNobody) {
      done[at] = true;
      const std::size_t r = owner[at];
      Cost step = kFar;
      std::size_t next = columns;
      for (std::size_t c = 0; c < columns; ++c) {
        if (done[c]) continue;
        const Cost reduced = costs[r][c] - row_price[r] - column_price[c];
        if (reduced < distance[c]) distance[c] = reduced, from[c] = at;
        if (distance[c] < step) step = distance[c], next = c;
      }
      for (std::size_t c = 0; c <= columns; ++c) {
        if (done[c]) {
          row_price[owner[c]] += step;
          column_price[c] -= step;
        } else if (c < columns) {
          distance[c] -= step;
        }
      }
      at = next;
    }
    for (; at != columns; at = from[at]) owner[at] = owner[from[at]];
    owner[columns] = kNobody;
  }
  std::vector<std::size_t> column_of(rows);
  for (std::size_t c = 0; c < columns; ++c)
    if (owner[c] != kNobody) column_of[owner[c]] = c;
  return column_of;
}

int distance(const NumaDistances& distances, const std::vector<int>& cores, int gpu) {
  int least = std::numeric_limits<int>::max();
  for (const int node : cores) {
    const bool known =
        gpu >= 0 && node >= 0 && static_cast<std::size_t>(node) < distances.size() &&
        static_cast<std::size_t>(gpu) < distances[static_cast<std::size_t>(node)].size();
    least = std::min(
        least, known ? distances[static_cast<std::size_t>(node)][static_cast<std::size_t>(gpu)]
                     : kSameNode);
  }
  return cores.empty() ? kSameNode : least;
}

/// Index of a GPU in a rank's list, or -1.
int place_of(const GpuSeeker& rank, const std::string& uuid) {
  const auto found = std::find_if(rank.gpus.begin(), rank.gpus.end(),
                                  [&](const VisibleGpu& gpu) { return gpu.uuid == uuid; });
  return found == rank.gpus.end() ? -1 : static_cast<int>(found - rank.gpus.begin());
}

void refuse_sharing(const std::vector<GpuSeeker>& ranks, const std::vector<int>& places,
                    const std::string& host, std::size_t gpus) {
  std::map<std::string, std::vector<std::string>> users;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    users[ranks[r].gpus[static_cast<std::size_t>(places[r])].uuid].push_back(
        std::to_string(ranks[r].rank));
  std::string clashes;
  for (const auto& [uuid, who] : users)
    if (who.size() > 1)
      clashes +=
          fmt::format("{}ranks {} on {}", clashes.empty() ? "" : "; ", join(who, ", "), uuid);
  if (clashes.empty()) return;
  throw DeckError(
      fmt::format("{}: {} ranks for {} GPU(s): {}", host, ranks.size(), gpus, clashes),
      "start one rank per GPU (and check CUDA_VISIBLE_DEVICES), or let ranks share one with "
      "parallel.share_device=true");
}

}  // namespace

std::vector<int> assign_gpus(const std::vector<GpuSeeker>& ranks, const NumaDistances& distances,
                             const std::string& host, bool share) {
  std::vector<std::string> gpus;  // of the node, in the order of first appearance
  for (const GpuSeeker& rank : ranks) {
    CHOIR_CHECK(!rank.gpus.empty(), "rank {} sees no GPU", rank.rank);
    for (const VisibleGpu& gpu : rank.gpus)
      if (std::find(gpus.begin(), gpus.end(), gpu.uuid) == gpus.end()) gpus.push_back(gpu.uuid);
  }
  // Each GPU has one column per possible use; a second use costs more than any distance.
  const std::size_t turns = ranks.size();
  Costs costs(ranks.size(), std::vector<Cost>(gpus.size() * turns, kNotVisible));
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (std::size_t g = 0; g < gpus.size(); ++g) {
      const int place = place_of(ranks[r], gpus[g]);
      if (place < 0) continue;
      const int numa = ranks[r].gpus[static_cast<std::size_t>(place)].numa_node;
      // Squared differences prefer pairs in order: (r, r) and (s, s) to (r, s) and (s, r).
      const Cost wish =
          static_cast<Cost>(ranks.size() > gpus.size() ? r * gpus.size() / ranks.size() : r);
      const Cost off = wish - static_cast<Cost>(g);
      for (std::size_t turn = 0; turn < turns; ++turn)
        costs[r][turn * gpus.size() + g] =
            static_cast<Cost>(turn) * 1000 * 256 * kPerDistance +
            distance(distances, ranks[r].numa_nodes, numa) * kPerDistance + off * off;
    }
  std::vector<int> places;
  const std::vector<std::size_t> columns = least_cost(costs);
  for (std::size_t r = 0; r < ranks.size(); ++r)
    places.push_back(place_of(ranks[r], gpus[columns[r] % gpus.size()]));
  if (!share) refuse_sharing(ranks, places, host, gpus.size());
  return places;
}

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

// The text that a rank sends to its node: "rank; numa numa; uuid numa pci uuid numa pci".
std::string to_text(const GpuSeeker& seeker) {
  std::string text = fmt::format("{} {}", seeker.rank, seeker.numa_nodes.size());
  for (const int node : seeker.numa_nodes) text += fmt::format(" {}", node);
  for (const VisibleGpu& gpu : seeker.gpus)
    text += fmt::format(" {} {} {}", gpu.uuid, gpu.numa_node, gpu.pci);
  return text;
}

GpuSeeker from_text(const std::string& text) {
  std::istringstream words(text);
  GpuSeeker seeker;
  std::size_t nodes = 0;
  words >> seeker.rank >> nodes;
  seeker.numa_nodes.resize(nodes);
  for (int& node : seeker.numa_nodes) words >> node;
  for (VisibleGpu gpu; words >> gpu.uuid >> gpu.numa_node >> gpu.pci;) seeker.gpus.push_back(gpu);
  return seeker;
}

}  // namespace

std::vector<GpuSeeker> gpu_seekers(Mesh& mesh, const cuda::Availability& found) {
  GpuSeeker mine{.rank = mesh.rank(), .numa_nodes = look_at_numa().mine, .gpus = {}};
  for (const cuda::Card& card : found.cards)
    mine.gpus.push_back({card.uuid, card.numa_node, card.pci});
  std::vector<GpuSeeker> node;
  for (int local = 0; local < mesh.node().size(); ++local) {
    std::string text = to_text(mine);
    broadcast_text(mesh.node(), text, local);
    node.push_back(from_text(text));
  }
  return node;
}

bool share_a_card(const std::vector<GpuSeeker>& ranks, const std::vector<int>& places) {
  std::set<std::string> taken;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const VisibleGpu& gpu = ranks[r].gpus[static_cast<std::size_t>(places[r])];
    if (!taken.insert(gpu.uuid).second) return true;
    if (!gpu.pci.empty() && !taken.insert(gpu.pci).second) return true;
  }
  return false;
}

std::string isolation_warning(const std::vector<GpuSeeker>& ranks, const std::string& host) {
  const bool alone = std::all_of(ranks.begin(), ranks.end(),
                                 [](const GpuSeeker& rank) { return rank.gpus.size() == 1; });
  const std::vector<int> first(ranks.size(), 0);
  if (ranks.size() < 2 || !alone || share_a_card(ranks, first)) return {};
  return fmt::format(
      "{}: each of {} ranks sees only its own GPU. If the batch system hides the others by a "
      "control group (SLURM: --gpus-per-task, --gpu-bind), NCCL cannot use P2P, and data between "
      "these GPUs go through host memory, which is about ten times slower. Request GPUs per node "
      "(--gpus-per-node): choir gives each rank its own",
      host, ranks.size());
}

std::string isolation_warning(Mesh& mesh) {
  const std::vector<GpuSeeker> node = gpu_seekers(mesh, cuda::availability());
  return first_text(mesh.world(), isolation_warning(node, host_name()));
}

DeviceChoice choose_device(Mesh& mesh, const DeviceRequest& request) {
  DeviceChoice choice;
  if (request.device == RequestedDevice::cpu) return choice;
  const bool asked = request.device == RequestedDevice::cuda;
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
  const std::vector<GpuSeeker> node = gpu_seekers(mesh, found);
  const NumaDistances distances = look_at_numa().distances;
  std::int32_t shared = 0;
  together(mesh.world(), [&] {
    const std::vector<int> places = assign_gpus(node, distances, host_name(), request.share);
    const auto place =
        static_cast<std::size_t>(places[static_cast<std::size_t>(mesh.node().rank())]);
    choice.ordinal = found.cards[place].ordinal;
    shared = share_a_card(node, places);
  });
  mesh.world().all_reduce(&shared, 1, DType::i32, ReduceOp::max);
  choice.shared_cards = shared != 0;
  return choice;
}

}  // namespace choir

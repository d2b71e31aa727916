#include "src/run/workplace.hpp"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"

namespace choir {
namespace {

DeviceTransport::Way way_of(const Deck& deck) {
  const std::string& transport = deck.parallel.transport;
  if (transport == "auto") return DeviceTransport::Way::automatic;
  if (transport == "nccl") return DeviceTransport::Way::nccl;
  return DeviceTransport::Way::staged;  // with the host transport of that name
}

/// Number of communicators of replicas in addition to that of the axis: see Sharding.
int replica_groups_of(const ParallelSection& parallel) {
  const int gathers = parallel.zero > 0 ? 1 : 0;
  return gathers + (parallel.zero_group == "all" ? 0 : 2);
}

}  // namespace

void open_device(Workplace& place, const Deck& deck) {
  Mesh& mesh = *place.mesh;
  const DeviceChoice choice = choose_device(mesh, {.device = deck.device,
                                                   .fp64 = deck.train.precision == "fp64",
                                                   .share = deck.parallel.share_device});
  place.device_reason = choice.reason;
  together(mesh.world(), [&] {
    const std::string& transport = deck.parallel.transport;
    if (choice.kind == DeviceKind::cpu && (transport == "nccl" || transport == "staged"))
      throw DeckError(fmt::format("parallel.transport is \"{}\", which needs GPU memory, but the "
                                  "device is the CPU ({})",
                                  transport, choice.reason),
                      "set parallel.transport to \"auto\"");
    place.device = make_device(choice.kind, choice.ordinal);
  });
  mesh.attach(*place.device, {.way = way_of(deck),
                              .shared_cards = choice.shared_cards,
                              .replica_groups = replica_groups_of(deck.parallel),
                              .timeout_seconds = deck.parallel.timeout,
                              .nccl_library = {}});
  if (deck.watch.calls) mesh.check_calls();
}

int choose_threads(Communicator& node) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return omp_get_max_threads();
  const cpu_set_t mine = own_cores();
  std::vector<cpu_set_t> all(static_cast<std::size_t>(node.size()));
  all[static_cast<std::size_t>(node.rank())] = mine;
  node.all_gather(all.data(), sizeof mine, DType::u8);
  const auto sharing = std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) {
    return CPU_EQUAL(&other, &mine) != 0;
  });
  const int threads = threads_of_rank(CPU_COUNT(&mine), static_cast<int>(sharing));
  omp_set_num_threads(threads);
  return threads;
}

}  // namespace choir
